"""Exponents of power laws, read off a double-logarithmic picture."""

import torch
from torch import Tensor


def exponent(x, y) -> Tensor:
    """Fit y = c · x^a by least squares in the logarithms and return a: y [..., points] to [...].

    Raises `ValueError` for fewer than two points or anything that has no logarithm.
    """
    x, y = (torch.as_tensor(values, dtype=torch.float64) for values in (x, y))
    if x.ndim != 1 or len(x) < 2 or y.shape[-1:] != x.shape:
        raise ValueError(f"x must be [points] and y [..., points], got {x.shape} and {y.shape}")
    if not (x > 0).all() or not (y > 0).all():
        raise ValueError("x and y must be positive to have a logarithm")
    across, along = x.log() - x.log().mean(), y.log() - y.log().mean(-1, keepdim=True)
    return (along * across).sum(-1) / across.square().sum()
