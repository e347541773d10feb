"""How a layer's input distribution moves in training, and noise that moves it on purpose."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from normbook.lab.stacks import Stack

__all__ = ["DriftMeter", "ShiftingNoise", "drift"]

SPREADS = 0.5, 1.5  # of the noise, in units of the dose


class ShiftingNoise:
    """Noise for `Stack.outputs`, from a distribution that is drawn anew at every step.

    To what enters an activation, [members, n, width], it adds dose · (m + s · z). Each unit of each
    layer has a mean m ~ N(0, 1) and a spread s, uniform in 0.5 … 1.5, the same for all members;
    z ~ N(0, 1) is drawn for every example. So the noise is independent between examples, its mean
    is not 0 and its variance not 1. At each `step` new m and s are drawn.

    Args:
        doses: one a member; 0 leaves that member alone, bit for bit.
        seed: of the noise, not of the members.
        frozen: for each member, whether it keeps the first step's m and s: the same noise, but a
            distribution that stays. None for all moving.
        shift_only: for each member, whether z is left out, so that the noise is a mere shift of the
            distribution, common to all examples. None for none.

    Source: the experiment is that of Santurkar et al. 2018 (arXiv 1805.11604), section 2.1.
    """

    def __init__(
        self,
        doses: Sequence[float],
        seed: int = 0,
        frozen: Sequence[bool] | None = None,
        shift_only: Sequence[bool] | None = None,
    ) -> None:
        if not doses or min(doses) < 0:
            raise ValueError(f"doses must be at least one number, none below 0, got {list(doses)}")
        column = lambda values: torch.tensor(values, dtype=torch.float64)[:, None, None]  # noqa: E731
        self.doses = column(list(doses))
        self.frozen = column([float(f) for f in _one_each("frozen", frozen, doses)])
        self.spread = column([1.0 - float(s) for s in _one_each("shift_only", shift_only, doses)])
        self.generator = torch.Generator().manual_seed(seed)
        self.first: dict[int, tuple[Tensor, Tensor]] = {}
        self.now: dict[int, tuple[Tensor, Tensor]] = {}

    def step(self) -> None:
        """Forget this step's means and spreads: the next call for each layer draws new ones."""
        self.now = {}

    def __call__(self, layer: int, x: Tensor) -> Tensor:
        """Return x [members, n, width] with the layer's noise added."""
        mean, spread = self._law(layer, x.shape[-1])
        z = self._draw(torch.randn, *x.shape[1:])
        noise = self.doses * (mean + self.spread * spread * z)
        return torch.where(self.doses.to(x) > 0, x + noise.to(x), x)

    def _law(self, layer: int, width: int) -> tuple[Tensor, Tensor]:
        """Return the means and spreads of this step, [members, 1, width] each."""
        if layer not in self.now:
            low, high = SPREADS
            mean, share = self._draw(torch.randn, width), self._draw(torch.rand, width)
            self.now[layer] = mean, low + (high - low) * share
            self.first.setdefault(layer, self.now[layer])
        pairs = zip(self.first[layer], self.now[layer], strict=True)
        return tuple(self.frozen * first + (1 - self.frozen) * now for first, now in pairs)

    def _draw(self, law: Callable[..., Tensor], *shape: int) -> Tensor:
        """Draw from the noise's own generator, on the CPU."""
        return law(*shape, generator=self.generator, dtype=torch.float64)


def _one_each(name: str, flags: Sequence[bool] | None, doses: Sequence[float]) -> list[bool]:
    """Give every dose its flag, False by default; ValueError unless they are as many."""
    found = [False] * len(doses) if flags is None else list(flags)
    if len(found) != len(doses):
        raise ValueError(f"{name} must have one entry a dose, got {len(found)} for {len(doses)}")
    return found


class DriftMeter:
    """Records mean and standard deviation of what enters each activation, step by step.

    Give it as `watch` to `stacks.train`; the noise moves on at the same time.

    Attributes:
        moments: one entry a step, [2, members, layers, width]: means, then standard deviations.
    """

    def __init__(self, inputs: Tensor, noise: ShiftingNoise | None = None) -> None:
        self.inputs, self.noise, self.moments = inputs, noise, []

    def __call__(self, stack: Stack) -> None:
        """Draw the step's noise, pass the probe inputs through and keep the moments."""
        if self.noise is not None:
            self.noise.step()
        record: list[Tensor] = []
        with torch.no_grad():
            stack.outputs(self.inputs, self.noise, record)
        entering = torch.stack(record, 1)  # [members, layers, n, width]
        mean = entering.mean(2, keepdim=True)
        spread = (entering - mean).square().mean(2).sqrt()
        self.moments.append(torch.stack([mean.squeeze(2), spread]).cpu())


def drift(moments: Sequence[Tensor]) -> Tensor:
    r"""Average how far the distribution moves in a step, in units of its own width: [members].

    For each layer and step, with mean $\mu_u$ and standard deviation $\sigma_u$ of unit u,

    $$\sqrt{\frac{\sum_u (\Delta\mu_u)^2 + (\Delta\sigma_u)^2}{\sum_u \sigma_u^2}}$$

    which is the Wasserstein-2 distance of two Gaussians with these moments, relative to the width
    of the first. Averaged over layers and steps.

    Args:
        moments: one tensor [2, members, layers, width] a step, as a `DriftMeter` keeps them.

    Raises: ValueError with fewer than two steps.
    """
    if len(moments) < 2:
        raise ValueError(f"moments must have at least 2 steps, got {len(moments)}")
    path = torch.stack(list(moments))
    moved = path.diff(dim=0).square().sum((1, -1))  # [steps − 1, members, layers]
    width = path[:-1, 1].square().sum(-1)
    return (moved / width).sqrt().mean((0, 2))
