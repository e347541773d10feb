"""What happens inside a network, block by block: activations, stream, gradients, attention.

A probe takes a model and inputs and leaves both as they were: weights, gradients, running
statistics and mode. Results are CPU tensors. Models keep their layers in `blocks`, as those of
`lab.models` do.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

import normalization as nz
from normbook.engine.checks import require_choice
from normbook.lab.training import Loss, cross_entropy


class Moments(NamedTuple):
    """Mean, standard deviation and mean square over all elements of a layer's output: [layers]."""

    mean: Tensor
    std: Tensor
    mean_square: Tensor


# --- activations and the residual stream ---


def activation_moments(
    model: nn.Module, inputs: Tensor, layers: list[nn.Module] | None = None
) -> Moments:
    """Measure the output of each layer over examples, positions and features.

    `layers` are modules of the model, in any order; by default its blocks.
    """
    layers = _blocks(model) if layers is None else layers
    with _untouched(model), torch.no_grad(), recorded(layers) as outputs:
        model(inputs)
    found = [outputs[layer] for layer in layers]
    centered = [output - output.mean() for output in found]
    return Moments(
        torch.stack([output.mean() for output in found]).cpu(),
        torch.stack([rest.square().mean().sqrt() for rest in centered]).cpu(),
        torch.stack([output.square().mean() for output in found]).cpu(),
    )


def residual_stream(model: nn.Module, inputs: Tensor, at: str = "blocks") -> Tensor:
    """Record what flows from layer to layer: [depths + 1, …, dim], entry 0 the embedding.

    Args:
        model: with `blocks`.
        inputs: what the model takes.
        at: "blocks": the output of each block; "sublayers": of each `nz.Residual` in the blocks,
            two a Transformer block; "sums": what each of these has added up, before any norm that
            follows (in Pre-LN the same, in Post-LN the sum of Xiong et al.'s Lemma 2).
    """
    with _untouched(model), torch.no_grad():
        return torch.stack(_stream(model, inputs, at)[1]).cpu()


def mean_square_norm(stream: Tensor) -> Tensor:
    """Average ‖x‖² over examples and positions at each depth: [depths, …, dim] to [depths]."""
    return stream.square().sum(-1).flatten(1).mean(1)


def contribution(stream: Tensor) -> Tensor:
    """Average ‖x_{l+1} − x_l‖ / ‖x_l‖, what each step changes: [depths, …, dim] to [depths − 1]."""
    change = stream.diff(dim=0).norm(dim=-1) / stream[:-1].norm(dim=-1)
    return change.flatten(1).mean(1)


def consecutive_cosine(stream: Tensor) -> Tensor:
    """Average cosine of x_l and x_{l+1}: [depths, …, dim] to [depths − 1]."""
    cosine = nn.functional.cosine_similarity(stream[:-1], stream[1:], dim=-1, eps=0.0)
    return cosine.flatten(1).mean(1)


@contextmanager
def without_block(model: nn.Module, index: int) -> Iterator[nn.Module]:
    """Skip block `index` inside a `with`: what flows in flows out unchanged.

    Raises: ValueError if there is no such block; negative indices count from the end.
    """
    blocks = model.blocks
    if not -len(blocks) <= index < len(blocks):
        raise ValueError(f"index must be one of {len(blocks)} blocks, got {index}")
    block, blocks[index] = blocks[index], nn.Identity()
    try:
        yield model
    finally:
        blocks[index] = block


# --- gradients ---


def gradient_norms(
    model: nn.Module, inputs: Tensor, targets: Tensor, loss: Loss = cross_entropy
) -> dict[str, float]:
    """Measure the gradient of the loss for each parameter, by its name: Frobenius norms."""
    gradients = _parameter_gradients(model, inputs, targets, loss)
    return {name: gradient.norm().item() for name, gradient in gradients.items()}


def block_gradients(
    model: nn.Module, inputs: Tensor, targets: Tensor, loss: Loss = cross_entropy, part: str = ""
) -> Tensor:
    """Measure the gradient of each block, √(sum of squares over its parameters): [blocks].

    `part` keeps only the parameters whose name within the block contains it: "weight",
    "feed_forward.branch.down.weight". Blocks without such a parameter raise ValueError.
    """
    gradients = _parameter_gradients(model, inputs, targets, loss)
    squares = []
    for index in range(len(_blocks(model))):
        prefix = f"blocks.{index}."
        chosen = [
            gradient.square().sum()
            for name, gradient in gradients.items()
            if name.startswith(prefix) and part in name.removeprefix(prefix)
        ]
        if not chosen:
            raise ValueError(f"part must be in a parameter's name, got {part!r} in block {index}")
        squares.append(torch.stack(chosen).sum())
    return torch.stack(squares).sqrt().cpu()


def stream_gradients(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    loss: Loss = cross_entropy,
    at: str = "blocks",
) -> Tensor:
    """Measure the gradient that reaches the stream at each depth: [depths + 1].

    Its norm is over examples, positions and features together. Places as in `residual_stream`.
    """
    with _untouched(model), torch.enable_grad():
        outputs, stream = _stream(model, inputs, at)
        gradients = torch.autograd.grad(loss(outputs, targets), stream, materialize_grads=True)
    return torch.stack([gradient.norm() for gradient in gradients]).cpu()


# --- attention and logits ---


def attention_entropies(model: nn.Module, inputs: Tensor, normalized: bool = False) -> Tensor:
    """Average the entropy of the attention weights over the data: [attentions, heads].

    In nats; `normalized` divides by the mean of ln(keys in sight), so that 1 is uniform attention.
    """
    rows = []
    for logits in _attention_logits(model, inputs):
        entropy = nz.attention_entropy(logits).mean((0, -1))
        if normalized:
            entropy = entropy / logits[0, 0].isfinite().sum(-1).log().mean()
        rows.append(entropy)
    return torch.stack(rows).cpu()


def attention_logit_peaks(model: nn.Module, inputs: Tensor) -> Tensor:
    """Find the largest magnitude among the attention logits: [attentions, heads]."""
    found = (logits.abs().nan_to_num(posinf=0.0) for logits in _attention_logits(model, inputs))
    return torch.stack([magnitudes.amax((0, -2, -1)) for magnitudes in found]).cpu()


def logit_scale(model: nn.Module, inputs: Tensor) -> float:
    """Measure how far apart the logits are: √(mean of their variance over the classes)."""
    with _untouched(model), torch.no_grad():
        logits = model(inputs)
    return (logits - logits.mean(-1, keepdim=True)).square().mean().sqrt().item()


# --- how it is done ---


def _blocks(model: nn.Module) -> list[nn.Module]:
    """Return the model's blocks; ValueError if it has none."""
    blocks = list(getattr(model, "blocks", []))
    if not blocks:
        raise ValueError(f"model must have layers in `blocks`, got {type(model).__name__}")
    return blocks


@contextmanager
def _untouched(model: nn.Module) -> Iterator[None]:
    """Put back the buffers (running statistics) that a forward pass in training mode moves."""
    before = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        for buffer, value in before:
            buffer.copy_(value)


@contextmanager
def recorded(layers: list[nn.Module]) -> Iterator[dict[nn.Module, Tensor]]:
    """Collect the output of each layer during the forward passes inside the `with`."""
    outputs = {}
    with ExitStack() as hooks:
        for layer in layers:
            keep = lambda layer, _, output: outputs.update({layer: output})  # noqa: E731
            hooks.enter_context(layer.register_forward_hook(keep))
        yield outputs


@contextmanager
def recorded_inputs(layers: list[nn.Module]) -> Iterator[dict[nn.Module, Tensor]]:
    """Collect what each layer reads during the forward passes inside the `with`, in their order."""
    inputs = {}
    with ExitStack() as hooks:
        for layer in layers:
            keep = lambda layer, args: inputs.update({layer: args[0]})  # noqa: E731
            hooks.enter_context(layer.register_forward_pre_hook(keep))
        yield inputs


def _stream(model: nn.Module, inputs: Tensor, at: str) -> tuple[Tensor, list[Tensor]]:
    """Return the model's output, and its stream at the places `at`, the embedding first."""
    require_choice("at", at, ("blocks", "sublayers", "sums"))
    layers = blocks = _blocks(model)
    if at != "blocks":
        layers = [m for block in blocks for m in block.modules() if isinstance(m, nz.Residual)]
        if not layers:
            raise ValueError(f"model must have residual blocks for at={at!r}, got none")
    start = []
    hook = blocks[0].register_forward_pre_hook(lambda _, args: start.append(args[0]))
    record = _recorded_sums if at == "sums" else recorded
    with hook, record(layers) as outputs:
        result = model(inputs)
    return result, [start[0], *(outputs[layer] for layer in layers)]


@contextmanager
def _recorded_sums(layers: list[nz.Residual]) -> Iterator[dict[nn.Module, Tensor]]:
    """Collect what each `Residual.add` returns: the stream before any norm that follows."""
    sums = {}
    for layer in layers:

        def add(skip: Tensor, write: Tensor, layer: nz.Residual = layer) -> Tensor:
            sums[layer] = type(layer).add(layer, skip, write)
            return sums[layer]

        layer.add = add  # hides the class's method until it is deleted again
    try:
        yield sums
    finally:
        for layer in layers:
            del layer.add


def _parameter_gradients(
    model: nn.Module, inputs: Tensor, targets: Tensor, loss: Loss
) -> dict[str, Tensor]:
    """Differentiate the loss by each trainable parameter; `.grad` is left alone."""
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    with _untouched(model), torch.enable_grad():
        value = loss(model(inputs), targets)
        gradients = torch.autograd.grad(value, list(named.values()), materialize_grads=True)
    return dict(zip(named, gradients, strict=True))


def _attention_logits(model: nn.Module, inputs: Tensor) -> list[Tensor]:
    """Return the logits [n, heads, T, T] of each attention, in the order of the layers."""
    layers = [m for m in model.modules() if isinstance(m, nz.MultiHeadAttention)]
    if not layers:
        raise ValueError(f"model must have attention layers, got {type(model).__name__}")
    with _untouched(model), torch.no_grad(), recorded_inputs(layers) as taken:
        model(inputs)
        return [layer.logits(taken[layer]) for layer in layers]
