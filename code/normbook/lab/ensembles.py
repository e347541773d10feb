"""Many models trained at once: the batched twin of `lab.training`.

The members' weights become one matrix [members, P], the forward pass is a `torch.func.vmap`, and
member i ends where `train` alone would have taken it.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from normbook.lab.session import check_perturbed
from normbook.lab.training import (
    BOUND,
    Loss,
    batch_indices,
    check_arguments,
    cross_entropy,
    progress,
    warmup_factor,
)

BETAS = 0.9, 0.999  # Adam's, as in torch.optim
EPSILON = 1e-8

Adjust = Callable[[dict[str, Tensor], dict[str, Tensor]], dict[str, Tensor]]


class Histories(NamedTuple):
    """What `train_many` leaves behind: losses [members, steps], and diverged_at for each member."""

    losses: Tensor
    diverged_at: list[int | None]


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
    adjust: Adjust | None = None,
) -> Histories:
    """Train same-shaped models in place, all at once; arguments as at the top of `lab.training`.

    `learning_rate`, `warmup` and `seed` are one for all or one a member. With one seed all members
    see the same batches, which is also quicker. A member that diverges keeps its last weights
    while the others go on. `adjust(parameters, gradients)` may return other gradients, clipped ones
    say; both are dicts by parameter name, of tensors [members, …].

    Raises: ValueError when an argument is out of range or the models differ in their parameters.
    """
    members = len(models)
    rates = one_each("learning_rate", learning_rate, members)
    warmups = one_each("warmup", warmup, members)
    check_arguments(inputs, targets, steps, rates, warmups, optimizer)
    batches, axis = _batches(len(inputs), batch_size, steps, seed, members)
    weights, parameters, fixed = stack_members(models)
    losses_of = vmap(loss_of_one(models[0], loss), in_dims=(0, 0, axis, axis))

    def gradient_at(step: int) -> tuple[Tensor, Tensor]:
        chosen = ... if batch_size is None else batches[step].to(inputs.device)
        values = losses_of(parameters, fixed, inputs[chosen], targets[chosen])
        return values.detach(), member_gradients(values, parameters, adjust)

    def rates_at(step: int) -> list[float]:
        return [rate * warmup_factor(step, w) for rate, w in zip(rates, warmups, strict=True)]

    found = descend(weights, gradient_at, rates_at, steps=steps, optimizer=optimizer, bound=bound)
    unstack_members(models, parameters, fixed)
    return found


def descend(
    weights: Tensor,
    gradient_at: Callable[[int], tuple[Tensor, Tensor]],
    rates_at: Callable[[int], Sequence[float]],
    *,
    steps: int,
    optimizer: str,
    bound: float = BOUND,
) -> Histories:
    """Move all members' weights [members, P], in place, down their gradients.

    `gradient_at(step)` gives losses [members] and gradients [members, P], `rates_at(step)` a rate a
    member. A member whose loss is above `bound` keeps its weights from then on.
    """
    check_perturbed()
    members = len(weights)
    descent = Adam(weights) if optimizer == "adam" else Sgd()
    losses = weights.new_full((steps, members), math.nan)
    alive = torch.ones(members, dtype=torch.bool, device=weights.device)
    for step in progress(steps, f"training {members} models"):
        values, gradient = gradient_at(step)
        losses[step] = values.masked_fill(~alive, math.nan)
        alive = alive & (losses[step] <= bound)
        if not alive.any():
            break
        rates = weights.new_tensor(rates_at(step))[:, None]
        weights -= descent.change(gradient, rates).masked_fill(~alive[:, None], 0.0)
    losses = losses.T.double().cpu()
    return Histories(losses, [diverged_at(member, bound) for member in losses])


def stack_members(
    models: Sequence[nn.Module],
) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """Gather the members' weights in one matrix [members, P], and what else they hold.

    Returns the matrix, the trainable parameters as views into it by name, [members, …] each, and
    copies of the frozen parameters and the buffers, [members, …] each.
    """
    states = [dict(model.named_parameters()) | dict(model.named_buffers()) for model in models]
    _check_alike(models, states)
    for model in models:
        model.train()
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


def _check_alike(models: Sequence[nn.Module], states: list[dict[str, Tensor]]) -> None:
    """Raise ValueError unless the models are separate objects of one architecture."""
    if len({id(model) for model in models}) < len(models):
        raise ValueError("models must be separate objects, got one of them twice")
    shapes = [{name: value.shape for name, value in state.items()} for state in states]
    for index, model in enumerate(models):
        # the printed form tells placements and activations apart, which have no weights
        if shapes[index] != shapes[0] or str(model) != str(models[0]):
            raise ValueError(
                f"models must have one architecture, models[{index}] differs from models[0]"
            )


def unstack_members(models: Sequence[nn.Module], *states: dict[str, Tensor]) -> None:
    """Copy the stacked tensors [members, …] back into the members."""
    for index, model in enumerate(models):
        own = dict(model.named_parameters()) | dict(model.named_buffers())
        for state in states:
            for name, values in state.items():
                own[name].detach().copy_(values[index].detach())


def loss_of_one(model: nn.Module, loss: Loss) -> Callable[..., Tensor]:
    """Return the loss as a function of one member's weights, its other state, and the data."""

    def loss_of(parameters: dict, fixed: dict, inputs: Tensor, targets: Tensor) -> Tensor:
        return loss(functional_call(model, (parameters, fixed), (inputs,)), targets)

    return loss_of


def member_gradients(
    values: Tensor, parameters: dict[str, Tensor], adjust: Adjust | None = None
) -> Tensor:
    """Differentiate each member's loss [members] by its own weights: [members, P].

    No member's weights enter another's loss, so the gradient of the sum holds them all. `adjust` as
    in `train_many`.
    """
    parts = torch.autograd.grad(values.sum(), list(parameters.values()), materialize_grads=True)
    if adjust is not None:
        parts = adjust(parameters, dict(zip(parameters, parts, strict=True))).values()
    return torch.cat([part.reshape(len(values), -1) for part in parts], dim=1)


def _batches(
    examples: int, batch_size: int | None, steps: int, seed: int | Sequence[int], members: int
) -> tuple[Tensor, int | None]:
    """Draw batches [steps, B], or [steps, members, B] with a seed each; and the members' axis."""
    if isinstance(seed, int):
        return batch_indices(examples, batch_size, steps, seed), None
    seeds = one_each("seed", seed, members)
    batches = [batch_indices(examples, batch_size, steps, own) for own in seeds]
    return torch.stack(batches, dim=1), None if batch_size is None else 0


class Sgd:
    """Gradient descent on all members at once: θ ← θ − rate · gradient."""

    def change(self, gradient: Tensor, rate: Tensor) -> Tensor:
        """Return what to subtract from the weights [members, P], at rate [members, 1]."""
        return rate * gradient


class Adam:
    """Adam on all members at once, row i of every matrix [members, P] being member i.

    Source: Kingma & Ba 2015 (arXiv 1412.6980), Algorithm 1; ε outside the root, as in PyTorch.
    """

    def __init__(self, weights: Tensor) -> None:
        self.mean = torch.zeros_like(weights)
        self.square = torch.zeros_like(weights)
        self.steps = 0

    def change(self, gradient: Tensor, rate: Tensor) -> Tensor:
        """Return what to subtract from the weights [members, P], at rate [members, 1]."""
        self.steps += 1
        first, second = BETAS
        self.mean.lerp_(gradient, 1 - first)
        self.square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
        mean = self.mean / (1 - first**self.steps)
        root = (self.square / (1 - second**self.steps)).sqrt_().add_(EPSILON)
        return mean.div_(root).mul_(rate)


def diverged_at(losses: Tensor, bound: float) -> int | None:
    """Find the first step whose loss is above the bound or not finite."""
    beyond = (~(losses <= bound)).nonzero()
    return int(beyond[0]) if len(beyond) else None


def one_each(name: str, value: Any, members: int) -> list:
    """Give every member its value: `value` is one for all, or a sequence of one each."""
    value = value.tolist() if hasattr(value, "tolist") else value
    values = list(value) if isinstance(value, Sequence) else [value] * members
    if len(values) != members or not members:
        raise ValueError(f"{name} must have one entry for each of {members} models, got {value!r}")
    return values
