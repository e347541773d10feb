"""Many MLPs as one: the members' weights stacked, so that each layer is one batched product.

`ensembles.train_many` trains any model, through `vmap`. This is the quick way for `models.MLP`, and
it leaves two doors open: a function that meddles with what the norms hand on, and a record of it.
BatchNorm uses the statistics of the batch at hand, always; there are no running ones.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

import normalization as nz
from normbook.lab.ensembles import (
    Histories,
    descend,
    member_gradients,
    one_each,
    stack_members,
    unstack_members,
)
from normbook.lab.models import MLP
from normbook.lab.training import BOUND, batch_indices, check_arguments

__all__ = ["Stack", "train"]

Meddle = Callable[[int, Tensor], Tensor]
Watch = Callable[["Stack"], None]


class Stack:
    """The weights of several MLPs of one architecture, and the functions that they compute.

    Attributes:
        weights: [members, P], all trainable weights. Change them in place only.
        parameters: the same by name, [members, …] each, views into `weights`.

    Args:
        members: the networks; their weights are copied.
        skips: for each member of a residual architecture, whether its skips are there. Without
            them it computes what the plain MLP of the same weights does, so that plain and
            residual networks can share a stack. None for all.

    Raises: ValueError when the members differ, their norm is neither BatchNorm nor missing, or
        there are skips to leave out where there are none.
    """

    def __init__(self, members: Sequence[MLP], skips: Sequence[bool] | None = None) -> None:
        self.members = members
        self.weights, self.parameters, self.buffers = stack_members(members)
        block = members[0].blocks[0]
        self.residual = isinstance(block, nz.Residual)
        self.skips = self._skips(skips)
        layers = list(block.branch if self.residual else block)
        self.activation, norms = layers[-1], layers[1:-1]
        if norms and not isinstance(norms[0], nz.BatchNorm):
            raise ValueError(f"members must have BatchNorm or no norm, got {norms[0]}")
        self.eps = norms[0].eps if norms else None

    def outputs(
        self, inputs: Tensor, meddle: Meddle | None = None, record: list[Tensor] | None = None
    ) -> Tensor:
        """Compute all members' logits [members, n, outputs] of the same inputs [n, …].

        Args:
            inputs: [n, …].
            meddle: maps (layer, x) to x, where x [members, n, width] enters an activation.
            record: receives these x, one a layer, after `meddle`.
        """
        x = self._linear("stem", inputs.flatten(1))
        for layer in range(len(self.members[0].blocks)):
            branch = self._layer(layer, x)
            branch = branch if meddle is None else meddle(layer, branch)
            if record is not None:
                record.append(branch)
            branch = self.activation(branch)
            skip = x if self.skips is None else self.skips * x
            x = branch + skip if self.residual else branch
        return self._linear("head", x)

    def losses(self, inputs: Tensor, targets: Tensor, meddle: Meddle | None = None) -> Tensor:
        """Average each member's cross-entropy in nats: [members]."""
        logits = self.outputs(inputs, meddle).log_softmax(-1)
        targets = targets[None, :, None].expand(len(self.weights), -1, 1)
        return -logits.gather(-1, targets).mean((1, 2))

    def gradient(
        self, inputs: Tensor, targets: Tensor, meddle: Meddle | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return each member's loss [members], and its gradient [members, P]."""
        values = self.losses(inputs, targets, meddle)
        return values.detach(), member_gradients(values, self.parameters)

    def accuracy(self, inputs: Tensor, targets: Tensor, meddle: Meddle | None = None) -> Tensor:
        """Return the share of targets that have the largest logit: [members]."""
        with torch.no_grad():
            found = self.outputs(inputs, meddle).argmax(-1)
        return (found == targets).double().mean(-1).cpu()

    def unstack(self) -> None:
        """Copy the weights back into the members."""
        unstack_members(self.members, self.parameters)

    def _skips(self, skips: Sequence[bool] | None) -> Tensor | None:
        """Return a factor of the skips, [members, 1, 1], 0 where there is none; None for all."""
        if skips is None:
            return None
        if not self.residual or len(skips) != len(self.members):
            raise ValueError(f"skips must be one a member, and these residual, got {list(skips)}")
        return self.weights.new_tensor([float(skip) for skip in skips])[:, None, None]

    def _linear(self, name: str, x: Tensor) -> Tensor:
        """Apply every member's linear layer `name` to x [n, in] or [members, n, in]."""
        weight = self.parameters[f"{name}.weight"].mT
        bias = self.parameters.get(f"{name}.bias")
        x = x.expand(len(weight), *x.shape[-2:])
        return x.bmm(weight) if bias is None else torch.baddbmm(bias[:, None], x, weight)

    def _layer(self, layer: int, x: Tensor) -> Tensor:
        """Compute what enters the activation of a layer."""
        name = f"blocks.{layer}.branch" if self.residual else f"blocks.{layer}"
        x = self._linear(f"{name}.0", x)
        if self.eps is None:
            return x
        weight, bias = (
            self.parameters[f"{name}.1.{part}"].flatten() for part in ("weight", "bias")
        )
        channels = x.transpose(0, 1).flatten(1)  # [n, members · width]: one channel a unit
        # PyTorch's own, one call instead of eight: that it is the engine's is tested
        y = nn.functional.batch_norm(channels, None, None, weight, bias, True, eps=self.eps)
        return y.unflatten(1, (len(x), -1)).transpose(0, 1)


def train(
    stack: Stack,
    inputs: Tensor,
    targets: Tensor,
    *,
    steps: int,
    learning_rate: float | Sequence[float],
    optimizer: str = "adam",
    batch_size: int | None = None,
    seed: int = 0,
    bound: float = BOUND,
    meddle: Meddle | None = None,
    watch: Watch | None = None,
) -> Histories:
    """Train all members of `stack` in place, on the same batches; as `ensembles.train_many`.

    `learning_rate` is one for all or one a member; `watch` is called with the stack before each
    step. A member that diverges keeps its last weights while the others go on.

    Raises: ValueError when an argument is out of range.
    """
    members = len(stack.weights)
    rates = one_each("learning_rate", learning_rate, members)
    check_arguments(inputs, targets, steps, rates, [0], optimizer)
    batches = batch_indices(len(inputs), batch_size, steps, seed).to(inputs.device)

    def gradient_at(step: int) -> tuple[Tensor, Tensor]:
        if watch is not None:
            watch(stack)
        chosen = ... if batch_size is None else batches[step]
        return stack.gradient(inputs[chosen], targets[chosen], meddle)

    return descend(
        stack.weights, gradient_at, lambda _: rates, steps=steps, optimizer=optimizer, bound=bound
    )
