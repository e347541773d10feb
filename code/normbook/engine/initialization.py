"""Initializers with the signatures and the draws of `torch.nn.init` (section 8 of the book).

All of them ask one question: which variance of the weights keeps the signal at its size through a
layer? For n inputs of second moment 1 the answer is gain**2 / n, where the gain undoes what the
nonlinearity loses.
"""

import math
from collections.abc import Callable

import torch
from torch import Generator, Tensor

from normbook.engine.checks import (
    computation_dtype,
    require_callable,
    require_choice,
    require_floating,
    require_number,
)

# relu's gain follows from a formula; tanh's 5/3 and selu's 3/4 are rules of thumb
_GAINS = {
    "linear": 1.0,
    "conv1d": 1.0,
    "conv2d": 1.0,
    "conv3d": 1.0,
    "conv_transpose1d": 1.0,
    "conv_transpose2d": 1.0,
    "conv_transpose3d": 1.0,
    "sigmoid": 1.0,
    "tanh": 5 / 3,
    "relu": math.sqrt(2.0),
    "selu": 3 / 4,
}


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """Look up how much larger weights should be before this nonlinearity, as PyTorch has it.

    1 for linear, convolution and sigmoid; 5/3 for tanh; sqrt(2) for relu; 3/4 for selu; and sqrt(2
    / (1 + slope**2)) for leaky_relu, whose slope is `param` (0.01 when None).

    Raises: ValueError on an unknown nonlinearity; TypeError on a slope that is not a number.

    Source: He et al. 2015 (arXiv 1502.01852), Eq. 10 and 15, for the rectifiers.
    """
    if nonlinearity == "leaky_relu":
        slope = 0.01 if param is None else param
        require_number("param", slope)
        return math.sqrt(2.0 / (1 + slope**2))
    require_choice("nonlinearity", nonlinearity, [*_GAINS, "leaky_relu"])
    return _GAINS[nonlinearity]


def second_moment_gain(function: Callable[[Tensor], Tensor]) -> float:
    r"""Work out the gain that keeps the second moment through a nonlinearity, by quadrature.

    $$g = 1 / \sqrt{E[f(z)^2]}, \qquad z \sim N(0, 1)$$

    Weights of variance g**2 / fan_in after the nonlinearity give outputs of second moment 1 again,
    so that 1 is a fixed point of the layers. The error is below 1e-6 for any function with kinks; a
    jump must stand at a multiple of 2**-13, such as 0.

    For relu this is sqrt(2), as `calculate_gain` has it. For tanh it is 1.5925, and PyTorch's 5/3
    is a rule of thumb: with a gain g the second moment q of a deep net's layers settles where
    q = g**2 E[tanh(sqrt(q) z)**2]; that is at 1 for 1.5925, at 1.18 for 5/3.

    Args:
        function: acts on each element alone, and takes a float64 tensor.

    Raises: TypeError when function cannot be called or does not return a real floating-point
    tensor; ValueError when the shape changes, or E[f(z)**2] is 0 or not finite.

    Source: He et al. 2015 (arXiv 1502.01852), section 2.2, for any nonlinearity; Klambauer et al.
    2017 (arXiv 1706.02515), for the fixed point.
    """
    require_callable("function", function)
    # the midpoint rule: converges faster than any power on a Gaussian, and no panel contains 0
    width = 2.0**-13
    z = torch.arange(-16.0 + width / 2, 16.0, width, dtype=torch.float64)
    density = torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi)
    with torch.no_grad():
        values = function(z)
    require_floating("function's value", values)
    if values.shape != z.shape:
        raise ValueError(
            f"function must keep the shape {tuple(z.shape)}, got {tuple(values.shape)}"
        )
    integrand = values.double().square() * density
    second_moment = integrand.sum().item() * width
    if integrand[[0, -1]].max() > 1e-9 * second_moment:
        second_moment = math.inf  # the rest, beyond |z| = 16, is not negligible
    if not 0 < second_moment < math.inf:
        raise ValueError(f"function must have a finite E[f(z)^2] above 0, got {second_moment}")
    return 1 / math.sqrt(second_moment)


def calculate_fan(tensor: Tensor) -> tuple[int, int]:
    """Count the inputs of one output and the outputs of one input: (fan_in, fan_out).

    Shapes: [out, in] for a linear layer; [out, in, *kernel] for a convolution, where each fan
    counts the kernel's positions too.

    Raises: ValueError on fewer than 2 axes (a bias has no fan) or a tensor without elements;
    TypeError on a dtype that is not real floating point.

    Source: Glorot & Bengio 2010, section 4.2.1; He et al. 2015 (arXiv 1502.01852), section 2.2.
    """
    require_floating("tensor", tensor)
    if tensor.dim() < 2:
        raise ValueError(
            f"tensor must have at least 2 axes to have a fan, got shape {tuple(tensor.shape)}"
        )
    if tensor.numel() == 0:
        raise ValueError(f"tensor must have elements, got shape {tuple(tensor.shape)}")
    positions = math.prod(tensor.shape[2:])
    return tensor.shape[1] * positions, tensor.shape[0] * positions


def _xavier_std(tensor: Tensor, gain: float) -> float:
    """Return gain * sqrt(2 / (fan_in + fan_out)), a compromise of forward and backward."""
    require_number("gain", gain, low=0)
    return gain * math.sqrt(2.0 / sum(calculate_fan(tensor)))


def _kaiming_std(tensor: Tensor, a: float, mode: str, nonlinearity: str) -> float:
    """Return gain / sqrt(fan): fan_in keeps the forward signal, fan_out the backward one."""
    modes = ("fan_in", "fan_out")
    require_choice("mode", mode, modes)
    return calculate_gain(nonlinearity, a) / math.sqrt(calculate_fan(tensor)[modes.index(mode)])


def _fill_uniform(tensor: Tensor, std: float, generator: Generator | None) -> Tensor:
    """Draw in place from U(-b, b); such a draw has standard deviation b / sqrt(3)."""
    bound = math.sqrt(3.0) * std
    with torch.no_grad():
        return tensor.uniform_(-bound, bound, generator=generator)


def _fill_normal(tensor: Tensor, std: float, generator: Generator | None) -> Tensor:
    """Draw in place from N(0, std**2)."""
    with torch.no_grad():
        return tensor.normal_(0.0, std, generator=generator)


def xavier_uniform_(
    tensor: Tensor, gain: float = 1.0, generator: Generator | None = None
) -> Tensor:
    """Fill in place from a uniform distribution of variance gain**2 * 2 / (fan_in + fan_out).

    Shapes and errors: as `calculate_fan`; ValueError on a negative gain.

    Source: Glorot & Bengio 2010, Eq. 16.
    """
    return _fill_uniform(tensor, _xavier_std(tensor, gain), generator)


def xavier_normal_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Fill in place from a normal distribution of variance gain**2 * 2 / (fan_in + fan_out).

    Shapes and errors: as `calculate_fan`; ValueError on a negative gain.

    Source: Glorot & Bengio 2010, Eq. 12.
    """
    return _fill_normal(tensor, _xavier_std(tensor, gain), generator)


def kaiming_uniform_(
    tensor: Tensor,
    a: float = 0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:
    """Fill in place from a uniform distribution of variance gain**2 / fan.

    `a` is the negative slope of leaky_relu and is used with no other nonlinearity; `mode` picks the
    fan. `a=sqrt(5)`, the default of `nn.Linear`, gives the variance 1 / (3 fan_in), which preserves
    nothing.

    Shapes and errors: as `calculate_fan` and `calculate_gain`; ValueError on another mode.

    Source: He et al. 2015 (arXiv 1502.01852), Eq. 10 and 14.
    """
    return _fill_uniform(tensor, _kaiming_std(tensor, a, mode, nonlinearity), generator)


def kaiming_normal_(
    tensor: Tensor,
    a: float = 0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:
    """Fill in place from a normal distribution of variance gain**2 / fan.

    `a` is the negative slope of leaky_relu and is used with no other nonlinearity; `mode` picks the
    fan.

    Shapes and errors: as `calculate_fan` and `calculate_gain`; ValueError on another mode.

    Source: He et al. 2015 (arXiv 1502.01852), Eq. 10 and 14.
    """
    return _fill_normal(tensor, _kaiming_std(tensor, a, mode, nonlinearity), generator)


def orthogonal_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    r"""Fill in place with a random matrix whose rows or columns, the fewer, are orthogonal.

    $$W W^\top = g^2 I \quad\text{or}\quad W^\top W = g^2 I$$

    Every singular value is the gain: no direction shrinks, however deep the product. The kernel's
    axes of a convolution count as inputs.

    Shapes and errors: as `calculate_fan`; ValueError on a negative gain.

    Source: Saxe et al. 2014 (arXiv 1312.6120), section 3; Mezzadri 2007 (arXiv math-ph/0609050) for
    the signs, without which the draw is not uniform.
    """
    fan_in, _ = calculate_fan(tensor)
    require_number("gain", gain, low=0)
    with torch.no_grad():
        normal = tensor.new_empty(len(tensor), fan_in).normal_(generator=generator)
        is_wide = len(tensor) < fan_in
        q, r = torch.linalg.qr((normal.T if is_wide else normal).to(computation_dtype(tensor)))
        q = q * r.diagonal().sign()
        return tensor.copy_((q.T if is_wide else q).reshape(tensor.shape)).mul_(gain)
