"""Scales on branch and skip against published constants, and residuals that use them."""

import math

import pytest
import torch
from engine_helpers import (
    assert_close,
    assert_compiles,
    assert_transforms,
    normal,
    refused,
)
from torch import nn

import normalization as nz


def square(x):
    return x * x


def minus_one(x):
    return x - 1


def double(x):
    return 2 * x


# --- placements that put a norm on the branch's output ---


def test_output_norms_by_number():
    # branch x², norm x - 1, post_norm 2x, at x = 3
    input = torch.tensor([3.0])
    sandwich = nz.Residual(square, minus_one, "sandwich", post_norm=double)
    assert sandwich(input).item() == 3 + 2 * (3 - 1) ** 2
    output = nz.Residual(square, None, "output", post_norm=double)
    assert output(input).item() == 3 + 2 * 3**2
    scales = {"skip_scale": 10.0, "scale": 0.5}
    sandwich = nz.Residual(square, minus_one, "sandwich", post_norm=double, **scales)
    assert sandwich(input).item() == 30 + 2 * (3 - 1) ** 2 / 2
    output = nz.Residual(square, None, "output", post_norm=double, **scales)
    assert output(input).item() == 30 + 3**2


@pytest.mark.parametrize(("placement", "norms"), [("sandwich", 4), ("output", 2)])
def test_a_block_makes_each_norm_it_places(placement, norms):
    block = nz.TransformerBlock(8, 2, placement=placement).double()
    found = [module for module in block.modules() if isinstance(module, nz.LayerNorm)]
    assert len({id(module) for module in found}) == len(found) == norms
    middle = input = normal(2, 5, 8)
    for residual in (block.attention, block.feed_forward):
        read = residual.norm(middle) if placement == "sandwich" else middle
        middle = middle + residual.post_norm(residual.branch(read))
    assert_close(block(input), middle)
    # the size of a write is that of its norm, whatever the branch's weights
    with torch.no_grad():
        for parameter in block.attention.branch.output.parameters():
            parameter *= 100
    write = block.attention(input) - input
    assert write.square().mean(-1).sqrt().max() < 1.001


def test_a_placement_needs_exactly_its_norms():
    with pytest.raises(ValueError, match="post_norm must be given with placement 'sandwich'"):
        nz.Residual(square, minus_one, "sandwich")
    with pytest.raises(ValueError, match="norm must be None with placement 'output'"):
        nz.Residual(square, minus_one, "output", post_norm=double)


# --- scales of the branch ---


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


# --- DeepNorm ---


@pytest.mark.parametrize(
    ("layers", "alpha", "beta"),
    [(6, 1.8612, 0.3799), (12, 2.2134, 0.3195), (100, 3.7606, 0.1880)],
)
def test_deepnorm_of_one_part(layers, alpha, beta):
    # (2N)^(1/4) and (8N)^(-1/4), written out to four digits
    encoder = nz.deepnorm_constants(layers, 0)
    assert encoder[:2] == pytest.approx((alpha, beta), abs=5e-5)
    assert encoder[2:] == (None, None)
    decoder = nz.deepnorm_constants(0, layers)
    assert decoder == (None, None, *encoder[:2])
    assert decoder.decoder_alpha == encoder.encoder_alpha


@pytest.mark.parametrize(("n", "m"), [(6, 6), (12, 12), (100, 100), (18, 6)])
def test_deepnorm_of_encoder_and_decoder(n, m):
    # torchscale's code, which divides by 1.15 where the paper multiplies by 0.87
    constants = nz.deepnorm_constants(n, m)
    assert constants.encoder_alpha == pytest.approx(math.pow(math.pow(n, 4) * m, 0.0625) * 0.81)
    assert constants.encoder_beta == pytest.approx(
        1 / (math.pow(math.pow(n, 4) * m, 0.0625) * 1.15), rel=1e-3
    )
    assert constants.decoder_alpha == pytest.approx(math.pow(3 * m, 0.25))
    assert constants.decoder_beta == pytest.approx(1 / math.pow(12 * m, 0.25))
    if n == m == 6:
        assert constants == pytest.approx((1.4179, 0.4970, 2.0598, 0.3433), abs=5e-5)


# --- in place of norms ---

# the constants of Brock et al.'s code, which are estimates from samples
PUBLISHED = {
    torch.relu: 1.7139588594436646,
    torch.tanh: 1.5939117670059204,
    nn.functional.gelu: 1.7015043497085571,
    nn.functional.silu: 1.7881293296813965,
    torch.sigmoid: 4.803835391998291,
    nn.functional.elu: 1.2716004848480225,
    nn.functional.selu: 1.0008515119552612,
    nn.functional.relu6: 1.7131484746932983,
}


@pytest.mark.parametrize("function", PUBLISHED, ids=lambda function: function.__name__)
def test_variance_gain_is_the_published_one(function):
    assert nz.variance_gain(function) == pytest.approx(PUBLISHED[function], rel=2e-3)


def test_variance_gain_in_closed_form():
    assert nz.variance_gain(torch.relu) == pytest.approx(math.sqrt(2 / (1 - 1 / math.pi)), abs=1e-6)
    assert nz.variance_gain(lambda z: 3 * z + 7) == pytest.approx(1 / 3, abs=1e-6)
    assert nz.variance_gain(torch.square) == pytest.approx(math.sqrt(1 / 2), abs=1e-6)


def test_nf_betas_follow_the_variance():
    betas = nz.nf_betas(4, alpha=0.5)
    assert betas == pytest.approx([1, math.sqrt(1.25), math.sqrt(1.5), math.sqrt(1.75)])
    reset = nz.nf_betas(5, alpha=0.5, transitions=(0, 2))
    assert [beta**2 for beta in reset] == pytest.approx([1, 1.25, 1.5, 1.25, 1.5])
    assert nz.nf_betas(2) == pytest.approx([1, math.sqrt(1.04)])


def test_nf_residual_by_number():
    input = torch.tensor([6.0])
    assert nz.NFResidual(square, beta=2.0, alpha=0.5)(input).item() == 6 + 9 / 2
    shortcut = nz.NFResidual(square, beta=2.0, alpha=0.5, shortcut=minus_one)
    assert shortcut(input).item() == (3 - 1) + 9 / 2
    assert nz.NFResidual(square, beta=1.0).alpha == 0.2


def test_the_stream_has_the_predicted_scale():
    alpha, width, depth = 0.5, 256, 12
    stream, measured = normal(1024, width), []
    for seed, beta in enumerate(nz.nf_betas(depth, alpha)):
        measured.append(stream.std().item() / beta)
        weight = nz.scaled_weight_standardize(normal(width, width, seed=seed + 1))
        stream = nz.NFResidual(lambda x, w=weight: x @ w.T, beta, alpha)(stream)
    assert measured == pytest.approx([1.0] * depth, abs=0.03)


def test_transforms():
    x = normal(3, 5, 4)
    scale = nz.LayerScale(4, 0.3).double()
    assert_transforms(scale, x)
    assert_transforms(nz.SkipInit(0.3).double(), x)
    assert_transforms(nz.NFResidual(torch.tanh, 1.5), x)


NF = nz.NFResidual
BAD = [
    (lambda: nz.layer_scale_init(0), ValueError, "depth must be at least 1, got 0"),
    (lambda: nz.layer_scale_init(12.0), TypeError, "depth .*12.0"),
    (lambda: nz.LayerScale(0, 0.1), ValueError, "dim .*0"),
    (lambda: nz.LayerScale(3, "small"), TypeError, "init .*str"),
    (lambda: nz.LayerScale(3, math.inf), ValueError, "init .*inf"),
    (lambda: nz.LayerScale(3, 0.1)(torch.ones(2, 1)), ValueError, r"3\], got \(2, 1\)"),
    (lambda: nz.LayerScale(3, 0.1)(torch.ones(3, dtype=torch.int64)), TypeError, "input .*int64"),
    (lambda: nz.LayerScale(3, 0.1)(torch.ones(3).double()), TypeError, "gamma .*float32"),
    (lambda: nz.SkipInit("zero"), TypeError, "init .*str"),
    (lambda: nz.SkipInit(math.nan), ValueError, "init .*nan"),
    (lambda: nz.ReZero()(torch.ones(3).double()), TypeError, "alpha .*float32"),
    (lambda: nz.ReZero()(3.0), TypeError, "input must be a tensor"),
    (lambda: nz.deepnorm_constants(0, 0), ValueError, "n_encoder and n_decoder .* both be 0"),
    (lambda: nz.deepnorm_constants(-1, 6), ValueError, "n_encoder .*-1"),
    (lambda: nz.deepnorm_constants(6, 0.5), TypeError, "n_decoder .*0.5"),
    (lambda: nz.variance_gain("relu"), TypeError, "function .*str"),
    (lambda: nz.variance_gain(torch.zeros_like), ValueError, "function"),
    (lambda: nz.nf_betas(0), ValueError, "depth .*0"),
    (lambda: nz.nf_betas(3, alpha=-0.2), ValueError, "alpha .*-0.2"),
    (lambda: nz.nf_betas(3, transitions=(3,)), ValueError, "transitions .*3"),
    (lambda: nz.nf_betas(3, transitions=(-1,)), ValueError, "transitions .*-1"),
    (lambda: NF(None, 1.0), TypeError, "branch .*NoneType"),
    (lambda: NF(square, 0.0), ValueError, "beta must be above 0"),
    (lambda: NF(square, -1.0), ValueError, "beta .*-1"),
    (lambda: NF(square, 1.0, alpha="small"), TypeError, "alpha .*str"),
    (lambda: NF(square, 1.0, shortcut=1), TypeError, "shortcut .*int"),
    (lambda: NF(nn.Linear(3, 1), 1.0)(torch.ones(2, 3)), ValueError, r"\(2, 3\), got \(2, 1\)"),
    (lambda: NF(square, 1.0)(torch.ones(3, dtype=torch.int32)), TypeError, "input .*int32"),
]


@refused(BAD)
def test_bad_input_is_refused(call, error, match):
    with pytest.raises(error, match=match):
        call()


@pytest.mark.parametrize("make", [lambda: nz.LayerScale(4, 0.3), nz.ReZero])
def test_a_scaled_residual_compiles_without_a_graph_break(make):
    branch = nn.Linear(4, 4)
    residual = nz.Residual(branch, nz.RMSNorm(4), scale=make())
    assert_compiles(residual.double(), normal(5, 4))


def test_nf_residual_and_output_norms_compile_without_a_graph_break():
    assert_compiles(NF(nn.Linear(4, 4).double(), 1.5), normal(5, 4))
    assert_compiles(nz.TransformerBlock(4, placement="sandwich").double(), normal(2, 3, 4))
