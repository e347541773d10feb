"""The norms' gradients in closed form against autograd, through our layers and PyTorch's."""

import math

import pytest
import torch
import torch.nn.functional as F
from engine_helpers import assert_close, normal, refused

import normalization as nz

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4}
DTYPES = list(TOLERANCE)


def assert_closed_form(closed, function, peer, leaves):
    """Compare a closed form with autograd through our function and through PyTorch's."""
    leaves = [leaf.clone().requires_grad_() for leaf in leaves]
    upstream = normal(*leaves[0].shape, seed=50, dtype=leaves[0].dtype)
    tolerance = TOLERANCE[leaves[0].dtype]
    closed_gradients = closed(upstream, leaves[0].detach())
    for reference in (function, peer):
        exact = torch.autograd.grad(reference(*leaves), leaves, upstream)
        for actual, expected in zip(closed_gradients, exact, strict=True):
            assert_close(actual, expected, tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "trailing", "eps"), [((5, 8), 8, 1e-5), ((2, 3, 4, 5), (4, 5), 0.3), ((8,), 8, 0.3)]
)
def test_layer_norm(shape, trailing, eps, dtype):
    size = shape[-2:] if isinstance(trailing, tuple) else shape[-1:]
    input = normal(*shape, dtype=dtype, offset=2, scale=3)
    weight, bias = (normal(*size, seed=seed, dtype=dtype) for seed in (1, 2))
    assert_closed_form(
        lambda g, x: nz.layer_norm_backward(g, x, trailing, weight, eps),
        lambda x, w, b: nz.layer_norm(x, trailing, w, b, eps),
        lambda x, w, b: F.layer_norm(x, size, w, b, eps),
        [input, weight, bias],
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "trailing", "offset", "eps"),
    [
        ((5, 8), 8, 0.0, None),
        ((2, 3, 4, 5), (4, 5), 1.0, None),
        ((8,), 8, 0.0, 0.3),
        ((8,), 8, 1.0, 0.3),
    ],
)
def test_rms_norm(shape, trailing, offset, eps, dtype):
    size = shape[-2:] if isinstance(trailing, tuple) else shape[-1:]
    input, weight = normal(*shape, dtype=dtype, offset=2), normal(*size, seed=1, dtype=dtype)
    assert_closed_form(
        lambda g, x: nz.rms_norm_backward(g, x, trailing, weight, eps, offset=offset),
        lambda x, w: nz.rms_norm(x, trailing, w, eps, offset=offset),
        lambda x, w: F.rms_norm(x, size, offset + w, eps),
        [input, weight],
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("shape", [(6, 3), (4, 3, 5), (4, 3, 5, 2), (2, 3, 4, 2, 3)])
def test_batch_norm(shape, training, dtype):
    input = normal(*shape, dtype=dtype, offset=2, scale=3)
    weight, bias, mean = (normal(3, seed=seed, dtype=dtype) for seed in (1, 2, 3))
    running = (None, None) if training else (mean, normal(3, seed=4, dtype=dtype).square() + 0.1)
    assert_closed_form(
        lambda g, x: nz.batch_norm_backward(g, x, *running, weight, training, 0.01),
        lambda x, w, b: nz.batch_norm(x, *running, w, b, training, eps=0.01),
        lambda x, w, b: F.batch_norm(x, *running, w, b, training, eps=0.01),
        [input, weight, bias],
    )


def closed_forms(gain=None):
    running = normal(4, seed=3), normal(4, seed=4).square() + 0.1
    return {
        "layer_norm": lambda g, x: nz.layer_norm_backward(g, x, 4, gain),
        "rms_norm": lambda g, x: nz.rms_norm_backward(g, x, 4, gain),
        "batch_norm": lambda g, x: nz.batch_norm_backward(g, x, None, None, gain, True),
        "running": lambda g, x: nz.batch_norm_backward(g, x, *running, gain),
    }


@pytest.mark.parametrize("name", closed_forms())
def test_without_a_gain_it_counts_as_one(name):
    pair, ones = (normal(5, 4), normal(5, 4, seed=1)), torch.ones(4, dtype=torch.float64)
    without, given = closed_forms()[name](*pair), closed_forms(ones)[name](*pair)
    for actual, expected in zip(without, given, strict=True):
        assert_close(actual, expected)


@pytest.mark.parametrize("name", closed_forms())
def test_closed_forms_are_differentiable_and_map(name):
    function = closed_forms()[name]
    upstream, input = normal(5, 4).requires_grad_(), normal(5, 4, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(function, (upstream, input))
    stacked = normal(3, 5, 4), normal(3, 5, 4, seed=1)
    mapped = torch.vmap(function)(*stacked)
    alone = [function(*pair) for pair in zip(*stacked, strict=True)]
    for actual, expected in zip(mapped, zip(*alone, strict=True), strict=True):
        assert_close(actual, torch.stack(expected))


def test_the_gradient_is_orthogonal_to_shift_and_scale():
    upstream, input = normal(5, 8), normal(5, 8, seed=1, offset=3)
    layer, _, _ = nz.layer_norm_backward(upstream, input, 8, eps=0.0)
    assert layer.sum(-1).abs().max() < 1e-12
    assert (layer * input).sum(-1).abs().max() < 1e-12
    rms, _ = nz.rms_norm_backward(upstream, input, 8, eps=0.0)
    assert (rms * input).sum(-1).abs().max() < 1e-12
    assert rms.sum(-1).abs().max() > 0.1
    batch, _, _ = nz.batch_norm_backward(upstream, input, None, None, None, True, 0.0)
    assert batch.sum(0).abs().max() < 1e-12
    assert (batch * input).sum(0).abs().max() < 1e-12


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_rounds_once(dtype):
    input, upstream = normal(512, 16, dtype=dtype, offset=3), normal(512, 16, seed=1, dtype=dtype)
    weight = normal(16, seed=2, dtype=torch.float32)
    exact = input.double(), upstream.double(), weight.double()
    for mine, peer in (
        (
            nz.layer_norm_backward(upstream, input, 16, weight),
            nz.layer_norm_backward(exact[1], exact[0], 16, exact[2]),
        ),
        (
            nz.rms_norm_backward(upstream, input, 16, weight, 1e-6),
            nz.rms_norm_backward(exact[1], exact[0], 16, exact[2], 1e-6),
        ),
        (
            nz.batch_norm_backward(upstream, input, None, None, weight, True),
            nz.batch_norm_backward(exact[1], exact[0], None, None, exact[2], True),
        ),
    ):
        assert mine[0].dtype == dtype
        assert all(gradient.dtype == torch.float32 for gradient in mine[1:])
        for actual, expected in zip(mine, peer, strict=True):
            error = (actual.double() - expected).norm() / expected.norm()
            assert error < torch.finfo(actual.dtype).eps * (0.5 if actual.dtype == dtype else 100)


def test_an_empty_batch_has_zero_gradients_of_the_parameters():
    empty = torch.zeros(0, 4)
    for function in list(closed_forms().values())[:3]:
        grad_input, *others = function(empty, empty)
        assert grad_input.shape == (0, 4)
        assert all(other.tolist() == [0.0] * 4 for other in others)


def test_nan_propagates():
    upstream, input = normal(3, 4), normal(3, 4, seed=1)
    input[1, 2] = math.nan
    for function in (nz.layer_norm_backward, nz.rms_norm_backward):
        grad_input = function(upstream, input, 4)[0]
        assert grad_input[1].isnan().all()
        assert grad_input[[0, 2]].isfinite().all()


ONES = torch.ones(4, 3)
BAD = [
    (lambda: nz.layer_norm_backward(ONES[:1], ONES, 3), ValueError, r"grad_output .*\(1, 3\)"),
    (
        lambda: nz.layer_norm_backward(ONES.double(), ONES, 3),
        TypeError,
        "grad_output .*float64",
    ),
    (lambda: nz.layer_norm_backward(1.0, ONES, 3), TypeError, "grad_output .*float"),
    (lambda: nz.layer_norm_backward(ONES, ONES, 4), ValueError, r"normalized_shape \(4,\)"),
    (lambda: nz.layer_norm_backward(ONES, ONES, 3, torch.ones(4)), ValueError, "weight"),
    (lambda: nz.layer_norm_backward(ONES, ONES, 3, eps=-1.0), ValueError, "eps .*-1"),
    (lambda: nz.rms_norm_backward(ONES.long(), ONES, 3), TypeError, "grad_output .*int64"),
    (lambda: nz.rms_norm_backward(ONES, ONES.long(), 3), TypeError, "input .*int64"),
    (lambda: nz.rms_norm_backward(ONES, ONES, 3, offset=1.0), ValueError, "offset .*1.0"),
    (lambda: nz.rms_norm_backward(ONES, ONES, 3, eps=-1.0), ValueError, "eps .*-1"),
    (lambda: nz.batch_norm_backward(ONES, ONES, None, None), ValueError, "running_mean"),
    (
        lambda: nz.batch_norm_backward(ONES.T, ONES, None, None, None, True),
        ValueError,
        "grad_outp",
    ),
    (
        lambda: nz.batch_norm_backward(ONES[:1], ONES[:1], None, None, training=True),
        ValueError,
        "more than one value",
    ),
]
test_bad_input_is_refused = refused(BAD)
