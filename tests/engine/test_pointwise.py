"""DyT and Derf against their formulas, their published defaults, and what they are not."""

import math

import pytest
import torch
from engine_helpers import (
    DTYPES,
    TOLERANCE,
    assert_close,
    assert_compiles,
    assert_transforms,
    gradients,
    normal,
    randomize,
    refused,
)

import normalization as nz

BOTH = [nz.DyT, nz.Derf]


def by_formula(norm, x):
    """Write the formula out with the parameters' names in the papers."""
    if isinstance(norm, nz.Derf):
        return torch.erf(norm.alpha * x + norm.shift) * norm.weight + norm.bias
    return torch.tanh(norm.alpha * x) * norm.weight + norm.bias


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize(
    ("shape", "trailing"), [((5, 4), 4), ((2, 3, 4), (4,)), ((2, 3, 4), (3, 4))]
)
def test_formula(shape, trailing, kind, dtype):
    norm = randomize(kind(trailing)).to(dtype)
    leaf = normal(*shape, dtype=dtype, scale=2).requires_grad_()
    mine, expected = norm(leaf), by_formula(norm, leaf)
    assert_close(mine, expected, TOLERANCE[dtype])
    leaves = [leaf, *norm.parameters()]
    for actual, exact in zip(gradients(mine, leaves), gradients(expected, leaves), strict=True):
        assert_close(actual, exact, 10 * TOLERANCE[dtype])


def test_defaults_are_the_papers():
    state = nz.DyT(3).state_dict()
    assert {name: value.tolist() for name, value in state.items()} == {
        "alpha": [0.5],
        "weight": [1.0] * 3,
        "bias": [0.0] * 3,
    }
    assert nz.DyT(3, 0.8).alpha.item() == pytest.approx(0.8)
    state = nz.Derf(3).state_dict()
    assert state.keys() == {"alpha", "shift", "weight", "bias"}
    assert (state["alpha"].tolist(), state["shift"].tolist()) == ([0.5], [0.0])


def test_by_number():
    x = torch.tensor([[2.0]], dtype=torch.float64)
    assert nz.DyT(1).double()(x).item() == pytest.approx(math.tanh(1))
    norm = nz.Derf(1).double()
    torch.nn.init.constant_(norm.shift, 0.25)
    assert norm(x).item() == pytest.approx(math.erf(1.25))


@pytest.mark.parametrize("kind", BOTH)
def test_it_is_no_norm(kind):
    # neither scale nor shift invariant, and an example's features do not see each other
    norm, input = kind(4).double(), normal(5, 4)
    assert (norm(3 * input) - norm(input)).abs().max() > 0.1
    assert (norm(input + 3) - norm(input)).abs().max() > 0.1
    changed = input.clone()
    changed[:, 0] += 1
    assert_close(norm(changed)[:, 1:], norm(input)[:, 1:])


@pytest.mark.parametrize("kind", BOTH)
def test_large_values_are_bounded(kind):
    output = kind(2)(torch.tensor([[1e30, -math.inf]]))
    assert output.tolist() == [[1.0, -1.0]]


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("same_dtype", [True, False])
def test_half_precision_rounds_once(kind, dtype, same_dtype):
    norm = randomize(kind(64)).to(dtype)
    exact = kind(64).double()
    exact.load_state_dict(norm.state_dict())
    input = normal(32, 64, dtype=dtype)
    output = (norm if same_dtype else norm.float())(input)
    assert output.dtype == dtype
    error = (output.double() - exact(input.double())).abs() / (output.double().abs() + 1e-3)
    assert error.max() < 0.6 * torch.finfo(dtype).eps


@pytest.mark.parametrize("kind", BOTH)
def test_empty_batch_and_nan(kind):
    norm = kind(4)
    assert norm(torch.ones(0, 4)).shape == (0, 4)
    input = torch.ones(2, 4)
    input[0, 1] = math.nan
    assert norm(input).isnan().nonzero().tolist() == [[0, 1]]


def test_transforms():
    x, weight, bias = normal(3, 5, 4), normal(3, 4, seed=1), normal(3, 4, seed=2)
    alpha, shift = normal(3, 1, seed=3), normal(3, 1, seed=4)
    assert_transforms(nz.dyt, x, alpha, weight, bias)
    assert_transforms(nz.derf, x, alpha, shift, weight, bias)


ONES, ONE = torch.ones(4, 3), torch.ones(1)
BAD = [
    (lambda: nz.DyT(0), ValueError, "normalized_shape .*0"),
    (lambda: nz.DyT(3, "half"), TypeError, "init_alpha .*str"),
    (lambda: nz.DyT(3, math.nan), ValueError, "init_alpha .*nan"),
    (lambda: nz.DyT(3)(torch.ones(4, 2)), ValueError, r"\(3,\).*\(4, 2\)"),
    (lambda: nz.DyT(3)(ONES.long()), TypeError, "input .*int64"),
    (lambda: nz.DyT(3)(ONES.double()), TypeError, "alpha .*float32"),
    (lambda: nz.Derf(3)(torch.ones(4, 2)), ValueError, r"\(3,\).*\(4, 2\)"),
    (lambda: nz.Derf((3, -1)), ValueError, "normalized_shape .*-1"),
    (lambda: nz.dyt(ONES, 0.5), TypeError, "alpha must be a tensor, got float"),
    (lambda: nz.dyt(ONES, torch.ones(3)), ValueError, r"alpha .*\(3,\)"),
    (lambda: nz.dyt(ONES, ONE, 2.0), TypeError, "weight must be a tensor, got float"),
    (lambda: nz.dyt(ONES, ONE, torch.ones(4)), ValueError, r"weight .*\(4,\)"),
    (lambda: nz.dyt(ONES, ONE, bias=ONES.double()[0]), TypeError, "bias .*float64"),
    (lambda: nz.dyt(ONES[0], ONE, ONES), ValueError, r"weight .*\(4, 3\)"),
    (lambda: nz.derf(ONES, ONE, torch.ones(3)), ValueError, r"shift .*\(3,\)"),
    (lambda: nz.derf(ONES, ONE, ONE.half()), TypeError, "shift .*float16"),
]


@refused(BAD)
def test_bad_input_is_refused(call, error, match):
    with pytest.raises(error, match=match):
        call()


@pytest.mark.parametrize("kind", BOTH)
def test_it_compiles_without_a_graph_break(kind):
    assert_compiles(kind(4).double(), normal(5, 4))
