"""Norms of weights against PyTorch's parametrization, and against the formulas."""

import math

import pytest
import torch
import torch.nn.functional as F
from engine_helpers import (
    DTYPES,
    TOLERANCE,
    assert_close,
    assert_compiles,
    assert_same,
    assert_transforms,
    gradients,
    normal,
    randomize,
    refused,
)
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import normalization as nz

# --- weight norm ---


def with_weight_norm(layer, dim):
    parametrize.register_parametrization(layer, "weight", nz.WeightNorm(dim))
    return layer


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [0, 1, None])
@pytest.mark.parametrize("shape", [(5, 4), (5, 4, 3), (2, 3, 2, 2)])
def test_weight_norm_is_pytorchs(shape, dim, dtype):
    v = normal(*shape, dtype=dtype).requires_grad_()
    g_shape = [size if axis == dim else 1 for axis, size in enumerate(shape)]
    g = normal(*(g_shape if dim is not None else []), seed=1, dtype=dtype).requires_grad_()
    mine, peer = nz.weight_norm(v, g, dim), torch._weight_norm(v, g, -1 if dim is None else dim)
    assert_close(mine, peer, TOLERANCE[dtype])
    pairs = zip(gradients(mine, (v, g)), gradients(peer, (v, g)), strict=True)
    for actual, expected in pairs:
        assert_close(actual, expected, 10 * TOLERANCE[dtype])


@pytest.mark.parametrize("dim", [0, 1, None])
@pytest.mark.parametrize("make", [lambda: nn.Linear(4, 6), lambda: nn.Conv2d(4, 6, 3)])
def test_the_parametrization_exchanges_state_with_pytorchs(make, dim):
    peer = parametrizations.weight_norm(make().double(), dim=dim)
    mine = with_weight_norm(make().double(), dim)
    randomize(peer)
    mine.load_state_dict(peer.state_dict())
    peer.load_state_dict(mine.state_dict())
    shape = (2, 4) if isinstance(peer, nn.Linear) else (2, 4, 5, 5)
    assert_same(mine, peer, normal(*shape))


def test_the_parametrization_keeps_the_weight():
    layer = nn.Linear(4, 3).double()
    before = layer.weight.detach().clone()
    with_weight_norm(layer, 0)
    assert_close(layer.weight.detach(), before)
    assert_close(layer.parametrizations.weight.original0.detach(), before.norm(dim=1, keepdim=True))


def test_weight_norm_by_number():
    v = torch.tensor([[3.0, 4.0], [0.0, 2.0]])
    g = torch.tensor([[10.0], [-1.0]])
    assert nz.weight_norm(v, g).tolist() == [[6.0, 8.0], [0.0, -1.0]]


def test_a_zero_row_stays_zero_and_can_leave():
    v = torch.zeros(2, 3, dtype=torch.float64)
    v[1] = 1.0
    v.requires_grad_()
    g = torch.tensor([[2.0], [2.0]], dtype=torch.float64, requires_grad=True)
    weight = nz.weight_norm(v, g)
    assert weight[0].tolist() == [0.0] * 3  # torch 2.13's own: nan
    assert weight[1].norm().item() == pytest.approx(2)
    by_v, by_g = torch.autograd.grad(weight.sum(), (v, g))
    assert by_v[0].tolist() == [2.0] * 3
    assert by_g[0].item() == 0
    assert by_v.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weight_norm_in_half_precision_rounds_once(dtype):
    v, g = normal(8, 300, dtype=dtype, scale=30), normal(8, 1, seed=1, dtype=dtype)
    weight = nz.weight_norm(v, g)
    assert weight.dtype == dtype
    exact = nz.weight_norm(v.double(), g.double())
    error = (weight.double() - exact).abs() / (exact.abs() + 1e-3)
    assert error.max() < 0.55 * torch.finfo(dtype).eps


# --- scaled weight standardization ---


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(5, 40), (5, 4, 3, 3)])
def test_scaled_weight_standardize_is_batch_norm_over_the_inputs_of_an_output(shape, dtype):
    weight = normal(*shape, dtype=dtype, offset=0.3).requires_grad_()
    gain = normal(5, *[1] * (len(shape) - 1), seed=1, dtype=dtype).requires_grad_()
    fan_in = math.prod(shape[1:])
    mine = nz.scaled_weight_standardize(weight, 1.7 * gain)
    peer = F.batch_norm(
        weight.reshape(1, 5, -1),
        None,
        None,
        (1.7 * gain / fan_in**0.5).reshape(-1),
        training=True,
        eps=1e-30,
    ).reshape(shape)
    assert_close(mine, peer, TOLERANCE[dtype])
    pairs = zip(gradients(mine, (weight, gain)), gradients(peer, (weight, gain)), strict=True)
    for actual, expected in pairs:
        assert_close(actual, expected, 10 * TOLERANCE[dtype])


def test_every_output_has_mean_zero_and_its_biased_variance():
    weight = nz.scaled_weight_standardize(normal(6, 7, 3, 3, offset=2), gain=1.5).flatten(1)
    assert weight.mean(1).abs().max() < 1e-15
    expected = torch.full((6,), 1.5**2 / 63, dtype=torch.float64)
    assert_close(weight.var(1, correction=0), expected)


def test_the_floor_holds_small_rows_and_a_constant_row_is_zero():
    weight = torch.ones(2, 4, dtype=torch.float64)
    weight[1] = torch.tensor([1e-4, -1e-4, 1e-4, -1e-4])  # N var = 4e-8, far below eps
    output = nz.scaled_weight_standardize(leaf := weight.requires_grad_(), eps=1e-4)
    assert output[0].tolist() == [0.0] * 4
    assert_close(output[1], 100 * weight[1])
    assert torch.autograd.grad(output.sin().sum(), leaf)[0].isfinite().all()


def test_conv_equals_a_plain_one_with_the_standardized_weight():
    layer = randomize(nz.ScaledWSConv2d(4, 6, 3, padding=1, stride=2, groups=2, gamma=1.7)).double()
    input = normal(2, 4, 5, 5)
    weight = nz.scaled_weight_standardize(layer.weight, 1.7 * layer.gain)
    expected = F.conv2d(input, weight, layer.bias, stride=2, padding=1, groups=2)
    assert_close(layer(input), expected)
    assert_close(layer.standardized_weight(), weight)


def test_conv_takes_the_state_of_a_plain_one():
    layer, plain = nz.ScaledWSConv2d(4, 6, 3), nn.Conv2d(4, 6, 3)
    missing, unexpected = layer.load_state_dict(plain.state_dict(), strict=False)
    assert missing == ["gain"]
    assert unexpected == []
    assert layer.gain.shape == (6, 1, 1, 1)
    assert layer.gain.unique().tolist() == [1.0]


def test_standardized_weights_and_the_gain_keep_the_variance_through_relu():
    # Var[W relu(x)] = gamma² E[...]: the weights have mean 0, so that relu's mean drops out
    gain, stream = nz.variance_gain(torch.relu), normal(4096, 256)
    for seed in range(4):
        weight = nz.scaled_weight_standardize(normal(256, 256, seed=seed + 1), gain)
        stream = stream.relu() @ weight.T
    assert stream.var(0).mean().item() == pytest.approx(1, rel=0.1)
    assert stream.mean(0).abs().max() < 0.5


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_standardization_in_half_precision_rounds_once(dtype):
    weight = normal(4, 64, dtype=dtype, offset=1)
    output = nz.scaled_weight_standardize(weight)
    assert output.dtype == dtype
    exact = nz.scaled_weight_standardize(weight.double())
    error = (output.double() - exact).abs() / (exact.abs() + 1e-3)
    assert error.max() < 0.55 * torch.finfo(dtype).eps


# --- both ---


def test_transforms():
    inputs = normal(3, 4, 5)
    assert_transforms(nz.weight_norm, inputs, normal(3, 4, 1, seed=1))
    assert_transforms(nz.scaled_weight_standardize, inputs, normal(3, 4, 1, seed=1))


def test_nan_stays_in_its_row():
    weight = normal(3, 4)
    weight[1, 2] = math.nan
    for output in (
        nz.weight_norm(weight, torch.ones(3, 1, dtype=torch.float64)),
        nz.scaled_weight_standardize(weight),
    ):
        assert output[1].isnan().all()
        assert output[[0, 2]].isfinite().all()


def test_an_empty_batch_stays_empty():
    assert nz.ScaledWSConv2d(4, 6, 3)(torch.ones(0, 4, 5, 5)).shape == (0, 6, 3, 3)


ONES = torch.ones(4, 3)
BAD = [
    (lambda: nz.weight_norm(ONES, torch.ones(4)), ValueError, r"g must have shape \(4, 1\).*\(4,"),
    (lambda: nz.weight_norm(ONES, torch.ones(1)), ValueError, r"g .*\(1,\)"),
    (lambda: nz.weight_norm(ONES, torch.ones(4, 1), 2), ValueError, "dim .*got 2"),
    (lambda: nz.weight_norm(ONES, torch.ones(4, 1), -1), ValueError, "dim .*-1"),
    (lambda: nz.weight_norm(ONES, torch.ones(4, 1), 1.0), TypeError, "dim .*1.0"),
    (lambda: nz.weight_norm(ONES.long(), torch.ones(4, 1)), TypeError, "v .*int64"),
    (lambda: nz.weight_norm(ONES, torch.ones(4, 1).double()), TypeError, "g .*float64"),
    (lambda: nz.weight_norm(ONES, 1.0), TypeError, "g must be a tensor"),
    (lambda: nz.WeightNorm(-1), ValueError, "dim .*-1"),
    (lambda: nz.WeightNorm("0"), TypeError, "dim .*'0'"),
    (lambda: nz.scaled_weight_standardize(ONES[0]), ValueError, r"weight .*\(3,\)"),
    (lambda: nz.scaled_weight_standardize(ONES.int()), TypeError, "weight .*int32"),
    (lambda: nz.scaled_weight_standardize(ONES, torch.ones(4)), ValueError, r"gain .*\(4,\)"),
    (lambda: nz.scaled_weight_standardize(ONES, torch.ones(1, 3)), ValueError, r"gain .*\(1, 3\)"),
    (lambda: nz.scaled_weight_standardize(ONES, "relu"), TypeError, "gain .*str"),
    (lambda: nz.scaled_weight_standardize(ONES, eps=-1.0), ValueError, "eps .*-1"),
    (lambda: nz.ScaledWSConv2d(4, 6, 3, gamma="relu"), TypeError, "gamma .*str"),
    (lambda: nz.ScaledWSConv2d(4, 6, 3, eps=-1), ValueError, "eps .*-1"),
]


@refused(BAD)
def test_bad_input_is_refused(call, error, match):
    with pytest.raises(error, match=match):
        call()


def test_a_convolution_compiles_without_a_graph_break():
    assert_compiles(nz.ScaledWSConv2d(4, 6, 3).double(), normal(2, 4, 5, 5))


def test_weight_norm_compiles_without_a_graph_break():
    torch.compiler.reset()
    compiled = torch.compile(nz.weight_norm, fullgraph=True, backend="aot_eager")
    v, g = normal(4, 3), normal(4, 1, seed=1)
    assert_close(compiled(v, g), nz.weight_norm(v, g))
