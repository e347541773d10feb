"""What a norm does not see and what it depends on: a table in which every cell is a measurement.

A norm here is any callable that maps sequences [n, T, d] (examples, tokens, features) to the same
shape. A module is probed in the mode it is in, and left as it was. Layers that have their channels
on axis 1, BatchNorm and GroupNorm, are wrapped in `ChannelsLast`.

Each of `PROBES` makes one change and returns how far the output moves, as a share of its largest
value: rounding where the norm does not see the change. `measure` runs them over seeds, `verdicts`
reads "same" or "moves" off the numbers, and `draw_table` draws several norms side by side. A norm
with ε above 0 sees a change of scale a little: set it to 0.
"""

import copy
from collections.abc import Callable, Sequence

import numpy as np
import torch
from matplotlib.axes import Axes
from torch import Tensor, nn

from normbook.lab import session

Norm = Callable[[Tensor], Tensor]

SHAPE = 6, 5, 8  # examples, tokens, features
CUT = 2  # tokens that a shorter sequence lacks
AMOUNT = 3.0  # what is added, and what is multiplied by
SAME = 1e-9  # a move below it is rounding
MOVES = 1e-3  # a move above it is real


class ChannelsLast(nn.Module):
    """Apply a norm that takes [n, d, T] to sequences [n, T, d]."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, input: Tensor) -> Tensor:
        """Swap the last two axes, normalize, swap back."""
        return self.norm(input.transpose(-2, -1)).transpose(-2, -1)


# --- the probes: norm, seed -> how far the output moves ---


def draw_sequences(seed: int) -> Tensor:
    """Draw sequences [n, T, d] whose examples, tokens and features differ in mean and scale."""
    generator = torch.Generator().manual_seed(seed)
    examples, tokens, features = SHAPE
    x = torch.randn(SHAPE, generator=generator, dtype=torch.float64)
    for shape in ((examples, 1, 1), (1, tokens, 1), (1, 1, features)):
        mean, log_scale = torch.randn(2, *shape, generator=generator, dtype=torch.float64)
        x = x * (log_scale / 2).exp() + mean
    return x


def moved(before: Tensor, after: Tensor) -> float:
    """Return the largest change of an output, as a share of its largest value."""
    return ((after - before).abs().max() / before.abs().max()).item()


def added(input: Tensor, *index) -> Tensor:
    """Return a copy with `AMOUNT` added to `input[index]`."""
    result = input.clone()
    result[index] += AMOUNT
    return result


def scaled(input: Tensor, *index) -> Tensor:
    """Return a copy with `input[index]` multiplied by `AMOUNT`."""
    result = input.clone()
    result[index] *= AMOUNT
    return result


def fresh(norm: Norm) -> Norm:
    """Copy a module, so that no probe moves its running statistics; a function stays itself."""
    return copy.deepcopy(norm) if isinstance(norm, nn.Module) else norm


def to_input(change: Callable[[Tensor], Tensor]) -> Callable[[Norm, int], float]:
    """Make the probe that changes the input [n, T, d]."""

    def probe(norm: Norm, seed: int) -> float:
        x = draw_sequences(seed)
        return moved(fresh(norm)(x), fresh(norm)(change(x)))

    return probe


def to_weight(change: Callable[[Tensor], Tensor]) -> Callable[[Norm, int], float]:
    """Make the probe that changes the weight [d, d] of a layer before the norm, W x without bias.

    Row i of the weight makes feature i of what the norm reads.
    """

    def probe(norm: Norm, seed: int) -> float:
        x, weight = draw_sequences(seed), session.draw(seed + 1, SHAPE[2], SHAPE[2])
        return moved(fresh(norm)(x @ weight.T), fresh(norm)(x @ change(weight).T))

    return probe


def to_others(axis: int) -> Callable[[Norm, int], float]:
    """Make the probe that draws all but one index of an axis anew, and looks at that one.

    It does so for the first index and for the last, since a layer may look only one way.
    """

    def probe(norm: Norm, seed: int) -> float:
        x, moves = draw_sequences(seed), []
        for kept in (0, SHAPE[axis] - 1):
            changed = draw_sequences(seed + 1)
            changed.select(axis, kept).copy_(x.select(axis, kept))
            outputs = [fresh(norm)(value).select(axis, kept) for value in (x, changed)]
            moves.append(moved(*outputs))
        return max(moves)

    return probe


def to_length(norm: Norm, seed: int) -> float:
    """Cut the last tokens off, and look at the others."""
    x, kept = draw_sequences(seed), SHAPE[1] - CUT
    return moved(fresh(norm)(x)[:, :kept], fresh(norm)(x[:, :kept]))


def to_mode(norm: Norm, seed: int) -> float:
    """Go from training to evaluation after one batch, and look at the same batch."""
    norm, x = fresh(norm), draw_sequences(seed)
    if not isinstance(norm, nn.Module):
        return moved(norm(x), norm(x))
    return moved(norm.train()(x), norm.eval()(x))


PROBES: dict[str, Callable[[Norm, int], float]] = {
    "everything + 3": to_input(added),
    "one token + 3": to_input(lambda x: added(x, 0, 0)),
    "one feature + 3": to_input(lambda x: added(x, ..., 0)),
    "everything × 3": to_input(scaled),
    "one token × 3": to_input(lambda x: scaled(x, 0, 0)),
    "one feature × 3": to_input(lambda x: scaled(x, ..., 0)),
    "weight × 3": to_weight(scaled),
    "one row of it × 3": to_weight(lambda weight: scaled(weight, 0)),
    "same row added to all": to_weight(lambda weight: weight + weight[0] + 1),
    "other examples": to_others(0),
    "other tokens": to_others(1),
    "length": to_length,
    "train or eval": to_mode,
}


# --- the table ---


def measure(norm: Norm, seeds: Sequence[int] = range(5)) -> dict[str, list[float]]:
    """Run every probe on a norm: how far its output moves, one number a seed, by probe."""
    with torch.no_grad():
        return {name: [probe(norm, seed) for seed in seeds] for name, probe in PROBES.items()}


def verdicts(measured: dict[str, list[float]]) -> dict[str, str]:
    """Read "same" or "moves" off what `measure` found; the seeds must agree.

    Raises: ValueError where they do not, or where a move is neither rounding nor clearly real.
    """
    found = {}
    for name, moves in measured.items():
        if all(move < SAME for move in moves):
            found[name] = "same"
        elif all(move > MOVES for move in moves):
            found[name] = "moves"
        else:
            raise ValueError(f"{name!r} must be below {SAME} or above {MOVES}, got {moves}")
    return found


def draw_table(axis: Axes, columns: dict[str, dict[str, str]]) -> None:
    """Draw verdicts: a norm a column, a probe a row, and what moves is filled.

    Raises: ValueError without a column, or where the columns are not of the same probes.
    """
    rows = list(next(iter(columns.values()), {}))
    if not rows or any(list(column) != rows for column in columns.values()):
        raise ValueError(f"columns must hold norms with the same probes, got {list(columns)}")
    words = [[column[row] for column in columns.values()] for row in rows]
    filled = np.array([[word == "moves" for word in line] for line in words], dtype=float)
    axis.pcolormesh(
        filled, cmap="Blues", vmin=0, vmax=2.5, edgecolor="white", linewidth=2, label="moves"
    )
    for y, line in enumerate(words):
        for x, word in enumerate(line):
            shade = "black" if word == "moves" else "#777777"
            axis.text(x + 0.5, y + 0.5, word, color=shade, ha="center", va="center", fontsize=11)
    axis.set_xticks(np.arange(len(columns)) + 0.5, list(columns))
    axis.set_yticks(np.arange(len(rows)) + 0.5, rows)
    axis.invert_yaxis()
    axis.xaxis.tick_top()
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    axis.grid(False)
