"""Weight norm against PyTorch's parametrization, and by number."""

import math

import pytest
import torch
from engine_helpers import (
    DTYPES,
    TOLERANCE,
    assert_close,
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
from torch.nn.utils import parametrizations, parametrize

import normalization as nz


def with_weight_norm(layer, dim):
    parametrize.register_parametrization(layer, "weight", nz.WeightNorm(dim))
    return layer


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "dim"), [((5, 4), 0), ((5, 4), None), ((5, 4, 3), 1), ((2, 3, 2, 2), 0)]
)
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
    exchange_state(mine, peer)
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
def test_half_precision_rounds_once(dtype):
    v, g = normal(8, 300, dtype=dtype, scale=30), normal(8, 1, seed=1, dtype=dtype)
    assert_rounds_once(nz.weight_norm(v, g), nz.weight_norm(v.double(), g.double()), dtype)


def test_transforms():
    assert_transforms(nz.weight_norm, normal(3, 4, 5), normal(3, 4, 1, seed=1))


def test_nan_stays_in_its_row():
    v = normal(3, 4)
    v[1, 2] = math.nan
    weight = nz.weight_norm(v, torch.ones(3, 1, dtype=torch.float64))
    assert weight[1].isnan().all()
    assert weight[[0, 2]].isfinite().all()


ONES = torch.ones(4, 3)
BAD = [
    (
        lambda: nz.weight_norm(ONES, torch.ones(4)),
        ValueError,
        r"g must have shape \(4, 1\).*\(4,",
    ),
    (lambda: nz.weight_norm(ONES, torch.ones(1)), ValueError, r"g .*\(1,\)"),
    (lambda: nz.weight_norm(ONES, torch.ones(4, 1), 2), ValueError, "dim .*got 2"),
    (lambda: nz.weight_norm(ONES, torch.ones(4, 1), -1), ValueError, "dim .*-1"),
    (lambda: nz.weight_norm(ONES, torch.ones(4, 1), 1.0), TypeError, "dim .*1.0"),
    (lambda: nz.weight_norm(ONES.long(), torch.ones(4, 1)), TypeError, "v .*int64"),
    (lambda: nz.weight_norm(ONES, torch.ones(4, 1).double()), TypeError, "g .*float64"),
    (lambda: nz.weight_norm(ONES, 1.0), TypeError, "g must be a tensor"),
    (lambda: nz.WeightNorm(-1), ValueError, "dim .*-1"),
    (lambda: nz.WeightNorm("0"), TypeError, "dim .*'0'"),
]
test_bad_input_is_refused = refused(BAD)
