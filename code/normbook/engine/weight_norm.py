"""A norm that acts on weights, not on activations (section 6 of the book)."""

import torch
from torch import Tensor, nn

from normbook.engine.checks import (
    computation_dtype,
    require_floating,
    require_like,
    require_size,
)


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
