"""The normalization layers against PyTorch's own, against float64, and against numbers by hand."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from engine_helpers import DTYPES, TOLERANCE, assert_close, assert_same, normal, randomize
from torch import nn

import normalization as nz

BATCH_SHAPES = [(6, 3), (4, 3, 5), (4, 3, 5, 2), (2, 3, 4, 2, 3)]
PEER_BATCH_NORM = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
TRAILING = [((4, 8), 8), ((2, 3, 8), (8,)), ((2, 3, 4, 5), (4, 5)), ((2, 2, 2, 3, 4), (3, 4))]


# --- against PyTorch: forward, gradient, state dicts ---


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "normalized_shape"), TRAILING)
@pytest.mark.parametrize(
    "options", [{}, {"eps": 0.1}, {"bias": False}, {"elementwise_affine": False}]
)
def test_layer_norm_is_pytorchs(shape, normalized_shape, options, dtype):
    peer = randomize(nn.LayerNorm(normalized_shape, **options)).to(dtype)
    mine = nz.LayerNorm(normalized_shape, **options).to(dtype)
    mine.load_state_dict(peer.state_dict())
    peer.load_state_dict(mine.state_dict())
    assert_same(mine, peer, normal(*shape, dtype=dtype, offset=2), TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "normalized_shape"), TRAILING)
@pytest.mark.parametrize("options", [{}, {"eps": 0.1}, {"elementwise_affine": False}])
def test_rms_norm_is_pytorchs(shape, normalized_shape, options, dtype):
    peer = randomize(nn.RMSNorm(normalized_shape, **options)).to(dtype)
    mine = nz.RMSNorm(normalized_shape, **options).to(dtype)
    mine.load_state_dict(peer.state_dict())
    peer.load_state_dict(mine.state_dict())
    assert_same(mine, peer, normal(*shape, dtype=dtype, offset=2), TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", BATCH_SHAPES)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"eps": 0.1, "momentum": 0.3},
        {"momentum": None},
        {"affine": False},
        {"track_running_stats": False},
    ],
)
def test_batch_norm_is_pytorchs_in_training_and_evaluation(shape, options, dtype):
    peer = randomize(PEER_BATCH_NORM[len(shape)](3, **options)).to(dtype)
    mine = nz.BatchNorm(3, **options).to(dtype)
    mine.load_state_dict(peer.state_dict())
    for step in range(3):
        input = normal(*shape, dtype=dtype, seed=step, offset=2, scale=3)
        assert_same(mine, peer, input, TOLERANCE[dtype])
    peer.load_state_dict(mine.state_dict())
    for module in (mine, peer):
        module.eval()
    assert_same(mine, peer, normal(*shape, dtype=dtype, seed=9), TOLERANCE[dtype])


@pytest.mark.parametrize("training", [True, False])
def test_functions_are_pytorchs(training):
    input, weight, bias = normal(5, 4), normal(4, seed=1), normal(4, seed=2)
    running = [normal(4, seed=3), normal(4, seed=4).square()]
    peer_running = copy.deepcopy(running)
    arguments = {"training": training, "momentum": 0.4, "eps": 0.01}
    mine = nz.batch_norm(input, *running, weight, bias, **arguments)
    peer = F.batch_norm(input, *peer_running, weight, bias, **arguments)
    assert_close(mine, peer, 1e-12)
    for actual, expected in zip(running, peer_running, strict=True):
        assert_close(actual, expected, 1e-12)
    for eps in (1e-5, 0.3):
        mine = nz.layer_norm(input, [4], weight, bias, eps)
        assert_close(mine, F.layer_norm(input, [4], weight, bias, eps), 1e-12)
        mine = nz.layer_norm(input, 4, None, bias, eps)
        assert_close(mine, F.layer_norm(input, [4], None, bias, eps), 1e-12)
        mine = nz.rms_norm(input, [4], weight, eps)
        assert_close(mine, F.rms_norm(input, [4], weight, eps), 1e-12)


@pytest.mark.parametrize("shape", [(0, 3), (2, 3, 0)])
@pytest.mark.parametrize("training", [True, False])
def test_an_empty_batch_is_pytorchs(shape, training):
    pairs = [(nz.BatchNorm(3), nn.BatchNorm1d(3))]
    if shape[-1]:
        pairs += [(nz.LayerNorm(3), nn.LayerNorm(3)), (nz.RMSNorm(3), nn.RMSNorm(3))]
    for mine, peer in pairs:
        mine.train(training)
        peer.train(training)
        assert_same(mine, peer, torch.zeros(shape), 1e-12)


# --- by hand ---


def test_layer_norm_divides_by_d_and_has_eps_inside_the_root():
    size = 1e-3  # variance 1e-6, so that eps decides
    input = torch.tensor([[size, -size, size, -size]], dtype=torch.float64)
    output = nz.layer_norm(input, 4, eps=1e-6)
    assert_close(output, input / size / math.sqrt(2), 1e-12)
    unbiased = nz.layer_norm(normal(1, 5), 5, eps=0).std(-1, correction=1)
    assert unbiased.item() == pytest.approx(math.sqrt(5 / 4), rel=1e-12)


def test_rms_norm_has_eps_inside_the_root_and_pytorchs_default():
    size = 1e-3
    input = torch.full((1, 4), size, dtype=torch.float64)
    assert_close(nz.rms_norm(input, 4, eps=1e-6), input / size / math.sqrt(2), 1e-12)
    # x = sqrt(eps) is normalized to 1/sqrt(2), whatever the dtype's own eps
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        default = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps
        output = nz.rms_norm(torch.full((1, 4), math.sqrt(default), dtype=dtype), 4)
        assert output[0, 0].item() == pytest.approx(math.sqrt(0.5), rel=0.01)


def test_batch_norm_normalizes_biased_and_stores_unbiased():
    norm = nz.BatchNorm(1, eps=0.0).double()
    output = norm(torch.tensor([[1.0], [2.0], [3.0], [4.0], [5.0]], dtype=torch.float64))
    assert output[-1].item() == pytest.approx(2 / math.sqrt(2))  # biased variance 2
    assert norm.running_mean.item() == pytest.approx(0.1 * 3)
    assert norm.running_var.item() == pytest.approx(0.9 * 1 + 0.1 * 2.5)  # unbiased 2.5
    assert norm.num_batches_tracked.item() == 1


def test_momentum_none_is_the_plain_average_and_zero_changes_nothing():
    batches = [normal(7, 3, seed=seed, offset=seed) for seed in range(4)]
    average, still = nz.BatchNorm(3, momentum=None).double(), nz.BatchNorm(3, momentum=0.0).double()
    for batch in batches:
        average(batch)
        still(batch)
    means = torch.stack([batch.mean(0) for batch in batches]).mean(0)
    variances = torch.stack([batch.var(0, correction=1) for batch in batches]).mean(0)
    assert_close(average.running_mean, means, 1e-12)
    assert_close(average.running_var, variances, 1e-12)
    assert still.running_mean.tolist() == [0, 0, 0]
    assert still.running_var.tolist() == [1, 1, 1]
    assert still.num_batches_tracked.item() == 4


def test_batch_norm_pools_space_and_one_example_is_an_instance():
    input = normal(1, 3, 4, 5)
    expected = F.instance_norm(input)
    assert_close(nz.batch_norm(input, None, None, training=True), expected, 1e-12)


def test_a_rejected_batch_counts_nothing():
    norm = nz.BatchNorm(3)
    with pytest.raises(ValueError, match=r"more than one value per channel.*\(1, 3, 1\)"):
        norm(torch.ones(1, 3, 1))
    assert norm.num_batches_tracked.item() == 0
    assert norm.running_mean.tolist() == [0, 0, 0]
    assert norm.eval()(torch.ones(1, 3, 1)).shape == (1, 3, 1)
    assert norm.train()(torch.ones(1, 3, 2)).shape == (1, 3, 2)


def test_running_statistics_keep_no_graph():
    norm = nz.BatchNorm(3)
    leaf = torch.randn(5, 3, requires_grad=True)
    for _ in range(2):  # the second backward fails if a buffer holds on to the first graph
        norm(leaf).sum().backward()
        assert not norm.running_mean.requires_grad
        assert not norm.running_var.requires_grad


def test_tracking_switched_off_later_uses_but_does_not_move_the_statistics():
    mine, peer = nz.BatchNorm(3).double(), nn.BatchNorm1d(3).double()
    for module in (mine, peer):
        module(normal(5, 3, offset=4))
        module.track_running_stats = False
    for training in (True, False):
        assert_same(mine.train(training), peer.train(training), normal(5, 3, seed=1), 1e-12)
    assert mine.num_batches_tracked.item() == 1


def test_a_single_feature_has_no_gradient_and_becomes_the_bias():
    norm = nz.LayerNorm(1)
    nn.init.constant_(norm.bias, 0.25)
    leaf = torch.full((3, 1), 1e6, requires_grad=True)
    output = norm(leaf)
    output.sum().backward()
    assert output.tolist() == [[0.25]] * 3
    assert norm.weight.grad.tolist() == [0.0]  # torch 2.13's own: 7.2
    assert leaf.grad.tolist() == [[0.0]] * 3


def test_invariances():
    input = normal(4, 8)
    assert_close(nz.layer_norm(input + 5, 8), nz.layer_norm(input, 8), 1e-12)
    assert_close(nz.layer_norm(3 * input, 8, eps=0), nz.layer_norm(input, 8, eps=0), 1e-12)
    assert_close(nz.rms_norm(3 * input, 8, eps=0), nz.rms_norm(input, 8, eps=0), 1e-12)
    assert (nz.rms_norm(input + 5, 8) - nz.rms_norm(input, 8)).abs().max() > 1
    alone = nz.layer_norm(input[:1], 8)
    assert_close(nz.layer_norm(input, 8)[:1], alone, 1e-12)


# --- precision ---


@pytest.mark.parametrize("offset", [1e3, 1e4])
def test_a_large_mean_in_float32_does_not_cancel(offset):
    input = normal(64, 256, dtype=torch.float32, offset=offset)
    exact = F.layer_norm(input.double(), [256])
    assert (nz.layer_norm(input, 256) - exact).abs().max() < 1e-6 * offset
    exact = F.batch_norm(input.double(), None, None, training=True)
    mine = nz.batch_norm(input, None, None, training=True)
    assert (mine - exact).abs().max() < 1e-6 * offset


def test_a_row_of_a_million_in_float32():
    input = normal(1, 1 << 20, dtype=torch.float32, offset=1.0)
    exact = input.double()
    layer = nz.layer_norm(input, 1 << 20) - F.layer_norm(exact, [1 << 20])
    rms = nz.rms_norm(input, 1 << 20) - F.rms_norm(exact, [1 << 20])
    assert layer.abs().max() < 1e-5
    assert rms.abs().max() < 1e-4


def half_cases(size):
    """Each layer at half precision, and the same computation in float64."""
    wide = (1, size, 1, 1)
    return {
        "layer_norm": (
            lambda x, w: nz.layer_norm(x, size, w, w),
            lambda x, w: F.layer_norm(x, [size], w, w),
        ),
        "rms_norm": (
            lambda x, w: nz.rms_norm(x, size, w, 1e-6),
            lambda x, w: F.rms_norm(x, [size], w, 1e-6),
        ),
        "batch_norm": (
            lambda x, w: nz.batch_norm(x.reshape(-1, size, 1, 1), None, None, w, w, True),
            lambda x, w: F.batch_norm(x.reshape(-1, *wide[1:]), None, None, w, w, True),
        ),
    }


@pytest.mark.parametrize("name", ["layer_norm", "rms_norm", "batch_norm"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("same_dtype", [True, False])
def test_half_precision_rounds_once(name, dtype, same_dtype):
    mine, peer = half_cases(64)[name]
    input = normal(512, 64, dtype=dtype, offset=3)
    weight = normal(64, seed=1, dtype=dtype)
    output = mine(input, weight if same_dtype else weight.float())
    exact = peer(input.double(), weight.double())
    assert output.dtype == dtype
    error = (output.double() - exact).abs() / (exact.abs() + 1e-3)
    assert error.max() < 0.55 * torch.finfo(dtype).eps  # half a unit in the last place, and float32


@pytest.mark.parametrize("name", ["layer_norm", "rms_norm", "batch_norm"])
def test_half_precision_gradients_of_the_gain(name):
    mine, peer = half_cases(16)[name]
    input = normal(16384, 16, dtype=torch.bfloat16)
    upstream = normal(16384, 16, seed=1, dtype=torch.bfloat16)
    gradients = []
    for function, dtype, cast in (
        (mine, torch.float32, input),
        (peer, torch.float64, input.double()),
    ):
        weight = torch.ones(16, dtype=dtype, requires_grad=True)
        output = function(cast, weight).reshape(-1, 16)
        gradients.append(torch.autograd.grad(output, weight, upstream.to(output.dtype))[0].double())
    error = (gradients[0] - gradients[1]).norm() / gradients[1].norm()
    assert error < 0.005


def test_float16_squares_do_not_overflow_and_zero_rows_stay_zero():
    input = torch.tensor([[1000.0, -1000.0, 300.0, -300.0]], dtype=torch.float16)
    for output, exact in (
        (nz.layer_norm(input, 4), F.layer_norm(input.double(), [4])),
        (nz.rms_norm(input, 4), F.rms_norm(input.double(), [4])),
    ):
        assert (output - exact).abs().max() < 2e-3
    zeros = torch.zeros(2, 4, dtype=torch.float16, requires_grad=True)
    for output in (nz.layer_norm(zeros, 4, eps=1e-8), nz.rms_norm(zeros, 4, eps=1e-8)):
        assert output.tolist() == [[0.0] * 4] * 2
    gradient = torch.autograd.grad(nz.rms_norm(zeros, 4, eps=1e-6).sum(), zeros)[0]
    assert gradient.tolist() == [[1000.0] * 4] * 2  # 1/sqrt(eps)


def test_nan_and_inf_propagate_to_their_own_row_only():
    for value in (math.nan, math.inf):
        input = normal(3, 4)
        input[1, 2] = value
        for output in (nz.layer_norm(input, 4), nz.rms_norm(input, 4)):
            assert output[1].isnan().any()
            assert output[[0, 2]].isfinite().all()
        assert nz.batch_norm(input, None, None, training=True)[:, 2].isnan().any()


# --- derivatives and transforms ---


@pytest.mark.parametrize("offset", [0.0, 2.0])
def test_first_and_second_derivatives(offset):
    input = normal(3, 4, offset=offset).requires_grad_()
    weight, bias = normal(4, seed=1).requires_grad_(), normal(4, seed=2).requires_grad_()
    running = normal(4, seed=3), normal(4, seed=4).square() + 0.1
    functions = [
        (lambda x, w, b: nz.layer_norm(x, 4, w, b), (input, weight, bias)),
        (lambda x, w: nz.rms_norm(x, 4, w), (input, weight)),
        (lambda x, w, b: nz.batch_norm(x, None, None, w, b, True), (input, weight, bias)),
        (lambda x, w, b: nz.batch_norm(x, *running, w, b), (input, weight, bias)),
    ]
    for function, arguments in functions:
        assert torch.autograd.gradcheck(function, arguments)
        assert torch.autograd.gradgradcheck(function, arguments)


def test_vmap_over_inputs_and_parameters():
    inputs, weights, biases = normal(5, 6, 4), normal(5, 4, seed=1), normal(5, 4, seed=2)
    running = normal(5, 4, seed=3), normal(5, 4, seed=4).square()
    functions = [
        (lambda x, w, b: nz.layer_norm(x, 4, w, b), (inputs, weights, biases)),
        (lambda x, w: nz.rms_norm(x, 4, w), (inputs, weights)),
        (lambda x, w, b: nz.batch_norm(x, None, None, w, b, True), (inputs, weights, biases)),
        (lambda x, m, v, w: nz.batch_norm(x, m, v, w), (inputs, *running, weights)),
    ]
    for function, arguments in functions:
        expected = torch.stack([function(*members) for members in zip(*arguments, strict=True)])
        assert_close(torch.vmap(function)(*arguments), expected, 1e-12)


@pytest.mark.parametrize("momentum", [0.1, None])
def test_vmap_over_stacked_batch_norms_moves_each_members_statistics(momentum):
    members = [nz.BatchNorm(3, momentum=momentum).double() for _ in range(4)]
    parameters, buffers = torch.func.stack_module_state(members)
    base = nz.BatchNorm(3, momentum=momentum).double()

    def run(parameters, buffers, input):
        return torch.func.functional_call(base, (parameters, buffers), (input,))

    for step in range(2):
        inputs = normal(4, 5, 3, seed=step, offset=step)
        outputs = torch.vmap(run)(parameters, buffers, inputs)
        expected = torch.stack([m(x) for m, x in zip(members, inputs, strict=True)])
        assert_close(outputs, expected, 1e-12)
    for name, stacked in buffers.items():
        assert_close(stacked, torch.stack([m.get_buffer(name) for m in members]), 1e-12)


@pytest.mark.parametrize(
    "make", [lambda: nz.LayerNorm(4), lambda: nz.RMSNorm(4), lambda: nz.BatchNorm(4)]
)
def test_func_grad_is_autograds(make):
    module, input = randomize(make()).double(), normal(5, 4)
    parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())

    def loss(parameters, buffers):
        return torch.func.functional_call(module, (parameters, buffers), (input,)).sin().sum()

    expected = torch.autograd.grad(module(input).sin().sum(), list(parameters.values()))
    gradients = torch.func.grad(loss)(parameters, {k: v.clone() for k, v in buffers.items()})
    for actual, exact in zip(gradients.values(), expected, strict=True):
        assert_close(actual, exact, 1e-12)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch's own
def test_forward_mode_is_reverse_mode():
    for function in (
        lambda x: nz.layer_norm(x, 4),
        lambda x: nz.rms_norm(x, 4),
        lambda x: nz.batch_norm(x, None, None, training=True),
    ):
        forward = torch.func.jacfwd(function)(normal(3, 4))
        assert_close(forward, torch.func.jacrev(function)(normal(3, 4)), 1e-12)


# --- bad input: the argument, what came, what was expected ---

ONES = torch.ones(4, 3)
BAD = [
    (lambda: nz.layer_norm(torch.ones(4, 3, dtype=torch.int64), 3), TypeError, "input .*int64"),
    (lambda: nz.layer_norm(torch.ones(4, 3, dtype=torch.complex64), 3), TypeError, "complex64"),
    (lambda: nz.layer_norm([[1.0]], 1), TypeError, "input must be a tensor, got list"),
    (lambda: nz.layer_norm(ONES, 4), ValueError, r"end in normalized_shape \(4,\).*\(4, 3\)"),
    (lambda: nz.layer_norm(ONES, (2, 4, 3)), ValueError, r"\(2, 4, 3\)"),
    (lambda: nz.layer_norm(ONES, ()), ValueError, "normalized_shape .* empty"),
    (lambda: nz.layer_norm(ONES, 0), ValueError, "normalized_shape must be at least 1, got 0"),
    (lambda: nz.layer_norm(ONES, 3.0), TypeError, "normalized_shape .* got 3.0"),
    (lambda: nz.layer_norm(ONES, "3"), TypeError, "normalized_shape"),
    (lambda: nz.layer_norm(ONES, 3, torch.ones(1)), ValueError, r"weight .*\(3,\), got \(1,\)"),
    (lambda: nz.layer_norm(ONES, 3, bias=torch.ones(4, 3)), ValueError, r"bias .*\(4, 3\)"),
    (lambda: nz.layer_norm(ONES, 3, torch.ones(3).double()), TypeError, "weight .*float64"),
    (lambda: nz.layer_norm(ONES, 3, torch.ones(3).half()), TypeError, "weight .*float16"),
    (lambda: nz.layer_norm(ONES, 3, torch.ones(3, device="meta")), ValueError, "weight .*meta"),
    (lambda: nz.layer_norm(ONES, 3, eps=-1e-5), ValueError, "eps .*-1e-05"),
    (lambda: nz.layer_norm(ONES, 3, eps=math.nan), ValueError, "eps .*nan"),
    (lambda: nz.layer_norm(ONES, 3, eps="small"), TypeError, "eps must be a number, got str"),
    (lambda: nz.rms_norm(torch.ones(4, 3, dtype=torch.bool), 3), TypeError, "input .*bool"),
    (lambda: nz.rms_norm(ONES, 4), ValueError, r"\(4,\)"),
    (lambda: nz.rms_norm(ONES, 3, torch.ones(4)), ValueError, r"weight .*\(4,\)"),
    (lambda: nz.rms_norm(ONES, 3, torch.ones(3).double()), TypeError, "weight .*float64"),
    (lambda: nz.rms_norm(ONES, 3, torch.ones(3).bfloat16()), TypeError, "weight .*bfloat16"),
    (lambda: nz.rms_norm(ONES, 3, eps=-1.0), ValueError, "eps .*-1"),
    (lambda: nz.rms_norm(3.0, 3), TypeError, "input must be a tensor, got float"),
    (lambda: nz.batch_norm(torch.ones(3), None, None, training=True), ValueError, "2 to 5 axes"),
    (lambda: nz.batch_norm(torch.ones([2] * 6), None, None, training=True), ValueError, "2 to 5"),
    (lambda: nz.batch_norm(ONES.long(), None, None, training=True), TypeError, "input .*int64"),
    (lambda: nz.batch_norm(ONES, None, None), ValueError, "running_mean .*training is False"),
    (lambda: nz.batch_norm(ONES, ONES[0], None), ValueError, "only one"),
    (lambda: nz.batch_norm(ONES, torch.ones(1), torch.ones(3)), ValueError, "running_mean .*1"),
    (lambda: nz.batch_norm(ONES, ONES[0], torch.ones(4)), ValueError, r"running_var .*\(4,\)"),
    (lambda: nz.batch_norm(ONES, ONES[0].double(), ONES[0]), TypeError, "running_mean .*float64"),
    (lambda: nz.batch_norm(ONES, ONES[0], ONES[0], torch.ones(4)), ValueError, "weight"),
    (lambda: nz.batch_norm(ONES, ONES[0], ONES[0], eps=-1.0), ValueError, "eps .*-1"),
    (lambda: nz.batch_norm(ONES, ONES[0], ONES[0], momentum=1.1), ValueError, "momentum .*1.1"),
    (lambda: nz.batch_norm(ONES, ONES[0], ONES[0], momentum=None), TypeError, "momentum"),
    (lambda: nz.batch_norm(ONES[:1], None, None, training=True), ValueError, r"\(1, 3\)"),
    (lambda: nz.batch_norm(torch.ones(1, 3, 1, 1), None, None, training=True), ValueError, "one"),
    (lambda: nz.LayerNorm(3, eps=-1), ValueError, "eps .*-1"),
    (lambda: nz.LayerNorm((3, -1)), ValueError, "normalized_shape .*-1"),
    (lambda: nz.LayerNorm(True), TypeError, "normalized_shape .*True"),
    (lambda: nz.LayerNorm(3)(torch.ones(2, 4)), ValueError, r"\(2, 4\)"),
    (lambda: nz.RMSNorm(3, eps=-1), ValueError, "eps .*-1"),
    (lambda: nz.RMSNorm(()), ValueError, "normalized_shape"),
    (lambda: nz.RMSNorm(3)(torch.ones(2, 4)), ValueError, r"\(2, 4\)"),
    (lambda: nz.BatchNorm(0), ValueError, "num_features must be at least 1, got 0"),
    (lambda: nz.BatchNorm(2.0), TypeError, "num_features .*2.0"),
    (lambda: nz.BatchNorm(3, eps=-1), ValueError, "eps .*-1"),
    (lambda: nz.BatchNorm(3, momentum=-0.1), ValueError, "momentum .*-0.1"),
    (lambda: nz.BatchNorm(3, momentum=1.5), ValueError, "momentum .*1.5"),
    (lambda: nz.BatchNorm(3, momentum="fast"), TypeError, "momentum .*str"),
    (lambda: nz.BatchNorm(3)(torch.ones(4, 2)), ValueError, r"3 channels.*\(4, 2\)"),
    (lambda: nz.BatchNorm(3)(torch.ones(3)), ValueError, r"3 channels.*\(3,\)"),
    (lambda: nz.center(torch.ones(3, dtype=torch.int32), (0,)), TypeError, "input .*int32"),
]


@pytest.mark.parametrize(("call", "error", "match"), BAD)
def test_bad_input_is_refused(call, error, match):
    with pytest.raises(error, match=match):
        call()


# --- compiled: last, as it is slow ---


def test_everything_compiles_without_a_graph_break():
    torch.compiler.reset()
    modules = [nz.LayerNorm(4), nz.RMSNorm(4), nz.BatchNorm(4), nz.BatchNorm(4, momentum=None)]
    for module in modules:
        twin = copy.deepcopy(module)
        compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
        leaf = normal(5, 4, dtype=torch.float32).requires_grad_()
        assert_close(compiled(leaf), twin(leaf), 1e-6)
        compiled(leaf).sin().sum().backward()
        twin(leaf).sin().sum().backward()
        for actual, expected in zip(module.parameters(), twin.parameters(), strict=True):
            assert_close(actual.grad, expected.grad, 1e-5)
        for actual, expected in zip(module.buffers(), twin.buffers(), strict=True):
            assert_close(actual, expected, 1e-6)
