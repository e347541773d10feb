"""The Triton kernels: `make test-kernels` runs all of this; `make test` what needs no Triton."""

import importlib.util
import itertools
from types import SimpleNamespace

import pytest
import torch
from engine_helpers import normal
from helpers import output_of

import normalization as nz
from normbook.studies.engineering import kernels

HAS_TRITON = importlib.util.find_spec("triton") is not None
AVAILABLE = kernels.kernels_available()
WHY = f"{AVAILABLE.reason}: make test-kernels"
needs_triton = pytest.mark.skipif(not HAS_TRITON, reason=WHY)
needs_kernels = pytest.mark.skipif(not AVAILABLE.can_run, reason=WHY)
# Of the largest value. The interpreter cuts bfloat16 off where a GPU rounds: a whole last place.
TOLERANCE = {torch.float64: 1e-13, torch.float32: 2e-6}
TOLERANCE |= {torch.float16: 2**-10, torch.bfloat16: 2**-7}
NORMS = ["rms_norm", "layer_norm"]
EPS = 1e-5
MANY = 3 * kernels.MAX_INTERPRETED_PROGRAMS + 1  # more rows than programs
SHAPES = [(5, 123), (2, 3, 7), (4,), (9, 1), (1, 1), (3, 64), (2, 1, 2, 130), (1, 1000), (MANY, 9)]


def device():
    return "cuda" if HAS_TRITON and not kernels._interpreted() else "cpu"


def parameters(name, width, weight=True, bias=True):
    values = [normal(width, seed=1) if weight else None]
    return values if name == "rms_norm" else [*values, normal(width, seed=2) if bias else None]


def compare(name, x, values=None, grad=None, dtype=torch.float64, value_dtype=None):
    """Compare output and gradients with the engine's in float64, from the same rounded numbers."""
    values = parameters(name, x.shape[-1]) if values is None else values
    grad = normal(*x.shape, seed=3) if grad is None else grad
    dtypes = [dtype, *[value_dtype or dtype] * len(values)]
    rounded = [v if v is None else v.to(kind) for v, kind in zip([x, *values], dtypes, strict=True)]
    results = []
    for door, place, kind in ((kernels, device(), None), (nz, "cpu", torch.float64)):
        leaves = [v if v is None else v.detach().to(place, kind) for v in rounded]
        wanted = [leaf.requires_grad_() for leaf in leaves if leaf is not None]
        output = getattr(door, name)(leaves[0], x.shape[-1:], *leaves[1:], eps=EPS)
        upstream = grad.to(dtype).to(output.device, output.dtype)
        results.append([output, *torch.autograd.grad(output, wanted, upstream)])
    for actual, expected in zip(*results, strict=True):
        scale = max(1.0, expected.abs().max().item())
        gap = (actual.cpu().double() - expected).abs().max().item()
        assert actual.shape == expected.shape
        assert gap <= TOLERANCE[actual.dtype] * scale, (name, tuple(x.shape), gap / scale)
    return results[0]


@needs_kernels
@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_kernels_compute_the_engines_norms_and_gradients(name, shape):
    compare(name, normal(*shape, offset=0.5, scale=2.0))


@needs_kernels
@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("value_dtype", [None, torch.float32])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_outputs_and_gradients_have_the_dtypes_of_what_came(name, dtype, value_dtype):
    """Half precision is reduced in float32, and may stand beside parameters in float32."""
    if dtype == torch.float64:
        value_dtype = None
    x = normal(6, 515, offset=0.5)
    output, grad_x, *gradients = compare(name, x, dtype=dtype, value_dtype=value_dtype)
    assert output.dtype == grad_x.dtype == dtype
    assert {gradient.dtype for gradient in gradients} == {value_dtype or dtype}


@needs_kernels
@pytest.mark.parametrize("name", NORMS)
def test_gain_and_bias_are_optional_and_strides_do_not_matter(name):
    for flags in itertools.product([True, False], repeat=2):
        compare(name, normal(4, 37), parameters(name, 37, *flags))
    values = [normal(24, seed=1)[::2], normal(12, 2, seed=2)[:, 1]][: len(parameters(name, 12))]
    compare(name, normal(12, 5).t(), values)
    compare(name, normal(5, 24)[:, ::2], values)
    compare(name, normal(1, 12).expand(5, 12), values)
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
def test_squares_beyond_float16_and_a_mean_beyond_the_deviations():
    wide = torch.tensor([[300.0, -300.0, 600.0]], dtype=torch.float16)
    far = normal(4, 256, offset=1e4).float()
    for name, x, gap in (("rms_norm", wide, 2e-3), (NORMS[1], wide, 2e-3), (NORMS[1], far, 5e-3)):
        expected = getattr(nz, name)(x.double(), x.shape[-1], eps=EPS)
        actual = getattr(kernels, name)(x.to(device()), x.shape[-1], eps=EPS).cpu().double()
        torch.testing.assert_close(actual, expected, rtol=0, atol=gap)


@needs_kernels
def test_eps_stands_inside_the_root_and_none_is_pytorchs():
    z = normal(3, 8)
    for x, eps in ((z, 0.5), (1e-8 * z, None), (1e-4 * z.float(), None)):
        actual = kernels.rms_norm(x.to(device()), 8, eps=eps).cpu()
        torch.testing.assert_close(actual, nz.rms_norm(x, 8, eps=eps))


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
        ({"input": normal(2, 4), "normalized_shape": 3}, ValueError, "normalized_shape"),
        ({"input": normal(2, 4), "normalized_shape": (2, 4)}, ValueError, "last axis alone"),
        ({"input": normal(2, 4), "eps": -1.0}, ValueError, "eps"),
        ({"input": torch.ones(2, 4, dtype=torch.int64)}, TypeError, "floating-point"),
        ({"input": normal(2, 4).to(torch.float8_e5m2)}, ValueError, "dtype must be one of"),
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
        source, target = ASTSource(kernel, types, constants), GPUTarget("cuda", capability, 32)
        assert triton.compile(source, target, {"num_warps": 16}).asm["cubin"]
print("compiled")
"""


@needs_triton
def test_the_kernels_compile_to_machine_code_for_two_gpus(tmp_path):
    """Nobody runs it here, but what the interpreter forgives, the compiler does not."""
    environment = {"TRITON_CACHE_DIR": str(tmp_path), "TRITON_DEFAULT_FP_FUSION": "1"}
    assert output_of(COMPILE, **environment, TRITON_INTERPRET=None).strip() == "compiled"


# --- What needs no Triton ---

WITHOUT = """
import sys; sys.modules['triton'] = None
import torch
from normbook.studies.engineering import kernels
print(kernels.kernels_available())
print(kernels.benchmark())
try: kernels.rms_norm(torch.ones(2, 3), 3)
except RuntimeError as error: print(error)
"""


def test_without_triton_the_module_imports_and_says_what_is_missing():
    reason = "Triton is not installed: it is the extra `kernels`"
    assert output_of(WITHOUT).splitlines() == [
        f"Availability(can_run=False, reason='{reason}')",
        f"No benchmark here: it needs a GPU and Triton. {reason}.",
        "[]",
        f"the fused norms cannot run here. {reason}",
    ]


@pytest.mark.parametrize(
    ("interpreted", "gpu", "words"),
    [
        (True, False, "interpreter runs"),
        (False, True, "for the GPU"),
        (False, False, "no GPU, and TRITON_INTERPRET=1 was not set"),
    ],
)
def test_with_triton_it_says_where_the_kernels_run_or_the_ways_out(
    monkeypatch, interpreted, gpu, words
):
    monkeypatch.setattr(kernels.importlib.util, "find_spec", lambda name: SimpleNamespace())
    monkeypatch.setattr(kernels, "_interpreted", lambda: interpreted)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    available = kernels.kernels_available()
    assert available.can_run == (interpreted or gpu)
    assert words in available.reason


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
    for mine, native in zip(called[1::2], called[2::2], strict=True):
        torch.testing.assert_close(mine, native)
