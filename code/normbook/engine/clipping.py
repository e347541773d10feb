"""Adaptive gradient clipping (section 10): each output unit's gradient beside its own weights."""

from collections.abc import Iterable

import torch
from torch import Tensor

from normbook.engine.checks import computation_dtype, require_floating, require_number


def adaptive_clip_grad_(
    parameters: Tensor | Iterable[Tensor], clip: float = 0.01, eps: float = 1e-3
) -> Tensor:
    r"""Shorten, in place, every output unit's gradient that is long beside the unit's weights.

    $$g_i \leftarrow \lambda \frac{\max(\|w_i\|, \epsilon)}{\|g_i\|}\, g_i \quad
      \text{if } \|g_i\| > \lambda \max(\|w_i\|, \epsilon)$$

    A unit is one index of the first axis: a row of a linear layer, a filter of a convolution. A
    bias or a gain, with one axis or none, is one unit as a whole. `eps` lets weights that are zero
    move. Parameters without a gradient are passed over. The classifier is the caller's to leave
    out: the authors do not clip it.

    Returns: the share of units that were shortened, a scalar tensor (0 without any gradient).

    Shapes: any. NaN in a unit's gradient stays NaN; inf becomes NaN.

    Raises: ValueError on a negative clip or eps; TypeError on a parameter that is not a real
    floating-point tensor.

    Source: Brock et al. 2021 (arXiv 2102.06171), section 4, with its λ and ε; units as in the
    authors' code.
    """
    require_number("clip", clip, low=0)
    require_number("eps", eps, low=0)
    parameters = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    clipped = []
    for parameter in parameters:
        require_floating("parameters", parameter)
        if parameter.grad is None:
            continue
        with torch.no_grad():
            limit = clip * _unit_norm(parameter).clamp(min=eps)
            norm = _unit_norm(parameter.grad)
            is_long = norm > limit
            factor = torch.where(is_long, limit / norm, torch.ones_like(norm))
            parameter.grad.mul_(factor.to(parameter.grad.dtype))
            clipped.append(is_long.flatten())
    if not clipped:
        return torch.zeros(())
    return torch.cat(clipped).double().mean()


def _unit_norm(tensor: Tensor) -> Tensor:
    """Return the norm over all axes but the first, kept for broadcasting; of all of a vector."""
    axes = tuple(range(1, tensor.dim())) if tensor.dim() > 1 else None
    tensor = tensor.to(computation_dtype(tensor))
    return torch.linalg.vector_norm(tensor, dim=axes, keepdim=True)
