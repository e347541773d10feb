"""Pointwise functions in the place of a norm (section 10 of the book).

They act on each value alone, without statistics: they bound large values as a norm does, but a
scaled input gives another output, so they are no norms.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from normbook.engine.checks import (
    as_shape,
    computation_dtype,
    require_floating,
    require_number,
    require_parameter,
    require_trailing,
)
from normbook.engine.shared import apply_affine


def dyt(
    input: Tensor, alpha: Tensor, weight: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    r"""Squash each value by a tanh of learned steepness.

    $$y = \gamma \tanh(\alpha x) + \beta$$

    Shapes: input and output [..., *shape]; alpha [1] or []; weight and bias `shape`.

    Raises: ValueError on another shape of alpha, or a weight or bias that is not the end of the
    input's shape; TypeError on a dtype the rule of `shared` excludes.

    Source: Zhu et al. 2025 (arXiv 2503.10622), section 4.
    """
    return _squash(torch.tanh, input, {"alpha": alpha}, weight, bias)


def derf(
    input: Tensor,
    alpha: Tensor,
    shift: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    r"""Squash each value by an error function of learned steepness and shift.

    $$y = \gamma\, \mathrm{erf}(\alpha x + s) + \beta$$

    Shapes: input and output [..., *shape]; alpha and shift [1] or []; weight and bias `shape`.

    Raises: as `dyt`, for the shift too.

    Source: Chen et al. 2025 (arXiv 2512.10938), abstract.
    """
    return _squash(torch.erf, input, {"alpha": alpha, "shift": shift}, weight, bias)


def _squash(
    function: Callable[[Tensor], Tensor],
    input: Tensor,
    scalars: dict[str, Tensor],
    weight: Tensor | None,
    bias: Tensor | None,
) -> Tensor:
    """Return weight * function(alpha * input + shift) + bias in the input's dtype."""
    require_floating("input", input)
    for name, value in scalars.items():
        require_floating(name, value)
        require_parameter(name, value, () if value.dim() == 0 else (1,), input)
    for name, value in {"weight": weight, "bias": bias}.items():
        if value is not None:
            require_floating(name, value)
            require_parameter(name, value, input.shape[input.dim() - value.dim() :], input)
    dtype = computation_dtype(input)
    argument = scalars["alpha"].to(dtype) * input.to(dtype)
    if "shift" in scalars:
        argument = argument + scalars["shift"].to(dtype)
    return apply_affine(function(argument), weight, bias).to(input.dtype)


class DyT(nn.Module):
    """Dynamic tanh, a drop-in for LayerNorm without statistics: one alpha, gain and bias.

    The paper's alpha starts at 0.5, but for language models smaller, the wider they are.

    Shapes: input and output [..., *normalized_shape].

    Raises: ValueError when the input does not end in normalized_shape; TypeError as `dyt`.

    Source: Zhu et al. 2025 (arXiv 2503.10622), section 4.
    """

    def __init__(self, normalized_shape: int | Sequence[int], init_alpha: float = 0.5) -> None:
        super().__init__()
        require_number("init_alpha", init_alpha)
        self.normalized_shape = shape = as_shape("normalized_shape", normalized_shape)
        self.init_alpha = init_alpha
        self.alpha = nn.Parameter(torch.full((1,), float(init_alpha)))
        self.weight = nn.Parameter(torch.ones(shape))
        self.bias = nn.Parameter(torch.zeros(shape))

    def forward(self, input: Tensor) -> Tensor:
        """Squash each value of `input`."""
        require_trailing(input, self.normalized_shape, {})
        return dyt(input, self.alpha, self.weight, self.bias)

    def extra_repr(self) -> str:
        """Name the settings."""
        return f"{self.normalized_shape}, init_alpha={self.init_alpha:g}"


class Derf(DyT):
    """Dynamic error function: `DyT` with erf in the place of tanh and a learned shift from 0.

    Shapes: input and output [..., *normalized_shape].

    Raises: ValueError when the input does not end in normalized_shape; TypeError as `derf`.

    Source: Chen et al. 2025 (arXiv 2512.10938), abstract; initial values as in the authors' code.
    """

    def __init__(self, normalized_shape: int | Sequence[int], init_alpha: float = 0.5) -> None:
        super().__init__(normalized_shape, init_alpha)
        self.shift = nn.Parameter(torch.zeros(1))

    def forward(self, input: Tensor) -> Tensor:
        """Squash each value of `input`."""
        require_trailing(input, self.normalized_shape, {}, eps=0.0)
        return derf(input, self.alpha, self.shift, self.weight, self.bias)
