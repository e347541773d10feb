"""Questions every public function asks of its arguments.

Each check raises `TypeError` (wrong kind) or `ValueError` (wrong value), naming the argument, what
came and what was expected, so that nothing is silently broadcast, promoted or clamped.
"""

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

HALF_DTYPES = (torch.float16, torch.bfloat16)


def computation_dtype(input: Tensor) -> torch.dtype:
    """Choose the dtype of the statistics: float32 for half precision, else the input's."""
    return torch.float32 if input.dtype in HALF_DTYPES else input.dtype


def require_floating(name: str, value: Tensor) -> None:
    """Raise `TypeError` unless `value` is a real floating-point tensor."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(value).__name__}")
    if not value.is_floating_point():
        raise TypeError(f"{name} must have a real floating-point dtype, got {value.dtype}")


def require_like(name: str, value: Tensor, reference: Tensor) -> None:
    """Raise unless `value` is floating point, with the dtype and the device of `reference`."""
    require_floating(name, value)
    if value.dtype != reference.dtype:
        raise TypeError(f"{name} must have dtype {reference.dtype}, got {value.dtype}")
    if value.device != reference.device:
        raise ValueError(f"{name} must be on device {reference.device}, got {value.device}")


def require_parameter(name: str, value: Tensor | None, shape: Sequence[int], input: Tensor) -> None:
    """Raise unless `value` is None or fits `input`: this shape, its device and an accepted dtype.

    The one rule for mixed dtypes: a parameter has the input's dtype, or float32 beside a
    half-precision input. The output always has the input's dtype.
    """
    if value is None:
        return
    require_floating(name, value)
    if tuple(value.shape) != tuple(shape):
        raise ValueError(f"{name} must have shape {tuple(shape)}, got {tuple(value.shape)}")
    if value.dtype not in (input.dtype, computation_dtype(input)):
        raise TypeError(
            f"{name} must have the input's dtype {input.dtype} (or float32 beside half), "
            f"got {value.dtype}"
        )
    if value.device != input.device:
        raise ValueError(f"{name} must be on the input's device {input.device}, got {value.device}")


def require_number(name: str, value: float, low: float = -math.inf, high: float = math.inf) -> None:
    """Raise unless `value` is a finite number in [low, high]."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, got {type(value).__name__}")
    if not low <= value <= high or not math.isfinite(value):
        expected = f"a finite number in [{low:g}, {high:g}]"
        raise ValueError(f"{name} must be {expected}, got {value}")


def require_size(name: str, value: int, low: int = 1) -> None:
    """Raise unless `value` is a whole number of at least `low`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    if value < low:
        raise ValueError(f"{name} must be at least {low}, got {value}")


def require_positive(name: str, value: float) -> None:
    """Raise unless `value` is a finite number above 0."""
    require_number(name, value)
    if value <= 0:
        raise ValueError(f"{name} must be above 0, got {value}")


def require_choice(name: str, value: object, known: Iterable[object]) -> None:
    """Raise `ValueError` unless `value` is one of those that are known; the error names them."""
    known = tuple(known)
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, known))}, got {value!r}")


def require_callable(name: str, value: object) -> None:
    """Raise `TypeError` unless `value` can be called."""
    if not callable(value):
        raise TypeError(f"{name} must be callable, got {type(value).__name__}")


def require_module(name: str, value: object) -> None:
    """Raise `TypeError` unless `value` is a module."""
    if not isinstance(value, nn.Module):
        raise TypeError(f"{name} must be a module, got {type(value).__name__}")


def require_features(input: Tensor, dim: int, rank: int = 1) -> None:
    """Raise unless `input` is floating point, has `rank` axes or more and `dim` features."""
    require_floating("input", input)
    if input.dim() < rank or input.shape[-1] != dim:
        expected = f"[..., T, {dim}]" if rank == 2 else f"[..., {dim}]"
        raise ValueError(f"input must have shape {expected}, got {tuple(input.shape)}")


def require_width(input: Tensor, channels: int) -> None:
    """Raise unless `input` is floating point and has that many channels."""
    require_floating("input", input)
    if input.dim() < 2 or input.shape[1] != channels:
        raise ValueError(f"input must have {channels} channels (axis 1), got {tuple(input.shape)}")


def as_shape(name: str, value: int | Sequence[int]) -> tuple[int, ...]:
    """Turn `value` into a tuple of positive sizes; a single integer is one axis."""
    sizes = tuple(value) if isinstance(value, Sequence) else (value,)
    if not sizes:
        raise ValueError(f"{name} must name at least one axis, got an empty shape")
    for size in sizes:
        require_size(name, size)
    return sizes


def require_trailing(
    input: Tensor,
    normalized_shape: int | Sequence[int],
    parameters: dict[str, Tensor | None],
    eps: float = 0.0,
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


def require_offset(offset: float, has_weight: bool) -> None:
    """Raise unless `offset` is a number, and 0 where no weight is there to add it to."""
    require_number("offset", offset)
    if offset and not has_weight:
        raise ValueError(f"offset must be 0 without a weight to add it to, got {offset}")


def require_channels(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    parameters: dict[str, Tensor | None],
    momentum: float | Tensor,
    eps: float,
    low_rank: int,
) -> None:
    """Raise unless `input` is [N, C, ...], and what a norm by channel holds fits it."""
    require_floating("input", input)
    if not low_rank <= input.dim() <= 5:
        raise ValueError(
            f"input must have {low_rank} to 5 axes, [N, C, ...], got shape {tuple(input.shape)}"
        )
    running = {"running_mean": running_mean, "running_var": running_var}
    for name, value in (running | parameters).items():
        require_parameter(name, value, input.shape[1:2], input)
    if (running_mean is None) != (running_var is None):
        raise ValueError(
            "running_mean and running_var must be given together, got only one of them"
        )
    require_number("eps", eps, low=0)
    if not isinstance(momentum, Tensor):
        require_number("momentum", momentum, 0, 1)


def values_per_channel(input: Tensor) -> int:
    """Count the values that one channel's batch statistics rest on: N times all spatial sizes."""
    return input.shape[0] * math.prod(input.shape[2:])


def require_batch(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    parameters: dict[str, Tensor | None],
    training: bool,
    momentum: float | Tensor,
    eps: float,
) -> None:
    """Raise unless the arguments of `batch_norm` fit together."""
    require_channels(input, running_mean, running_var, parameters, momentum, eps, low_rank=2)
    if not training and running_mean is None:
        raise ValueError(
            "running_mean and running_var must be given when training is False, got None"
        )
    if training and values_per_channel(input) == 1:
        raise ValueError(
            "input must have more than one value per channel (N times the spatial sizes) in "
            f"training, got shape {tuple(input.shape)}"
        )
