"""Adaptive gradient clipping: by hand, against a loop, and at the edges."""

import math

import pytest
import torch
from torch import nn

import normalization as nz


def parameter(values, gradient, dtype=torch.float64):
    weight = nn.Parameter(torch.tensor(values, dtype=dtype))
    if gradient is not None:
        weight.grad = torch.tensor(gradient, dtype=dtype)
    return weight


def test_a_hand_made_gradient():
    # norms of the rows: w 5, 1, 0; g 10, 0.005, 2; limits 0.05, 0.01, 0.01 · 1e-3
    weight = parameter(
        [[3.0, 4.0], [1.0, 0.0], [0.0, 0.0]], [[6.0, 8.0], [0.003, 0.004], [0.0, 2.0]]
    )
    share = nz.adaptive_clip_grad_(weight)
    expected = [[0.03, 0.04], [0.003, 0.004], [0.0, 1e-5]]
    torch.testing.assert_close(weight.grad, torch.tensor(expected, dtype=torch.float64))
    assert share == pytest.approx(2 / 3)
    assert weight.tolist() == [[3.0, 4.0], [1.0, 0.0], [0.0, 0.0]]


def test_clip_and_eps_are_used():
    weight = parameter([[3.0, 4.0], [0.0, 0.0]], [[6.0, 8.0], [0.0, 2.0]])
    nz.adaptive_clip_grad_([weight], clip=0.5, eps=0.2)
    torch.testing.assert_close(weight.grad, weight.new_tensor([[1.5, 2.0], [0.0, 0.1]]))


@pytest.mark.parametrize("shape", [(4, 6), (4, 3, 2), (4, 3, 3, 3), (5,), ()])
def test_units_are_output_channels_and_whole_vectors(shape):
    generator = torch.Generator().manual_seed(0)
    weight = nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64))
    weight.grad = torch.randn(shape, generator=generator, dtype=torch.float64)
    units = zip(weight, weight.grad, strict=True) if len(shape) > 1 else [(weight, weight.grad)]
    expected = []
    for w, g in units:
        limit = 0.9 * max(w.norm().item(), 1e-3)
        expected.append((g * min(1.0, limit / g.norm().item())).detach())
    nz.adaptive_clip_grad_(weight, clip=0.9)
    torch.testing.assert_close(weight.grad, torch.stack(expected).reshape(shape))


def test_it_does_not_depend_on_the_scale_of_weights_and_gradients():
    for scale in (1e-2, 1.0, 1e4):
        weight = parameter([[3.0 * scale, 4.0 * scale]], [[6.0 * scale, 8.0 * scale]])
        nz.adaptive_clip_grad_(weight)
        torch.testing.assert_close(weight.grad / scale, weight.new_tensor([[0.03, 0.04]]))


def test_a_second_call_changes_nothing():
    weight = parameter([[3.0, 4.0], [1.0, 2.0]], [[6.0, 8.0], [9.0, 1.0]])
    nz.adaptive_clip_grad_(weight)
    once = weight.grad.clone()
    nz.adaptive_clip_grad_(weight)
    torch.testing.assert_close(weight.grad, once, rtol=1e-14, atol=0)


def test_zero_rows_stay_finite():
    weight = parameter([[0.0, 0.0], [0.0, 0.0]], [[0.0, 0.0], [3.0, 4.0]])
    nz.adaptive_clip_grad_(weight)
    torch.testing.assert_close(weight.grad, weight.new_tensor([[0.0, 0.0], [6e-6, 8e-6]]))
    nz.adaptive_clip_grad_(weight, eps=0.0)
    assert weight.grad.eq(0).all()


def test_the_callers_classifier_and_unused_parameters_are_left_alone():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    unused = parameter([1.0], None)
    (1e3 * model(torch.ones(3, 4))).square().sum().backward()
    head = model[2].weight.grad.clone()
    share = nz.adaptive_clip_grad_([*model[0].parameters(), unused])
    assert share > 0
    assert torch.equal(model[2].weight.grad, head)
    assert unused.grad is None
    assert nz.adaptive_clip_grad_(iter([unused])) == 0
    assert nz.adaptive_clip_grad_([]) == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_lower_precisions(dtype):
    # 300² overflows float16: norms are taken in float32
    weight = parameter([[300.0, 400.0]], [[3000.0, 4000.0]], dtype)
    nz.adaptive_clip_grad_(weight)
    assert weight.grad.dtype == dtype
    torch.testing.assert_close(
        weight.grad.double(), torch.tensor([[3.0, 4.0]]).double(), rtol=1e-2, atol=0
    )


def test_nan_and_inf_are_not_hidden():
    weight = parameter(
        [[1.0, 1.0], [1.0, 1.0], [1.0, 1.0]], [[math.nan, 1.0], [math.inf, 1.0], [1, 1]]
    )
    nz.adaptive_clip_grad_(weight)
    assert weight.grad[0, 0].isnan()
    assert weight.grad[1, 0].isnan()
    assert weight.grad[2].isfinite().all()


WEIGHT = parameter([[1.0]], [[1.0]])
BAD = [
    (lambda: nz.adaptive_clip_grad_(WEIGHT, clip=-0.1), ValueError, "clip .*-0.1"),
    (lambda: nz.adaptive_clip_grad_(WEIGHT, clip=math.inf), ValueError, "clip .*inf"),
    (lambda: nz.adaptive_clip_grad_(WEIGHT, clip="0.1"), TypeError, "clip .*str"),
    (lambda: nz.adaptive_clip_grad_(WEIGHT, eps=-1e-3), ValueError, "eps .*-0.001"),
    (lambda: nz.adaptive_clip_grad_(WEIGHT, eps=None), TypeError, "eps .*NoneType"),
    (lambda: nz.adaptive_clip_grad_([1.0]), TypeError, "parameters .*float"),
    (lambda: nz.adaptive_clip_grad_(torch.ones(2, dtype=torch.int64)), TypeError, "int64"),
]


@pytest.mark.parametrize(("call", "error", "match"), BAD)
def test_bad_input_is_refused(call, error, match):
    with pytest.raises(error, match=match):
        call()
