"""Training: one short loop, its batched twin over seeds and rates, and what may be printed of it.

`train` trains one model with `torch.optim`. `train_many` trains a list of same-shaped models at
once: their weights become one matrix [members, P], the forward pass is a `torch.func.vmap`, and
member i ends where `train` alone would have taken it. Both train in place and take the same words:

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
from torch.func import functional_call, vmap

from normbook.lab.models import perturb_

Loss = Callable[[Tensor, Tensor], Tensor]

OPTIMIZERS = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}
BETAS = 0.9, 0.999  # Adam's, as in torch.optim
EPSILON = 1e-8
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


class Histories(NamedTuple):
    """What `train_many` leaves behind: losses [members, steps], and diverged_at for each member."""

    losses: Tensor
    diverged_at: list[int | None]


class Score(NamedTuple):
    """Mean loss in nats, and the fraction of targets that have the largest logit."""

    loss: float
    accuracy: float


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy in nats of logits [..., classes] against class indices [...]."""
    return -outputs.log_softmax(-1).gather(-1, targets.unsqueeze(-1)).mean()


def mean_square(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean of (outputs − targets)² over all elements of two tensors of one shape."""
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
    _check(inputs, targets, steps, [learning_rate], [warmup], optimizer)
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
    """Share of the learning rate at `step`, counted from 0: min(1, (step + 1) / warmup)."""
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
    """Cross-entropy and accuracy in evaluation mode; the model's mode is put back."""
    was_training = model.training
    model.eval()
    with torch.no_grad():
        outputs = model(inputs)
    model.train(was_training)
    correct = outputs.argmax(-1) == targets
    return Score(cross_entropy(outputs, targets).item(), correct.double().mean().item())


# --- many models at once ---


def train_many(
    models: Sequence[nn.Module],
    inputs: Tensor,
    targets: Tensor,
    *,
    steps: int,
    learning_rate: float | Sequence[float],
    optimizer: str = "adam",
    warmup: int | Sequence[int] = 0,
    batch_size: int | None = None,
    seed: int | Sequence[int] = 0,
    loss: Loss = cross_entropy,
    bound: float = BOUND,
) -> Histories:
    """Train same-shaped models in place, all at once; arguments as at the top of this module.

    `learning_rate`, `warmup` and `seed` are one for all or one a member. With one seed all members
    see the same batches, which is also quicker. A member that diverges keeps its last weights
    while the others go on.

    Raises: ValueError when an argument is out of range or the models differ in their parameters.
    """
    members = len(models)
    rates = _one_each("learning_rate", learning_rate, members)
    warmups = _one_each("warmup", warmup, members)
    _check(inputs, targets, steps, rates, warmups, optimizer)
    batches, axis = _batches(len(inputs), batch_size, steps, seed, members)
    weights, parameters, fixed = _stack(models)
    losses_of = vmap(_loss_of(models[0], loss), in_dims=(0, 0, axis, axis))
    descent = {"adam": _Adam, "sgd": _Sgd}[optimizer](weights)
    losses = weights.new_full((steps, members), math.nan)
    alive = torch.ones(members, dtype=torch.bool, device=weights.device)
    for step in progress(steps, f"training {members} models"):
        chosen = ... if batch_size is None else batches[step].to(inputs.device)
        values = losses_of(parameters, fixed, inputs[chosen], targets[chosen])
        losses[step] = values.detach().masked_fill(~alive, math.nan)
        alive = alive & (losses[step] <= bound)
        if not alive.any():
            break
        gradient = _gradient(values, parameters)
        factors = [rate * warmup_factor(step, w) for rate, w in zip(rates, warmups, strict=True)]
        change = descent.change(gradient, weights.new_tensor(factors)[:, None])
        weights -= change.masked_fill(~alive[:, None], 0.0)
    _unstack(models, parameters, fixed)
    losses = losses.T.double().cpu()
    return Histories(losses, [_diverged_at(member, bound) for member in losses])


def _stack(models: Sequence[nn.Module]) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """Gather the members' weights in one matrix [members, P], and what else they hold.

    Returns the matrix, the trainable parameters as views into it by name, [members, …] each, and
    copies of the frozen parameters and the buffers, [members, …] each.
    """
    states = [dict(model.named_parameters()) | dict(model.named_buffers()) for model in models]
    shapes = [{name: value.shape for name, value in state.items()} for state in states]
    for index, model in enumerate(models):
        model.train()
        if shapes[index] != shapes[0]:
            raise ValueError(f"models must have the same parameters, models[{index}] has others")
    stacked = {name: torch.stack([s[name].detach() for s in states]) for name in states[0]}
    trainable = [name for name, value in states[0].items() if value.requires_grad]
    if not trainable:
        raise ValueError("models must have parameters to train, got none")
    weights = torch.cat([stacked[name].reshape(len(models), -1) for name in trainable], dim=1)
    parameters, start = {}, 0
    for name in trainable:
        shape = stacked.pop(name).shape
        columns = weights.narrow(1, start, shape[1:].numel())
        parameters[name] = columns.unflatten(1, shape[1:]) if shape[1:] else columns.squeeze(1)
        parameters[name] = parameters[name].detach().requires_grad_()
        start += shape[1:].numel()
    return weights, parameters, stacked


def _unstack(models: Sequence[nn.Module], *states: dict[str, Tensor]) -> None:
    """Copy the stacked tensors [members, …] back into the members."""
    for index, model in enumerate(models):
        own = dict(model.named_parameters()) | dict(model.named_buffers())
        for state in states:
            for name, values in state.items():
                own[name].detach().copy_(values[index].detach())


def _loss_of(model: nn.Module, loss: Loss) -> Callable[..., Tensor]:
    """Return the loss as a function of one member's weights, its other state, and the data."""

    def loss_of(parameters: dict, fixed: dict, inputs: Tensor, targets: Tensor) -> Tensor:
        return loss(functional_call(model, (parameters, fixed), (inputs,)), targets)

    return loss_of


def _gradient(values: Tensor, parameters: dict[str, Tensor]) -> Tensor:
    """Differentiate each member's loss [members] by its own weights: [members, P].

    No member's weights enter another's loss, so the gradient of the sum holds them all.
    """
    parts = torch.autograd.grad(values.sum(), list(parameters.values()), materialize_grads=True)
    return torch.cat([part.reshape(len(values), -1) for part in parts], dim=1)


def _batches(
    examples: int, batch_size: int | None, steps: int, seed: int | Sequence[int], members: int
) -> tuple[Tensor, int | None]:
    """Draw the batches [steps, B], or [steps, members, B] with a seed a member, and the member axis."""
    if not isinstance(seed, Sequence):
        return batch_indices(examples, batch_size, steps, seed), None
    seeds = _one_each("seed", seed, members)
    batches = [batch_indices(examples, batch_size, steps, own) for own in seeds]
    return torch.stack(batches, dim=1), None if batch_size is None else 0


class _Sgd:
    """Gradient descent on all members at once: θ ← θ − rate · gradient."""

    def __init__(self, weights: Tensor) -> None:
        pass

    def change(self, gradient: Tensor, rate: Tensor) -> Tensor:
        """What to subtract from the weights [members, P], at rate [members, 1]."""
        return rate * gradient


class _Adam:
    """Adam on all members at once, row i of every matrix [members, P] being member i.

    Source: Kingma & Ba 2015 (arXiv 1412.6980), Algorithm 1; ε outside the root, as in PyTorch.
    """

    def __init__(self, weights: Tensor) -> None:
        self.mean = torch.zeros_like(weights)
        self.square = torch.zeros_like(weights)
        self.steps = 0

    def change(self, gradient: Tensor, rate: Tensor) -> Tensor:
        """What to subtract from the weights [members, P], at rate [members, 1]."""
        self.steps += 1
        first, second = BETAS
        self.mean.lerp_(gradient, 1 - first)
        self.square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
        mean = self.mean / (1 - first**self.steps)
        root = (self.square / (1 - second**self.steps)).sqrt_().add_(EPSILON)
        return mean.div_(root).mul_(rate)


# --- what may be said of a run ---


def classify(
    losses: Tensor, chance: float, *, trains: float = 0.8, diverges: float = 2.0
) -> str | list[str]:
    """Name the outcome of a run: "trains", "at chance" or "diverged"; a list for [runs, steps].

    The mean of the last tenth of the losses decides: below `trains` · chance it trains; above
    `diverges` · chance, or where it is not finite, it has diverged.

    Args:
        losses: [steps] or [runs, steps], in nats.
        chance: the loss of a model that knows the frequencies only, ln(classes) if they are equal.
        trains: see above.
        diverges: see above.

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
        return [f"{number:.{digits}g}" for number in numbers.tolist()]

    return all(printed(trial) == printed(0) for trial in range(1, trials + 1))


# --- shared ---


def progress(steps: int, label: str) -> Iterator[int]:
    """Count 0 … steps − 1; redraw a line on stderr where a person watches a run of over a second.

    That is a terminal, or Jupyter unless the variable NORMBOOK_STRICT is set (as it is while
    recording and testing), so that no recorded output contains it.
    """
    in_jupyter = "ipykernel" in sys.modules and "NORMBOOK_STRICT" not in os.environ
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


def _diverged_at(losses: Tensor, bound: float) -> int | None:
    """First step whose loss is above the bound or not finite."""
    beyond = (~(losses <= bound)).nonzero()
    return int(beyond[0]) if len(beyond) else None


def _one_each(name: str, value: Any, members: int) -> list:
    """Give every member its value: `value` is one for all, or a sequence of one each."""
    values = list(value) if isinstance(value, Sequence) else [value] * members
    if len(values) != members or not members:
        raise ValueError(f"{name} must have one entry for each of {members} models, got {value!r}")
    return values


def _check(
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
