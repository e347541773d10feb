"""Group and instance normalization from scratch (section 6 of the book), as PyTorch has them.

They stand between LayerNorm and InstanceNorm: one group takes all channels of an example (which is
not the LayerNorm of a Transformer, whose statistics are those of one position), a group per channel
takes one channel, as InstanceNorm does.
"""

import math

import torch
from torch import Tensor, nn

from normbook.engine.checks import (
    computation_dtype,
    require_channels,
    require_floating,
    require_number,
    require_parameter,
    require_size,
    require_width,
)
from normbook.engine.shared import ChannelNorm, apply_affine, center, move_running_, per_channel

# --- GroupNorm ---


def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    r"""Normalize each example over a group of channels and all spatial axes.

    $$y = \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} \cdot \gamma + \beta$$

    with the mean $\mu$ and the biased variance $\sigma^2$ of the C / num_groups neighboring
    channels of one example; gain and bias are per channel.

    Shapes: input and output [N, C, ...]; weight and bias [C].

    Raises: ValueError when num_groups is below 1 or does not divide C, on fewer than 2 axes,
    another parameter shape or negative eps; TypeError on a dtype the rule of `shared` excludes.

    Source: Wu & He 2018 (arXiv 1803.08494), Eq. 7.
    """
    require_floating("input", input)
    if input.dim() < 2:
        raise ValueError(f"input must have 2 axes or more, [N, C, ...], got {tuple(input.shape)}")
    _require_groups(num_groups, input.shape[1])
    for name, value in {"weight": weight, "bias": bias}.items():
        require_parameter(name, value, input.shape[1:2], input)
    require_number("eps", eps, low=0)
    x = input.to(computation_dtype(input))
    groups = x.unflatten(1, (num_groups, -1))
    centered, variance = center(groups, tuple(range(2, groups.dim())))
    normalized = (centered * torch.rsqrt(variance + eps)).flatten(1, 2)
    return apply_affine(normalized, per_channel(weight, x), per_channel(bias, x)).to(input.dtype)


def _require_groups(num_groups: int, num_channels: int) -> None:
    """Raise unless the channels fall into `num_groups` equal groups."""
    require_size("num_groups", num_groups)
    if num_channels % num_groups:
        raise ValueError(
            f"num_groups must divide the number of channels {num_channels}, got {num_groups}"
        )


class GroupNorm(nn.Module):
    """Normalization over groups of channels; exchanges state dicts with `nn.GroupNorm`.

    Shapes: input and output [N, C, ...] with C = num_channels. Raises as `group_norm`.

    Source: Wu & He 2018 (arXiv 1803.08494).
    """

    def __init__(
        self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True
    ) -> None:
        super().__init__()
        require_size("num_channels", num_channels)
        _require_groups(num_groups, num_channels)
        require_number("eps", eps, low=0)
        self.num_groups = num_groups
        self.num_channels = num_channels
        self.eps = eps
        self.affine = affine
        self.weight = nn.Parameter(torch.ones(num_channels)) if affine else None
        self.bias = nn.Parameter(torch.zeros(num_channels)) if affine else None

    def forward(self, input: Tensor) -> Tensor:
        """Normalize each example's groups."""
        require_width(input, self.num_channels)
        return group_norm(input, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """Name the settings, as PyTorch does."""
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}"


# --- InstanceNorm ---


def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    r"""Normalize each channel of each example over its spatial axes.

    $$y = \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} \cdot \gamma + \beta$$

    With `use_input_stats`, $\mu$ and $\sigma^2$ are the instance's mean and biased variance, and
    the running statistics, where given, move toward the average over the batch of the instances'
    means and unbiased variances. Without, they are the running ones.

    Shapes: input and output [N, C, L], [N, C, H, W] or [N, C, D, H, W]; all others [C].

    Raises: ValueError on another rank or shape, negative eps, momentum outside [0, 1], a single
    value per instance with `use_input_stats`, or missing running statistics without; TypeError on
    a dtype the rule of `shared` excludes.

    Source: Ulyanov et al. 2016 (arXiv 1607.08022).
    """
    parameters = {"weight": weight, "bias": bias}
    require_channels(input, running_mean, running_var, parameters, momentum, eps, low_rank=3)
    _require_instance(input, running_mean, use_input_stats)
    x = input.to(computation_dtype(input))
    if use_input_stats:
        centered, variance = center(x, tuple(range(2, x.dim())))
        if running_mean is not None and running_var is not None and len(x):
            count = math.prod(x.shape[2:])
            mean = x.flatten(2).mean((0, 2))
            unbiased = variance.flatten(1).mean(0) * (count / (count - 1))
            move_running_(running_mean, mean, momentum)
            move_running_(running_var, unbiased, momentum)
    else:
        centered = x - per_channel(running_mean, x)
        variance = per_channel(running_var, x)
    normalized = centered * torch.rsqrt(variance + eps)
    return apply_affine(normalized, per_channel(weight, x), per_channel(bias, x)).to(input.dtype)


def _require_instance(input: Tensor, running_mean: Tensor | None, use_input_stats: bool) -> None:
    """Raise unless the statistics that `instance_norm` is to use can be had."""
    if not use_input_stats and running_mean is None:
        raise ValueError(
            "running_mean and running_var must be given when use_input_stats is False, got None"
        )
    if use_input_stats and math.prod(input.shape[2:]) == 1:
        raise ValueError(
            "input must have more than one value per instance (its spatial sizes), "
            f"got shape {tuple(input.shape)}"
        )


class InstanceNorm(ChannelNorm):
    """Normalization per instance, ranks 3 to 5; exchanges state dicts with `nn.InstanceNorm…d`.

    As PyTorch's, it has no parameters and no running statistics unless told so, and never counts
    its batches: `num_batches_tracked` stays 0, and `momentum=None` leaves the running statistics
    where they are.

    Shapes: as `instance_norm`, with C = num_features; always with the batch axis.

    Raises: ValueError and TypeError as `instance_norm`; ValueError when C is not num_features.

    Source: Ulyanov et al. 2016 (arXiv 1607.08022).
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats)

    def forward(self, input: Tensor) -> Tensor:
        """Normalize each instance and, where asked in training, move the running statistics."""
        require_width(input, self.num_features)
        return instance_norm(
            input,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            use_input_stats=self.training or self.running_mean is None,
            momentum=0.0 if self.momentum is None else self.momentum,
            eps=self.eps,
        )
