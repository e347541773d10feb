"""The one descent of the book, and what may be said of a run.

`ensembles.train` trains many models by it. Histories are float64 tensors on the CPU.
"""

import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

Loss = Callable[[Tensor, Tensor], Tensor]

BOUND = 1e3  # nats: far above any loss that a run comes back from


class Histories(NamedTuple):
    """What a training leaves behind.

    Attributes:
        losses: [members, steps], before each step; NaN after the step at which a member diverged.
        diverged_at: for each member the step whose loss was not finite or above the bound, or None.
    """

    losses: Tensor
    diverged_at: list[int | None]


class Score(NamedTuple):
    """Mean loss in nats, and the fraction of targets that have the largest logit."""

    loss: float
    accuracy: float


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Average the cross-entropy in nats of logits [..., classes] against class indices [...]."""
    return -outputs.log_softmax(-1).gather(-1, targets.unsqueeze(-1)).mean()


def mean_square(outputs: Tensor, targets: Tensor) -> Tensor:
    """Average (outputs − targets)² over all elements of two tensors of one shape."""
    if outputs.shape != targets.shape:
        shapes = f"{tuple(outputs.shape)}, got {tuple(targets.shape)}"
        raise ValueError(f"targets must have the outputs' shape {shapes}")
    return (outputs - targets).square().mean()


# --- training ---


def descend(
    optimizer: Optimizer,
    losses_at: Callable[[int], Tensor],
    *,
    steps: int,
    rows: Sequence[Sequence[Tensor]] = (),
    bound: float = math.inf,
) -> Histories:
    """Take steps with any optimizer of `torch.optim`: the one descent of the book.

    `losses_at(step)` returns the losses [members] before a step, and leaves their gradients where
    the optimizer looks for them. `rows` are what it moves, by member: a member whose loss is above
    `bound`, or not finite, keeps them from then on. Without rows all go on. A parameter group may
    have a `warmup`, as `train` explains.
    """
    rates = [group["lr"] for group in optimizer.param_groups]
    losses, alive = None, None
    for step in progress(steps, "training"):
        values = losses_at(step)
        if losses is None:
            losses = values.new_full((steps, len(values)), math.nan)
            alive = torch.ones_like(values, dtype=torch.bool)
        losses[step] = values.masked_fill(~alive, math.nan)
        alive = alive & (losses[step] <= bound)
        if not alive.any():
            break
        for lost in (~alive).nonzero().flatten() if rows else ():
            for row in rows[lost]:
                row.grad = None  # which an optimizer passes over
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * min(1.0, (step + 1) / max(1, group.get("warmup", 0)))
        optimizer.step()
    losses = losses.T.double().cpu()
    return Histories(losses, [diverged_at(member, bound) for member in losses])


def diverged_at(losses: Tensor, bound: float) -> int | None:
    """Find the first step whose loss is above the bound or not finite."""
    return next((step for step, loss in enumerate(losses.tolist()) if not loss <= bound), None)


def batch_indices(examples: int, batch_size: int | None, steps: int, seed: int) -> Tensor:
    """Choose the examples of each step: [steps, batch_size], or [steps, 0] without a batch size.

    Fresh permutations are put end to end, so that every example comes once before any comes twice.
    """
    if batch_size is None:
        return torch.empty(steps, 0, dtype=torch.int64)
    if not 1 <= batch_size <= examples:
        raise ValueError(f"batch_size must be 1 … {examples}, the examples given, got {batch_size}")
    generator = torch.Generator().manual_seed(seed)
    epochs = -(-steps * batch_size // examples)
    order = torch.cat([torch.randperm(examples, generator=generator) for _ in range(epochs)])
    return order[: steps * batch_size].reshape(steps, batch_size)


def progress(steps: int, label: str) -> Iterator[int]:
    """Count 0 … steps − 1; redraw a line on stderr where a person watches a run of over a second.

    That is a terminal, or Jupyter unless NORMBOOK_STRICT=1 (as it is while recording and testing),
    so that no recorded output contains it.
    """
    in_jupyter = "ipykernel" in sys.modules and os.environ.get("NORMBOOK_STRICT") != "1"
    watched = in_jupyter or sys.stderr.isatty()
    next_draw, line = time.monotonic() + 1.0, ""
    try:
        for step in range(steps):
            yield step
            if watched and time.monotonic() >= next_draw:
                line = f"{label}: {step + 1} of {steps} steps"
                print(f"\r{line}", end="", file=sys.stderr, flush=True)
                next_draw = time.monotonic() + 0.2
    finally:
        if line:
            print(f"\r{' ' * len(line)}\r", end="", file=sys.stderr, flush=True)


# --- what may be said of a run ---


def evaluate(model: nn.Module, inputs: Tensor, targets: Tensor) -> Score:
    """Measure cross-entropy and accuracy in evaluation mode; the model's mode is put back."""
    was_training = model.training
    model.eval()
    with torch.no_grad():
        outputs = model(inputs)
    model.train(was_training)
    correct = outputs.argmax(-1) == targets
    return Score(cross_entropy(outputs, targets).item(), correct.double().mean().item())


def classify(
    losses: Tensor, chance: float, *, trains: float = 0.8, diverges: float = 2.0
) -> str | list[str]:
    """Name the outcome of a run: "trains", "at chance" or "diverged"; a list for [runs, steps].

    The mean of the last tenth of the losses decides: below `trains` · chance it trains; above
    `diverges` · chance, or where it is not finite, it has diverged; in between it is at chance.

    Args:
        losses: [steps] or [runs, steps], in nats.
        chance: the loss of a model that knows the frequencies only, ln(classes) if they are equal.
        trains: as a share of `chance`.
        diverges: as a multiple of `chance`.

    Raises: ValueError on an empty history, or thresholds that are not 0 < trains ≤ diverges.
    """
    if losses.ndim == 2:
        return [classify(run, chance, trains=trains, diverges=diverges) for run in losses]
    if losses.ndim != 1 or not len(losses):
        raise ValueError(f"losses must be [steps] or [runs, steps], got {tuple(losses.shape)}")
    if not 0 < trains <= diverges or not chance > 0:
        expected = "chance, trains and diverges must be positive and trains <= diverges"
        raise ValueError(f"{expected}, got {chance}, {trains}, {diverges}")
    final = losses[-max(1, len(losses) // 10) :].mean().item()
    if not final <= diverges * chance:
        return "diverged"
    return "trains" if final < trains * chance else "at chance"
