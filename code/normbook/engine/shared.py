"""What the norms share: centering, gain and bias, and how a channel's value meets its axis.

The four norms that subtract a mean differ in the axes over which they take it, and in little else:

    layer           axes of the statistics, input [N, C, ...]
    BatchNorm       the batch and all spatial axes
    LayerNorm       the trailing axes of one example
    GroupNorm       a group of channels and all spatial axes, of one example
    InstanceNorm    all spatial axes, of one channel of one example

One rule holds for mixed dtypes: weight, bias and running statistics have the input's dtype, or
float32 beside a half-precision input (anything else raises `TypeError`); half precision is reduced
in float32; the output has the input's dtype.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from normbook.engine.checks import require_floating, require_number, require_size


def center(input: Tensor, axes: Sequence[int]) -> tuple[Tensor, Tensor]:
    r"""Subtract the mean over `axes`; return the centered input and its biased variance.

    $$c = x - \mathrm{E}[x], \qquad \mathrm{Var}[x] = \mathrm{E}[c^2]$$

    Two passes on purpose: $\mathrm{E}[x^2] - \mathrm{E}[x]^2$ cancels when the mean is large, and
    `torch.var` over the last axis is many times slower on a CPU.

    Shapes: input any; centered as input; variance as input with `axes` of size 1.

    Raises: TypeError on a dtype that is not real floating point; IndexError on a missing axis.
    """
    require_floating("input", input)
    centered = input - input.mean(axes, keepdim=True)
    return centered, centered.square().mean(axes, keepdim=True)


def mean_square(input: Tensor, axes: Sequence[int]) -> Tensor:
    r"""Return $\mathrm{E}[x^2]$ over `axes`, which stay as size 1: what RMSNorm divides by.

    Eager, it is $\lVert x \rVert^2 / d$: writing x² and reading it again costs more than the sum.
    A compiler fuses the square into the sum, and would take the norm's root for every value anew.

    Shapes: input any; output as input with `axes` of size 1.
    """
    if torch.compiler.is_compiling():
        return input.square().mean(axes, keepdim=True)
    count = math.prod(input.shape[axis] for axis in axes)
    return torch.linalg.vector_norm(input, dim=axes, keepdim=True).square() / count


def apply_affine(normalized: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """Return weight * normalized + bias in the dtype of `normalized`; None leaves a part out."""
    weight = None if weight is None else weight.to(normalized.dtype)
    bias = None if bias is None else bias.to(normalized.dtype)
    if weight is None:
        return normalized if bias is None else normalized + bias
    # addcmul saves one pass over memory, which is what an elementwise operation costs
    return normalized * weight if bias is None else torch.addcmul(bias, normalized, weight)


def per_channel(value: Tensor | None, input: Tensor) -> Tensor | None:
    """View a [C] tensor as [1, C, 1, ...], where it meets axis 1 of `input`, in its dtype."""
    if value is None:
        return None
    return value.to(input.dtype).reshape(1, -1, *[1] * (input.dim() - 2))


def move_running_(running: Tensor, batch: Tensor, momentum: float | Tensor) -> None:
    """Replace `running` by (1 - momentum) * running + momentum * batch, in place, off the graph."""
    running.copy_((1 - momentum) * running + momentum * batch.detach())


class ChannelNorm(nn.Module):
    """What BatchNorm and InstanceNorm hold: settings, gain and bias, running statistics.

    Raises: ValueError and TypeError on a size, eps or momentum out of range.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
    ) -> None:
        super().__init__()
        require_size("num_features", num_features)
        require_number("eps", eps, low=0)
        if momentum is not None:
            require_number("momentum", momentum, 0, 1)
        self.num_features = num_features
        self.eps = eps
        self.momentum = momentum
        self.affine = affine
        self.track_running_stats = track_running_stats
        self.weight = nn.Parameter(torch.ones(num_features)) if affine else None
        self.bias = nn.Parameter(torch.zeros(num_features)) if affine else None
        statistics = {
            "running_mean": torch.zeros(num_features),
            "running_var": torch.ones(num_features),
            "num_batches_tracked": torch.tensor(0),
        }
        for name, value in statistics.items():
            self.register_buffer(name, value if track_running_stats else None)

    def extra_repr(self) -> str:
        """Name the settings, as PyTorch does."""
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
            f"track_running_stats={self.track_running_stats}"
        )
