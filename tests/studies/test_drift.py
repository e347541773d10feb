"""The noise has the distribution it says, and the drift is that of known paths."""

import math

import pytest
import torch

from normbook.lab import models, stacks
from normbook.lab.drift import DriftMeter, ShiftingNoise, drift


def zeros(members, n=20000, width=4):
    return torch.zeros(members, n, width, dtype=torch.float64)


def test_the_noise_has_its_own_mean_and_spread_for_each_unit():
    noise = ShiftingNoise([1.0, 2.0], seed=1)
    found = noise(0, zeros(2))
    mean, spread = noise.now[0]
    assert torch.allclose(found[0].mean(0), mean, atol=0.05)
    assert torch.allclose(found[0].std(0), spread, atol=0.05)
    assert torch.allclose(found[1], 2 * found[0])
    assert spread.min() >= 0.5
    assert spread.max() <= 1.5
    assert mean.std() > 0.1


def test_a_step_draws_anew_and_layers_differ():
    noise = ShiftingNoise([1.0])
    one, other = noise(0, zeros(1)).mean(1), noise(1, zeros(1)).mean(1)
    assert (noise(0, zeros(1)).mean(1) - one).abs().max() < 0.05  # the same law within a step
    assert (one - other).abs().max() > 0.1
    noise.step()
    assert (noise(0, zeros(1)).mean(1) - one).abs().max() > 0.1


def test_frozen_members_keep_their_law_and_others_do_not():
    noise = ShiftingNoise([1.0, 1.0], frozen=[True, False])
    before = noise(0, zeros(2)).mean(1)
    noise.step()
    after = noise(0, zeros(2)).mean(1)
    assert (after[0] - before[0]).abs().max() < 0.05
    assert (after[1] - before[1]).abs().max() > 0.1


def test_a_mere_shift_is_the_same_for_all_examples():
    found = ShiftingNoise([1.0, 1.0], shift_only=[True, False])(0, zeros(2, n=50))
    assert torch.equal(found[0], found[0][:1].expand(50, -1))
    assert (found[1].std(0) > 0.2).all()


def test_no_dose_leaves_the_input_bit_for_bit():
    x = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert torch.equal(ShiftingNoise([0.0, 1.0])(0, x)[0], x[0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"doses": []}, "doses must be"),
        ({"doses": [-0.1]}, "doses must be"),
        ({"doses": [0.1], "frozen": [True, False]}, "frozen must have one entry a dose"),
        ({"doses": [0.1], "shift_only": []}, "shift_only must have one entry a dose"),
    ],
)
def test_noise_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        ShiftingNoise(**arguments)


def test_drift_is_the_wasserstein_distance_over_the_width():
    # 2 members, 1 layer, 2 units: member 0 moves its means by 3 and 4 in the first step only
    means = torch.zeros(3, 2, 1, 2, dtype=torch.float64)
    means[1:, 0, 0] = torch.tensor([3.0, 4.0], dtype=torch.float64)
    spreads = torch.full_like(means, 2.0)
    spreads[2, 1] = 5.0  # member 1 widens by 3 in the second step
    moments = list(torch.stack([means, spreads], 1))
    width = math.sqrt(8)
    expected = torch.tensor([5 / width / 2, math.sqrt(18) / width / 2], dtype=torch.float64)
    assert torch.allclose(drift(moments), expected)


def test_drift_needs_two_steps():
    with pytest.raises(ValueError, match="at least 2 steps"):
        drift([torch.ones(2, 1, 1, 1)])


def test_the_meter_keeps_what_enters_the_activations():
    make = lambda: models.MLP(inputs=6, width=5, depth=2, outputs=3, norm="batch")  # noqa: E731
    stack = stacks.Stack([models.build(make, seed) for seed in range(2)])
    inputs = torch.randn(30, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    meter = DriftMeter(inputs)
    meter(stack)
    assert meter.moments[0].shape == (2, 2, 2, 5)
    assert torch.allclose(meter.moments[0][0], torch.zeros(2, 2, 5).double(), atol=1e-12)
    assert torch.allclose(meter.moments[0][1], torch.ones(2, 2, 5).double(), atol=1e-2)


def test_the_meter_moves_the_noise_on():
    make = lambda: models.MLP(inputs=6, width=5, depth=1, outputs=3, norm="batch")  # noqa: E731
    stack = stacks.Stack([models.build(make, 0)])
    noise = ShiftingNoise([1.0])
    meter = DriftMeter(torch.randn(30, 6, dtype=torch.float64), noise)
    meter(stack)
    law = noise.now[0]
    meter(stack)
    assert not torch.equal(law[0], noise.now[0][0])
