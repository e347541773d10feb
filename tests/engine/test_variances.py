"""Three variances and a sum: right where they should be, and wrong where they should be."""

import math

import pytest
import torch
from engine_helpers import DTYPES, assert_close, assert_transforms, normal, refused

import normalization as nz

ALL = [nz.two_pass_variance, nz.one_pass_variance, nz.welford_variance]
STABLE = [nz.two_pass_variance, nz.welford_variance]


@pytest.mark.parametrize("function", ALL)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(7,), (3, 7), (2, 3, 40)])
def test_all_agree_where_the_mean_is_small(function, shape, dtype):
    input = normal(*shape, dtype=dtype)
    expected = input.var(-1, correction=0)
    assert_close(function(input), expected, 1e-12 if dtype == torch.float64 else 1e-5)


def relative_error(function, offset):
    input = normal(8, 256, dtype=torch.float32, offset=offset)
    exact = input.double().var(-1, correction=0)
    return ((function(input).double() - exact).abs() / exact).max().item()


@pytest.mark.parametrize("offset", [1e2, 1e3, 1e4])
def test_the_one_pass_formula_loses_digits_with_the_square_of_the_mean(offset):
    epsilon = torch.finfo(torch.float32).eps
    for function in STABLE:
        assert relative_error(function, offset) < 10 * epsilon * offset
    assert relative_error(nz.one_pass_variance, offset) > 0.01 * epsilon * offset**2


def test_the_one_pass_formula_may_be_negative():
    input = normal(64, 256, dtype=torch.float32, offset=1e4)
    assert nz.one_pass_variance(input).min() < 0
    assert nz.welford_variance(input).min() > 0.5


@pytest.mark.parametrize(("dtype", "stop"), [(torch.float16, 2048), (torch.bfloat16, 256)])
def test_a_sum_of_ones_stops_growing(dtype, stop):
    ones = torch.ones(3000, dtype=dtype)
    total = nz.sequential_sum(ones)
    assert total.dtype == dtype
    assert total.item() == stop
    assert ones.sum().item() == pytest.approx(3000, rel=torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sum_in_order_is_a_sum(dtype):
    input = normal(3, 50, dtype=dtype)
    assert_close(nz.sequential_sum(input), input.sum(-1), 1e-12 if dtype == DTYPES[0] else 1e-5)


@pytest.mark.parametrize("function", [*ALL, nz.sequential_sum])
def test_the_results_keep_the_dtype_and_pass_nan(function):
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        assert function(normal(3, 5, dtype=dtype)).dtype == dtype
    assert function(torch.tensor([[1.0, math.nan], [1.0, 2.0]])).isnan().tolist() == [True, False]
    assert function(torch.ones(0, 4)).shape == (0,)


def test_the_variance_of_nothing_is_nan_and_the_sum_0():
    for function in ALL:
        assert function(torch.ones(2, 0)).isnan().all()
    assert nz.sequential_sum(torch.ones(2, 0)).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("function", [*ALL, nz.sequential_sum])
def test_transforms(function):
    assert_transforms(function, normal(3, 2, 5))


BAD = [
    (lambda f=f, bad=bad: f(bad), error, match)
    for f in [*ALL, nz.sequential_sum]
    for bad, error, match in [
        (torch.tensor(1.0), ValueError, "input .*scalar"),
        (torch.ones(3, dtype=torch.int64), TypeError, "input .*int64"),
        ([1.0, 2.0], TypeError, "input must be a tensor, got list"),
    ]
]
test_bad_input_is_refused = refused(BAD)
