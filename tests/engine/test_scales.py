"""Learned scales of a branch against published constants, and in a residual."""

import math

import pytest
import torch
from engine_helpers import assert_close, assert_transforms, normal, refused
from torch import nn

import normalization as nz


def test_layer_scale_starts_as_published():
    published = {12: 0.1, 18: 0.1, 19: 1e-5, 24: 1e-5, 25: 1e-6, 36: 1e-6, 48: 1e-6}
    assert {depth: nz.layer_scale_init(depth) for depth in published} == published
    assert nz.layer_scale_init(1) == 0.1
    scale = nz.LayerScale(3, nz.layer_scale_init(24))
    assert scale.state_dict().keys() == {"gamma"}
    torch.testing.assert_close(scale.gamma.detach(), torch.full((3,), 1e-5))


def test_scales_by_number():
    x = torch.tensor([[1.0, 2.0, 3.0]])
    scale = nz.LayerScale(3, 0.5)
    with torch.no_grad():
        scale.gamma.copy_(torch.tensor([1.0, 10.0, 100.0]))
    assert scale(x).tolist() == [[1.0, 20.0, 300.0]]
    assert nz.SkipInit(0.25)(x).tolist() == [[0.25, 0.5, 0.75]]
    assert nz.SkipInit()(x).tolist() == nz.ReZero()(x).tolist() == [[0.0] * 3]
    assert nz.ReZero().state_dict().keys() == {"alpha"}
    assert nz.ReZero().alpha.shape == ()


@pytest.mark.parametrize("scale", [nz.ReZero, nz.SkipInit])
def test_the_block_starts_as_the_identity_and_alpha_alone_moves(scale):
    branch = nn.Sequential(nn.Linear(4, 4), nn.Tanh()).double()
    residual = nz.Residual(branch, None, "none", scale=scale().double())
    input = normal(4)
    jacobian = torch.func.jacrev(residual)(input)
    assert torch.equal(jacobian, torch.eye(4, dtype=torch.float64))
    residual(input).sin().sum().backward()
    assert residual.scale.alpha.grad.abs() > 1e-3
    assert all(parameter.grad.abs().max() == 0 for parameter in branch.parameters())


def test_scales_in_a_residual_are_their_formula():
    input, branch = normal(5, 4), nn.Linear(4, 4).double()
    scale = nz.LayerScale(4, 0.1).double()
    residual = nz.Residual(branch, nz.LayerNorm(4).double(), scale=scale)
    expected = input + scale.gamma * branch(torch.nn.functional.layer_norm(input, [4]))
    assert_close(residual(input), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_keeps_its_dtype_beside_a_float32_scale(dtype):
    for scale in (nz.LayerScale(4, 0.1), nz.SkipInit(0.1)):
        input = normal(3, 4, dtype=dtype)
        output = scale(input)
        assert output.dtype == dtype
        torch.testing.assert_close(output, (0.1 * input.double()).to(dtype))


def test_scales_pass_nan_and_empty_batches():
    for scale in (nz.LayerScale(2, 0.1), nz.ReZero()):
        assert scale(torch.ones(0, 2)).shape == (0, 2)
        assert scale(torch.tensor([[math.nan, 1.0]])).isnan().tolist() == [[True, False]]


def test_transforms():
    assert_transforms(nz.LayerScale(4, 0.3).double(), normal(3, 5, 4))
    assert_transforms(nz.SkipInit(0.3).double(), normal(3, 5, 4))


BAD = [
    (lambda: nz.layer_scale_init(0), ValueError, "depth must be at least 1, got 0"),
    (lambda: nz.layer_scale_init(12.0), TypeError, "depth .*12.0"),
    (lambda: nz.LayerScale(0, 0.1), ValueError, "dim .*0"),
    (lambda: nz.LayerScale(3, "small"), TypeError, "init .*str"),
    (lambda: nz.LayerScale(3, math.inf), ValueError, "init .*inf"),
    (lambda: nz.LayerScale(3, 0.1)(torch.ones(2, 1)), ValueError, r"3\], got \(2, 1\)"),
    (
        lambda: nz.LayerScale(3, 0.1)(torch.ones(3, dtype=torch.int64)),
        TypeError,
        "input .*int64",
    ),
    (lambda: nz.LayerScale(3, 0.1)(torch.ones(3).double()), TypeError, "gamma .*float32"),
    (lambda: nz.SkipInit("zero"), TypeError, "init .*str"),
    (lambda: nz.SkipInit(math.nan), ValueError, "init .*nan"),
    (lambda: nz.ReZero()(torch.ones(3).double()), TypeError, "alpha .*float32"),
    (lambda: nz.ReZero()(3.0), TypeError, "input must be a tensor"),
]
test_bad_input_is_refused = refused(BAD)
