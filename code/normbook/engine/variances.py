"""Three ways to a variance, and a sum in the input's own precision (section 11 of the book).

Unlike the layers, these compute in the input's own dtype throughout, half precision included: what
that costs in digits is their subject.
"""

import torch
from torch import Tensor

from normbook.engine.checks import require_floating


def two_pass_variance(input: Tensor) -> Tensor:
    r"""Compute the biased variance over the last axis: center, then the mean of squares.

    $$\mathrm{Var}[x] = \mathrm{E}[(x - \mathrm{E}[x])^2]$$

    The error grows with the mean over the standard deviation, not with its square. This is what the
    norms of this book do (`center`).

    Shapes: input [..., n]; output [...].

    Raises: ValueError on an input without axes; TypeError on a dtype that is not real floating
    point.

    Source: Chan, Golub & LeVeque 1983, The American Statistician 37(3), Eq. 1.1.
    """
    _require_values(input)
    centered = input - input.mean(-1, keepdim=True)
    return centered.square().mean(-1)


def one_pass_variance(input: Tensor) -> Tensor:
    r"""Compute the biased variance over the last axis from the two moments, as one reading allows.

    $$\mathrm{Var}[x] = \mathrm{E}[x^2] - \mathrm{E}[x]^2$$

    Two numbers near the mean's square are subtracted: where the mean is large beside the standard
    deviation no digit is left, and the result may be negative. Nothing is clamped here.

    Shapes: input [..., n]; output [...].

    Raises: ValueError on an input without axes; TypeError on a dtype that is not real floating
    point.

    Source: Chan, Golub & LeVeque 1983, The American Statistician 37(3), Eq. 1.2.
    """
    _require_values(input)
    return input.square().mean(-1) - input.mean(-1).square()


def welford_variance(input: Tensor) -> Tensor:
    r"""Compute the biased variance over the last axis in one reading that does not cancel.

    $$\mu_k = \mu_{k-1} + \frac{x_k - \mu_{k-1}}{k}, \qquad
      M_k = M_{k-1} + (x_k - \mu_{k-1})(x_k - \mu_k), \qquad \mathrm{Var}[x] = M_n / n$$

    A loop over n steps in Python: to look at, not to use.

    Shapes: input [..., n]; output [...].

    Raises: ValueError on an input without axes; TypeError on a dtype that is not real floating
    point.

    Source: Welford 1962, Technometrics 4(3).
    """
    _require_values(input)
    mean = squares = torch.zeros_like(input.sum(-1))
    for count, value in enumerate(input.unbind(-1), start=1):
        distance = value - mean
        mean = mean + distance / count
        squares = squares + distance * (value - mean)
    # a tensor, so that the variance of nothing is nan and not an error
    return squares / torch.full_like(squares, input.shape[-1])


def sequential_sum(input: Tensor) -> Tensor:
    r"""Sum over the last axis one value after another, rounding to the input's dtype each time.

    $$s_k = \mathrm{round}(s_{k-1} + x_k)$$

    A sum of ones in half precision stops growing, at 2048 in float16 and 256 in bfloat16, where the
    next one is less than half a step. `torch.sum` accumulates in float32 instead.

    Shapes: input [..., n]; output [...].

    Raises: ValueError on an input without axes; TypeError on a dtype that is not real floating
    point.

    Source: Higham 1993, SIAM Journal on Scientific Computing 14(4), for the error of orderings.
    """
    _require_values(input)
    total = torch.zeros_like(input.sum(-1))
    for value in input.unbind(-1):
        total = total + value
    return total


def _require_values(input: Tensor) -> None:
    """Raise unless `input` is floating point and has a last axis to reduce."""
    require_floating("input", input)
    if input.dim() < 1:
        raise ValueError("input must have at least one axis, got a scalar")
