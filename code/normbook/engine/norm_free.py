"""Networks without norms: what does a norm's jobs in its place (section 10 of the book).

NF-ResNets predict the scale of the stream, standardize the weights and clip the gradients. DyT and
Derf bound large values as a norm does, but act on each value alone, without statistics: a scaled
input gives another output, so they are no norms.
"""

import math
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn

from normbook.engine.checks import (
    as_shape,
    computation_dtype,
    require_callable,
    require_floating,
    require_like,
    require_number,
    require_parameter,
    require_positive,
    require_size,
    require_trailing,
)
from normbook.engine.initialization import second_moment_gain
from normbook.engine.shared import apply_affine, center

# --- the stream: a predicted scale ---


def variance_gain(function: Callable[[Tensor], Tensor]) -> float:
    r"""Work out the gain that keeps the variance through a nonlinearity, by quadrature.

    $$\gamma = 1 / \sqrt{\mathrm{Var}[f(z)]}, \qquad z \sim N(0, 1)$$

    It differs from `second_moment_gain` by the mean, which weights of mean 0 (`ScaledWSConv2d`)
    do not see: for relu it is sqrt(2 / (1 - 1 / pi)) = 1.7129 and not sqrt(2).

    Raises: as `second_moment_gain`.

    Source: Brock, De & Smith 2021 (arXiv 2101.08692), section 4; their own constants are
    estimates from samples, and off by up to 0.1 %.
    """
    second = second_moment_gain(function) ** -2
    # E[f] from E[(f + 1)²] = E[f²] + 2 E[f] + 1
    shifted = second_moment_gain(lambda z: function(z) + 1) ** -2
    mean = (shifted - second - 1) / 2
    return second_moment_gain(lambda z: function(z) - mean)


def nf_betas(depth: int, alpha: float = 0.2, transitions: Sequence[int] = ()) -> list[float]:
    r"""Predict the standard deviation of the stream at the input of every block.

    $$\beta_0 = 1, \qquad \beta_{l+1}^2 = \beta_l^2 + \alpha^2$$

    as each block adds a branch of variance 1 times alpha. A transition block, whose skip
    starts from the normalized stream (`NFResidual` with a `shortcut`), resets the variance: behind
    it stands $1 + \alpha^2$.

    Raises: ValueError when depth is below 1, alpha is negative or a transition is no block;
    TypeError on values of another kind.

    Source: Brock, De & Smith 2021 (arXiv 2101.08692), section 3.
    """
    require_size("depth", depth)
    require_number("alpha", alpha, low=0)
    for block in transitions:
        require_size("transitions", block, low=0)
        if block >= depth:
            raise ValueError(f"transitions must be below depth {depth}, got {block}")
    betas, variance = [], 1.0
    for block in range(depth):
        betas.append(math.sqrt(variance))
        variance = (1.0 if block in transitions else variance) + alpha**2
    return betas


class NFResidual(nn.Module):
    r"""A residual connection without norms: the branch sees the stream over its predicted scale.

    $$y = x + \alpha f(x / \beta)$$

    With `shortcut`, as in a block that changes resolution or width, $y = s(x/\beta) + \alpha
    f(x/\beta)$. beta comes from `nf_betas`; the branch f must keep the variance.

    Shapes: input and output alike, as branch and shortcut have them.

    Raises: ValueError when beta is not above 0, or the branch's shape is not that of the skip;
    TypeError on anything that cannot be called, or alpha and beta that are no numbers.

    Source: Brock, De & Smith 2021 (arXiv 2101.08692), section 3.
    """

    def __init__(
        self,
        branch: Callable[[Tensor], Tensor],
        beta: float,
        alpha: float = 0.2,
        shortcut: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__()
        require_callable("branch", branch)
        if shortcut is not None:
            require_callable("shortcut", shortcut)
        require_number("alpha", alpha)
        require_positive("beta", beta)
        self.branch = branch
        self.beta = beta
        self.alpha = alpha
        self.shortcut = shortcut

    def forward(self, input: Tensor) -> Tensor:
        """Add the scaled branch of the scaled input to the skip."""
        require_floating("input", input)
        scaled = input / self.beta
        skip = input if self.shortcut is None else self.shortcut(scaled)
        write = self.branch(scaled)
        if write.shape != skip.shape:
            raise ValueError(
                f"branch must have the skip's shape {tuple(skip.shape)}, got {tuple(write.shape)}"
            )
        return skip + self.alpha * write

    def extra_repr(self) -> str:
        """Name the two constants."""
        return f"beta={self.beta:g}, alpha={self.alpha:g}"


# --- the weights: standardized ---


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


# --- the gradients: clipped ---


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


# --- each value alone: squashed ---


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
