"""Initializers against `torch.nn.init`, draw by draw, and against the variances they promise."""

import math

import pytest
import torch
from engine_helpers import refused
from torch import nn
from torch.nn import functional as F

import normalization as nz

GAINS = [
    *("linear", "conv1d", "conv2d", "conv3d", "sigmoid", "tanh", "relu", "leaky_relu", "selu"),
    *("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
]


def draws(initialize, shape, dtype, **options):
    generator = torch.Generator().manual_seed(3)
    return initialize(torch.empty(shape, dtype=dtype), generator=generator, **options)


def assert_draws_are_pytorchs(name, shape, options):
    for dtype in (torch.float64, torch.float32):
        mine = draws(getattr(nz, name), shape, dtype, **options)
        assert torch.equal(mine, draws(getattr(nn.init, name), shape, dtype, **options))


@pytest.mark.parametrize("name", ["xavier_uniform_", "xavier_normal_"])
@pytest.mark.parametrize("options", [{}, {"gain": 1.7}])
@pytest.mark.parametrize("shape", [(5, 7), (8, 3, 3, 2)])
def test_xavier_draws_are_pytorchs(name, options, shape):
    assert_draws_are_pytorchs(name, shape, options)


@pytest.mark.parametrize("name", ["kaiming_uniform_", "kaiming_normal_"])
@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((5, 7), {}),
        ((4, 3, 3), {"a": math.sqrt(5)}),
        ((8, 3, 3, 2), {"mode": "fan_out", "nonlinearity": "relu"}),
        ((2, 3, 2, 2, 2), {"nonlinearity": "tanh"}),
    ],
)
def test_kaiming_draws_are_pytorchs(name, shape, options):
    assert_draws_are_pytorchs(name, shape, options)


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


# --- second_moment_gain ---

# in closed form: E[relu²] = 1/2, E[leaky²] = (1 + a²)/2, E[|z|²] = 1, E[e^{2z}] = e², E[cos²] =
# (1 + e^{-2})/2, E[erf²] = (2/π) arcsin(2/3), E[(z - 1)₊²] = 2 Φ(-1) - φ(1)
CLOSED = {
    "identity": (lambda z: z, 1.0),
    "relu": (torch.relu, math.sqrt(2)),
    "leaky_relu": (lambda z: F.leaky_relu(z, 0.2), math.sqrt(2 / 1.04)),
    "abs": (torch.abs, 1.0),
    "sign": (torch.sign, 1.0),
    "step": (lambda z: torch.heaviside(z, z.new_ones(())), math.sqrt(2)),
    "exp": (torch.exp, math.exp(-1)),
    "cos": (torch.cos, math.sqrt(2 / (1 + math.exp(-2)))),
    "erf": (torch.erf, (2 / math.pi * math.asin(2 / 3)) ** -0.5),
    "cubic": (lambda z: z**3, 15**-0.5),
    "kink at 1": (
        lambda z: torch.relu(z - 1),
        (math.erfc(0.5**0.5) - math.exp(-0.5) / math.sqrt(2 * math.pi)) ** -0.5,
    ),
}


@pytest.mark.parametrize("name", CLOSED)
def test_second_moment_gain_in_closed_form(name):
    function, expected = CLOSED[name]
    assert abs(nz.second_moment_gain(function) - expected) < 1e-8


def test_a_kink_off_the_grid_costs_less_than_a_millionth():
    place = math.pi / 10
    # E[(z - c)₊²] = (1 + c²) Φ(-c) - c φ(c)
    tail = math.erfc(place / math.sqrt(2)) / 2
    density = math.exp(-(place**2) / 2) / math.sqrt(2 * math.pi)
    expected = ((1 + place**2) * tail - place * density) ** -0.5
    assert abs(nz.second_moment_gain(lambda z: torch.relu(z - place)) - expected) < 1e-6


def test_the_gain_of_tanh_is_not_pytorchs():
    assert nz.second_moment_gain(torch.tanh) == pytest.approx(1.59254, abs=5e-6)
    assert nz.second_moment_gain(nn.Tanh()) == nz.second_moment_gain(torch.tanh)
    assert nz.calculate_gain("tanh") == 5 / 3


@pytest.mark.parametrize(("gain", "settles"), [(1.5925374, 1.0), (5 / 3, 1.178)])
def test_where_the_second_moment_of_tanh_layers_settles(gain, settles):
    # q = g² E[tanh(√q z)²], the expectation by the engine's own quadrature at another scale
    q = 0.5
    for _ in range(60):
        root = math.sqrt(q)
        q = (gain / nz.second_moment_gain(lambda z, root=root: torch.tanh(root * z))) ** 2
    assert q == pytest.approx(settles, abs=1e-3)


def test_selu_is_made_to_need_no_gain():
    assert nz.second_moment_gain(F.selu) == pytest.approx(1.0, abs=1e-6)
    assert nz.calculate_gain("selu") == 3 / 4


# --- orthogonal_ ---


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((5, 7), {}),
        ((8, 3, 3, 2), {"gain": 1.7}),
        ((7, 5), {}),
        ((4, 4), {"gain": 0}),
        ((1, 3), {}),
    ],
)
def test_orthogonal_draws_are_pytorchs(shape, options):
    assert_draws_are_pytorchs("orthogonal_", shape, options)


@pytest.mark.parametrize("shape", [(5, 7), (7, 5), (6, 6), (4, 3, 3)])
def test_every_singular_value_is_the_gain(shape):
    weight = draws(nz.orthogonal_, shape, torch.float64, gain=1.5)
    singular = torch.linalg.svdvals(weight.flatten(1))
    torch.testing.assert_close(singular, torch.full_like(singular, 1.5), rtol=0, atol=1e-12)


def test_orthogonal_in_half_precision_is_computed_in_float32():
    weight = draws(nz.orthogonal_, (8, 8), torch.bfloat16)
    assert weight.dtype == torch.bfloat16
    torch.testing.assert_close(weight.float() @ weight.float().T, torch.eye(8), rtol=0, atol=0.02)


def test_orthogonal_fills_a_transposed_view_in_place():
    storage = torch.empty(7, 5, dtype=torch.float64)
    nz.orthogonal_(storage.T, generator=torch.Generator().manual_seed(3))
    assert torch.equal(storage.T, draws(nn.init.orthogonal_, (5, 7), torch.float64))
    weight = nn.Parameter(torch.zeros(3, 4))
    assert nz.orthogonal_(weight) is weight
    assert weight.requires_grad


WEIGHT = torch.empty(3, 4)
BAD = [
    (lambda: nz.calculate_fan(torch.empty(3)), ValueError, r"2 axes.*\(3,\)"),
    (lambda: nz.calculate_fan(torch.empty(3, 0)), ValueError, r"elements.*\(3, 0\)"),
    (
        lambda: nz.calculate_fan(torch.ones(3, 4, dtype=torch.int64)),
        TypeError,
        "tensor .*int64",
    ),
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
    (lambda: nz.orthogonal_(torch.empty(3)), ValueError, r"\(3,\)"),
    (lambda: nz.orthogonal_(torch.empty(3, 0)), ValueError, r"\(3, 0\)"),
    (lambda: nz.orthogonal_(torch.ones(3, 4, dtype=torch.int32)), TypeError, "int32"),
    (lambda: nz.orthogonal_(WEIGHT, gain=-2.0), ValueError, "gain .*-2"),
    (lambda: nz.second_moment_gain("tanh"), TypeError, "function .*str"),
    (lambda: nz.second_moment_gain(torch.zeros_like), ValueError, "function .*0.0"),
    (lambda: nz.second_moment_gain(torch.log), ValueError, "function .*nan"),
    (lambda: nz.second_moment_gain(lambda z: (z**2).exp()), ValueError, "function .*inf"),
    (lambda: nz.second_moment_gain(torch.sum), ValueError, r"function .*shape .*got \(\)"),
    (lambda: nz.second_moment_gain(lambda z: z > 0), TypeError, "function.*bool"),
    (lambda: nz.second_moment_gain(lambda z: 1.0), TypeError, "function.*float"),
]
test_bad_input_is_refused = refused(BAD)
