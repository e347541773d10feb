"""Residual connections: blocks in six recipes, the paths through them, and what the stream says.

Blocks without norms whose recipes differ in a few numbers are one architecture: so networks of all
recipes and seeds train as one ensemble. A *path* passes each block by, or goes through it; its
length is the number of blocks that it goes through. Read-outs are for `models.Transformer` with a
final norm (LayerNorm or RMSNorm) and no pooling.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

import normalization as nz
from normbook.engine.checks import require_choice
from normbook.lab import draw
from normbook.lab.models import ResidualMLP, Transformer
from normbook.lab.probes import residual_stream

Block = Callable[[Tensor], Tensor]

# What multiplies the skip and what the branch, before anything is learned, for `depth` blocks.
RECIPES = {
    "plain": lambda depth: (0.0, 1.0),
    "unscaled": lambda depth: (1.0, 1.0),
    "1/sqrt(2)": lambda depth: (math.sqrt(0.5), math.sqrt(0.5)),
    "1/sqrt(N)": lambda depth: (1.0, depth**-0.5),
    "SkipInit": lambda depth: (1.0, 0.0),
    "LayerScale": lambda depth: (1.0, 0.0),
}


def he_pair(depth: int, width: int, count: int | None = None, seed: int = 0) -> Tensor:
    """Draw W₁ and W₂ of `depth` branches W₂ ReLU(W₁ x): [2, depth, width, width].

    W₁ has variance 2/width (Kaiming) and W₂ 1/width, so that a branch keeps the energy of what it
    reads. They stand to be multiplied from the right, x @ W₁. With `count`, that many networks:
    [2, depth, count, width, width].
    """
    pair = draw(seed, 2, depth, *[] if count is None else [count], width, width)
    pair[0] *= math.sqrt(2)
    return pair / math.sqrt(width)


def jacobians(
    pairs: Tensor,
    input: Tensor,
    *,
    scale: float = 1.0,
    normalized: bool = False,
    relu_after: bool = False,
) -> tuple[Tensor, Tensor]:
    """Follow the Jacobian ∂x_l/∂x₀ of unrolled blocks x ↦ x + scale · W₂ ReLU(W₁ x).

    `pairs` [2, depth, count, d, d] as from `he_pair`; input [count, d], one example for each of
    `count` networks. With `normalized` a branch reads x over its root mean square; with
    `relu_after` each sum passes a ReLU, as in the first ResNets.

    Returns the Jacobians [depth + 1, count, d, d], in the order in which x multiplies from the
    left; and the share of the units that no ReLU after a sum has cut so far [depth + 1, count].
    """
    count, width = input.shape
    x, jacobian = input, torch.eye(width).to(input).expand(count, width, width)
    whole, one = torch.ones_like(input), torch.ones_like(input[:, :1])
    found, kept = [jacobian], [whole.mean(1)]
    for up, down in zip(*pairs, strict=True):
        size = x.square().mean(1, keepdim=True).sqrt() if normalized else one
        read = x / size
        hidden = torch.einsum("ni,nij->nj", read, up)
        branch = (up * (hidden > 0)[:, None]) @ down
        if normalized:  # the derivative of x over its root mean square
            radial = read[:, :, None] * (read[:, None] @ branch) / width
            branch = (branch - radial) / size[..., None]
        x = x + scale * torch.einsum("ni,nij->nj", hidden.relu(), down)
        jacobian = jacobian + scale * jacobian @ branch
        if relu_after:
            on = (x > 0).to(x)
            x, jacobian, whole = x * on, jacobian * on[:, None], whole * on
        found.append(jacobian)
        kept.append(whole.mean(1))
    return torch.stack(found), torch.stack(kept)


class RecipeBlock(nn.Module):
    """One block x ↦ skip · x + scale · W₂ ReLU(W₁ norm(x)), with skip and scale by recipe.

    "plain" has no skip; "unscaled", "1/sqrt(2)" (on the skip, too) and "1/sqrt(N)" have constants;
    "SkipInit" learns one number, from 0 (without norms this is ReZero); "LayerScale" learns one a
    feature, from `nz.layer_scale_init`. With `norm="batch"` the branch reads its batch normalized,
    without gain and bias and in training mode always. The matrices are 0 until they are drawn.

    Shapes: input and output [n, width].

    Raises: ValueError on an unknown recipe or norm.
    """

    def __init__(self, recipe: str, depth: int, width: int, norm: str | None = None) -> None:
        super().__init__()
        require_choice("recipe", recipe, RECIPES)
        require_choice("norm", norm, [None, "batch"])
        self.norm = norm
        self.up = nn.Parameter(torch.zeros(width, width))
        self.down = nn.Parameter(torch.zeros(width, width))
        start = nz.layer_scale_init(depth) if recipe == "LayerScale" else 0.0
        self.alpha = nn.Parameter(torch.zeros(()))
        self.gamma = nn.Parameter(torch.full((width,), start))
        skip, constant = RECIPES[recipe](depth)
        # One vector for what the recipes differ in, so that all share one architecture.
        own = skip, constant, float(recipe == "SkipInit"), float(recipe == "LayerScale")
        self.register_buffer("recipe", torch.tensor(own))

    def forward(self, x: Tensor) -> Tensor:
        """Add the scaled branch to the scaled skip."""
        skip, constant, use_alpha, use_gamma = self.recipe
        read = nz.batch_norm(x, None, None, training=True) if self.norm else x
        write = (read @ self.up).relu() @ self.down
        return skip * x + (constant + use_alpha * self.alpha + use_gamma * self.gamma) * write


def recipe_mlp(
    recipe: str, *, width: int, depth: int, norm: str | None = None, **ends: int
) -> ResidualMLP:
    """Make a residual MLP of such blocks, and draw W₁ by Kaiming and W₂ with variance 1/width.

    `ends` are the `inputs` and `outputs` of `ResidualMLP`, if it has a stem and a head.
    """
    model = ResidualMLP(
        lambda _: RecipeBlock(recipe, depth, width, norm), width=width, depth=depth, **ends
    )
    draws = torch.randn(2, depth, width, width) / math.sqrt(width)
    with torch.no_grad():
        for block, up, down in zip(model.blocks, *draws, strict=True):
            block.up.copy_(math.sqrt(2) * up)
            block.down.copy_(down)
    return model


# --- paths ---


def path_lengths(energies: Tensor) -> Tensor:
    """Share of each length 0 … blocks when block l multiplies a path's energy by energies[l].

    The shares are the coefficients of Π (1 + c_l t), over their sum. With energies 1 they count
    paths: Binomial(blocks, 1/2). Shapes: [blocks] to [blocks + 1].

    Raises: ValueError when energies are no vector, or one is negative.
    """
    energies = torch.as_tensor(energies, dtype=torch.float64)
    if energies.ndim != 1 or (energies < 0).any():
        raise ValueError(f"energies must be [blocks] and not negative, got {energies}")
    shares = torch.ones(1, dtype=torch.float64)
    for energy in energies:
        by, through = nn.functional.pad(shares, (0, 1)), nn.functional.pad(shares, (1, 0))
        shares = (by + through * energy) / (1 + energy)
    return shares


def expand(jacobians: Tensor) -> tuple[Tensor, Tensor]:
    """Multiply out Π (I + J_l): the terms [2**blocks, d, d], and the length of each path.

    `jacobians` [blocks, d, d] in the order in which the blocks are applied. Term number
    b₀ + 2b₁ + 4b₂ + … passes through block l where b_l = 1.

    Raises: ValueError on another shape, or more than 12 blocks.
    """
    if jacobians.ndim != 3 or jacobians.shape[1] != jacobians.shape[2] or len(jacobians) > 12:
        shape = tuple(jacobians.shape)
        raise ValueError(f"jacobians must be [blocks, d, d] of at most 12 blocks, got {shape}")
    terms = torch.eye(jacobians.shape[1], dtype=jacobians.dtype)[None]
    lengths = torch.zeros(1, dtype=torch.int64)
    for jacobian in jacobians:
        terms = torch.cat([terms, jacobian @ terms])
        lengths = torch.cat([lengths, lengths + 1])
    return terms, lengths


def gradient_by_length(blocks: Sequence[Block], input: Tensor, gradient: Tensor) -> Tensor:
    """Split the gradient at the input by the length of the paths that carried it.

    `gradient` is the one at the output of the last block. Entry k of the result, of the input's
    shape, is the sum over all paths through k blocks; the entries add up to what backpropagation
    gives. Shapes: input and gradient [...] alike, result [blocks + 1, ...].
    """
    inputs = [input.detach()]
    with torch.no_grad():
        for block in blocks[:-1]:
            inputs.append(block(inputs[-1]))
    parts = gradient.detach()[None]
    for block, x in zip(reversed(blocks), reversed(inputs), strict=True):
        x.requires_grad_()
        pulled = torch.autograd.grad(block(x), x, parts, is_grads_batched=True)[0]
        nothing = torch.zeros_like(parts[:1])
        parts = torch.cat([parts, nothing]) + torch.cat([nothing, pulled - parts])
    return parts


def energy_by_length(parts: Tensor) -> Tensor:
    """Energy of each length over the sum of all: [lengths, seeds, …] to [seeds, lengths]."""
    energy = parts.square().flatten(2).sum(-1).T
    return energy / energy.sum(-1, keepdim=True)


# --- what the stream says ---


def logit_lens(model: Transformer, inputs: Tensor, at: str = "blocks") -> Tensor:
    """Read the stream at every depth through the final norm and the head: [depths + 1, …, classes].

    Places as in `probes.residual_stream`; the last entry is the model's own output.
    """
    with torch.no_grad():
        stream = residual_stream(model, inputs, at).to(model.head.weight)
        return model.head(model.final_norm(stream)).cpu()


def logit_writes(model: Transformer, inputs: Tensor) -> Tensor:
    """Split the logits into what each write contributes: [2 blocks + 2, …, classes].

    Entry 0 is the embedding's part, then two a block (attention, feed-forward), and last what does
    not depend on the stream: the biases of norm and head. Each part is what the linear head sees of
    a write after the final norm has divided it by the size of the *whole* stream; so they add up to
    the logits.

    Raises: TypeError when the final norm is neither LayerNorm nor RMSNorm.
    """
    norm = model.final_norm
    if not isinstance(norm, nz.LayerNorm | nz.RMSNorm):
        raise TypeError(f"final norm must be LayerNorm or RMSNorm, got {type(norm).__name__}")
    with torch.no_grad():
        stream = residual_stream(model, inputs, "sublayers").to(model.head.weight)
        parts = torch.cat([stream[:1], stream.diff(dim=0)])
        if isinstance(norm, nz.LayerNorm):
            parts = parts - parts.mean(-1, keepdim=True)
        whole = parts.sum(0)
        eps = torch.finfo(whole.dtype).eps if norm.eps is None else norm.eps
        size = (whole.square().mean(-1, keepdim=True) + eps).sqrt()
        gain = norm.weight + getattr(norm, "offset", 0.0)
        writes = (gain * parts / size) @ model.head.weight.T
        constant = model.head.bias + 0.0
        if getattr(norm, "bias", None) is not None:
            constant = constant + model.head.weight @ norm.bias
        return torch.cat([writes, constant.expand_as(writes[:1])]).cpu()
