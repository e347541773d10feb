"""RMSNorm and LayerNorm as fused GPU kernels, written in Triton: forward and backward.

Triton is an optional extra (about a gigabyte). Without it, or without a GPU, this module still
imports; `kernels_available` says what is missing, and the norms raise with the same words. Under
Triton's interpreter (`TRITON_INTERPRET=1`, set before Triton is imported) the kernels run on a CPU:
slowly, to check that they are right. `make test-kernels` does that.
"""

import ast
import importlib.util
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from normbook.engine.checks import HALF_DTYPES, computation_dtype, require_choice, require_trailing

MAX_WIDTH = 65536  # a program keeps its whole row on the chip
MAX_INTERPRETED_PROGRAMS = 4
SOURCE = Path(__file__).with_name("kernels_triton.py")
DTYPES = (*HALF_DTYPES, torch.float32, torch.float64)


class Availability(NamedTuple):
    """Whether the kernels can run here, and a sentence that says where, or what is missing."""

    can_run: bool
    reason: str


@cache
def _kernels():
    """Import the kernels; raise `ImportError` without Triton."""
    from normbook.studies.engineering import kernels_triton

    return kernels_triton


def kernels_available() -> Availability:
    """Say whether the kernels can run here; if not, the reason names what is missing."""
    if importlib.util.find_spec("triton") is None:
        return Availability(False, "Triton is not installed: it is the extra `kernels`")
    if _interpreted():
        return Availability(True, "Triton's interpreter runs the kernels on the CPU, slowly")
    if torch.cuda.is_available():
        return Availability(True, "Triton compiles the kernels for the GPU")
    return Availability(
        False, "There is no GPU, and TRITON_INTERPRET=1 was not set before Triton was imported"
    )


def source(name: str) -> str:
    """Return the source of a kernel, "norm_forward" or "norm_backward"; Triton is not needed.

    Raises: ValueError on another name.
    """
    text = SOURCE.read_text(encoding="utf-8")
    nodes = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    functions = {node.name: ast.get_source_segment(text, node) for node in nodes}
    require_choice("name", name, functions)
    return "@triton.jit\n" + functions[name]


# --- The two norms ---


def layer_norm(
    input: Tensor,
    normalized_shape: int | tuple[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """LayerNorm over the last axis, with the kernels; twice differentiable it is not.

    Shapes: input and output [..., width]; weight and bias [width].

    Raises: RuntimeError when the kernels cannot run here (`kernels_available` says why);
    ValueError on shapes and devices that do not fit, or a width over 65536; TypeError on dtypes.
    """
    _require(input, normalized_shape, {"weight": weight, "bias": bias}, eps)
    return _FusedNorm.apply(input, weight, bias, eps, True)


def rms_norm(
    input: Tensor,
    normalized_shape: int | tuple[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """RMSNorm over the last axis, with the kernels; `eps=None` is as in PyTorch.

    Shapes: input and output [..., width]; weight [width]. Raises as `layer_norm`.
    """
    _require(input, normalized_shape, {"weight": weight}, eps or 0.0)
    eps = torch.finfo(computation_dtype(input)).eps if eps is None else eps
    return _FusedNorm.apply(input, weight, None, eps, False)


class _FusedNorm(torch.autograd.Function):
    """Launch one kernel a pass. Raw pointers know no strides: everything is made contiguous."""

    @staticmethod
    def forward(ctx, input, weight, bias, eps, centered):
        """Launch one program a row; save the input and two numbers a row."""
        width = input.shape[-1]
        x = input.contiguous().reshape(-1, width)
        weight, bias = (None if value is None else value.contiguous() for value in (weight, bias))
        rows, dtype = x.shape[0], computation_dtype(x)
        y = torch.empty_like(x)
        inverse = torch.empty(rows, dtype=dtype, device=x.device)
        mean = torch.empty_like(inverse) if centered else None
        settings = {**_settings(width, dtype), "CENTERED": centered}
        settings |= {"HAS_WEIGHT": weight is not None, "HAS_BIAS": bias is not None}
        if rows:
            pointers = [x if value is None else value for value in (weight, bias)]
            statistics = [x if mean is None else mean, inverse]
            launch = _kernels().norm_forward[(rows,)]
            with torch.cuda.device_of(x):  # of several GPUs, the one that holds x
                launch(x, *pointers, y, *statistics, width, EPS=eps, **settings)
        ctx.save_for_backward(x, weight, mean, inverse)
        ctx.settings, ctx.bias_dtype = settings, None if bias is None else bias.dtype
        return y.reshape(input.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        """Launch a few programs, each for a share of the rows; add up their sums."""
        x, weight, mean, inverse = ctx.saved_tensors
        rows, width = x.shape
        grad_y, grad_x = grad.contiguous().reshape(-1, width), torch.empty_like(x)
        programs = _programs(rows, x.device)
        sums = torch.zeros(2, programs, width, dtype=inverse.dtype, device=x.device)
        if rows:
            pointers = [x if value is None else value for value in (weight, mean)]
            launch = _kernels().norm_backward[(programs,)]
            with torch.cuda.device_of(x):
                launch(grad_y, x, *pointers, inverse, grad_x, *sums, rows, width, **ctx.settings)
        dtypes = None if weight is None else weight.dtype, ctx.bias_dtype
        pairs = zip(sums.sum(1), dtypes, strict=True)
        grads = (None if dtype is None else value.to(dtype) for value, dtype in pairs)
        return grad_x.reshape(grad.shape), *grads, None, None


def _settings(width: int, dtype: torch.dtype) -> dict:
    """Choose what a kernel is compiled for: a block that holds the row, and how it adds up."""
    import triton
    import triton.language as tl

    block = triton.next_power_of_2(width)
    settings = {"BLOCK": block, "ACC": tl.float64 if dtype == torch.float64 else tl.float32}
    if not _interpreted():
        settings["num_warps"] = min(max(block // 256, 4), 32)
    return settings


def _programs(rows: int, device: torch.device) -> int:
    """Choose how many programs share the rows of a backward pass: the fewer, the fewer sums."""
    most = MAX_INTERPRETED_PROGRAMS
    if device.type == "cuda":
        most = 4 * torch.cuda.get_device_properties(device).multi_processor_count
    return max(min(rows, most), 1)


def _interpreted() -> bool:
    """Tell whether Triton's interpreter took the kernels; only their decorator knows for sure."""
    return type(_kernels().norm_forward).__name__ == "InterpretedFunction"


def _require(input: Tensor, shape: int | tuple[int], parameters: dict, eps: float) -> None:
    """Raise unless the kernels can run here and everything fits: they check no bounds."""
    available = kernels_available()
    if not available.can_run:
        raise RuntimeError(f"the fused norms cannot run here. {available.reason}")
    if len(require_trailing(input, shape, parameters, eps)) > 1:
        raise ValueError(f"normalized_shape must be the last axis alone, got {tuple(shape)}")
    require_choice("the input's dtype", input.dtype, DTYPES)
    if input.shape[-1] > MAX_WIDTH:
        raise ValueError(f"input must have a width of 1 to {MAX_WIDTH}, got {input.shape[-1]}")
    if not (_interpreted() or input.is_cuda):
        raise ValueError(f"input must be on the GPU, got one on {input.device}")


# --- The benchmark ---


class Timing(NamedTuple):
    """One pass of one norm: its time over PyTorch's own, and its share of a copy's bandwidth."""

    norm: str
    passes: str
    ratio: float
    copy_share: float


def benchmark(
    rows: int = 8192,
    width: int = 4096,
    dtype: torch.dtype = torch.bfloat16,
    timer: Callable[[Callable], float] | None = None,
) -> list[Timing]:
    """Time both norms beside PyTorch's own and beside a copy of the same input.

    A forward pass moves the input's bytes twice (read x, write y). A backward pass moves them three
    times (read x and dL/dy, write dL/dx). A copy moves them twice. `timer` returns the time of a
    call; the default is Triton's own, on the GPU.

    Without a GPU it says so in one line and returns an empty list.
    """
    available = kernels_available()
    if timer is None and (not available.can_run or _interpreted()):
        print(f"No benchmark here: it needs a GPU and Triton. {available.reason}.")
        return []
    if timer is None:
        from triton.testing import do_bench as timer
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x = torch.randn(rows, width, device=device, dtype=dtype, requires_grad=True)
    weight, bias = (
        torch.ones(width, device=device, dtype=dtype, requires_grad=True) for _ in range(2)
    )
    target = torch.empty_like(x.detach())
    copy = timer(lambda: target.copy_(x.detach()))
    pairs = {
        "rms_norm": (rms_norm, F.rms_norm, (weight,), 1e-6),
        "layer_norm": (layer_norm, F.layer_norm, (weight, bias), 1e-5),
    }
    timings = []
    for name, (mine, native, parameters, eps) in pairs.items():
        for passes, moved in (("forward", 2), ("forward and backward", 5)):
            calls = [_call(norm, x, parameters, eps, moved == 5) for norm in (mine, native)]
            ours, theirs = map(timer, calls)
            ratio, share = ours / theirs, (moved / ours) / (2 / copy)
            timings.append(Timing(name, passes, ratio, share))
            print(f"{name:10} {passes:20} {ratio:.2f} x PyTorch's, {share:.0%} of a copy")
    return timings


def _call(norm: Callable, x: Tensor, parameters: tuple, eps: float, backward: bool) -> Callable:
    """Return a call without arguments of a norm, with or without its backward pass."""
    gradient = torch.ones_like(x)
    forward = lambda: norm(x, (x.shape[-1],), *parameters, eps)  # noqa: E731
    if not backward:
        return forward
    return lambda: torch.autograd.grad(forward(), (x, *parameters), gradient)
