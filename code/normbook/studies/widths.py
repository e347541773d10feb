"""Networks of several widths and depths: a residual one, and the coordinate check."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

import normalization as nz
from normbook.lab import ensembles
from normbook.lab.ensembles import OPTIMIZERS, Groups
from normbook.lab.models import ResidualMLP
from normbook.lab.probes import recorded, recorded_inputs
from normbook.lab.training import cross_entropy


def train(
    models: Sequence[nn.Module], groups: Sequence[Groups], *data: Tensor, **options
) -> Tensor:
    """Train models at rates of their own, as `ensembles.train` does: losses [members, steps].

    `data` are inputs and targets. A member that diverges goes on, and its losses say so.
    """
    return ensembles.train(models, *data, groups=groups, bound=math.inf, **options).losses


def evaluate_all(models: Sequence[nn.Module], inputs: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy of each model on the data: [models]."""
    with torch.no_grad():
        found = [cross_entropy(model(inputs), targets) for model in models]
        return torch.stack(found).double().cpu()


def scaled_mlp(inputs: int, width: int, depth: int, outputs: int, scale: float) -> ResidualMLP:
    r"""Make a Pre-LN residual MLP whose L branches are multiplied by one number.

    $$x_{l+1} = x_l + s\, W_\mathrm{down}^l\, \mathrm{ReLU}(W_\mathrm{up}^l\, \mathrm{LN}(x_l))$$

    No gains and no biases but the head's, at 0. All branches' matrices are drawn to keep the second
    moment.

    Shapes: input [n, …] with `inputs` values an example; output [n, outputs].
    """
    norm = nz.LayerNorm(width, elementwise_affine=False)
    with torch.random.fork_rng(devices=[]):  # all weights are drawn below
        model = ResidualMLP(
            lambda _: nz.Residual(nz.FeedForward(width, width, bias=False), norm, scale=scale),
            **{"width": width, "depth": depth, "inputs": inputs, "outputs": outputs},
            stem=nn.Linear(inputs, width, bias=False),
            norm=norm,
        )
    branches = [block.branch for block in model.blocks]
    with torch.no_grad():
        draw_([model.stem], 1.0)
        draw_([branch.up for branch in branches], 1.0)
        draw_([branch.down for branch in branches], 2**0.5)
        draw_([model.head], 1.0)
        model.head.bias.zero_()
    return model


def draw_(layers: Sequence[nn.Linear], gain: float) -> None:
    """Draw same-shaped layers in place, with variance gain² / fan_in."""
    fan_in = layers[0].in_features
    draws = torch.randn(len(layers), fan_in, layers[0].out_features) * gain / fan_in**0.5
    for layer, drawn in zip(layers, draws, strict=True):
        layer.weight.copy_(drawn.mT)


# --- the coordinate check ---


class Coordinates(NamedTuple):
    """Root mean squares of layers' outputs, [steps + 1, places] each, index 0 before any step.

    `size` is of the outputs, `change` of the outputs minus those before any step.
    """

    size: Tensor
    change: Tensor


def coordinates(
    model: nn.Module,
    groups: Groups,
    inputs: Tensor,
    targets: Tensor,
    layers: Sequence[nn.Module],
    *,
    steps: int,
    optimizer: str = "adam",
) -> Coordinates:
    """Take a few steps on one batch, and measure what the layers put out before and after each.

    `layers` are modules of the model whose output is a tensor. Behind them come the logits of each
    attention in the model, which are no layer's output. The model is trained in place.

    Source: Yang et al. 2022 (arXiv 2203.03466), Appendix D.1.
    """
    descent = OPTIMIZERS[optimizer](list(groups), lr=1.0, fused=True)
    attentions = [m for m in model.modules() if isinstance(m, nz.MultiHeadAttention)]
    found = []
    for step in range(steps + 1):
        with recorded(list(layers)) as outputs, recorded_inputs(attentions) as taken:
            value = cross_entropy(model(inputs), targets)
        logits = [attention.logits(taken[attention]) for attention in attentions]
        found.append([v.detach() for v in [*(outputs[layer] for layer in layers), *logits]])
        if step < steps:
            descent.zero_grad()
            value.backward()
            descent.step()

    def table(values: list[list[Tensor]]) -> Tensor:
        return torch.stack([torch.stack([rms(v) for v in row]) for row in values]).cpu()

    moved = [[now - start for now, start in zip(row, found[0], strict=True)] for row in found]
    return Coordinates(table(found), table(moved))


def rms(values: Tensor) -> Tensor:
    """Return the root of the mean square of all elements, infinite ones left out."""
    return values[values.isfinite()].square().mean().sqrt()
