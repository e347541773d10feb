"""BatchNorm against PyTorch's own, in training and evaluation, and against numbers by hand."""

import math

import pytest
import torch
import torch.nn.functional as F
from engine_helpers import (
    DTYPES,
    TOLERANCE,
    assert_close,
    assert_functional_gradients,
    assert_rounds_once,
    assert_same,
    assert_transforms,
    exchange_state,
    normal,
    randomize,
    refused,
)
from torch import nn

import normalization as nz

PEERS = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((6, 3), {}),
        ((4, 3, 5), {"eps": 0.1, "momentum": 0.3}),
        ((4, 3, 5, 2), {"momentum": None}),
        ((2, 3, 4, 2, 3), {"affine": False}),
        ((4, 3, 5), {"track_running_stats": False}),
    ],
)
def test_batch_norm_is_pytorchs_in_training_and_evaluation(shape, options, dtype):
    peer = randomize(PEERS[len(shape)](3, **options)).to(dtype)
    mine = nz.BatchNorm(3, **options).to(dtype)
    exchange_state(mine, peer)
    for step in range(3):
        input = normal(*shape, dtype=dtype, seed=step, offset=2, scale=3)
        assert_same(mine, peer, input, TOLERANCE[dtype])
    exchange_state(peer, mine)
    assert_same(mine.eval(), peer.eval(), normal(*shape, dtype=dtype, seed=9), TOLERANCE[dtype])


@pytest.mark.parametrize("training", [True, False])
def test_the_function_is_pytorchs(training):
    input, weight, bias = normal(5, 4), normal(4, seed=1), normal(4, seed=2)
    running = [normal(4, seed=3), normal(4, seed=4).square()]
    twins = [value.clone() for value in running]
    arguments = {"training": training, "momentum": 0.4, "eps": 0.01}
    mine = nz.batch_norm(input, *running, weight, bias, **arguments)
    assert_close(mine, F.batch_norm(input, *twins, weight, bias, **arguments))
    for actual, expected in zip(running, twins, strict=True):
        assert_close(actual, expected)


@pytest.mark.parametrize("shape", [(0, 3), (2, 3, 0)])
@pytest.mark.parametrize("training", [True, False])
def test_an_empty_batch_is_pytorchs(shape, training):
    mine, peer = nz.BatchNorm(3).train(training), nn.BatchNorm1d(3).train(training)
    assert_same(mine, peer, torch.zeros(shape))


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
    assert_close(average.running_mean, means)
    assert_close(average.running_var, variances)
    assert still.running_mean.tolist() == [0, 0, 0]
    assert still.running_var.tolist() == [1, 1, 1]
    assert still.num_batches_tracked.item() == 4


def test_batch_norm_pools_space_and_one_example_is_an_instance():
    input = normal(1, 3, 4, 5)
    expected = F.instance_norm(input)
    assert_close(nz.batch_norm(input, None, None, training=True), expected)


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
        assert_same(mine.train(training), peer.train(training), normal(5, 3, seed=1))
    assert mine.num_batches_tracked.item() == 1


# --- precision ---


@pytest.mark.parametrize("offset", [1e3, 1e4])
def test_a_large_mean_in_float32_does_not_cancel(offset):
    input = normal(64, 256, dtype=torch.float32, offset=offset)
    exact = F.batch_norm(input.double(), None, None, training=True)
    mine = nz.batch_norm(input, None, None, training=True)
    assert (mine - exact).abs().max() < 1e-6 * offset


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("same_dtype", [True, False])
def test_half_precision_rounds_once(dtype, same_dtype):
    input, weight = normal(512, 64, 1, dtype=dtype, offset=3), normal(64, seed=1, dtype=dtype)
    given, wide = weight if same_dtype else weight.float(), weight.double()
    exact = F.batch_norm(input.double(), None, None, wide, wide, True)
    assert_rounds_once(nz.batch_norm(input, None, None, given, given, True), exact, dtype)


def test_half_precision_gradients_of_the_gain():
    input, upstream = (normal(16384, 16, seed=s, dtype=torch.bfloat16) for s in range(2))
    found = []
    for function, dtype, x in (
        (nz.batch_norm, torch.float32, input),
        (F.batch_norm, torch.float64, input.double()),
    ):
        weight = torch.ones(16, dtype=dtype, requires_grad=True)
        output = function(x, None, None, weight, None, True)
        found.append(torch.autograd.grad(output, weight, upstream.to(output.dtype))[0].double())
    assert (found[0] - found[1]).norm() / found[1].norm() < 0.005


def test_nan_and_inf_stay_in_their_channel():
    for value in (math.nan, math.inf):
        input = normal(3, 4)
        input[1, 2] = value
        bad = nz.batch_norm(input, None, None, training=True).isnan().any(0)
        assert bad.tolist() == [False, False, True, False]


# --- derivatives and transforms ---


def test_transforms():
    inputs, weights, biases = normal(3, 5, 4, offset=2), normal(3, 4, seed=1), normal(3, 4, seed=2)
    running = normal(3, 4, seed=3), normal(3, 4, seed=4).square() + 0.1
    train = lambda x, w, b: nz.batch_norm(x, None, None, w, b, True)  # noqa: E731
    assert_transforms(train, inputs, weights, biases)
    assert_transforms(lambda x, w, m, v: nz.batch_norm(x, m, v, w), inputs, weights, *running)


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
        assert_close(outputs, expected)
    for name, stacked in buffers.items():
        assert_close(stacked, torch.stack([m.get_buffer(name) for m in members]))


def test_func_grad_is_autograds():
    assert_functional_gradients(randomize(nz.BatchNorm(4)).double(), normal(5, 4))


# --- bad input: the argument, what came, what was expected ---

ONES = torch.ones(4, 3)
BAD = [
    (
        lambda: nz.batch_norm(torch.ones(3), None, None, training=True),
        ValueError,
        "2 to 5 axes",
    ),
    (
        lambda: nz.batch_norm(torch.ones([2] * 6), None, None, training=True),
        ValueError,
        "2 to 5",
    ),
    (lambda: nz.batch_norm(ONES.long(), None, None, training=True), TypeError, "input .*int64"),
    (lambda: nz.batch_norm(ONES, None, None), ValueError, "running_mean .*training is False"),
    (lambda: nz.batch_norm(ONES, ONES[0], None), ValueError, "only one"),
    (lambda: nz.batch_norm(ONES, torch.ones(1), torch.ones(3)), ValueError, "running_mean .*1"),
    (lambda: nz.batch_norm(ONES, ONES[0], torch.ones(4)), ValueError, r"running_var .*\(4,\)"),
    (
        lambda: nz.batch_norm(ONES, ONES[0].double(), ONES[0]),
        TypeError,
        "running_mean .*float64",
    ),
    (lambda: nz.batch_norm(ONES, ONES[0], ONES[0], torch.ones(4)), ValueError, "weight"),
    (lambda: nz.batch_norm(ONES, ONES[0], ONES[0], eps=-1.0), ValueError, "eps .*-1"),
    (lambda: nz.batch_norm(ONES, ONES[0], ONES[0], momentum=1.1), ValueError, "momentum .*1.1"),
    (lambda: nz.batch_norm(ONES, ONES[0], ONES[0], momentum=None), TypeError, "momentum"),
    (lambda: nz.batch_norm(ONES[:1], None, None, training=True), ValueError, r"\(1, 3\)"),
    (
        lambda: nz.batch_norm(torch.ones(1, 3, 1, 1), None, None, training=True),
        ValueError,
        "one",
    ),
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
test_bad_input_is_refused = refused(BAD)
