"""Networks without norms: streams, weights, gradients and values, by formula and by hand."""

import math

import pytest
import torch
import torch.nn.functional as F
from engine_helpers import (
    DTYPES,
    TOLERANCE,
    assert_close,
    assert_rounds_once,
    assert_transforms,
    gradients,
    normal,
    randomize,
    refused,
)
from torch import nn

import normalization as nz

# --- the stream: a predicted scale ---

# the constants of Brock et al.'s code, which are estimates from samples
PUBLISHED = {
    torch.relu: 1.7139588594436646,
    torch.tanh: 1.5939117670059204,
    F.gelu: 1.7015043497085571,
    F.silu: 1.7881293296813965,
    torch.sigmoid: 4.803835391998291,
    F.elu: 1.2716004848480225,
    F.selu: 1.0008515119552612,
    F.relu6: 1.7131484746932983,
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
    assert nz.NFResidual(torch.square, beta=2.0, alpha=0.5)(input).item() == 6 + 9 / 2
    shortcut = nz.NFResidual(torch.square, beta=2.0, alpha=0.5, shortcut=lambda x: x - 1)
    assert shortcut(input).item() == (3 - 1) + 9 / 2
    assert nz.NFResidual(torch.square, beta=1.0).alpha == 0.2


def test_the_stream_has_the_predicted_scale():
    alpha, width, depth = 0.5, 256, 12
    stream, measured = normal(1024, width), []
    for seed, beta in enumerate(nz.nf_betas(depth, alpha)):
        measured.append(stream.std().item() / beta)
        weight = nz.scaled_weight_standardize(normal(width, width, seed=seed + 1))
        stream = nz.NFResidual(lambda x, w=weight: x @ w.T, beta, alpha)(stream)
    assert measured == pytest.approx([1.0] * depth, abs=0.03)


# --- the weights: standardized ---


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
    exact = nz.scaled_weight_standardize(weight.double())
    assert_rounds_once(nz.scaled_weight_standardize(weight), exact, dtype)


def test_nan_stays_in_its_row_of_the_weights_and_empty_batches_stay_empty():
    weight = normal(3, 4)
    weight[1, 2] = math.nan
    output = nz.scaled_weight_standardize(weight)
    assert output[1].isnan().all()
    assert output[[0, 2]].isfinite().all()
    assert nz.ScaledWSConv2d(4, 6, 3)(torch.ones(0, 4, 5, 5)).shape == (0, 6, 3, 3)


# --- the gradients: clipped ---


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


def test_clipping_does_not_depend_on_the_scale_of_weights_and_gradients():
    for scale in (1e-2, 1.0, 1e4):
        weight = parameter([[3.0 * scale, 4.0 * scale]], [[6.0 * scale, 8.0 * scale]])
        nz.adaptive_clip_grad_(weight)
        torch.testing.assert_close(weight.grad / scale, weight.new_tensor([[0.03, 0.04]]))


def test_a_second_clipping_changes_nothing():
    weight = parameter([[3.0, 4.0], [1.0, 2.0]], [[6.0, 8.0], [9.0, 1.0]])
    nz.adaptive_clip_grad_(weight)
    once = weight.grad.clone()
    nz.adaptive_clip_grad_(weight)
    torch.testing.assert_close(weight.grad, once, rtol=1e-14, atol=0)


def test_clipped_zero_rows_stay_finite():
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
def test_clipping_in_lower_precisions(dtype):
    # 300² overflows float16: norms are taken in float32
    weight = parameter([[300.0, 400.0]], [[3000.0, 4000.0]], dtype)
    nz.adaptive_clip_grad_(weight)
    assert weight.grad.dtype == dtype
    torch.testing.assert_close(
        weight.grad.double(), torch.tensor([[3.0, 4.0]]).double(), rtol=1e-2, atol=0
    )


def test_nan_and_inf_of_a_gradient_are_not_hidden():
    weight = parameter(
        [[1.0, 1.0], [1.0, 1.0], [1.0, 1.0]], [[math.nan, 1.0], [math.inf, 1.0], [1, 1]]
    )
    nz.adaptive_clip_grad_(weight)
    assert weight.grad[0, 0].isnan()
    assert weight.grad[1, 0].isnan()
    assert weight.grad[2].isfinite().all()


# --- each value alone: squashed ---

BOTH = [nz.DyT, nz.Derf]


def by_formula(norm, x):
    """Write the formula out with the parameters' names in the papers."""
    if isinstance(norm, nz.Derf):
        return torch.erf(norm.alpha * x + norm.shift) * norm.weight + norm.bias
    return torch.tanh(norm.alpha * x) * norm.weight + norm.bias


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize(("shape", "trailing"), [((5, 4), 4), ((2, 3, 4), (3, 4))])
def test_dyt_and_derf_are_their_formula(shape, trailing, kind, dtype):
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


def test_dyt_and_derf_by_number():
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
    assert_rounds_once(output, exact(input.double()), dtype, 0.6)


@pytest.mark.parametrize("kind", BOTH)
def test_empty_batch_and_nan(kind):
    norm = kind(4)
    assert norm(torch.ones(0, 4)).shape == (0, 4)
    input = torch.ones(2, 4)
    input[0, 1] = math.nan
    assert norm(input).isnan().nonzero().tolist() == [[0, 1]]


# --- all of them ---


def test_transforms():
    x, weight, bias = normal(3, 5, 4), normal(3, 4, seed=1), normal(3, 4, seed=2)
    alpha, shift = normal(3, 1, seed=3), normal(3, 1, seed=4)
    assert_transforms(nz.NFResidual(torch.tanh, 1.5), x)
    assert_transforms(nz.scaled_weight_standardize, x, normal(3, 5, 1, seed=1))
    assert_transforms(nz.dyt, x, alpha, weight, bias)
    assert_transforms(nz.derf, x, alpha, shift, weight, bias)


ONES, ONE = torch.ones(4, 3), torch.ones(1)
WEIGHT = parameter([[1.0]], [[1.0]])
BAD = [
    (lambda: nz.variance_gain("relu"), TypeError, "function .*str"),
    (lambda: nz.variance_gain(torch.zeros_like), ValueError, "function"),
    (lambda: nz.nf_betas(0), ValueError, "depth .*0"),
    (lambda: nz.nf_betas(3, alpha=-0.2), ValueError, "alpha .*-0.2"),
    (lambda: nz.nf_betas(3, transitions=(3,)), ValueError, "transitions .*3"),
    (lambda: nz.nf_betas(3, transitions=(-1,)), ValueError, "transitions .*-1"),
    (lambda: nz.NFResidual(None, 1.0), TypeError, "branch .*NoneType"),
    (lambda: nz.NFResidual(torch.square, 0.0), ValueError, "beta must be above 0"),
    (lambda: nz.NFResidual(torch.square, -1.0), ValueError, "beta .*-1"),
    (lambda: nz.NFResidual(torch.square, 1.0, alpha="small"), TypeError, "alpha .*str"),
    (lambda: nz.NFResidual(torch.square, 1.0, shortcut=1), TypeError, "shortcut .*int"),
    (
        lambda: nz.NFResidual(nn.Linear(3, 1), 1.0)(torch.ones(2, 3)),
        ValueError,
        r"\(2, 3\), got \(2, 1\)",
    ),
    (
        lambda: nz.NFResidual(torch.square, 1.0)(torch.ones(3, dtype=torch.int32)),
        TypeError,
        "input .*int32",
    ),
    (lambda: nz.scaled_weight_standardize(ONES[0]), ValueError, r"weight .*\(3,\)"),
    (lambda: nz.scaled_weight_standardize(ONES.int()), TypeError, "weight .*int32"),
    (lambda: nz.scaled_weight_standardize(ONES, torch.ones(4)), ValueError, r"gain .*\(4,\)"),
    (
        lambda: nz.scaled_weight_standardize(ONES, torch.ones(1, 3)),
        ValueError,
        r"gain .*\(1, 3\)",
    ),
    (lambda: nz.scaled_weight_standardize(ONES, "relu"), TypeError, "gain .*str"),
    (lambda: nz.scaled_weight_standardize(ONES, eps=-1.0), ValueError, "eps .*-1"),
    (lambda: nz.ScaledWSConv2d(4, 6, 3, gamma="relu"), TypeError, "gamma .*str"),
    (lambda: nz.ScaledWSConv2d(4, 6, 3, eps=-1), ValueError, "eps .*-1"),
    (lambda: nz.adaptive_clip_grad_(WEIGHT, clip=-0.1), ValueError, "clip .*-0.1"),
    (lambda: nz.adaptive_clip_grad_(WEIGHT, clip=math.inf), ValueError, "clip .*inf"),
    (lambda: nz.adaptive_clip_grad_(WEIGHT, clip="0.1"), TypeError, "clip .*str"),
    (lambda: nz.adaptive_clip_grad_(WEIGHT, eps=-1e-3), ValueError, "eps .*-0.001"),
    (lambda: nz.adaptive_clip_grad_(WEIGHT, eps=None), TypeError, "eps .*NoneType"),
    (lambda: nz.adaptive_clip_grad_([1.0]), TypeError, "parameters .*float"),
    (lambda: nz.adaptive_clip_grad_(torch.ones(2, dtype=torch.int64)), TypeError, "int64"),
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
test_bad_input_is_refused = refused(BAD)
