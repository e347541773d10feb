"""The loss along the step: how far a gradient can be trusted, measured while training."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from normbook.lab.stacks import Stack

__all__ = ["Landscape", "LandscapeMeter", "along_the_step"]


class Landscape(NamedTuple):
    """What one walks over on the line θ − a · g, g the gradient at θ: [members] each.

    Attributes:
        loss_low: the smallest loss over the distances a.
        loss_high: the largest.
        gradient_change: the largest ‖g(θ − a · g) − g(θ)‖.
        gradient: ‖g(θ)‖.
        smoothness: the largest ‖g(θ − a · g) − g(θ)‖ / ‖a · g‖, the effective β.
    """

    loss_low: Tensor
    loss_high: Tensor
    gradient_change: Tensor
    gradient: Tensor
    smoothness: Tensor


def along_the_step(
    stack: Stack, inputs: Tensor, targets: Tensor, distances: Sequence[float]
) -> Landscape:
    """Walk from each member's weights along its own negative gradient; the weights are put back.

    Args:
        stack: the members.
        inputs: the examples of the loss, [n, …].
        targets: their classes, [n].
        distances: learning rates a > 0, each one place on the line.

    Raises: ValueError without distances, or with one that is not above 0.

    Source: Santurkar et al. 2018 (arXiv 1805.11604), section 3.2 and figure 4.
    """
    if not distances or min(distances) <= 0:
        raise ValueError(f"distances must be numbers above 0, got {list(distances)}")
    start = stack.weights.clone()
    _, gradient = stack.gradient(inputs, targets)
    size = gradient.norm(dim=1)
    losses, changes = [], []
    for distance in distances:
        stack.weights.copy_(start - distance * gradient)
        loss, there = stack.gradient(inputs, targets)
        losses.append(loss)
        changes.append((there - gradient).norm(dim=1))
    stack.weights.copy_(start)
    loss, change = torch.stack(losses), torch.stack(changes)
    reach = torch.tensor(distances).to(size)[:, None] * size
    found = loss.amin(0), loss.amax(0), change.amax(0), size, (change / reach).amax(0)
    return Landscape(*(values.cpu() for values in found))


class LandscapeMeter:
    """Looks along the step every so many steps; give it as `watch` to `stacks.train`.

    Attributes:
        steps: at which it looked.
        found: a `Landscape` each.
    """

    def __init__(
        self, inputs: Tensor, targets: Tensor, distances: Sequence[float], every: int = 1
    ) -> None:
        self.inputs, self.targets, self.distances = inputs, targets, distances
        self.every, self.count = every, 0
        self.steps: list[int] = []
        self.found: list[Landscape] = []

    def __call__(self, stack: Stack) -> None:
        """Look, if it is time to."""
        if self.count % self.every == 0:
            self.steps.append(self.count)
            self.found.append(along_the_step(stack, self.inputs, self.targets, self.distances))
        self.count += 1

    def path(self) -> Landscape:
        """Return everything that was found, [members, looks] each."""
        return Landscape(*(torch.stack(values, 1) for values in zip(*self.found, strict=True)))
