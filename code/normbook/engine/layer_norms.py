"""Layer and RMS normalization from scratch (sections 3 and 4 of the book).

Both take statistics over the trailing axes of one example; RMSNorm does not subtract the mean.
Signatures and state dicts are PyTorch's; `shared` tells the rule for mixed dtypes.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from normbook.engine.checks import (
    as_shape,
    computation_dtype,
    require_floating,
    require_number,
    require_offset,
    require_trailing,
)
from normbook.engine.shared import apply_affine, center, mean_square

# --- LayerNorm ---


def layer_norm(
    input: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    r"""Normalize each example over its trailing axes.

    $$y = \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} \cdot \gamma + \beta$$

    with the mean $\mu$ and the biased variance $\sigma^2$ of the example's own values, in training
    and evaluation alike; $\epsilon$ stands inside the root.

    Shapes: input and output [..., *normalized_shape]; weight and bias normalized_shape.

    Raises: ValueError when the input does not end in normalized_shape, on another parameter shape
    or negative eps; TypeError on a dtype the rule of `shared` excludes.

    Source: Ba, Kiros & Hinton 2016 (arXiv 1607.06450), Eq. 3 and 4.
    """
    axes = require_trailing(input, normalized_shape, {"weight": weight, "bias": bias}, eps)
    centered, variance = center(input.to(computation_dtype(input)), axes)
    normalized = centered * torch.rsqrt(variance + eps)
    return apply_affine(normalized, weight, bias).to(input.dtype)


class LayerNorm(nn.Module):
    """Layer normalization over the trailing axes; exchanges state dicts with `nn.LayerNorm`.

    Shapes: input and output [..., *normalized_shape]. Raises as `layer_norm`.

    Source: Ba, Kiros & Hinton 2016 (arXiv 1607.06450).
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
    ) -> None:
        super().__init__()
        require_number("eps", eps, low=0)
        self.normalized_shape = shape = as_shape("normalized_shape", normalized_shape)
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        self.weight = nn.Parameter(torch.ones(shape)) if elementwise_affine else None
        self.bias = nn.Parameter(torch.zeros(shape)) if elementwise_affine and bias else None

    def forward(self, input: Tensor) -> Tensor:
        """Normalize `input` over its trailing axes."""
        return layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """Name the settings, as PyTorch does."""
        return (
            f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"
        )


# --- RMSNorm ---


def rms_norm(
    input: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    offset: float = 0.0,
) -> Tensor:
    r"""Divide each example by its root mean square over the trailing axes; nothing is subtracted.

    $$y = \frac{x}{\sqrt{\mathrm{E}[x^2] + \epsilon}} \cdot (\mathrm{offset} + \gamma)$$

    The paper's equation has no $\epsilon$; here it stands inside the root, as in PyTorch.
    `eps=None` is the machine epsilon of the dtype computed in: float32's for half precision too.
    `offset=1` is Gemma's form, whose gain is 1 where the weight is 0.
    The gain multiplies before the result is rounded to the input's dtype.

    Shapes: input and output [..., *normalized_shape]; weight normalized_shape.

    Raises: ValueError when the input does not end in normalized_shape, on another weight shape or
    negative eps, or with an offset and no weight to add it to; TypeError on a dtype the rule of
    `shared` excludes.

    Source: Zhang & Sennrich 2019 (arXiv 1910.07467), Eq. 4.
    """
    require_floating("input", input)
    dtype = computation_dtype(input)
    eps = torch.finfo(dtype).eps if eps is None else eps
    axes = require_trailing(input, normalized_shape, {"weight": weight}, eps)
    require_offset(offset, has_weight=weight is not None)
    gain = weight.to(dtype) + offset if offset else weight
    x = input.to(dtype)
    normalized = x * torch.rsqrt(mean_square(x, axes) + eps)
    return apply_affine(normalized, gain, None).to(input.dtype)


class RMSNorm(nn.Module):
    """Division by the root mean square; exchanges state dicts with `nn.RMSNorm`.

    The gain is offset + weight and starts at 1: with `offset=1` (Gemma) the weight starts at 0.

    Shapes: input and output [..., *normalized_shape]. Raises as `rms_norm`.

    Source: Zhang & Sennrich 2019 (arXiv 1910.07467).
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        *,
        offset: float = 0.0,
    ) -> None:
        super().__init__()
        if eps is not None:
            require_number("eps", eps, low=0)
        require_offset(offset, has_weight=elementwise_affine)
        self.normalized_shape = shape = as_shape("normalized_shape", normalized_shape)
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        self.offset = offset
        self.weight = nn.Parameter(torch.ones(shape) - offset) if elementwise_affine else None

    def forward(self, input: Tensor) -> Tensor:
        """Divide `input` by its root mean square over the trailing axes."""
        return rms_norm(input, self.normalized_shape, self.weight, self.eps, offset=self.offset)

    def extra_repr(self) -> str:
        """Name the settings, as PyTorch does, and the offset where there is one."""
        offset = f", offset={self.offset:g}" if self.offset else ""
        return (
            f"{self.normalized_shape}, eps={self.eps}, "
            f"elementwise_affine={self.elementwise_affine}{offset}"
        )
