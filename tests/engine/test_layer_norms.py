"""LayerNorm and RMSNorm against PyTorch's own, against float64, and against numbers by hand."""

import math

import pytest
import torch
import torch.nn.functional as F
from engine_helpers import (
    DTYPES,
    TOLERANCE,
    assert_close,
    assert_functional_gradients,
    assert_rounds_once,
    assert_same,
    assert_transforms,
    exchange_state,
    gradients,
    normal,
    randomize,
    refused,
)
from torch import nn

import normalization as nz

# --- against PyTorch: forward, gradient, state dicts ---


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "trailing", "options"),
    [
        ((4, 8), 8, {}),
        ((2, 3, 8), (8,), {"eps": 0.1}),
        ((2, 3, 4, 5), (4, 5), {"bias": False}),
        ((2, 2, 2, 3, 4), (3, 4), {"elementwise_affine": False}),
    ],
)
def test_layer_norm_is_pytorchs(shape, trailing, options, dtype):
    peer = randomize(nn.LayerNorm(trailing, **options)).to(dtype)
    mine = nz.LayerNorm(trailing, **options).to(dtype)
    exchange_state(mine, peer)
    assert_same(mine, peer, normal(*shape, dtype=dtype, offset=2), TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "trailing", "options"),
    [
        ((4, 8), 8, {}),
        ((2, 3, 4, 5), (4, 5), {"eps": 0.1}),
        ((2, 2, 2, 3, 4), (3, 4), {"elementwise_affine": False}),
    ],
)
def test_rms_norm_is_pytorchs(shape, trailing, options, dtype):
    peer = randomize(nn.RMSNorm(trailing, **options)).to(dtype)
    mine = nz.RMSNorm(trailing, **options).to(dtype)
    exchange_state(mine, peer)
    assert_same(mine, peer, normal(*shape, dtype=dtype, offset=2), TOLERANCE[dtype])


def test_functions_are_pytorchs():
    input, weight, bias = normal(5, 4), normal(4, seed=1), normal(4, seed=2)
    for eps in (1e-5, 0.3):
        mine = nz.layer_norm(input, [4], weight, bias, eps)
        assert_close(mine, F.layer_norm(input, [4], weight, bias, eps))
        mine = nz.layer_norm(input, 4, None, bias, eps)
        assert_close(mine, F.layer_norm(input, [4], None, bias, eps))
        assert_close(nz.rms_norm(input, [4], weight, eps), F.rms_norm(input, [4], weight, eps))


def test_an_empty_batch_is_pytorchs():
    for mine, peer in ((nz.LayerNorm(3), nn.LayerNorm(3)), (nz.RMSNorm(3), nn.RMSNorm(3))):
        assert_same(mine, peer, torch.zeros(0, 3))


# --- by hand ---


def test_layer_norm_divides_by_d_and_has_eps_inside_the_root():
    size = 1e-3  # variance 1e-6, so that eps decides
    input = torch.tensor([[size, -size, size, -size]], dtype=torch.float64)
    output = nz.layer_norm(input, 4, eps=1e-6)
    assert_close(output, input / size / math.sqrt(2))
    unbiased = nz.layer_norm(normal(1, 5), 5, eps=0).std(-1, correction=1)
    assert unbiased.item() == pytest.approx(math.sqrt(5 / 4), rel=1e-12)


def test_rms_norm_has_eps_inside_the_root_and_pytorchs_default():
    size = 1e-3
    input = torch.full((1, 4), size, dtype=torch.float64)
    assert_close(nz.rms_norm(input, 4, eps=1e-6), input / size / math.sqrt(2))
    # x = sqrt(eps) is normalized to 1/sqrt(2), whatever the dtype's own eps
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        default = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps
        output = nz.rms_norm(torch.full((1, 4), math.sqrt(default), dtype=dtype), 4)
        assert output[0, 0].item() == pytest.approx(math.sqrt(0.5), rel=0.01)


def test_a_single_feature_has_no_gradient_and_becomes_the_bias():
    norm = nz.LayerNorm(1)
    nn.init.constant_(norm.bias, 0.25)
    leaf = torch.full((3, 1), 1e6, requires_grad=True)
    output = norm(leaf)
    output.sum().backward()
    assert output.tolist() == [[0.25]] * 3
    assert norm.weight.grad.tolist() == [0.0]  # torch 2.13's own: 7.2
    assert leaf.grad.tolist() == [[0.0]] * 3


# --- RMSNorm's offset: Gemma's gain 1 + w ---


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("offset", [0.0, 1.0, -0.5])
def test_the_gain_is_offset_plus_weight(offset, dtype):
    norm = randomize(nz.RMSNorm(8, eps=1e-6, offset=offset)).to(dtype)
    leaf = normal(5, 8, dtype=dtype).requires_grad_()
    mine, peer = norm(leaf), F.rms_norm(leaf, [8], offset + norm.weight, 1e-6)
    assert_close(mine, peer, TOLERANCE[dtype])
    leaves = [leaf, norm.weight]
    for actual, expected in zip(gradients(mine, leaves), gradients(peer, leaves), strict=True):
        assert_close(actual, expected, 10 * TOLERANCE[dtype])


def test_with_an_offset_it_starts_as_the_plain_norm():
    gemma, plain = nz.RMSNorm(4, offset=1.0), nz.RMSNorm(4)
    assert gemma.weight.tolist() == [0.0] * 4
    assert plain.weight.tolist() == [1.0] * 4
    input = normal(3, 4, dtype=torch.float32)
    assert torch.equal(gemma(input), plain(input))
    assert gemma.state_dict().keys() == plain.state_dict().keys() == {"weight"}
    assert "offset" not in repr(plain)
    assert "offset=1" in repr(gemma)


def test_the_sum_of_offset_and_weight_is_not_rounded_to_half():
    # 1 + 2**-10 has no bfloat16
    weight = torch.full((256,), 2**-10, dtype=torch.bfloat16)
    input = normal(64, 256, dtype=torch.bfloat16)
    exact = nz.rms_norm(input.double(), 256, weight.double(), 1e-6, offset=1.0)
    assert_rounds_once(nz.rms_norm(input, 256, weight, 1e-6, offset=1.0), exact, torch.bfloat16)


# --- precision ---


@pytest.mark.parametrize("offset", [1e3, 1e4])
def test_a_large_mean_in_float32_does_not_cancel(offset):
    input = normal(64, 256, dtype=torch.float32, offset=offset)
    exact = F.layer_norm(input.double(), [256])
    assert (nz.layer_norm(input, 256) - exact).abs().max() < 1e-6 * offset


def test_a_row_of_a_million_in_float32():
    input = normal(1, 1 << 20, dtype=torch.float32, offset=1.0)
    exact = input.double()
    layer = nz.layer_norm(input, 1 << 20) - F.layer_norm(exact, [1 << 20])
    rms = nz.rms_norm(input, 1 << 20) - F.rms_norm(exact, [1 << 20])
    assert layer.abs().max() < 1e-5
    assert rms.abs().max() < 1e-4


HALF = {  # each at half precision, and the same in float64
    "layer_norm": (
        lambda x, w: nz.layer_norm(x, x.shape[-1], w, w),
        lambda x, w: F.layer_norm(x, x.shape[-1:], w, w),
    ),
    "rms_norm": (
        lambda x, w: nz.rms_norm(x, x.shape[-1], w, 1e-6),
        lambda x, w: F.rms_norm(x, x.shape[-1:], w, 1e-6),
    ),
}


@pytest.mark.parametrize("name", HALF)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("same_dtype", [True, False])
def test_half_precision_rounds_once(name, dtype, same_dtype):
    mine, peer = HALF[name]
    input, weight = normal(512, 64, dtype=dtype, offset=3), normal(64, seed=1, dtype=dtype)
    output = mine(input, weight if same_dtype else weight.float())
    assert_rounds_once(output, peer(input.double(), weight.double()), dtype)


@pytest.mark.parametrize("name", HALF)
def test_half_precision_gradients_of_the_gain(name):
    input, upstream = (normal(16384, 16, seed=s, dtype=torch.bfloat16) for s in range(2))
    found = []
    for function, dtype, x in zip(
        HALF[name], (torch.float32, torch.float64), (input, input.double()), strict=True
    ):
        weight = torch.ones(16, dtype=dtype, requires_grad=True)
        output = function(x, weight)
        found.append(torch.autograd.grad(output, weight, upstream.to(output.dtype))[0].double())
    assert (found[0] - found[1]).norm() / found[1].norm() < 0.005


def test_float16_squares_do_not_overflow_and_zero_rows_stay_zero():
    input = torch.tensor([[1000.0, -1000.0, 300.0, -300.0]], dtype=torch.float16)
    for output, exact in (
        (nz.layer_norm(input, 4), F.layer_norm(input.double(), [4])),
        (nz.rms_norm(input, 4), F.rms_norm(input.double(), [4])),
    ):
        assert (output - exact).abs().max() < 2e-3
    zeros = torch.zeros(2, 4, dtype=torch.float16, requires_grad=True)
    for output in (nz.layer_norm(zeros, 4, eps=1e-8), nz.rms_norm(zeros, 4, eps=1e-8)):
        assert output.tolist() == [[0.0] * 4] * 2
    gradient = torch.autograd.grad(nz.rms_norm(zeros, 4, eps=1e-6).sum(), zeros)[0]
    assert gradient.tolist() == [[1000.0] * 4] * 2  # 1/sqrt(eps)


def test_nan_and_inf_propagate_to_their_own_row_only():
    for value in (math.nan, math.inf):
        input = normal(3, 4)
        input[1, 2] = value
        for output in (nz.layer_norm(input, 4), nz.rms_norm(input, 4)):
            assert output[1].isnan().any()
            assert output[[0, 2]].isfinite().all()


# --- derivatives and transforms ---


def test_transforms():
    inputs, weights, biases = normal(3, 5, 4, offset=2), normal(3, 4, seed=1), normal(3, 4, seed=2)
    assert_transforms(lambda x, w, b: nz.layer_norm(x, 4, w, b), inputs, weights, biases)
    assert_transforms(lambda x, w: nz.rms_norm(x, 4, w), inputs, weights)
    assert_transforms(lambda x, w: nz.rms_norm(x, 4, w, offset=1.0), inputs, weights)


@pytest.mark.parametrize("make", [lambda: nz.LayerNorm(4), lambda: nz.RMSNorm(4)])
def test_func_grad_is_autograds(make):
    assert_functional_gradients(randomize(make()).double(), normal(5, 4))


# --- bad input: the argument, what came, what was expected ---

ONES = torch.ones(4, 3)
BAD = [
    (lambda: nz.layer_norm(torch.ones(4, 3, dtype=torch.int64), 3), TypeError, "input .*int64"),
    (lambda: nz.layer_norm(torch.ones(4, 3, dtype=torch.complex64), 3), TypeError, "complex64"),
    (lambda: nz.layer_norm([[1.0]], 1), TypeError, "input must be a tensor, got list"),
    (lambda: nz.layer_norm(ONES, 4), ValueError, r"end in normalized_shape \(4,\).*\(4, 3\)"),
    (lambda: nz.layer_norm(ONES, (2, 4, 3)), ValueError, r"\(2, 4, 3\)"),
    (lambda: nz.layer_norm(ONES, ()), ValueError, "normalized_shape .* empty"),
    (lambda: nz.layer_norm(ONES, 0), ValueError, "normalized_shape must be at least 1, got 0"),
    (lambda: nz.layer_norm(ONES, 3.0), TypeError, "normalized_shape .* got 3.0"),
    (lambda: nz.layer_norm(ONES, "3"), TypeError, "normalized_shape"),
    (lambda: nz.layer_norm(ONES, 3, torch.ones(1)), ValueError, r"weight .*\(3,\), got \(1,\)"),
    (lambda: nz.layer_norm(ONES, 3, bias=torch.ones(4, 3)), ValueError, r"bias .*\(4, 3\)"),
    (lambda: nz.layer_norm(ONES, 3, torch.ones(3).double()), TypeError, "weight .*float64"),
    (lambda: nz.layer_norm(ONES, 3, torch.ones(3).half()), TypeError, "weight .*float16"),
    (lambda: nz.layer_norm(ONES, 3, torch.ones(3, device="meta")), ValueError, "weight .*meta"),
    (lambda: nz.layer_norm(ONES, 3, eps=-1e-5), ValueError, "eps .*-1e-05"),
    (lambda: nz.layer_norm(ONES, 3, eps=math.nan), ValueError, "eps .*nan"),
    (lambda: nz.layer_norm(ONES, 3, eps="small"), TypeError, "eps must be a number, got str"),
    (lambda: nz.rms_norm(torch.ones(4, 3, dtype=torch.bool), 3), TypeError, "input .*bool"),
    (lambda: nz.rms_norm(ONES, 4), ValueError, r"\(4,\)"),
    (lambda: nz.rms_norm(ONES, 3, torch.ones(4)), ValueError, r"weight .*\(4,\)"),
    (lambda: nz.rms_norm(ONES, 3, torch.ones(3).double()), TypeError, "weight .*float64"),
    (lambda: nz.rms_norm(ONES, 3, torch.ones(3).bfloat16()), TypeError, "weight .*bfloat16"),
    (lambda: nz.rms_norm(ONES, 3, eps=-1.0), ValueError, "eps .*-1"),
    (lambda: nz.rms_norm(3.0, 3), TypeError, "input must be a tensor, got float"),
    (lambda: nz.LayerNorm(3, eps=-1), ValueError, "eps .*-1"),
    (lambda: nz.LayerNorm((3, -1)), ValueError, "normalized_shape .*-1"),
    (lambda: nz.LayerNorm(True), TypeError, "normalized_shape .*True"),
    (lambda: nz.LayerNorm(3)(torch.ones(2, 4)), ValueError, r"\(2, 4\)"),
    (lambda: nz.RMSNorm(3, eps=-1), ValueError, "eps .*-1"),
    (lambda: nz.RMSNorm(()), ValueError, "normalized_shape"),
    (lambda: nz.RMSNorm(3)(torch.ones(2, 4)), ValueError, r"\(2, 4\)"),
    (lambda: nz.rms_norm(ONES, 3, offset=1.0), ValueError, "offset .*weight.*1.0"),
    (lambda: nz.rms_norm(ONES, 3, ONES[0], offset="1"), TypeError, "offset .*str"),
    (lambda: nz.rms_norm(ONES, 3, ONES[0], offset=float("nan")), ValueError, "offset .*nan"),
    (lambda: nz.RMSNorm(3, elementwise_affine=False, offset=1), ValueError, "offset .*1"),
]
test_bad_input_is_refused = refused(BAD)
