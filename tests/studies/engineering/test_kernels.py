"""The Triton kernels: `make test-kernels` runs all of this; `make test` what needs no Triton."""

import importlib.util
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from engine_helpers import normal
from helpers import ROOT

import normalization as nz
from normbook.studies.engineering import kernels

HAS_TRITON = importlib.util.find_spec("triton") is not None
AVAILABLE = kernels.kernels_available()
needs_triton = pytest.mark.skipif(
    not HAS_TRITON, reason="Triton is not installed: make test-kernels"
)
needs_kernels = pytest.mark.skipif(
    not AVAILABLE.can_run, reason=f"{AVAILABLE.reason}: make test-kernels"
)
# Of the largest value. The interpreter cuts bfloat16 off where a GPU rounds: a whole last place.
TOLERANCE = {
    torch.float64: 1e-13,
    torch.float32: 2e-6,
    torch.float16: 2**-10,
    torch.bfloat16: 2**-7,
}
NORMS = ["rms_norm", "layer_norm"]
HALF = [torch.float16, torch.bfloat16]
SHAPES = [(5, 123), (2, 3, 7), (4,), (9, 1), (1, 1), (2, 1, 2, 130), (1, 1000)]
SHAPES += [(3 * kernels.MAX_INTERPRETED_PROGRAMS + 1, 9)]  # more rows than programs
EPS = 1e-5


def device():
    return "cuda" if HAS_TRITON and not kernels._interpreted() else "cpu"


def parameters(name, width):
    return [normal(width, seed=seed) for seed in ((1,) if name == "rms_norm" else (1, 2))]


def compare(name, x, values, grad, dtype=torch.float64, value_dtype=None):
    """Compare output and gradients with the engine's in float64, from the same rounded numbers."""
    dtypes = [dtype, *[value_dtype or dtype] * len(values)]
    rounded = [
        None if value is None else value.to(kind)
        for value, kind in zip([x, *values], dtypes, strict=True)
    ]
    results = []
    for door, where, exact in ((kernels, device(), None), (nz, "cpu", torch.float64)):
        leaves = [
            None if value is None else value.detach().to(where, exact).requires_grad_()
            for value in rounded
        ]
        output = getattr(door, name)(leaves[0], x.shape[-1:], *leaves[1:], eps=EPS)
        wanted = [leaf for leaf in leaves if leaf is not None]
        upstream = grad.to(dtype).to(output.device, output.dtype)
        results.append([output, *torch.autograd.grad(output, wanted, upstream)])
    kinds = [kind for kind, value in zip(dtypes, rounded, strict=True) if value is not None]
    assert [value.dtype for value in results[0]] == [dtype, *kinds]
    for actual, expected in zip(*results, strict=True):
        scale = max(1.0, expected.abs().max().item())
        gap = (actual.cpu().double() - expected).abs().max().item()
        assert actual.shape == expected.shape
        assert gap <= TOLERANCE[actual.dtype] * scale, (name, tuple(x.shape), gap / scale)


@needs_kernels
@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        *[(torch.float64, shape) for shape in SHAPES],
        (torch.float32, SHAPES[1]),
        (torch.float32, (3, 64)),
    ],
)
@pytest.mark.parametrize("name", NORMS)
def test_the_kernels_compute_the_engines_norms_and_gradients(name, shape, dtype):
    x = normal(*shape, offset=0.5, scale=2.0)
    compare(name, x, parameters(name, shape[-1]), normal(*shape, seed=3), dtype)


@needs_kernels
@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("value_dtype", [None, torch.float32])
def test_half_precision_is_reduced_in_float32(name, dtype, value_dtype):
    shape = (6, 515)
    values, grad = parameters(name, 515), normal(*shape, seed=3)
    compare(name, normal(*shape), values, grad, dtype, value_dtype)


@needs_kernels
def test_gain_and_bias_are_optional():
    weight, bias = parameters("layer_norm", 37)
    for values in ((None, None), (weight, None), (None, bias)):
        compare("layer_norm", normal(4, 37), values, normal(4, 37, seed=3))
    compare("rms_norm", normal(4, 37), [None], normal(4, 37, seed=3))


@needs_kernels
@pytest.mark.parametrize("name", NORMS)
def test_strides_do_not_matter(name):
    grad = normal(5, 12, seed=3)
    values = [normal(24, seed=1)[::2], normal(12, 2, seed=2)[:, 1]][: len(parameters(name, 12))]
    compare(name, normal(12, 5).t(), values, grad)
    compare(name, normal(5, 24)[:, ::2], values, grad)
    compare(name, normal(1, 12).expand(5, 12), values, grad)
    compare(name, normal(4, 5, 12).transpose(0, 1), values, normal(1, 1, 1).expand(5, 4, 12))


@needs_kernels
@pytest.mark.parametrize("name", NORMS)
def test_no_rows_give_no_output_and_zero_gradients(name):
    values = [value.to(device()).requires_grad_() for value in parameters(name, 5)]
    x = torch.empty(0, 5, dtype=torch.float64, device=device(), requires_grad=True)
    output = getattr(kernels, name)(x, 5, *values)
    gradients = torch.autograd.grad(output.sum(), [x, *values])
    assert output.shape == (0, 5)
    assert all((gradient == 0).all() for gradient in gradients)


@needs_kernels
@pytest.mark.parametrize(
    ("name", "x", "eps", "tolerance"),
    [
        # squares that float16 cannot hold, and a large mean that must not cancel
        *[(name, torch.tensor([[300.0, -300.0, 600.0]]).half(), EPS, 2e-3) for name in NORMS],
        ("layer_norm", normal(4, 256, offset=1e4).float(), EPS, 5e-3),
        # eps stands inside the root, and none is PyTorch's
        ("rms_norm", normal(3, 8), 0.5, 1e-7),
        ("rms_norm", 1e-8 * normal(3, 8), None, 1e-7),
        ("rms_norm", (1e-4 * normal(3, 8)).float(), None, 1e-6),
    ],
)
def test_numbers_that_are_hard_to_norm(name, x, eps, tolerance):
    exact = torch.finfo(x.dtype).eps if eps is None else eps
    expected = getattr(nz, name)(x.double(), x.shape[-1:], eps=exact)
    actual = getattr(kernels, name)(x.to(device()), x.shape[-1:], eps=eps).cpu().double()
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@needs_kernels
def test_a_second_derivative_is_refused():
    x = normal(2, 4).to(device()).requires_grad_()
    loss = kernels.rms_norm(x, 4).sin().sum()
    (first,) = torch.autograd.grad(loss, x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


@needs_kernels
@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"input": normal(2, 4), "normalized_shape": 3}, ValueError, "last axis alone"),
        ({"input": normal(2, 4), "normalized_shape": (2, 4)}, ValueError, "last axis alone"),
        ({"input": normal(2, 4), "normalized_shape": 4, "eps": -1.0}, ValueError, "eps"),
        ({"input": torch.ones(2, 4, dtype=torch.int64)}, TypeError, "floating-point"),
        ({"input": normal(2, 4), "weight": normal(5)}, ValueError, "weight must have shape"),
        ({"input": normal(2, 4), "weight": normal(4).float()}, TypeError, "weight must have"),
        ({"input": torch.empty(0, 65537)}, ValueError, "width of 1 to 65536"),
    ],
)
def test_what_does_not_fit_is_refused(arguments, error, words):
    arguments = {"normalized_shape": arguments["input"].shape[-1], **arguments}
    for name in NORMS:
        with pytest.raises(error, match=words):
            getattr(kernels, name)(**arguments)


COMPILE = """
import itertools
import triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from normbook.studies.engineering import kernels_triton

names = {"mean": "A", "inverse": "A", "weight_sums": "A", "bias_sums": "A"}
cases = itertools.product(("fp16", "bf16", "fp32", "fp64"), (True, False), (80, 90), (1, None))
for kind, centered, capability, size in cases:
    acc = "fp64" if kind == "fp64" else "fp32"
    fixed = {"CENTERED": centered, "HAS_WEIGHT": True, "HAS_BIAS": centered, "BLOCK": 4096,
             "ACC": tl.float64 if kind == "fp64" else tl.float32}
    for kernel in (kernels_triton.norm_forward, kernels_triton.norm_backward):
        constants = {**fixed, "EPS": 1e-5} if "EPS" in kernel.arg_names else fixed
        if size:  # a launch fixes a number that is 1
            sizes = {name: size for name in ("rows", "width") if name in kernel.arg_names}
            constants = {**constants, **sizes}
        types = {
            name: "constexpr" if name in constants
            else "i32" if name in ("rows", "width")
            else "*" + (acc if name in names else kind)
            for name in kernel.arg_names
        }
        made = triton.compile(
            ASTSource(kernel, types, constexprs=constants),
            target=GPUTarget("cuda", capability, 32),
            options={"num_warps": 16},
        )
        assert made.asm["cubin"]
print("compiled")
"""


def python(program, **environment):
    environment = {**os.environ, **environment, "PYTHONPATH": str(ROOT / "code")}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


@needs_triton
def test_the_kernels_compile_to_machine_code_for_two_gpus(tmp_path):
    """Nobody runs it here, but what the interpreter forgives, the compiler does not."""
    settings = {"TRITON_DEFAULT_FP_FUSION": "1", "TRITON_INTERPRET": "0"}
    answer = python(COMPILE, TRITON_CACHE_DIR=str(tmp_path), **settings)
    assert answer.stdout.strip() == "compiled", answer.stderr


# --- What needs no Triton ---


def test_without_triton_the_module_imports_and_says_what_is_missing():
    program = (
        "import sys; sys.modules['triton'] = None\n"
        "import torch\n"
        "from normbook.studies.engineering import kernels\n"
        "print(kernels.kernels_available())\n"
        "print(kernels.benchmark())\n"
        "try: kernels.rms_norm(torch.ones(2, 3), 3)\n"
        "except RuntimeError as error: print(error)\n"
    )
    answer = python(program)
    reason = "Triton is not installed: it is the extra `kernels`"
    assert answer.stdout.splitlines() == [
        f"Availability(can_run=False, reason='{reason}')",
        f"No benchmark here: it needs a GPU and Triton. {reason}.",
        "[]",
        f"the fused norms cannot run here. {reason}",
    ], answer.stderr


@pytest.mark.parametrize(
    ("interpreted", "gpu", "words"),
    [
        (True, False, ["interpreter"]),
        (False, True, ["for the GPU"]),
        (False, False, ["no GPU", "TRITON_INTERPRET=1"]),  # both ways out
    ],
)
def test_with_triton_it_says_where_the_kernels_run(monkeypatch, interpreted, gpu, words):
    monkeypatch.setattr(kernels.importlib.util, "find_spec", lambda name: SimpleNamespace())
    monkeypatch.setattr(kernels, "_interpreted", lambda: interpreted)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    available = kernels.kernels_available()
    assert available.can_run == (interpreted or gpu)
    assert all(word in available.reason for word in words)


def test_the_source_is_there_without_triton():
    for name in ("norm_forward", "norm_backward"):
        text = kernels.source(name)
        assert text.startswith(f"@triton.jit\ndef {name}(")
        assert max(map(len, text.splitlines())) <= 100
    with pytest.raises(ValueError, match="name must be one of"):
        kernels.source("backward")


def test_the_benchmark_divides_by_pytorchs_time_and_by_a_copys_bandwidth(capsys):
    # a copy, then twice (forward, both passes) for RMSNorm and LayerNorm: ours, PyTorch's
    times = iter([2.0, 4.0, 8.0, 20.0, 10.0, 2.0, 2.0, 5.0, 10.0])
    timings = kernels.benchmark(4, 8, torch.float32, timer=lambda call: next(times))
    assert [(timing.ratio, timing.copy_share) for timing in timings] == [
        (0.5, 0.5),  # as many bytes as a copy in twice its time
        (2.0, 0.25),  # 5/2 of its bytes in ten times its time
        (1.0, 1.0),
        (0.5, 1.0),
    ]
    assert len(capsys.readouterr().out.splitlines()) == 4


@needs_kernels
def test_the_benchmark_calls_what_it_times():
    called = []

    def timer(call):
        called.append(call())
        return 1.0

    kernels.benchmark(3, 5, torch.float32, timer=timer)
    assert len(called) == 9
    for actual, expected in zip(called[1::2], called[2::2], strict=True):
        torch.testing.assert_close(actual, expected)
