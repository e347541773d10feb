"""Seven norms side by side: on what each output depends, what it stores, and what it moves.

Each norm stands behind the same linear layer, so that a norm of weights can be compared with norms
of activations. `facts` measures one column of the table: it changes inputs or weights and looks
whether the output moves, counts parameters, and counts reductions and bytes in the dispatcher.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

import normalization as nz
from normbook.engine.checks import require_choice
from normbook.lab import dispatch, draw, invariances, significant
from normbook.lab.invariances import ChannelsLast

WIDTH = invariances.SHAPE[2]  # features, the d of the table
COUNTED = 64, 32, 64  # examples, positions, features of the input on which operators are counted
NORMS = {  # width -> norm; None for WeightNorm, which is put on the layer itself
    "BatchNorm": lambda width: ChannelsLast(nz.BatchNorm(width)),
    "LayerNorm": nz.LayerNorm,
    "RMSNorm": lambda width: nz.RMSNorm(width, eps=1e-5),
    "GroupNorm": lambda width: ChannelsLast(nz.GroupNorm(2, width)),
    "InstanceNorm": lambda width: ChannelsLast(nz.InstanceNorm(width, affine=True)),
    "WeightNorm": lambda width: None,
    "DyT": nz.DyT,
}
NAMES = tuple(NORMS)


class LinearThenNorm(nn.Module):
    """A linear layer W x without bias, and a norm behind it; [n, T, d] to the same.

    `norm` None puts WeightNorm on the layer itself.
    """

    def __init__(self, width: int, norm: nn.Module | None) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width, bias=False)
        self.norm = nn.Identity() if norm is None else norm
        if norm is None:
            parametrize.register_parametrization(self.linear, "weight", nz.WeightNorm())

    def forward(self, input: Tensor) -> Tensor:
        """Multiply, then normalize."""
        return self.norm(self.linear(input))

    @property
    def raw_weight(self) -> Tensor:
        """The weight [d, d] as the optimizer sees it."""
        if parametrize.is_parametrized(self.linear):
            return self.linear.parametrizations.weight.original1
        return self.linear.weight


def norm_of(name: str, width: int) -> nn.Module | None:
    """Make the norm `name` for sequences [n, T, width]; None for WeightNorm.

    Raises: ValueError on a name that is not one of `NAMES`.
    """
    require_choice("name", name, NAMES)
    return NORMS[name](width)


def layer_of(name: str, width: int = WIDTH, seed: int = 0) -> LinearThenNorm:
    """Draw the linear layer of a seed and put the norm `name` behind it, in training mode."""
    layer = LinearThenNorm(width, norm_of(name, width))
    with torch.no_grad():
        layer.raw_weight.copy_(draw(1000 + seed, width, width) / width**0.5)
    return layer


def to_other_features(layer: LinearThenNorm, seed: int) -> float:
    """Draw all rows of the weight but one anew, and look at the feature which that one makes."""
    x, moves = invariances.draw_sequences(seed), []
    for kept in (0, WIDTH - 1):
        changed = invariances.fresh(layer)
        rows = draw(2000 + seed, WIDTH, WIDTH)
        rows[kept] = layer.raw_weight[kept]
        with torch.no_grad():
            changed.raw_weight.copy_(rows)
        outputs = [either[..., kept] for either in (invariances.fresh(layer)(x), changed(x))]
        moves.append(invariances.moved(*outputs))
    return max(moves)


DEPENDS = {
    "other examples": invariances.PROBES["other examples"],
    "other positions": invariances.PROBES["other tokens"],
    "other features": to_other_features,
    "train or eval": invariances.PROBES["train or eval"],
}


def dependence(name: str, seeds: Sequence[int] = range(5)) -> dict[str, str]:
    """Say "same" or "moves" for each row of `DEPENDS`; the seeds must agree."""
    with torch.no_grad():
        moves = {
            row: [probe(layer_of(name, seed=seed), seed) for seed in seeds]
            for row, probe in DEPENDS.items()
        }
    return invariances.verdicts(moves)


def stored(name: str) -> dict[str, str]:
    """Count what the norm adds to its linear layer, in units of d: learned, and running numbers."""
    layer = layer_of(name)
    learned = sum(parameter.numel() for parameter in layer.parameters()) - WIDTH**2
    running = sum(buffer.numel() for buffer in layer.buffers() if buffer.is_floating_point())
    return {"learned numbers": in_widths(learned), "running numbers": in_widths(running)}


def in_widths(count: int) -> str:
    """Write a count of numbers with d for the width: 17 is "2d + 1" at width 8."""
    whole, rest = divmod(count, WIDTH)
    widths = "d" if whole == 1 else f"{whole}d"
    return " + ".join([widths] * bool(whole) + [str(rest)] * bool(rest)) or "0"


def moved_data(name: str) -> dict[str, str]:
    """Count reductions, and passes over the activations, of one forward call in training mode."""
    layer = layer_of(name, COUNTED[2])
    x = torch.zeros(COUNTED, dtype=torch.float64)
    weight_only = isinstance(layer.norm, nn.Identity)
    call = (lambda: layer.linear.weight) if weight_only else (lambda: layer.norm(x))
    with torch.no_grad():
        found = dispatch.traffic(dispatch.record(call))
    passes = (found.read + found.written) / (x.numel() * x.element_size())
    reductions = f"{found.reductions} of W" if weight_only else f"{found.reductions}"
    return {"reductions": reductions, "passes": "0" if weight_only else significant(passes, 2)}


def facts(name: str) -> dict[str, str]:
    """Measure one column of the table: `dependence`, `stored` and `moved_data`."""
    return dependence(name) | stored(name) | moved_data(name)
