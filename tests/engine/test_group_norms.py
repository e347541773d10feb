"""Group and instance normalization against PyTorch's own, and against what they coincide with."""

import math

import pytest
import torch
import torch.nn.functional as F
from engine_helpers import (
    DTYPES,
    TOLERANCE,
    assert_close,
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

PEERS = {3: nn.InstanceNorm1d, 4: nn.InstanceNorm2d, 5: nn.InstanceNorm3d}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "groups", "options"),
    [
        ((5, 6), 1, {}),
        ((5, 6), 3, {"affine": False}),
        ((4, 6, 5), 2, {"eps": 0.1}),
        ((3, 6, 4, 5), 3, {}),
        ((2, 6, 3, 2, 3), 1, {"affine": False}),
    ],
)
def test_group_norm_is_pytorchs(shape, groups, options, dtype):
    peer = randomize(nn.GroupNorm(groups, 6, **options)).to(dtype)
    mine = nz.GroupNorm(groups, 6, **options).to(dtype)
    exchange_state(mine, peer)
    assert_same(mine, peer, normal(*shape, dtype=dtype, offset=2, scale=3), TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((4, 6, 5), {}),
        ((3, 6, 4, 5), {"affine": True, "eps": 0.1}),
        ((2, 6, 3, 2, 3), {"affine": True, "track_running_stats": True}),
        ((4, 6, 5), {"track_running_stats": True, "momentum": 0.3}),
        ((3, 6, 4, 5), {"track_running_stats": True, "momentum": None}),
    ],
)
def test_instance_norm_is_pytorchs_in_training_and_evaluation(shape, options, dtype):
    peer = randomize(PEERS[len(shape)](6, **options)).to(dtype)
    mine = nz.InstanceNorm(6, **options).to(dtype)
    exchange_state(mine, peer)
    for step in range(2):
        input = normal(*shape, dtype=dtype, seed=step, offset=2, scale=3)
        assert_same(mine, peer, input, TOLERANCE[dtype])
    exchange_state(peer, mine)
    assert_same(mine.eval(), peer.eval(), normal(*shape, dtype=dtype, seed=9), TOLERANCE[dtype])


def test_functions_are_pytorchs():
    input, weight, bias = normal(3, 4, 5), normal(4, seed=1), normal(4, seed=2)
    mine = nz.group_norm(input, 2, weight, bias, 0.1)
    assert_close(mine, F.group_norm(input, 2, weight, bias, 0.1))
    assert_close(nz.group_norm(input, 2, None, bias), F.group_norm(input, 2, None, bias))
    running = [normal(4, seed=3), normal(4, seed=4).square()]
    twins = [value.clone() for value in running]
    for use_input_stats in (True, False):
        arguments = (weight, bias, use_input_stats, 0.4, 0.01)
        mine = nz.instance_norm(input, *running, *arguments)
        assert_close(mine, F.instance_norm(input, *twins, *arguments))
    for actual, expected in zip(running, twins, strict=True):
        assert_close(actual, expected)


def test_non_contiguous_input():
    wide = normal(3, 4, 5, 6).permute(0, 3, 2, 1)
    assert not wide.is_contiguous()
    assert_close(nz.group_norm(wide, 2), F.group_norm(wide.contiguous(), 2))
    assert_close(nz.instance_norm(wide), F.instance_norm(wide.contiguous()))


def test_one_group_is_layer_norm_over_all_channels_and_space_not_per_position():
    image = normal(2, 6, 4, 5)
    one = nz.group_norm(image, 1)
    assert_close(one, nz.layer_norm(image, (6, 4, 5)))
    position = nz.layer_norm(image.movedim(1, -1), 6).movedim(-1, 1)
    assert (one - position).abs().max() > 0.5
    assert_close(nz.group_norm(image[..., 0, 0], 1), nz.layer_norm(image[..., 0, 0], 6))


def test_a_group_per_channel_is_instance_norm_and_batch_norm_of_one_example():
    image = normal(2, 6, 4, 5)
    instance = nz.instance_norm(image)
    assert_close(nz.group_norm(image, 6), instance)
    alone = [nz.batch_norm(image[i : i + 1], None, None, training=True) for i in range(2)]
    assert_close(torch.cat(alone), instance)


def test_one_value_a_group_becomes_the_bias():
    norm = nz.GroupNorm(3, 3)
    nn.init.constant_(norm.bias, 0.25)
    assert norm(torch.full((2, 3), 1e6)).tolist() == [[0.25] * 3] * 2


def test_running_statistics_store_unbiased_variance_and_keep_no_graph():
    norm = nz.InstanceNorm(1, track_running_stats=True).double()
    leaf = torch.tensor([[[1.0, 2.0, 3.0, 4.0, 5.0]]], dtype=torch.float64, requires_grad=True)
    for _ in range(2):
        norm(leaf).sum().backward()
    assert not norm.running_var.requires_grad
    assert norm.running_mean.item() == pytest.approx(0.19 * 3)
    assert norm.running_var.item() == pytest.approx(0.81 + 0.19 * 2.5)
    assert norm.num_batches_tracked.item() == 0


@pytest.mark.parametrize("training", [True, False])
def test_an_empty_batch_stays_empty(training):
    input = torch.zeros(0, 4, 5)
    assert_same(nz.GroupNorm(2, 4).train(training), nn.GroupNorm(2, 4).train(training), input)
    # torch 2.13's own raises IndexError
    mine = nz.InstanceNorm(4, track_running_stats=True).train(training)
    assert mine(input).shape == (0, 4, 5)
    assert mine.running_mean.tolist() == [0.0] * 4


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("same_dtype", [True, False])
def test_half_precision_rounds_once(dtype, same_dtype):
    input, weight = normal(64, 8, 16, dtype=dtype, offset=3), normal(8, seed=1, dtype=dtype)
    given = weight if same_dtype else weight.float()
    exact, wide = input.double(), weight.double()
    for output, expected in (
        (nz.group_norm(input, 2, given, given), F.group_norm(exact, 2, wide, wide)),
        (
            nz.instance_norm(input, weight=given, bias=given),
            F.instance_norm(exact, None, None, wide, wide),
        ),
    ):
        assert_rounds_once(output, expected, dtype)


def test_a_large_mean_in_float32_does_not_cancel_and_float16_does_not_overflow():
    input = normal(4, 8, 64, dtype=torch.float32, offset=1e4)
    for output, exact in (
        (nz.group_norm(input, 2), F.group_norm(input.double(), 2)),
        (nz.instance_norm(input), F.instance_norm(input.double())),
    ):
        assert (output - exact).abs().max() < 1e-2
    large = torch.tensor([[[1000.0, -1000.0, 300.0, -300.0]]], dtype=torch.float16)
    assert (nz.group_norm(large, 1) - F.group_norm(large.double(), 1)).abs().max() < 2e-3


def test_nan_and_inf_propagate_to_their_own_group_only():
    for value in (math.nan, math.inf):
        input = normal(2, 4, 5)
        input[1, 0, 2] = value
        output = nz.group_norm(input, 2)
        assert output[1, :2].isnan().any(-1).all()
        assert output[1, 2:].isfinite().all()
        assert output[0].isfinite().all()
        assert nz.instance_norm(input)[1, 1:].isfinite().all()


def test_transforms():
    inputs, weights, biases = normal(3, 2, 4, 3), normal(3, 4, seed=1), normal(3, 4, seed=2)
    assert_transforms(lambda x, w, b: nz.group_norm(x, 2, w, b), inputs, weights, biases)
    assert_transforms(
        lambda x, w, b: nz.instance_norm(x, None, None, w, b), inputs, weights, biases
    )


ONES = torch.ones(2, 4, 3)
BAD = [
    (lambda: nz.GroupNorm(0, 4), ValueError, "num_groups must be at least 1, got 0"),
    (lambda: nz.GroupNorm(2, 0), ValueError, "num_channels must be at least 1, got 0"),
    (lambda: nz.GroupNorm(2.0, 4), TypeError, "num_groups .*2.0"),
    (lambda: nz.GroupNorm(3, 4), ValueError, "num_groups must divide .* 4, got 3"),
    (lambda: nz.GroupNorm(4, 2), ValueError, "num_groups must divide .* 2, got 4"),
    (lambda: nz.GroupNorm(2, 4, eps=-1), ValueError, "eps .*-1"),
    (lambda: nz.GroupNorm(2, 4)(torch.ones(2, 6)), ValueError, r"4 channels.*\(2, 6\)"),
    (lambda: nz.GroupNorm(2, 4)(torch.ones(4)), ValueError, r"\(4,\)"),
    (lambda: nz.group_norm(torch.ones(4), 2), ValueError, r"2 axes or more.*\(4,\)"),
    (lambda: nz.group_norm(ONES, 0), ValueError, "num_groups .*0"),
    (lambda: nz.group_norm(ONES, 3), ValueError, "num_groups .*3"),
    (lambda: nz.group_norm(ONES.long(), 2), TypeError, "input .*int64"),
    (lambda: nz.group_norm(ONES, 2, torch.ones(3)), ValueError, r"weight .*\(3,\)"),
    (lambda: nz.group_norm(ONES, 2, bias=torch.ones(4, 3)), ValueError, r"bias .*\(4, 3\)"),
    (lambda: nz.group_norm(ONES, 2, torch.ones(4).double()), TypeError, "weight .*float64"),
    (lambda: nz.group_norm(ONES, 2, eps=math.nan), ValueError, "eps .*nan"),
    (lambda: nz.instance_norm(torch.ones(2, 4)), ValueError, r"3 to 5 axes.*\(2, 4\)"),
    (
        lambda: nz.instance_norm(torch.ones(2, 4, 1)),
        ValueError,
        r"one value per inst.*\(2, 4, 1",
    ),
    (
        lambda: nz.instance_norm(ONES, use_input_stats=False),
        ValueError,
        "use_input_stats is False",
    ),
    (lambda: nz.instance_norm(ONES, torch.ones(4)), ValueError, "only one"),
    (lambda: nz.instance_norm(ONES, torch.ones(3), torch.ones(4)), ValueError, "running_mean"),
    (lambda: nz.instance_norm(ONES, momentum=1.5), ValueError, "momentum .*1.5"),
    (lambda: nz.instance_norm(ONES, momentum=None), TypeError, "momentum"),
    (lambda: nz.instance_norm(ONES, eps=-1.0), ValueError, "eps .*-1"),
    (lambda: nz.instance_norm(ONES.int()), TypeError, "input .*int32"),
    (
        lambda: nz.instance_norm(ONES, weight=torch.ones(4).half()),
        TypeError,
        "weight .*float16",
    ),
    (lambda: nz.InstanceNorm(0), ValueError, "num_features .*0"),
    (lambda: nz.InstanceNorm(4, momentum=-1), ValueError, "momentum .*-1"),
    (lambda: nz.InstanceNorm(4, momentum=1.5), ValueError, "momentum .*1.5"),
    (lambda: nz.InstanceNorm(4, eps="small"), TypeError, "eps .*str"),
    (lambda: nz.InstanceNorm(3)(ONES), ValueError, r"3 channels.*\(2, 4, 3\)"),
    (lambda: nz.InstanceNorm(4)(torch.ones(2, 4)), ValueError, "3 to 5 axes"),
]
test_bad_input_is_refused = refused(BAD)
