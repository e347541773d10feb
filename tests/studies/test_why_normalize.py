"""MLPs as one are their members; the noise is what it says; the drift and the bowl are known."""

import math

import pytest
import torch
from engine_helpers import refused

from normbook.lab import draw, ensembles, models, training
from normbook.studies.why_normalize import (
    DriftMeter,
    LandscapeMeter,
    MLPEnsemble,
    ShiftingNoise,
    along_the_step,
    drift,
)

KINDS = [
    {"norm": None, "residual": False},
    {"norm": None, "residual": True},
    {"norm": "batch", "residual": False},
    {"norm": "batch", "residual": True, "activation": "tanh"},
]


def batch(count=12):
    return draw(0, count, 1, 2, 3), torch.arange(count) % 4


def members_of(kind, count=3, depth=3):
    size = {"inputs": 6, "width": 5, "depth": depth, "outputs": 4}
    found = [models.build(lambda: models.MLP(**size, **kind), seed) for seed in range(count)]
    generator = torch.Generator().manual_seed(9)
    for member in found:  # gains and biases away from 1 and 0
        for parameter in member.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.data += 0.1 * noise
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_and_gradients_are_the_members(kind):
    inputs, targets = batch()
    members = members_of(kind)
    stack = MLPEnsemble(members)
    losses = stack.differentiate(stack.losses(inputs, targets))
    for index, member in enumerate(members):
        member.train()
        outputs = member(inputs)
        loss = training.cross_entropy(outputs, targets)
        own = torch.autograd.grad(loss, list(member.parameters()))
        assert torch.allclose(stack.outputs(inputs)[index], outputs, atol=1e-12)
        assert losses[index].item() == pytest.approx(loss.item(), abs=1e-12)
        assert torch.allclose(
            stack.gradient[index], torch.cat([g.flatten() for g in own]), atol=1e-12
        )
        share = (outputs.argmax(-1) == targets).double().mean()
        assert stack.accuracy(inputs, targets)[index] == share


@pytest.mark.parametrize("number", range(4))
def test_training_is_that_of_any_ensemble(number):
    kind, optimizer = KINDS[number], ("adam", "sgd", "sgd", "adam")[number]
    settings = {"steps": 5, "learning_rate": [0.01, 0.02, 0.05], "batch_size": 6, "seed": 3}
    expected = members_of(kind)
    histories = ensembles.train(expected, *batch(), optimizer=optimizer, **settings)
    members = members_of(kind)
    stack = MLPEnsemble(members)
    found = stack.train(*batch(), optimizer=optimizer, **settings)
    stack.unstack()
    assert torch.allclose(found.losses, histories.losses, atol=1e-9)
    for one, other in zip(members, expected, strict=True):
        for mine, theirs in zip(one.parameters(), other.parameters(), strict=True):
            assert torch.allclose(mine, theirs, atol=1e-7)


def test_a_member_that_diverges_stops_alone():
    stack = MLPEnsemble(members_of(KINDS[1], count=2))
    start = stack.weights.clone()
    rates = [1e4, 1e-3]
    found = stack.train(*batch(), steps=6, learning_rate=rates, optimizer="sgd", bound=50.0)
    assert found.diverged_at[0] == 1
    assert found.diverged_at[1] is None
    assert found.losses[0, 2:].isnan().all()
    assert found.losses[1].isfinite().all()
    assert not torch.equal(stack.weights[1], start[1])


def test_what_enters_each_activation_is_seen_and_changed():
    seen, entering = [], []

    def change(layer, x):
        seen.append((layer, x))
        return x + 3.0

    stack = MLPEnsemble(members_of(KINDS[2], depth=2), change=change)
    stack.outputs(batch()[0], entering)
    assert [layer for layer, _ in seen] == [0, 1]
    for (_, before), after in zip(seen, entering, strict=True):
        assert before.shape == (3, 12, 5)
        assert torch.equal(after, before + 3.0)
    bias = stack.parameters["blocks.0.1.bias"]
    assert torch.allclose(seen[0][1].mean(1), bias, atol=1e-12)  # BatchNorm's β is its mean


def test_watching_comes_before_each_step():
    stack = MLPEnsemble(members_of(KINDS[0]))
    start, seen = stack.weights.clone(), []
    watch = lambda stack: seen.append(stack.weights.clone())  # noqa: E731
    stack.train(*batch(), steps=3, learning_rate=0.1, watch=watch)
    assert len(seen) == 3
    assert torch.equal(seen[0], start)
    assert not torch.equal(seen[1], start)


@pytest.mark.parametrize("norm", [None, "batch"])
def test_a_member_without_its_skips_is_the_plain_network(norm):
    residual = members_of({"norm": norm, "residual": True})
    plain = members_of({"norm": norm, "residual": False})
    stack = MLPEnsemble(residual, skips=[False, True, False])
    outputs = stack.outputs(batch()[0])
    for index, expected in enumerate([plain[0], residual[1], plain[2]]):
        expected.train()
        assert torch.allclose(outputs[index], expected(batch()[0]), atol=1e-12)


# --- noise and drift ---


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
    x = draw(0, 2, 5, 3)
    assert torch.equal(ShiftingNoise([0.0, 1.0])(0, x)[0], x[0])


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


def test_the_meter_keeps_what_enters_and_moves_the_noise_on():
    options = {"inputs": 6, "width": 5, "depth": 2, "outputs": 3, "norm": "batch"}
    members = [models.build(lambda: models.MLP(**options), seed) for seed in range(2)]
    meter = DriftMeter(draw(0, 30, 6))
    meter(MLPEnsemble(members))
    assert meter.moments[0].shape == (2, 2, 2, 5)
    assert torch.allclose(meter.moments[0][0], torch.zeros(2, 2, 5).double(), atol=1e-12)
    assert torch.allclose(meter.moments[0][1], torch.ones(2, 2, 5).double(), atol=1e-2)
    noise = ShiftingNoise([1.0, 1.0])
    stack = MLPEnsemble(members, change=noise)
    meter(stack)
    law = noise.now[0]
    meter(stack)
    assert not torch.equal(law[0], noise.now[0][0])


# --- along the step ---


class Bowl:
    """Two members with the losses ½ · c · ‖w‖², c = 1 and 10: gradient c · w, smoothness c."""

    curvature = torch.tensor([1.0, 10.0], dtype=torch.float64)

    def __init__(self):
        self.weights = torch.tensor([[3.0, 4.0], [0.0, 2.0]], dtype=torch.float64)

    def losses(self, inputs, targets):
        return 0.5 * self.curvature * self.weights.square().sum(1)

    def differentiate(self, losses):
        self.gradient = self.curvature[:, None] * self.weights
        return losses


def test_a_bowl():
    bowl = Bowl()
    start = bowl.weights.clone()
    found = along_the_step(bowl, None, None, [0.05, 0.1, 0.2])
    assert torch.equal(bowl.weights, start)
    assert torch.allclose(found.smoothness, bowl.curvature)
    assert torch.allclose(found.gradient, torch.tensor([5.0, 20.0], dtype=torch.float64))
    # member 0: w shrinks by 1 − a; member 1 lands on the bottom at 0.1 and beyond it at 0.2
    low = torch.tensor([12.5 * 0.8**2, 0.0], dtype=torch.float64)
    high = torch.tensor([12.5 * 0.95**2, 20.0], dtype=torch.float64)
    assert torch.allclose(found.loss_low, low)
    assert torch.allclose(found.loss_high, high)
    assert torch.allclose(found.gradient_change, torch.tensor([1.0, 40.0], dtype=torch.float64))


def test_a_network_by_hand():
    inputs, targets = batch(9)
    found = along_the_step(MLPEnsemble(members_of(KINDS[0], 1)), inputs, targets, [0.7])
    (model,) = members_of(KINDS[0], 1)

    def slope():
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        parts = torch.autograd.grad(loss, list(model.parameters()))
        return loss.item(), torch.nn.utils.parameters_to_vector(parts)

    _, before = slope()
    weights = torch.nn.utils.parameters_to_vector(model.parameters())
    torch.nn.utils.vector_to_parameters(weights - 0.7 * before, model.parameters())
    loss, after = slope()
    change = (after - before).norm().item()
    assert found.loss_low.item() == pytest.approx(loss)
    assert found.gradient_change.item() == pytest.approx(change)
    assert found.smoothness.item() == pytest.approx(change / (0.7 * before.norm().item()))


def test_the_meter_looks_every_so_often():
    meter, bowl = LandscapeMeter(None, None, [0.1], every=2), Bowl()
    for _ in range(5):
        meter(bowl)
        bowl.weights *= 0.5
    assert meter.steps == [0, 2, 4]
    path = meter.path()
    assert path.gradient.shape == (2, 3)
    expected = torch.tensor([5.0, 1.25, 0.3125], dtype=torch.float64)
    assert torch.allclose(path.gradient[0], expected)


def train_on_batches_of_their_own():
    stack = MLPEnsemble(members_of(KINDS[0]))
    stack.train(*batch(), steps=1, learning_rate=0.1, batch_size=6, seed=[0, 1, 2])


CASES = [
    (lambda: MLPEnsemble(members_of(KINDS[1]), skips=[True]), "skips must be one a member"),
    (lambda: MLPEnsemble(members_of(KINDS[0]), skips=[True] * 3), "skips must be one a member"),
    (train_on_batches_of_their_own, "seed must be one for all"),
    (
        lambda: MLPEnsemble(members_of({"norm": "layer", "residual": True})),
        "must have BatchNorm or no norm",
    ),
    (lambda: MLPEnsemble(members_of(KINDS[0], 1) + members_of(KINDS[1], 1)), "one architecture"),
    (lambda: ShiftingNoise([]), "doses must be"),
    (lambda: ShiftingNoise([-0.1]), "doses must be"),
    (lambda: ShiftingNoise([0.1], frozen=[True, False]), "frozen must have one entry a dose"),
    (lambda: ShiftingNoise([0.1], shift_only=[]), "shift_only must have one entry a dose"),
    (lambda: drift([torch.ones(2, 1, 1, 1)]), "at least 2 steps"),
    (lambda: along_the_step(Bowl(), None, None, []), "distances must be"),
    (lambda: along_the_step(Bowl(), None, None, [0.1, 0.0]), "distances must be"),
]
test_what_does_not_fit_is_refused = refused([(call, ValueError, words) for call, words in CASES])
