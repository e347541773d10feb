"""The gradients of the norms in closed form (sections 2 to 4 of the book).

With the upstream gradient g, times the gain, and the normalized input x̂, all three say one thing:
normalization removes from g what would only shift or scale the input, then divides by the scale.

    layer       gradient of the input, times the scale
    LayerNorm   g - E[g] - x̂ E[g x̂]        E over one example's features
    BatchNorm   g - E[g] - x̂ E[g x̂]        E over one channel's batch and space
    RMSNorm     g - x̂ E[g x̂]               E over one example's features; no shift to remove

Each function takes what its forward function takes, after the upstream gradient, and differs from
autograd by rounding only. They are differentiable in turn.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from normbook.engine.checks import (
    computation_dtype,
    require_batch,
    require_floating,
    require_like,
    require_offset,
    require_trailing,
)
from normbook.engine.shared import center, per_channel


def layer_norm_backward(
    grad_output: Tensor,
    input: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor, Tensor]:
    r"""Return the gradients of `layer_norm` by its input, weight and bias.

    $$\nabla_x = \frac{g - \mathrm{E}[g] - \hat x\,\mathrm{E}[g \hat x]}{\sqrt{\sigma^2+\epsilon}},
      \quad \nabla_\gamma = \sum \nabla_y\, \hat x, \quad \nabla_\beta = \sum \nabla_y,
      \qquad g = \gamma \nabla_y$$

    Shapes: grad_output and input [..., *normalized_shape]; gradients as input, weight, bias.

    Raises: ValueError and TypeError as `layer_norm`, and when grad_output is not like the input.

    Source: Ba, Kiros & Hinton 2016 (arXiv 1607.06450), Eq. 3 and 4, differentiated.
    """
    axes = require_trailing(input, normalized_shape, {"weight": weight}, eps)
    _require_gradient(grad_output, input)
    dtype = computation_dtype(input)
    centered, variance = center(input.to(dtype), axes)
    inverse = torch.rsqrt(variance + eps)
    normalized, upstream = centered * inverse, grad_output.to(dtype)
    scaled = upstream if weight is None else upstream * weight.to(dtype)
    grad_input = inverse * _remove_shift_and_scale(scaled, normalized, axes)
    grad_weight, grad_bias = (
        _sum_leading(value, len(axes)) for value in (upstream * normalized, upstream)
    )
    kind = input.dtype if weight is None else weight.dtype
    return grad_input.to(input.dtype), grad_weight.to(kind), grad_bias.to(kind)


def rms_norm_backward(
    grad_output: Tensor,
    input: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    offset: float = 0.0,
) -> tuple[Tensor, Tensor]:
    r"""Return the gradients of `rms_norm` by its input and weight.

    $$\nabla_x = \frac{g - \hat x\,\mathrm{E}[g \hat x]}{\sqrt{\mathrm{E}[x^2] + \epsilon}},
      \quad \nabla_\gamma = \sum \nabla_y\, \hat x,
      \qquad g = (\mathrm{offset} + \gamma) \nabla_y$$

    Shapes: grad_output and input [..., *normalized_shape]; gradients as input and weight.

    Raises: ValueError and TypeError as `rms_norm`, and when grad_output is not like the input.

    Source: Zhang & Sennrich 2019 (arXiv 1910.07467), Eq. 4, differentiated.
    """
    require_floating("input", input)
    dtype = computation_dtype(input)
    eps = torch.finfo(dtype).eps if eps is None else eps
    axes = require_trailing(input, normalized_shape, {"weight": weight}, eps)
    require_offset(offset, has_weight=weight is not None)
    _require_gradient(grad_output, input)
    x, upstream = input.to(dtype), grad_output.to(dtype)
    inverse = torch.rsqrt(x.square().mean(axes, keepdim=True) + eps)
    normalized = x * inverse
    scaled = upstream if weight is None else upstream * (offset + weight.to(dtype))
    grad_input = inverse * _remove_scale(scaled, normalized, axes)
    grad_weight = _sum_leading(upstream * normalized, len(axes))
    kind = input.dtype if weight is None else weight.dtype
    return grad_input.to(input.dtype), grad_weight.to(kind)


def batch_norm_backward(
    grad_output: Tensor,
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    training: bool = False,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor, Tensor]:
    r"""Return the gradients of `batch_norm` by its input, weight and bias.

    $$\nabla_x = \frac{g - \mathrm{E}[g] - \hat x\,\mathrm{E}[g \hat x]}{\sqrt{\sigma^2+\epsilon}},
      \quad \nabla_\gamma = \sum \nabla_y\, \hat x, \quad \nabla_\beta = \sum \nabla_y,
      \qquad g = \gamma \nabla_y$$

    In evaluation the statistics are constants: $\nabla_x = g / \sqrt{\sigma^2 + \epsilon}$. The
    running statistics do not move.

    Shapes: grad_output and input [N, C, ...]; all others, and their gradients, [C].

    Raises: ValueError and TypeError as `batch_norm`, and when grad_output is not like the input.

    Source: Ioffe & Szegedy 2015 (arXiv 1502.03167), section 3.
    """
    require_batch(input, running_mean, running_var, {"weight": weight}, training, 0.0, eps)
    _require_gradient(grad_output, input)
    axes = (0, *range(2, input.dim()))
    x, upstream = (value.to(computation_dtype(input)) for value in (input, grad_output))
    scaled = upstream if weight is None else upstream * per_channel(weight, x)
    if training:
        centered, variance = center(x, axes)
        inverse = torch.rsqrt(variance + eps)
        normalized = centered * inverse
        grad_input = inverse * _remove_shift_and_scale(scaled, normalized, axes)
    else:
        inverse = torch.rsqrt(per_channel(running_var, x) + eps)
        normalized = (x - per_channel(running_mean, x)) * inverse
        grad_input = inverse * scaled
    kind = input.dtype if weight is None else weight.dtype
    grad_weight, grad_bias = ((upstream * normalized).sum(axes), upstream.sum(axes))
    return grad_input.to(input.dtype), grad_weight.to(kind), grad_bias.to(kind)


def _remove_scale(gradient: Tensor, normalized: Tensor, axes: Sequence[int]) -> Tensor:
    """Return g - x̂ E[g x̂]: the part of the gradient that does not lie along x̂."""
    return gradient - normalized * (gradient * normalized).mean(axes, keepdim=True)


def _remove_shift_and_scale(gradient: Tensor, normalized: Tensor, axes: Sequence[int]) -> Tensor:
    """Return g - E[g] - x̂ E[g x̂]; that x̂ has mean 0 makes the order of the two not matter."""
    return _remove_scale(gradient - gradient.mean(axes, keepdim=True), normalized, axes)


def _sum_leading(value: Tensor, trailing: int) -> Tensor:
    """Sum over all axes but the last `trailing`: a parameter acts on every example."""
    leading = math.prod(value.shape[: value.dim() - trailing])
    return value.reshape(leading, *value.shape[value.dim() - trailing :]).sum(0)


def _require_gradient(grad_output: Tensor, input: Tensor) -> None:
    """Raise unless the upstream gradient has the input's shape, dtype and device."""
    require_like("grad_output", grad_output, input)
    if grad_output.shape != input.shape:
        raise ValueError(
            f"grad_output must have the input's shape {tuple(input.shape)}, "
            f"got {tuple(grad_output.shape)}"
        )
