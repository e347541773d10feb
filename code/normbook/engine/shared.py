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

from collections.abc import Sequence

import torch
from torch import Tensor

from normbook.engine.checks import require_floating


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
