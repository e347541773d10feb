"""Initializers against `torch.nn.init`, draw by draw, and against the variances they promise."""

import math

import pytest
import torch
from torch import nn

import normalization as nz

SHAPES = [(5, 7), (4, 3, 3), (8, 3, 3, 2), (2, 3, 2, 2, 2)]
GAINS = [
    *("linear", "conv1d", "conv2d", "conv3d", "sigmoid", "tanh", "relu", "leaky_relu", "selu"),
    *("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
]


def draws(initialize, shape, dtype, **options):
    generator = torch.Generator().manual_seed(3)
    return initialize(torch.empty(shape, dtype=dtype), generator=generator, **options)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["xavier_uniform_", "xavier_normal_"])
@pytest.mark.parametrize("options", [{}, {"gain": 1.7}])
def test_xavier_draws_are_pytorchs(name, shape, dtype, options):
    mine = draws(getattr(nz, name), shape, dtype, **options)
    assert torch.equal(mine, draws(getattr(nn.init, name), shape, dtype, **options))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["kaiming_uniform_", "kaiming_normal_"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"a": math.sqrt(5)},
        {"mode": "fan_out", "nonlinearity": "relu"},
        {"nonlinearity": "tanh"},
    ],
)
def test_kaiming_draws_are_pytorchs(name, shape, dtype, options):
    mine = draws(getattr(nz, name), shape, dtype, **options)
    assert torch.equal(mine, draws(getattr(nn.init, name), shape, dtype, **options))


def test_without_a_generator_the_global_one_draws():
    for name in ("xavier_uniform_", "xavier_normal_", "kaiming_uniform_", "kaiming_normal_"):
        torch.manual_seed(1)
        mine = getattr(nz, name)(torch.empty(3, 4))
        torch.manual_seed(1)
        assert torch.equal(mine, getattr(nn.init, name)(torch.empty(3, 4)))


def test_a_parameter_is_filled_in_place():
    weight = nn.Parameter(torch.zeros(3, 4))
    assert nz.kaiming_normal_(weight) is weight
    assert weight.requires_grad
    assert weight.is_leaf
    assert weight.abs().min() > 0


@pytest.mark.parametrize("nonlinearity", GAINS)
def test_gains_are_pytorchs(nonlinearity):
    expected = nn.init.calculate_gain(nonlinearity)
    assert nz.calculate_gain(nonlinearity) == expected
    for slope in (0, 0.2, -1.0, math.sqrt(5)):
        expected = nn.init.calculate_gain(nonlinearity, slope)
        assert nz.calculate_gain(nonlinearity, slope) == expected


def test_fans_count_kernel_positions():
    assert nz.calculate_fan(torch.empty(5, 7)) == (7, 5)
    assert nz.calculate_fan(nn.Conv2d(6, 8, (3, 2), groups=2).weight) == (3 * 6, 8 * 6)


def test_variances_are_the_formulas():
    # 400 000 draws: the sample variance is within 2 % of the true one, at nine sigma
    shape, fan_in, fan_out = (400, 1000), 1000, 400
    variances = {
        nz.xavier_uniform_: 2 / (fan_in + fan_out),
        nz.xavier_normal_: 2 / (fan_in + fan_out),
        nz.kaiming_uniform_: 2 / fan_in,
        nz.kaiming_normal_: 2 / fan_in,
    }
    for initialize, variance in variances.items():
        weight = draws(initialize, shape, torch.float64)
        assert weight.square().mean().item() == pytest.approx(variance, rel=0.02)
    backward = draws(nz.kaiming_normal_, shape, torch.float64, mode="fan_out")
    assert backward.square().mean().item() == pytest.approx(2 / fan_out, rel=0.02)
    default = draws(nz.kaiming_uniform_, shape, torch.float64, a=math.sqrt(5))
    assert default.square().mean().item() * fan_in == pytest.approx(1 / 3, rel=0.02)


WEIGHT = torch.empty(3, 4)
BAD = [
    (lambda: nz.calculate_fan(torch.empty(3)), ValueError, r"2 axes.*\(3,\)"),
    (lambda: nz.calculate_fan(torch.empty(3, 0)), ValueError, r"elements.*\(3, 0\)"),
    (lambda: nz.calculate_fan(torch.ones(3, 4, dtype=torch.int64)), TypeError, "tensor .*int64"),
    (lambda: nz.calculate_fan([[1.0]]), TypeError, "tensor .*list"),
    (lambda: nz.calculate_gain("swish"), ValueError, "nonlinearity .*relu.*'swish'"),
    (lambda: nz.calculate_gain(None), ValueError, "nonlinearity .*None"),
    (lambda: nz.calculate_gain("leaky_relu", "steep"), TypeError, "param .*str"),
    (lambda: nz.calculate_gain("leaky_relu", True), TypeError, "param .*bool"),
    (lambda: nz.xavier_uniform_(torch.empty(3)), ValueError, r"\(3,\)"),
    (lambda: nz.xavier_normal_(torch.empty(())), ValueError, r"\(\)"),
    (lambda: nz.xavier_normal_(WEIGHT, gain=-1.0), ValueError, "gain .*-1"),
    (lambda: nz.xavier_uniform_(WEIGHT, gain="relu"), TypeError, "gain .*str"),
    (lambda: nz.xavier_normal_(WEIGHT.to(torch.complex64)), TypeError, "complex64"),
    (lambda: nz.kaiming_normal_(torch.empty(3)), ValueError, r"\(3,\)"),
    (lambda: nz.kaiming_uniform_(torch.empty(0, 4)), ValueError, r"\(0, 4\)"),
    (lambda: nz.kaiming_normal_(WEIGHT, mode="fan_avg"), ValueError, "mode .*'fan_avg'"),
    (lambda: nz.kaiming_normal_(WEIGHT, nonlinearity="gelu"), ValueError, "'gelu'"),
    (lambda: nz.kaiming_uniform_(WEIGHT, a="5"), TypeError, "param .*str"),
]


@pytest.mark.parametrize(("call", "error", "match"), BAD)
def test_bad_input_is_refused(call, error, match):
    with pytest.raises(error, match=match):
        call()
