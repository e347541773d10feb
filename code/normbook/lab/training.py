"""Training: one short loop, and what may be said of a run.

`train` trains one model with `torch.optim`; `ensembles.train_many` trains a list of same-shaped
models at once, over seeds and rates. Both train in place and take the same words:

    inputs, targets   [n, …], one data set; `loss` compares the model's outputs with the targets
    steps             number of updates
    learning_rate     after the warmup
    optimizer         "adam" or "sgd" (without momentum), with PyTorch's defaults
    warmup            step t = 0, 1, … uses the rate times min(1, (t + 1) / warmup); 0 for none
    batch_size        examples a step, in an order drawn from `seed`; None takes all of them
    loss              maps (outputs, targets) to a scalar; cross-entropy unless given
    bound             a loss above it, or one that is not finite, is a divergence and ends the run

Histories are float64 tensors on the CPU.
"""

import copy
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from normbook.lab.models import perturb_
from normbook.lab.values import significant

Loss = Callable[[Tensor, Tensor], Tensor]

OPTIMIZERS = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}
BOUND = 1e3  # nats: far above any loss that a run comes back from


class History(NamedTuple):
    """What `train` leaves behind.

    Attributes:
        losses: [steps], the loss before each step; NaN after the step at which the run diverged.
        diverged_at: the step whose loss was not finite or above the bound, or None.
        watched: what `watch(model)` returned before each step, if it was given.
    """

    losses: Tensor
    diverged_at: int | None
    watched: list[Any]


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
        raise ValueError(
            f"targets must have the outputs' shape {tuple(outputs.shape)}, "
            f"got {tuple(targets.shape)}"
        )
    return (outputs - targets).square().mean()


# --- one model ---


def train(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    *,
    steps: int,
    learning_rate: float,
    optimizer: str = "adam",
    warmup: int = 0,
    batch_size: int | None = None,
    seed: int = 0,
    loss: Loss = cross_entropy,
    bound: float = BOUND,
    watch: Callable[[nn.Module], Any] | None = None,
) -> History:
    """Train `model` in place; the arguments are explained at the top of this module.

    `watch` is called with the model before each step, and what it returns is kept.

    Raises: ValueError when an argument is out of range.
    """
    check_arguments(inputs, targets, steps, [learning_rate], [warmup], optimizer)
    batches = batch_indices(len(inputs), batch_size, steps, seed).to(inputs.device)
    descent = OPTIMIZERS[optimizer](model.parameters(), lr=learning_rate, fused=True)
    losses, watched = torch.full((steps,), math.nan, dtype=torch.float64), []
    model.train()
    for step in progress(steps, "training"):
        if watch is not None:
            watched.append(watch(model))
        chosen = ... if batch_size is None else batches[step]
        value = loss(model(inputs[chosen]), targets[chosen])
        losses[step] = value.item()
        if not losses[step] <= bound:
            return History(losses, step, watched)
        descent.param_groups[0]["lr"] = learning_rate * warmup_factor(step, warmup)
        descent.zero_grad()
        value.backward()
        descent.step()
    return History(losses, None, watched)


def warmup_factor(step: int, warmup: int) -> float:
    """Return the share of the rate at `step`, counted from 0: min(1, (step + 1) / warmup)."""
    return min(1.0, (step + 1) / warmup) if warmup else 1.0


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


def evaluate(model: nn.Module, inputs: Tensor, targets: Tensor) -> Score:
    """Measure cross-entropy and accuracy in evaluation mode; the model's mode is put back."""
    was_training = model.training
    model.eval()
    with torch.no_grad():
        outputs = model(inputs)
    model.train(was_training)
    correct = outputs.argmax(-1) == targets
    return Score(cross_entropy(outputs, targets).item(), correct.double().mean().item())


# --- what may be said of a run ---


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
        raise ValueError(
            "chance, trains and diverges must be positive and trains <= diverges, "
            f"got {chance}, {trains}, {diverges}"
        )
    final = losses[-max(1, len(losses) // 10) :].mean().item()
    if not final <= diverges * chance:
        return "diverged"
    return "trains" if final < trains * chance else "at chance"


def stable_digits(
    run: Callable[[Any], Any],
    models: Any,
    *,
    digits: int = 3,
    relative: float = 1e-12,
    trials: int = 2,
) -> bool:
    """Tell whether the printed digits of a trained number survive a tiny change of the start.

    A number from training may be printed only if they do: training can be chaotic, and then the
    last bit of a sum, which differs between machines, decides about the first digit of the result.

    Args:
        run: maps a model, or a list of models, to a number, or a list or tensor of numbers. It is
            called trials + 1 times, with copies.
        models: one module or a list of them, with their initial weights.
        digits: significant digits that are printed.
        relative: size of the change of every weight.
        trials: how many changes are tried.

    Raises: ValueError when relative, digits or trials is out of range.
    """
    if digits < 1 or trials < 1 or not 0 < relative < 1:
        raise ValueError(
            "digits and trials must be at least 1 and relative in (0, 1), "
            f"got {digits}, {trials}, {relative}"
        )

    def printed(trial: int) -> list[str]:
        changed = copy.deepcopy(models)
        for model in [changed] if isinstance(changed, nn.Module) else changed:
            perturb_(model, relative if trial else 0.0, seed=trial)
        numbers = torch.as_tensor(run(changed), dtype=torch.float64).flatten()
        return [significant(number, digits) for number in numbers.tolist()]

    expected = printed(0)
    return all(printed(trial) == expected for trial in range(1, trials + 1))


# --- shared ---


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


def check_arguments(
    inputs: Tensor,
    targets: Tensor,
    steps: int,
    rates: Sequence[float],
    warmups: Sequence[int],
    optimizer: str,
) -> None:
    """Raise ValueError unless the data fit together and the schedule makes sense."""
    if len(inputs) != len(targets) or not len(inputs):
        raise ValueError(
            f"inputs and targets must be as many, got {len(inputs)} and {len(targets)}"
        )
    if optimizer not in OPTIMIZERS:
        raise ValueError(f"optimizer must be 'adam' or 'sgd', got {optimizer!r}")
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    for rate in rates:
        if not 0 < rate < math.inf:
            raise ValueError(f"learning_rate must be a finite number above 0, got {rate}")
    for warmup in warmups:
        if warmup < 0:
            raise ValueError(f"warmup must be at least 0 steps, got {warmup}")
