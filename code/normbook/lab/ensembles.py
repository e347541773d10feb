"""Same-shaped models trained at once: their weights are one matrix, their losses one `vmap`.

Member i ends where PyTorch's own optimizer would have taken it alone. Training is in place;
histories are float64 tensors on the CPU.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.optim import Optimizer

from normbook.engine.checks import require_choice, require_positive, require_size
from normbook.lab.training import BOUND, Histories, Loss, batch_indices, cross_entropy, descend

Groups = Sequence[dict[str, Any]]  # parameter groups, as torch.optim takes them
Adjust = Callable[[dict[str, Tensor], dict[str, Tensor]], dict[str, Tensor]]

OPTIMIZERS = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}


def train(
    models: Sequence[nn.Module],
    inputs: Tensor,
    targets: Tensor,
    *,
    loss: Loss = cross_entropy,
    **options,
) -> Histories:
    """Train same-shaped models in place, all at once, on one data set.

    Args:
        models: separate objects of one architecture.
        inputs: [n, …].
        targets: [n, …].
        loss: maps (outputs, targets) to a scalar.
        options: those of `Ensemble.train`. What a member may have of its own is given as one for
            all or as one each. Only `steps`, and `learning_rate` or `groups`, must be given.

            steps             number of updates
            learning_rate     after the warmup; one for all or one each
            groups            in its place: for each member a list of parameter groups, as
                              `torch.optim` takes them, over all parameters of that member
            optimizer         "adam" or "sgd" (without momentum), with PyTorch's defaults
            warmup            step t = 0, 1, … uses the rate times min(1, (t + 1) / warmup); 0 for
                              none; one for all or one each
            batch_size        examples a step; None takes all of them
            seed              of the batches; with one for all, all see the same: that is quicker
            bound             a loss above it, or one that is not finite, is a divergence: that
                              member keeps its weights while the others go on
            adjust            maps (parameters, gradients), by name and [members, …] each, to
                              other gradients: clipped ones, say
            watch             is called with the ensemble before each step

    Raises: ValueError when an argument is out of range or the models differ in their parameters.
    """
    ensemble = Ensemble(models, loss)
    found = ensemble.train(inputs, targets, **options)
    ensemble.unstack()
    return found


class Ensemble:
    """Same-shaped models as one: their weights in a matrix, their losses by `torch.func.vmap`.

    Attributes:
        models: the members, put into training mode.
        weights: [members, P], all trainable weights, copied. Change them in place only.
        gradient: [members, P], what `differentiate` found last.
        parameters: the weights by name, [members, …] each, views into `weights`.
        fixed: copies of the frozen parameters and the buffers, [members, …] each.

    Raises: ValueError when the models differ, are one object twice, or have nothing to train.
    """

    def __init__(self, models: Sequence[nn.Module], loss: Loss = cross_entropy) -> None:
        self.models = list(models)
        states = states_of(self.models)
        stacked = {name: torch.stack([s[name].detach() for s in states]) for name in states[0]}
        names = [name for name, value in states[0].items() if value.requires_grad]
        if not names:
            raise ValueError("models must have parameters to train, got none")
        parts = {name: stacked.pop(name) for name in names}
        flat = [part.reshape(len(part), -1) for part in parts.values()]
        ends = itertools.accumulate((part.shape[1] for part in flat), initial=0)
        self.weights, self.fixed = torch.cat(flat, dim=1), stacked
        self.gradient = torch.zeros_like(self.weights)
        self.columns = dict(zip(names, itertools.pairwise(ends), strict=True))
        self.parameters = {
            name: self.weights[:, start:stop].view(parts[name].shape).detach().requires_grad_()
            for name, (start, stop) in self.columns.items()
        }
        self.loss_of = loss_of_one(self.models[0], loss)

    def losses(self, inputs: Tensor, targets: Tensor, own: bool = False) -> Tensor:
        """Return each member's loss [members] on data [n, …], or on its `own`, [members, n, …]."""
        axis = 0 if own else None
        losses_of = vmap(self.loss_of, in_dims=(0, 0, axis, axis))
        return losses_of(self.parameters, self.fixed, inputs, targets)

    def differentiate(self, losses: Tensor, adjust: Adjust | None = None) -> Tensor:
        """Keep in `gradient` each member's loss by its own weights; return the losses, detached.

        No member's weights enter another's loss, so the gradient of the sum holds them all.
        `adjust` as in `train`.
        """
        named = self.parameters
        parts = torch.autograd.grad(losses.sum(), list(named.values()), materialize_grads=True)
        if adjust is not None:
            parts = adjust(named, dict(zip(named, parts, strict=True))).values()
        torch.cat([part.reshape(len(losses), -1) for part in parts], dim=1, out=self.gradient)
        return losses.detach()

    def train(
        self,
        inputs: Tensor,
        targets: Tensor,
        *,
        steps: int,
        learning_rate: float | Sequence[float] | None = None,
        groups: Sequence[Groups] | None = None,
        optimizer: str = "adam",
        warmup: int | Sequence[int] = 0,
        batch_size: int | None = None,
        seed: int | Sequence[int] = 0,
        bound: float = BOUND,
        adjust: Adjust | None = None,
        watch: Callable[["Ensemble"], Any] | None = None,
    ) -> Histories:
        """Train all members, as `train` explains; the models themselves change by `unstack`."""
        require_size("steps", steps)
        if (count := len(inputs)) != len(targets) or not count:
            raise ValueError(f"inputs and targets must be as many, got {count} and {len(targets)}")
        if groups is None:
            groups = self.plain_groups(learning_rate, warmup)
        descent, rows = self.optimizer(optimizer, groups)
        own = not isinstance(seed, int) and batch_size is not None
        batches = self.batches(count, batch_size, steps, seed).to(inputs.device)

        def losses_at(step: int) -> Tensor:
            if watch is not None:
                watch(self)
            chosen = ... if batch_size is None else batches[step]
            return self.differentiate(self.losses(inputs[chosen], targets[chosen], own), adjust)

        return descend(descent, losses_at, steps=steps, rows=rows, bound=bound)

    def optimizer(self, name: str, groups: Sequence[Groups]) -> tuple[Optimizer, list[list]]:
        """Return an optimizer of all members, and the tensors that it moves, by member."""
        require_choice("optimizer", name, OPTIMIZERS)
        if len(groups) != len(self.models):
            got = f"{len(groups)} for {len(self.models)}"
            raise ValueError(f"groups must be one list a model, got {got}")
        chosen = [self.rows_of(member, own) for member, own in enumerate(groups)]
        rows = [[row for group in own for row in group["params"]] for own in chosen]
        return OPTIMIZERS[name](join_alike(chosen), lr=1.0, fused=True), rows

    def rows_of(self, member: int, groups: Groups) -> list[dict[str, Any]]:
        """Return a member's parameter groups with rows of `weights` in place of its parameters.

        What stands side by side in a group is one row: an optimizer pays by the tensor.
        """
        named = {id(p): n for n, p in self.models[member].named_parameters() if p.requires_grad}
        groups = [{**group, "params": list(group["params"])} for group in groups]
        given = [id(parameter) for group in groups for parameter in group["params"]]
        if sorted(given) != sorted(named):
            raise ValueError(f"groups[{member}] must hold the parameters of models[{member}]")
        found = []
        for group in groups:
            spans = join_spans(self.columns[named[id(parameter)]] for parameter in group["params"])
            rows = [nn.Parameter(self.weights[member, start:stop]) for start, stop in spans]
            for row, (start, stop) in zip(rows, spans, strict=True):
                row.grad = self.gradient[member, start:stop]
            found.append({**group, "params": rows})
        return found

    def plain_groups(self, rates: Any, warmups: Any) -> list[Groups]:
        """Return a group of all its parameters for each member."""
        rates = one_each("learning_rate", rates, len(self.models))
        warmups = one_each("warmup", warmups, len(self.models))
        groups = []
        for model, rate, warmup in zip(self.models, rates, warmups, strict=True):
            require_positive("learning_rate", rate)
            require_size("warmup", warmup, low=0)
            groups.append(plain_group(model, rate, warmup))
        return groups

    def batches(self, examples: int, batch_size: int | None, steps: int, seed: Any) -> Tensor:
        """Choose the examples of each step: [steps, B], or [steps, members, B] with a seed each."""
        if isinstance(seed, int):
            return batch_indices(examples, batch_size, steps, seed)
        seeds = one_each("seed", seed, len(self.models))
        own = [batch_indices(examples, batch_size, steps, one) for one in seeds]
        return torch.stack(own, dim=1)

    def unstack(self) -> None:
        """Copy weights and buffers back into the members."""
        for index, model in enumerate(self.models):
            own = dict(model.named_parameters()) | dict(model.named_buffers())
            for name, values in (self.parameters | self.fixed).items():
                own[name].detach().copy_(values[index].detach())


# --- its parts ---


def plain_group(model: nn.Module, lr: float, warmup: int = 0) -> list[dict[str, Any]]:
    """Put all parameters that are trained into one group: one rate for all."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [{"params": trained, "lr": lr, "warmup": warmup}]


def join_alike(groups: Sequence[Groups]) -> list[dict[str, Any]]:
    """Join the groups of all members whose options are alike: an optimizer pays by the group."""
    found: dict[str, dict[str, Any]] = {}
    for group in itertools.chain.from_iterable(groups):
        options = {name: value for name, value in group.items() if name != "params"}
        joined = found.setdefault(repr(sorted(options.items())), {**options, "params": []})
        joined["params"] += group["params"]
    return list(found.values())


def join_spans(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join the spans (start, stop) that touch."""
    found: list[tuple[int, int]] = []
    for start, stop in sorted(spans):
        if found and found[-1][1] == start:
            start = found.pop()[0]
        found.append((start, stop))
    return found


def states_of(models: Sequence[nn.Module]) -> list[dict[str, Tensor]]:
    """Return the parameters and buffers of separate models of one architecture, by name."""
    if not models or len({id(model) for model in models}) < len(models):
        raise ValueError("models must be separate objects, got none, or one of them twice")
    states = [dict(model.named_parameters()) | dict(model.named_buffers()) for model in models]
    shapes = [{name: value.shape for name, value in state.items()} for state in states]
    for index, model in enumerate(models):
        model.train()
        # the printed form tells placements and activations apart, which have no weights
        if shapes[index] != shapes[0] or str(model) != str(models[0]):
            differs = f"models[{index}] differs from models[0]"
            raise ValueError(f"models must have one architecture, {differs}")
    return states


def loss_of_one(model: nn.Module, loss: Loss) -> Callable[..., Tensor]:
    """Return the loss as a function of one member's weights, its other state, and the data."""

    def loss_of(parameters: dict, fixed: dict, inputs: Tensor, targets: Tensor) -> Tensor:
        return loss(functional_call(model, (parameters, fixed), (inputs,)), targets)

    return loss_of


def one_each(name: str, value: Any, members: int) -> list:
    """Give every member its value: `value` is one for all, or a sequence of one each."""
    value = value.tolist() if hasattr(value, "tolist") else value
    values = list(value) if isinstance(value, Sequence) else [value] * members
    if len(values) != members:
        raise ValueError(f"{name} must have one entry for each of {members} models, got {value!r}")
    return values
