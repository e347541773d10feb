"""Why normalize: plain MLPs with and without BatchNorm, noise that moves what they read, and loss.

An `MLPEnsemble` trains many MLPs side by side and lets one look at, and change, what enters each
activation. `DriftMeter` measures how far these inputs move in training, `ShiftingNoise` moves them
on purpose, and `LandscapeMeter` walks along the step to see how far a gradient can be trusted.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

import normalization as nz
from normbook.lab.ensembles import Ensemble, one_each
from normbook.lab.models import MLP

Change = Callable[[int, Tensor], Tensor]

SPREADS = 0.5, 1.5  # of the noise, in units of the dose

# --- many MLPs as one ---


class MLPEnsemble(Ensemble):
    """Several MLPs of one architecture, each layer one batched product: quicker than a `vmap`.

    BatchNorm uses the statistics of the batch at hand, always; there are no running ones.

    `skips` say for each member of a residual architecture whether its skips are there; None for
    all. Without them it computes what the plain MLP of the same weights does, so that plain and
    residual networks can share an ensemble. `change` maps (layer, x) to x, where x [members, n,
    width] enters an activation.

    Raises: ValueError when the members differ, their norm is neither BatchNorm nor missing, or
        there are skips to leave out where there are none.
    """

    def __init__(
        self,
        members: Sequence[MLP],
        skips: Sequence[bool] | None = None,
        change: Change | None = None,
    ) -> None:
        super().__init__(members)
        block = members[0].blocks[0]
        self.residual = isinstance(block, nz.Residual)
        self.skips, self.change = None, change
        if skips is not None:
            if not self.residual or len(skips) != len(members):
                got = list(skips)
                raise ValueError(f"skips must be one a member, and these residual, got {got}")
            self.skips = self.weights.new_tensor([float(skip) for skip in skips])[:, None, None]
        layers = list(block.branch if self.residual else block)
        self.activation, norms = layers[-1], layers[1:-1]
        if norms and not isinstance(norms[0], nz.BatchNorm):
            raise ValueError(f"members must have BatchNorm or no norm, got {norms[0]}")
        self.eps = norms[0].eps if norms else None

    def outputs(self, inputs: Tensor, entering: list[Tensor] | None = None) -> Tensor:
        """Compute all members' logits [members, n, outputs] of the same inputs [n, …].

        `entering` receives what enters each activation, [members, n, width] a layer.
        """
        x = self._linear("stem", inputs.flatten(1))
        for layer in range(len(self.models[0].blocks)):
            branch = self._layer(layer, x)
            branch = branch if self.change is None else self.change(layer, branch)
            if entering is not None:
                entering.append(branch)
            branch = self.activation(branch)
            skip = x if self.skips is None else self.skips * x
            x = branch + skip if self.residual else branch
        return self._linear("head", x)

    def losses(self, inputs: Tensor, targets: Tensor, own: bool = False) -> Tensor:
        """Average each member's cross-entropy in nats on the same data: [members]."""
        if own:
            raise ValueError("seed must be one for all members, whose batches are shared")
        logits = self.outputs(inputs).log_softmax(-1)
        targets = targets[None, :, None].expand(len(self.weights), -1, 1)
        return -logits.gather(-1, targets).mean((1, 2))

    def accuracy(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the share of targets that have the largest logit: [members]."""
        with torch.no_grad():
            found = self.outputs(inputs).argmax(-1)
        return (found == targets).double().mean(-1).cpu()

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
        affine = [self.parameters[f"{name}.1.{part}"].flatten() for part in ("weight", "bias")]
        channels = x.transpose(0, 1).flatten(1)  # [n, members · width]: one channel a unit
        # PyTorch's own, one call instead of eight: that it is the engine's is tested
        y = nn.functional.batch_norm(channels, None, None, *affine, training=True, eps=self.eps)
        return y.unflatten(1, (len(x), -1)).transpose(0, 1)


# --- how the inputs of the layers move ---


class ShiftingNoise:
    """Noise for an `MLPEnsemble`, from a distribution that is drawn anew at every step.

    To what enters an activation, [members, n, width], it adds dose · (m + s · z). Each unit of each
    layer has a mean m ~ N(0, 1) and a spread s, uniform in 0.5 … 1.5, the same for all members;
    z ~ N(0, 1) is drawn for every example. So the noise is independent between examples, its mean
    is not 0 and its variance not 1. At each `step` new m and s are drawn.

    `doses` are one a member; 0 leaves that member alone, bit for bit. A `frozen` member keeps the
    first step's m and s: the same noise, but a distribution that stays. With `shift_only` z is left
    out: the noise is a mere shift, common to all examples. Both are one for all or one each.

    Source: the experiment is that of Santurkar et al. 2018 (arXiv 1805.11604), section 2.1.
    """

    def __init__(
        self,
        doses: Sequence[float],
        seed: int = 0,
        frozen: bool | Sequence[bool] = False,
        shift_only: bool | Sequence[bool] = False,
    ) -> None:
        if not doses or min(doses) < 0:
            raise ValueError(f"doses must be at least one number, none below 0, got {list(doses)}")
        flags = {"frozen": frozen, "shift_only": shift_only}
        given = [list(doses), *(one_each(n, v, len(doses)) for n, v in flags.items())]
        columns = torch.tensor(given, dtype=torch.float64)[..., None, None]
        self.doses, self.frozen, self.spread = *columns[:2], 1 - columns[2]
        self.source = {"generator": torch.Generator().manual_seed(seed), "dtype": torch.float64}
        self.first: dict[int, tuple[Tensor, Tensor]] = {}
        self.step()

    def step(self) -> None:
        """Forget this step's means and spreads: the next call for each layer draws new ones."""
        self.now = {}

    def __call__(self, layer: int, x: Tensor) -> Tensor:
        """Return x [members, n, width] with the layer's noise added."""
        mean, spread = self._law(layer, x.shape[-1])
        z = torch.randn(*x.shape[1:], **self.source)
        noise = self.doses * (mean + self.spread * spread * z)
        return torch.where(self.doses.to(x) > 0, x + noise.to(x), x)

    def _law(self, layer: int, width: int) -> tuple[Tensor, Tensor]:
        """Return the means and spreads of this step, [members, 1, width] each."""
        if layer not in self.now:
            low, high = SPREADS
            mean, share = torch.randn(width, **self.source), torch.rand(width, **self.source)
            self.now[layer] = mean, low + (high - low) * share
            self.first.setdefault(layer, self.now[layer])
        pairs = zip(self.first[layer], self.now[layer], strict=True)
        return tuple(self.frozen * first + (1 - self.frozen) * now for first, now in pairs)


class DriftMeter:
    """Records mean and standard deviation of what enters each activation, step by step.

    Give it as `watch` to `train`; the ensemble's noise moves on at the same time. `moments` has one
    entry a step, [2, members, layers, width]: means, then standard deviations.
    """

    def __init__(self, inputs: Tensor) -> None:
        self.inputs, self.moments = inputs, []

    def __call__(self, ensemble: MLPEnsemble) -> None:
        """Draw the step's noise, pass the probe inputs through and keep the moments."""
        if isinstance(ensemble.change, ShiftingNoise):
            ensemble.change.step()
        found: list[Tensor] = []
        with torch.no_grad():
            ensemble.outputs(self.inputs, found)
        entering = torch.stack(found, 1)  # [members, layers, n, width]
        mean = entering.mean(2, keepdim=True)
        spread = (entering - mean).square().mean(2).sqrt()
        self.moments.append(torch.stack([mean.squeeze(2), spread]).cpu())


def drift(moments: Sequence[Tensor]) -> Tensor:
    r"""Average how far the distribution moves in a step, in units of its own width: [members].

    For each layer and step, with mean $\mu_u$ and standard deviation $\sigma_u$ of unit u,

    $$\sqrt{\frac{\sum_u (\Delta\mu_u)^2 + (\Delta\sigma_u)^2}{\sum_u \sigma_u^2}}$$

    which is the Wasserstein-2 distance of two Gaussians with these moments, relative to the width
    of the first. Averaged over layers and steps.

    `moments`: one tensor [2, members, layers, width] a step, as a `DriftMeter` keeps them; fewer
    than two steps raise ValueError.
    """
    if len(moments) < 2:
        raise ValueError(f"moments must have at least 2 steps, got {len(moments)}")
    path = torch.stack(list(moments))
    moved = path.diff(dim=0).square().sum((1, -1))  # [steps − 1, members, layers]
    width = path[:-1, 1].square().sum(-1)
    return (moved / width).sqrt().mean((0, 2))


# --- how far a gradient can be trusted ---


class Landscape(NamedTuple):
    """What one walks over on the line θ − a · g, g the gradient at θ: [members] each.

    `loss_low` and `loss_high` are the smallest and largest loss over the distances a, `gradient` is
    ‖g(θ)‖, `gradient_change` the largest ‖g(θ − a · g) − g(θ)‖, and `smoothness` the largest of
    these over ‖a · g‖, the effective β.
    """

    loss_low: Tensor
    loss_high: Tensor
    gradient_change: Tensor
    gradient: Tensor
    smoothness: Tensor


def along_the_step(
    ensemble: MLPEnsemble, inputs: Tensor, targets: Tensor, distances: Sequence[float]
) -> Landscape:
    """Walk from each member's weights along its own negative gradient; the weights are put back.

    The loss is on inputs [n, …] with classes targets [n]. `distances` are learning rates a > 0,
    each one place on the line; none, or one that is not above 0, raises ValueError.

    Source: Santurkar et al. 2018 (arXiv 1805.11604), section 3.2 and figure 4.
    """
    if not distances or min(distances) <= 0:
        raise ValueError(f"distances must be numbers above 0, got {list(distances)}")
    start = ensemble.weights.clone()
    ensemble.differentiate(ensemble.losses(inputs, targets))
    gradient = ensemble.gradient.clone()
    size = gradient.norm(dim=1)
    losses, changes = [], []
    for distance in distances:
        ensemble.weights.copy_(start - distance * gradient)
        losses.append(ensemble.differentiate(ensemble.losses(inputs, targets)))
        changes.append((ensemble.gradient - gradient).norm(dim=1))
    ensemble.weights.copy_(start)
    loss, change = torch.stack(losses), torch.stack(changes)
    reach = torch.tensor(distances).to(size)[:, None] * size
    found = loss.amin(0), loss.amax(0), change.amax(0), size, (change / reach).amax(0)
    return Landscape(*(values.cpu() for values in found))


class LandscapeMeter:
    """Looks along the step every so many steps; give it as `watch` to `train`.

    `steps` are those at which it looked, and `found` has a `Landscape` for each.
    """

    def __init__(
        self, inputs: Tensor, targets: Tensor, distances: Sequence[float], every: int = 1
    ) -> None:
        self.look = partial(along_the_step, inputs=inputs, targets=targets, distances=distances)
        self.every, self.count = every, 0
        self.steps: list[int] = []
        self.found: list[Landscape] = []

    def __call__(self, ensemble: MLPEnsemble) -> None:
        """Look, if it is time to."""
        if self.count % self.every == 0:
            self.steps.append(self.count)
            self.found.append(self.look(ensemble))
        self.count += 1

    def path(self) -> Landscape:
        """Return everything that was found, [members, looks] each."""
        return Landscape(*(torch.stack(values, 1) for values in zip(*self.found, strict=True)))
