"""Batch, layer and RMS normalization from scratch (sections 2 to 4 of the book).

The three functions differ in two things only: the axes over which they take statistics, and whether
they subtract the mean.

    layer       axes of the statistics                  subtracts the mean
    BatchNorm   the batch and all spatial axes          yes
    LayerNorm   the trailing axes of one example        yes
    RMSNorm     the trailing axes of one example        no

Signatures and state dicts are PyTorch's. One rule holds for mixed dtypes: weight, bias and running
statistics have the input's dtype, or float32 beside a half-precision input (anything else raises
`TypeError`); half precision is reduced in float32; the output has the input's dtype.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from normbook.engine.checks import (
    as_shape,
    computation_dtype,
    require_floating,
    require_number,
    require_parameter,
    require_size,
)


def center(input: Tensor, axes: Sequence[int]) -> tuple[Tensor, Tensor]:
    r"""Subtract the mean over `axes`; return the centered input and its biased variance.

    $$c = x - \mathrm{E}[x], \qquad \mathrm{Var}[x] = \mathrm{E}[c^2]$$

    Two passes on purpose: $\mathrm{E}[x^2] - \mathrm{E}[x]^2$ cancels when the mean is large, and
    `torch.var` over the last axis is many times slower on a CPU.

    Shapes: input any; centered as input; variance as input with `axes` of size 1.

    Raises: TypeError on a dtype that is not real floating point; IndexError on a missing axis.
    """
    require_floating("input", input)
    centered = input - input.mean(axes, keepdim=True)
    return centered, centered.square().mean(axes, keepdim=True)


def _affine(normalized: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """Return weight * normalized + bias in the dtype of `normalized`; None leaves a part out."""
    weight = None if weight is None else weight.to(normalized.dtype)
    bias = None if bias is None else bias.to(normalized.dtype)
    if weight is None:
        return normalized if bias is None else normalized + bias
    # addcmul saves one pass over memory, which is what an elementwise operation costs
    return normalized * weight if bias is None else torch.addcmul(bias, normalized, weight)


# --- BatchNorm ---


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float | Tensor = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    r"""Normalize each channel over the batch and all spatial axes.

    $$y = \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} \cdot \gamma + \beta$$

    In training $\mu$ and $\sigma^2$ are the batch's mean and biased variance, and the running
    statistics, where given, move in place: new = (1 - momentum) * old + momentum * batch, where the
    variance that is stored is the *unbiased* one, $\sigma^2 m / (m - 1)$ for m values per channel.
    Otherwise they are the running ones.

    Shapes: input and output [N, C], [N, C, L], [N, C, H, W] or [N, C, D, H, W]; all others [C].

    Raises: ValueError on another rank or shape, negative eps, momentum outside [0, 1], a single
    value per channel in training, or missing running statistics otherwise; TypeError on a dtype the
    rule excludes.

    Source: Ioffe & Szegedy 2015 (arXiv 1502.03167), Algorithms 1 and 2.
    """
    _check_batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
    axes = (0, *range(2, input.dim()))
    x = input.to(computation_dtype(input))
    if training:
        centered, variance = center(x, axes)
        if running_mean is not None and running_var is not None:
            _update_running_statistics(
                x.detach(), variance.detach(), running_mean, running_var, momentum
            )
    else:
        centered = x - _per_channel(running_mean, x)
        variance = _per_channel(running_var, x)
    normalized = centered * torch.rsqrt(variance + eps)
    return _affine(normalized, _per_channel(weight, x), _per_channel(bias, x)).to(input.dtype)


def _per_channel(value: Tensor | None, input: Tensor) -> Tensor | None:
    """View a [C] tensor as [1, C, 1, ...], where it meets axis 1 of `input`, in its dtype."""
    if value is None:
        return None
    return value.to(input.dtype).reshape(1, -1, *[1] * (input.dim() - 2))


def _update_running_statistics(
    input: Tensor,
    variance: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float | Tensor,
) -> None:
    """Move the running statistics toward the batch's, in place; an empty batch changes nothing."""
    count = _values_per_channel(input)
    if count == 0:
        return
    mean = input.mean((0, *range(2, input.dim())))
    unbiased = variance.reshape(-1) * (count / (count - 1))
    running_mean.copy_((1 - momentum) * running_mean + momentum * mean)
    running_var.copy_((1 - momentum) * running_var + momentum * unbiased)


def _values_per_channel(input: Tensor) -> int:
    """Count the values that one channel's statistics rest on: N times all spatial sizes."""
    return input.shape[0] * math.prod(input.shape[2:])


def _check_batch_norm(
    input, running_mean, running_var, weight, bias, training, momentum, eps
) -> None:
    """Raise unless the arguments of `batch_norm` fit together."""
    require_floating("input", input)
    if not 2 <= input.dim() <= 5:
        raise ValueError(
            f"input must have 2 to 5 axes, [N, C, ...], got shape {tuple(input.shape)}"
        )
    parameters = {
        "running_mean": running_mean,
        "running_var": running_var,
        "weight": weight,
        "bias": bias,
    }
    for name, value in parameters.items():
        require_parameter(name, value, input.shape[1:2], input)
    if (running_mean is None) != (running_var is None):
        raise ValueError(
            "running_mean and running_var must be given together, got only one of them"
        )
    require_number("eps", eps, low=0)
    if not isinstance(momentum, Tensor):
        require_number("momentum", momentum, 0, 1)
    if not training and running_mean is None:
        raise ValueError(
            "running_mean and running_var must be given when training is False, got None"
        )
    if training and _values_per_channel(input) == 1:
        raise ValueError(
            "input must have more than one value per channel (N times the spatial sizes) in "
            f"training, got shape {tuple(input.shape)}"
        )


class BatchNorm(nn.Module):
    """Normalization by batch statistics, ranks 2 to 5; exchanges state dicts with `nn.BatchNorm…d`.

    In training it normalizes with the batch's statistics and moves the running ones (see
    `batch_norm`); in evaluation it normalizes with the running ones, or with the batch's where
    `track_running_stats=False`. `momentum=None` keeps the plain average over all batches so far
    instead of the exponential one.

    Shapes: as `batch_norm`, with C = num_features.

    Raises: ValueError and TypeError as `batch_norm`; ValueError when C is not num_features.

    Source: Ioffe & Szegedy 2015 (arXiv 1502.03167).
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
    ) -> None:
        super().__init__()
        require_size("num_features", num_features)
        require_number("eps", eps, low=0)
        if momentum is not None:
            require_number("momentum", momentum, 0, 1)
        self.num_features = num_features
        self.eps = eps
        self.momentum = momentum
        self.affine = affine
        self.track_running_stats = track_running_stats
        self.weight = nn.Parameter(torch.ones(num_features)) if affine else None
        self.bias = nn.Parameter(torch.zeros(num_features)) if affine else None
        statistics = {
            "running_mean": torch.zeros(num_features),
            "running_var": torch.ones(num_features),
            "num_batches_tracked": torch.tensor(0),
        }
        for name, value in statistics.items():
            self.register_buffer(name, value if track_running_stats else None)

    def forward(self, input: Tensor) -> Tensor:
        """Normalize `input` and, in training, move the running statistics."""
        require_floating("input", input)
        if input.dim() < 2 or input.shape[1] != self.num_features:
            raise ValueError(
                f"input must have {self.num_features} channels (axis 1), got {tuple(input.shape)}"
            )
        moves = self.training and self.track_running_stats and self.running_mean is not None
        uses_running = moves or not self.training
        output = batch_norm(
            input,
            self.running_mean if uses_running else None,
            self.running_var if uses_running else None,
            self.weight,
            self.bias,
            training=self.training or self.running_mean is None,
            momentum=self._momentum() if moves else 0.0,
            eps=self.eps,
        )
        if moves:
            self.num_batches_tracked.add_(1)
        return output

    def _momentum(self) -> float | Tensor:
        """Weigh this batch in the running statistics: 1/n for the n-th batch of a plain average."""
        if self.momentum is not None:
            return self.momentum
        # a tensor throughout: reading its value would break compile(fullgraph=True) and vmap
        count = self.num_batches_tracked + 1
        return 1.0 / count.to(computation_dtype(self.running_mean))

    def extra_repr(self) -> str:
        """Name the settings, as PyTorch does."""
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
            f"track_running_stats={self.track_running_stats}"
        )


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
    or negative eps; TypeError on a dtype the rule of this module excludes.

    Source: Ba, Kiros & Hinton 2016 (arXiv 1607.06450), Eq. 3 and 4.
    """
    axes = _check_trailing(input, normalized_shape, {"weight": weight, "bias": bias}, eps)
    centered, variance = center(input.to(computation_dtype(input)), axes)
    normalized = centered * torch.rsqrt(variance + eps)
    return _affine(normalized, weight, bias).to(input.dtype)


def _check_trailing(
    input: Tensor,
    normalized_shape: int | Sequence[int],
    parameters: dict[str, Tensor | None],
    eps: float,
) -> tuple[int, ...]:
    """Return the axes that `normalized_shape` names; raise unless input and parameters fit."""
    shape = as_shape("normalized_shape", normalized_shape)
    require_floating("input", input)
    if input.dim() < len(shape) or tuple(input.shape[-len(shape) :]) != shape:
        raise ValueError(
            f"input must end in normalized_shape {shape}, got shape {tuple(input.shape)}"
        )
    for name, value in parameters.items():
        require_parameter(name, value, shape, input)
    require_number("eps", eps, low=0)
    return tuple(range(-len(shape), 0))


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
) -> Tensor:
    r"""Divide each example by its root mean square over the trailing axes; nothing is subtracted.

    $$y = \frac{x}{\sqrt{\mathrm{E}[x^2] + \epsilon}} \cdot \gamma$$

    The paper's equation has no $\epsilon$; here it stands inside the root, as in PyTorch.
    `eps=None` is the machine epsilon of the dtype computed in: float32's for half precision too.
    The gain multiplies before the result is rounded to the input's dtype.

    Shapes: input and output [..., *normalized_shape]; weight normalized_shape.

    Raises: ValueError when the input does not end in normalized_shape, on another weight shape or
    negative eps; TypeError on a dtype the rule of this module excludes.

    Source: Zhang & Sennrich 2019 (arXiv 1910.07467), Eq. 4.
    """
    require_floating("input", input)
    dtype = computation_dtype(input)
    eps = torch.finfo(dtype).eps if eps is None else eps
    axes = _check_trailing(input, normalized_shape, {"weight": weight}, eps)
    x = input.to(dtype)
    # ||x||² / d, because writing x² and reading it again costs more than the rest of the sum
    count = math.prod(x.shape[axes[0] :])
    mean_square = torch.linalg.vector_norm(x, dim=axes, keepdim=True).square() / count
    normalized = x * torch.rsqrt(mean_square + eps)
    return _affine(normalized, weight, None).to(input.dtype)


class RMSNorm(nn.Module):
    """Division by the root mean square; exchanges state dicts with `nn.RMSNorm`.

    Shapes: input and output [..., *normalized_shape]. Raises as `rms_norm`.

    Source: Zhang & Sennrich 2019 (arXiv 1910.07467).
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
    ) -> None:
        super().__init__()
        if eps is not None:
            require_number("eps", eps, low=0)
        self.normalized_shape = shape = as_shape("normalized_shape", normalized_shape)
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        self.weight = nn.Parameter(torch.ones(shape)) if elementwise_affine else None

    def forward(self, input: Tensor) -> Tensor:
        """Divide `input` by its root mean square over the trailing axes."""
        return rms_norm(input, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        """Name the settings, as PyTorch does."""
        return (
            f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"
        )
