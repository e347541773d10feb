"""Initializers that act on a whole model, because what they choose depends on its depth.

A residual stream adds up what its branches write. With L writes of equal size its second moment
grows with L; each rule here shrinks the weights in the branches, all of them or the last ones, so
that the sum keeps its size. They find the weights by the names of the engine's branches: `query`,
`key`, `value`, `output` in `MultiHeadAttention` and `up`, `down` in `FeedForward`.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Generator, Tensor, nn

from normbook.engine.attention import FeedForward, MultiHeadAttention
from normbook.engine.checks import (
    require_callable,
    require_choice,
    require_module,
    require_number,
    require_size,
)
from normbook.engine.initialization import kaiming_normal_, orthogonal_, xavier_normal_

WEIGHTED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def _modules(model: nn.Module, kinds: type | tuple[type, ...], expected: str) -> list[Any]:
    """List the model's modules of these kinds; having none is an error that names `expected`."""
    require_module("model", model)
    found = [module for module in model.modules() if isinstance(module, kinds)]
    if not found:
        raise ValueError(f"model must contain {expected}, got {type(model).__name__} without one")
    return found


def _branches(model: nn.Module) -> list[MultiHeadAttention | FeedForward]:
    """List the branches that write to the residual stream: two a block."""
    return _modules(model, (MultiHeadAttention, FeedForward), "a MultiHeadAttention or FeedForward")


def _zero_bias(layer: nn.Module) -> None:
    """Set a layer's bias to 0 if it has one."""
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def _draw_embedding(embedding: nn.Embedding, std: float, generator: Generator | None) -> None:
    """Draw a table from N(0, std**2); the row of a padding symbol stays 0."""
    with torch.no_grad():
        embedding.weight.normal_(0.0, std, generator=generator)
        if embedding.padding_idx is not None:
            embedding.weight[embedding.padding_idx].zero_()


# --- driven by data ---


def lsuv_(
    model: nn.Module,
    inputs: Any,
    tolerance: float = 0.1,
    attempts: int = 10,
    generator: Generator | None = None,
) -> nn.Module:
    r"""Draw orthogonal weights, then divide each layer's by the standard deviation of its outputs.

    $$W_l \leftarrow W_l / \sqrt{\mathrm{Var}[W_l x_l]}, \qquad l = 1, 2, \dots$$

    One forward pass does all linear and convolution layers in the order in which they run: each is
    scaled before the next one sees its outputs. A layer is left alone once its variance is within
    `tolerance` of 1. Biases become 0; every other parameter is left as it is, and so is the model's
    mode (in training mode a BatchNorm counts this batch).

    Shapes: `inputs` is whatever `model(inputs)` takes: one batch of real data.

    Raises: ValueError when the model has no such layer, or a layer's outputs have variance 0 or not
    a finite one (the error names it), or on a tolerance or a number of attempts out of range.

    Source: Mishkin & Matas 2016 (arXiv 1511.06422), Algorithm 1.
    """
    layers = _modules(model, WEIGHTED, "a linear or convolution layer")
    require_number("tolerance", tolerance, low=0)
    require_size("attempts", attempts)
    waiting = {module: name for name, module in model.named_modules() if module in layers}
    for layer in layers:
        orthogonal_(layer.weight, generator=generator)
        _zero_bias(layer)

    def rescale(layer: nn.Module, arguments: tuple, output: Tensor) -> Tensor:
        """Bring the outputs' variance to 1 when the layer runs for the first time."""
        if layer not in waiting:
            return output
        return _to_unit_variance(layer, waiting.pop(layer), arguments, output, tolerance, attempts)

    hooks = [layer.register_forward_hook(rescale) for layer in layers]
    try:
        with torch.no_grad():
            model(inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return model


def _to_unit_variance(
    layer: nn.Module,
    name: str,
    arguments: tuple,
    output: Tensor,
    tolerance: float,
    attempts: int,
) -> Tensor:
    """Divide a layer's weight until its outputs' variance is near 1; return these outputs."""
    for _ in range(attempts):
        variance = (output - output.mean()).square().mean().item()
        if not 0 < variance < math.inf:
            name = name or type(layer).__name__
            raise ValueError(f"outputs of {name} must have a positive variance, got {variance}")
        if abs(variance - 1) <= tolerance:
            break
        layer.weight /= math.sqrt(variance)
        output = layer.forward(*arguments)
    return output


# --- for Transformers ---


def gpt2_init_(
    model: nn.Module, std: float = 0.02, generator: Generator | None = None
) -> nn.Module:
    r"""Draw all weights from N(0, std²), those that write to the residual stream 1/√(2N) smaller.

    $$\sigma = 0.02, \qquad \sigma_\mathrm{output} = \sigma_\mathrm{down} = 0.02 / \sqrt{2N}$$

    for N blocks, of two writes each: 2N is the number of branches in the model, counted. The two
    matrices are `output` of attention and `down` of the feed-forward network, the last ones of
    their branches. Every `nn.Linear` and `nn.Embedding` is drawn and biases become 0; norms and
    parameters outside of these layers, such as learned positions, are left as they are.

    Raises: ValueError when the model has no branches, or on a negative std.

    Source: Radford et al. 2019, section 2.3: "1/√N where N is the number of residual layers", which
    nanoGPT and Hugging Face read as 2N. The released GPT-2 code does not scale.
    """
    branches = _branches(model)
    require_number("std", std, low=0)
    writers = {b.output if isinstance(b, MultiHeadAttention) else b.down for b in branches}
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            _draw_embedding(module, std, generator)
        elif isinstance(module, nn.Linear):
            scale = 1 / math.sqrt(len(writers)) if module in writers else 1.0
            nn.init.normal_(module.weight, 0.0, std * scale, generator=generator)
            _zero_bias(module)
    return model


def _xavier_branches(model: nn.Module, gain: float, generator: Generator | None) -> None:
    """Draw query and key with gain 1, value, output, up and down with `gain`; biases 0."""
    for branch in _branches(model):
        for name, layer in branch.named_children():
            if isinstance(layer, nn.Linear):
                plain = name in ("query", "key")
                xavier_normal_(layer.weight, 1.0 if plain else gain, generator)
                _zero_bias(layer)


def deepnorm_init_(model: nn.Module, beta: float, generator: Generator | None = None) -> nn.Module:
    r"""Draw every branch's weights as DeepNorm asks: Xavier with gain β, but query and key gain 1.

    $$\mathrm{gain}(W_v, W_o, W_\mathrm{up}, W_\mathrm{down}) = \beta, \qquad
      \mathrm{gain}(W_q, W_k) = 1$$

    β is (8N)**(-1/4) for one stack of N blocks, see `deepnorm_constants`; the other half of
    DeepNorm is `skip_scale=alpha` in blocks of placement "post". Attention weights sum to 1, so
    that query and key cannot change the size of a write. The branches' biases become 0; everything
    outside of the branches is left as it is.

    Raises: ValueError when the model has no branches, or on a negative beta.

    Source: Wang et al. 2022 (arXiv 2203.00555), Figure 2.
    """
    require_number("beta", beta, low=0)
    _xavier_branches(model, beta, generator)
    return model


def t_fixup_init_(
    model: nn.Module, stack: str = "encoder", generator: Generator | None = None
) -> nn.Module:
    r"""Draw a stack of N blocks so that it trains without norms and without warmup.

    $$\mathrm{gain}(W_v, W_o, W_\mathrm{up}, W_\mathrm{down}) =
      0.67\, N^{-1/4} \ \text{(encoder)}, \quad (9N)^{-1/4} \ \text{(decoder)}$$

    Every linear layer is Xavier, with gain 1 but for these four of each block; biases become 0.
    Embeddings have the standard deviation (9N)**(-1/4) / √d in both stacks, for the authors'
    N(0, d**(-1/2)), which their code reads as a standard deviation, and scales like a decoder's
    weights. (There the embedding is then multiplied by √d in the forward pass.) Norms and
    parameters outside of these layers are left as they are; the method is meant for a model that
    has no norms, `placement="none"`.

    Args:
        model: holds one stack; N is its number of attention modules, or of feed-forward networks
            where there are more. An encoder and a decoder in one model are drawn one by one.
        stack: "encoder", or "decoder", whose factor counts the three branches of a decoder's block,
            cross-attention among them.
        generator: of the draws; the global one if None.

    Raises: ValueError when the model has no branches, or on another stack.

    Source: Huang et al. 2020 (PMLR 119:4475); constants as in the authors' code
    (layer6ai-labs/T-Fixup).
    """
    branches = _branches(model)
    blocks = sum(isinstance(branch, FeedForward) for branch in branches)
    blocks = max(blocks, len(branches) - blocks)
    gains = {"encoder": 0.67 * blocks**-0.25, "decoder": (9 * blocks) ** -0.25}
    require_choice("stack", stack, gains)
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            std = gains["decoder"] / math.sqrt(module.embedding_dim)
            _draw_embedding(module, std, generator)
        elif isinstance(module, nn.Linear):
            xavier_normal_(module.weight, generator=generator)
            _zero_bias(module)
    _xavier_branches(model, gains[stack], generator)
    return model


# --- for residual networks without norms ---


class FixupBranch(nn.Module):
    r"""A branch of m linear layers with Fixup's scalars: a bias before each layer, one multiplier.

    $$f(x) = s\, W_m(\phi(\cdots \phi(W_1(x + a_1) + b_1) \cdots) + a_m)$$

    The m + (m - 1) scalar biases before the layers and the nonlinearities start at 0, the
    multiplier s at 1: together the third rule of Fixup. `Residual(FixupBranch(…),
    placement="none")` is the block; `fixup_init_` draws the weights by the other two rules.

    Shapes: input and output [..., dim]; in between [..., hidden], hidden = dim unless given.

    Raises: ValueError on fewer than 2 layers; TypeError when activation cannot be called.

    Source: Zhang et al. 2019 (arXiv 1901.09321), section 3 and Figure 1.
    """

    def __init__(
        self,
        dim: int,
        layers: int = 2,
        hidden: int | None = None,
        activation: Callable[[Tensor], Tensor] = torch.relu,
    ) -> None:
        super().__init__()
        hidden = dim if hidden is None else hidden
        require_size("dim", dim)
        require_size("layers", layers, low=2)
        require_size("hidden", hidden)
        require_callable("activation", activation)
        widths = [dim, *[hidden] * (layers - 1), dim]
        self.layers = nn.ModuleList(
            nn.Linear(widths[i], widths[i + 1], bias=False) for i in range(layers)
        )
        self.activation = activation
        self.layer_biases = nn.Parameter(torch.zeros(layers))
        self.activation_biases = nn.Parameter(torch.zeros(layers - 1))
        self.multiplier = nn.Parameter(torch.ones(()))

    def forward(self, input: Tensor) -> Tensor:
        """Apply layer after layer, with the nonlinearity between them."""
        x = self.layers[0](input + self.layer_biases[0])
        for i, layer in enumerate(self.layers[1:]):
            x = self.activation(x + self.activation_biases[i])
            x = layer(x + self.layer_biases[i + 1])
        return self.multiplier * x


def fixup_init_(
    model: nn.Module,
    classifier: nn.Module,
    nonlinearity: str = "relu",
    generator: Generator | None = None,
) -> nn.Module:
    r"""Draw a residual network of L `FixupBranch`es by all three rules of Fixup.

    1. The classifier and the last layer of each branch are 0: every block starts as the identity.
    2. Every other layer is Kaiming, and those inside branches of m layers times L**(-1/(2m-2)):
       L**(-1/2) for m = 2, L**(-1/4) for m = 3.
    3. The scalars of the branches: multipliers 1, biases 0. Biases of other layers become 0 too.

    One step of gradient descent then changes the function by an amount that does not depend on L.

    Args:
        model: the network; norms and other parameters, if it has any, are left as they are.
        classifier: its last layer, such as `model.head`.
        nonlinearity: a name that `calculate_gain` knows.
        generator: of the draws; the global one if None.

    Raises: ValueError when the model has no branch of this kind, the classifier is not one of its
    linear or convolution layers, or on an unknown nonlinearity.

    Source: Zhang et al. 2019 (arXiv 1901.09321), section 3, "Fixup initialization".
    """
    branches = _modules(model, FixupBranch, "a FixupBranch")
    layers = _modules(model, WEIGHTED, "a linear or convolution layer")
    if not any(classifier is layer for layer in layers):
        raise ValueError(
            f"classifier must be a linear or convolution layer of model, got {classifier!r}"
        )
    for layer in layers:
        kaiming_normal_(layer.weight, nonlinearity=nonlinearity, generator=generator)
        _zero_bias(layer)
    nn.init.zeros_(classifier.weight)
    with torch.no_grad():
        for branch in branches:
            for layer in branch.layers[:-1]:
                layer.weight *= len(branches) ** (-1 / (2 * len(branch.layers) - 2))
            branch.layers[-1].weight.zero_()
            branch.layer_biases.zero_()
            branch.activation_biases.zero_()
            branch.multiplier.fill_(1.0)
    return model
