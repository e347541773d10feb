"""Networks of several widths or depths, trained at once, each weight at a rate of its own.

`train_rows` is `ensembles.train_many` for optimizers with parameter groups: every member has its
own groups, so a rate (and Adam's ε) a member and a parameter, as `nz.mup_param_groups` makes them.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import vmap

import normalization as nz
from normbook.lab.ensembles import loss_of_one, stack_members
from normbook.lab.probes import recorded, recorded_inputs
from normbook.lab.training import OPTIMIZERS, Loss, batch_indices, cross_entropy, progress

Groups = Sequence[dict[str, Any]]


def plain_groups(model: nn.Module, lr: float) -> list[dict[str, Any]]:
    """Put all parameters into one group: one rate for all, as in the standard parametrization."""
    return [{"params": list(model.parameters()), "lr": lr}]


def train_rows(
    models: Sequence[nn.Module],
    groups: Sequence[Groups],
    inputs: Tensor,
    targets: Tensor,
    *,
    steps: int,
    optimizer: str = "adam",
    batch_size: int | None = None,
    seed: int = 0,
    loss: Loss = cross_entropy,
) -> Tensor:
    """Train same-shaped models in place, all at once; return the losses [members, steps].

    Member i ends where `torch.optim` with `groups[i]` would have taken it alone: one backward pass
    finds all gradients, and PyTorch's own optimizer takes the steps. All see the same batches. A
    member that diverges goes on, and its losses say so.

    `models` are of one architecture; their parameters become rows of shared tensors. `groups` is
    one list of parameter groups a member, over all of its parameters. The other arguments are those
    of `lab.training`.

    Raises: ValueError when there are not as many groups as models, a group's parameters are not the
    member's, the optimizer is unknown, or the models differ.
    """
    if optimizer not in OPTIMIZERS:
        raise ValueError(f"optimizer must be 'adam' or 'sgd', got {optimizer!r}")
    if len(groups) != len(models):
        raise ValueError(f"groups must be one list a model, got {len(groups)} for {len(models)}")
    parameters, fixed = _share_rows(models, groups)
    chosen = [group for member in groups for group in member]
    descent = OPTIMIZERS[optimizer](chosen, lr=1.0, fused=True)
    losses_of = vmap(loss_of_one(models[0], loss), in_dims=(0, 0, None, None))
    batches = batch_indices(len(inputs), batch_size, steps, seed).to(inputs.device)
    history = []
    for step in progress(steps, f"training {len(models)} models"):
        rows = ... if batch_size is None else batches[step]
        values = losses_of(parameters, fixed, inputs[rows], targets[rows])
        history.append(values.detach().double().cpu())
        gradients = torch.autograd.grad(values.sum(), list(parameters.values()))
        for name, gradient in zip(parameters, gradients, strict=True):
            gradient = gradient.contiguous()  # the fused optimizers ignore strides
            for index, model in enumerate(models):
                model.get_parameter(name).grad = gradient[index]
        descent.step()
    return torch.stack(history, dim=1)


def evaluate_rows(
    models: Sequence[nn.Module], inputs: Tensor, targets: Tensor, loss: Loss = cross_entropy
) -> Tensor:
    """Return the loss of each model on the data: [members]."""
    with torch.no_grad():
        return torch.stack([loss(model(inputs), targets) for model in models]).double().cpu()


def _share_rows(
    models: Sequence[nn.Module], groups: Sequence[Groups]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Stack the members' parameters [members, …], and make each member's own a view of its row."""
    for index, (model, member) in enumerate(zip(models, groups, strict=True)):
        own = {id(p) for p in model.parameters()}
        given = {id(p) for group in member for p in group["params"]}
        if own != given:
            raise ValueError(f"groups[{index}] must hold the parameters of models[{index}]")
    _, stacked, fixed = stack_members(models)
    parameters = {}
    for name, values in stacked.items():
        parameters[name] = values.detach().clone().requires_grad_()
        for index, model in enumerate(models):
            model.get_parameter(name).data = parameters[name].data[index]
    return parameters, fixed


class DeepMLP(nn.Module):
    r"""A Pre-LN residual network whose L branches are multiplied by one number.

    $$x_{l+1} = x_l + s\, W_\mathrm{down}^l\, \mathrm{ReLU}(W_\mathrm{up}^l\, \mathrm{LN}(x_l))$$

    No gains and no biases but the head's. All branches' matrices are drawn to keep the second
    moment, and stored as one tensor a kind, so that many members are trained quickly.

    Shapes: input [n, …] with `inputs` values an example; output [n, outputs].
    """

    def __init__(self, inputs: int, width: int, depth: int, outputs: int, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.stem = nn.Parameter(torch.randn(inputs, width) / inputs**0.5)
        self.up = nn.Parameter(torch.randn(depth, width, width) / width**0.5)
        self.down = nn.Parameter(torch.randn(depth, width, width) * (2 / width) ** 0.5)
        self.head = nn.Parameter(torch.randn(width, outputs) / width**0.5)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, input: Tensor) -> Tensor:
        """Flatten each example; stem, branches, norm, head."""
        x = input.flatten(1) @ self.stem
        width = x.shape[-1]
        for up, down in zip(self.up.unbind(), self.down.unbind(), strict=True):
            x = x + self.scale * ((nz.layer_norm(x, width) @ up).relu() @ down)
        return nz.layer_norm(x, width) @ self.head + self.bias


# --- the coordinate check ---


class Coordinates(NamedTuple):
    """Root mean squares of layers' outputs, [steps + 1, places] each, index 0 before any step.

    Attributes:
        size: of the outputs.
        change: of the outputs minus those before any step.
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
    loss: Loss = cross_entropy,
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
            value = loss(model(inputs), targets)
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
