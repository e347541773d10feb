"""Norms that act on weights, not on activations (sections 6 and 10 of the book)."""

import math

import torch
from torch import Tensor, nn

from normbook.engine.checks import (
    computation_dtype,
    require_floating,
    require_like,
    require_number,
    require_size,
)
from normbook.engine.shared import center


def weight_norm(v: Tensor, g: Tensor, dim: int | None = 0) -> Tensor:
    r"""Build a weight from a direction and a length, for every index of axis `dim`.

    $$w = g\, \frac{v}{\lVert v \rVert}$$

    with the norm over all other axes, or over all axes where `dim` is None. A zero row of v has no
    direction: it stays zero (PyTorch's becomes NaN), and g passes its gradient on, so that the row
    can leave zero.

    Shapes: v and output any; g as v with every axis but `dim` of size 1, or [] where `dim` is None.

    Raises: ValueError when dim is not an axis of v (counted from the front) or g has another
    shape; TypeError on a dtype that is not real floating point, or not the same in both.

    Source: Salimans & Kingma 2016 (arXiv 1602.07868), Eq. 2.
    """
    axes = _other_axes("v", v, dim)
    require_like("g", g, v)
    wide = v.to(computation_dtype(v))
    norm = torch.linalg.vector_norm(wide, dim=axes, keepdim=dim is not None)
    if g.shape != norm.shape:
        raise ValueError(f"g must have shape {tuple(norm.shape)}, got {tuple(g.shape)}")
    return (wide * (g / torch.where(norm == 0, 1.0, norm))).to(v.dtype)


def _other_axes(name: str, value: Tensor, dim: int | None) -> tuple[int, ...]:
    """Return all axes of `value` but `dim`; raise unless it has that axis."""
    require_floating(name, value)
    if dim is None:
        return tuple(range(value.dim()))
    require_size("dim", dim, low=0)
    if dim >= value.dim():
        raise ValueError(
            f"dim must be below the number of axes of {name} {tuple(value.shape)}, got {dim}"
        )
    return tuple(axis for axis in range(value.dim()) if axis != dim)


class WeightNorm(nn.Module):
    """Weight normalization as a parametrization, in state PyTorch's `parametrizations.weight_norm`.

    `nn.utils.parametrize.register_parametrization(layer, "weight", WeightNorm())` keeps the layer's
    weight; its parameters are then g (`original0`) and v (`original1`).

    Shapes: as `weight_norm`. Raises as `weight_norm`.

    Source: Salimans & Kingma 2016 (arXiv 1602.07868).
    """

    def __init__(self, dim: int | None = 0) -> None:
        super().__init__()
        if dim is not None:
            require_size("dim", dim, low=0)
        self.dim = dim

    def forward(self, g: Tensor, v: Tensor) -> Tensor:
        """Build the weight."""
        return weight_norm(v, g, self.dim)

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Split a weight into the length and direction that build it: g = ||w||, v = w."""
        axes = _other_axes("weight", weight, self.dim)
        norm = torch.linalg.vector_norm(weight, dim=axes, keepdim=self.dim is not None)
        return norm, weight.clone()

    def extra_repr(self) -> str:
        """Name the axis."""
        return f"dim={self.dim}"


def scaled_weight_standardize(
    weight: Tensor, gain: float | Tensor = 1.0, eps: float = 1e-4
) -> Tensor:
    r"""Give the weights of every output mean 0 and standard deviation gain / sqrt(fan_in).

    $$\hat W_{ij} = \gamma\, \frac{W_{ij} - \mu_i}{\sqrt{\max(N \sigma_i^2, \epsilon)}}$$

    with the mean $\mu_i$ and the biased variance $\sigma_i^2$ of the N = fan_in weights of output
    i. As in the authors' code, $\epsilon$ is a floor: any draw of a usual scale meets the formula
    exactly. Inputs of mean square 1 then give outputs of mean square $\gamma^2$.

    Shapes: weight and output [out, in, ...]; gain a number, or a tensor that broadcasts with the
    weight, such as [out, 1, ...].

    Raises: ValueError on fewer than 2 axes, negative eps, or a gain that does not broadcast;
    TypeError on a dtype that is not real floating point, or not the same in both.

    Source: Brock, De & Smith 2021 (arXiv 2101.08692), section 4.
    """
    require_floating("weight", weight)
    require_number("eps", eps, low=0)
    if weight.dim() < 2:
        raise ValueError(f"weight must be [out, in, ...], got shape {tuple(weight.shape)}")
    if isinstance(gain, Tensor):
        require_like("gain", gain, weight)
        expected = (len(weight), *[1] * (weight.dim() - 1))
        if tuple(gain.shape) not in ((), expected):
            raise ValueError(f"gain must have shape () or {expected}, got {tuple(gain.shape)}")
    else:
        require_number("gain", gain)
    wide = weight.to(computation_dtype(weight))
    fan_in = math.prod(weight.shape[1:])
    centered, variance = center(wide, tuple(range(1, weight.dim())))
    standardized = centered * torch.rsqrt((fan_in * variance).clamp(min=eps))
    return (gain * standardized).to(weight.dtype)


class ScaledWSConv2d(nn.Conv2d):
    """A convolution with scaled weight standardization; `nn.Conv2d` plus one parameter, `gain`.

    The constant `gamma` is the gain of the nonlinearity before it (`variance_gain`), and the
    learned `gain`, one number an output, starts at 1.

    Shapes: as `nn.Conv2d`.

    Raises: as `scaled_weight_standardize`; TypeError when gamma is not a number.

    Source: Brock, De & Smith 2021 (arXiv 2101.08692), section 4.
    """

    def __init__(self, *args, gamma: float = 1.0, eps: float = 1e-4, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        require_number("gamma", gamma)
        require_number("eps", eps, low=0)
        self.gamma = gamma
        self.eps = eps
        self.gain = nn.Parameter(torch.ones_like(self.weight[:, :1, :1, :1]))

    def standardized_weight(self) -> Tensor:
        """Compute the weight that is convolved with."""
        return scaled_weight_standardize(self.weight, self.gamma * self.gain, self.eps)

    def forward(self, input: Tensor) -> Tensor:
        """Convolve with the standardized weight."""
        return self._conv_forward(input, self.standardized_weight(), self.bias)

    def extra_repr(self) -> str:
        """Name the settings, as PyTorch does, and the gain of the nonlinearity."""
        return f"{super().extra_repr()}, gamma={self.gamma:g}"
