"""MLPs as one are their members; the noise is what it says; the drift and the bowl are known."""

import pytest
import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from normbook.lab import draw, ensembles, models, training
from normbook.studies import why_normalize as why

KINDS = [
    {"norm": None, "residual": False},
    {"norm": None, "residual": True},
    {"norm": "batch", "residual": False},
    {"norm": "batch", "residual": True, "activation": "tanh"},
]
INPUTS, TARGETS = BATCH = draw(0, 12, 1, 2, 3), torch.arange(12) * 5 % 4


def members_of(kind, count=3, depth=3):
    size = {"inputs": 6, "width": 5, "depth": depth, "outputs": 4}
    found = [models.build(lambda: models.MLP(**size, **kind), seed) for seed in range(count)]
    parameters = [parameter for member in found for parameter in member.parameters()]
    for seed, parameter in enumerate(parameters):  # gains and biases away from 1 and 0
        parameter.data += 0.1 * draw(seed, *parameter.shape)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_and_gradients_are_the_members(kind):
    members = members_of(kind)
    stack = why.MLPEnsemble(members)
    losses = stack.differentiate(stack.losses(*BATCH))
    for index, member in enumerate(members):
        outputs = member.train()(INPUTS)
        loss = training.cross_entropy(outputs, TARGETS)
        own = torch.autograd.grad(loss, list(member.parameters()))
        own = torch.cat([gradient.flatten() for gradient in own])
        assert torch.allclose(stack.outputs(INPUTS)[index], outputs, atol=1e-12)
        assert losses[index].item() == pytest.approx(loss.item(), abs=1e-12)
        assert torch.allclose(stack.gradient[index], own, atol=1e-12)
        share = (outputs.argmax(-1) == TARGETS).double().mean()
        assert stack.accuracy(*BATCH)[index] == share


@pytest.mark.parametrize("kind", KINDS)
def test_training_is_that_of_any_ensemble(kind):
    settings = {"steps": 5, "learning_rate": [0.01, 0.02, 0.05], "batch_size": 6, "seed": 3}
    expected, members = members_of(kind), members_of(kind)
    histories = ensembles.train(expected, *BATCH, **settings)
    stack = why.MLPEnsemble(members)
    found = stack.train(*BATCH, **settings)
    stack.unstack()
    assert torch.allclose(found.losses, histories.losses, atol=1e-9)
    for one, other in zip(members, expected, strict=True):
        for mine, theirs in zip(one.parameters(), other.parameters(), strict=True):
            assert torch.allclose(mine, theirs, atol=1e-7)


def test_what_enters_each_activation_is_seen_and_changed():
    seen, entering = [], []

    def change(layer, x):
        seen.append((layer, x))
        return x + 3.0

    stack = why.MLPEnsemble(members_of(KINDS[2], depth=2), change=change)
    stack.outputs(INPUTS, entering)
    assert [layer for layer, _ in seen] == [0, 1]
    for (_, before), after in zip(seen, entering, strict=True):
        assert before.shape == (3, 12, 5)
        assert torch.equal(after, before + 3.0)
    bias = stack.parameters["blocks.0.1.bias"]
    assert torch.allclose(seen[0][1].mean(1), bias, atol=1e-12)  # BatchNorm's β is its mean


@pytest.mark.parametrize("norm", [None, "batch"])
def test_a_member_without_its_skips_is_the_plain_network(norm):
    residual = members_of({"norm": norm, "residual": True})
    plain = members_of({"norm": norm, "residual": False})
    outputs = why.MLPEnsemble(residual, skips=[False, True, False]).outputs(INPUTS)
    for index, expected in enumerate([plain[0], residual[1], plain[2]]):
        assert torch.allclose(outputs[index], expected.train()(INPUTS), atol=1e-12)


# --- noise and drift ---


def zeros(members, n=20000):
    return torch.zeros(members, n, 4, dtype=torch.float64)


def test_the_noise_has_its_own_mean_and_spread_for_each_unit():
    noise = why.ShiftingNoise([1.0, 2.0], seed=1)
    found = noise(0, zeros(2))
    mean, spread = noise.now[0]
    assert torch.allclose(found[0].mean(0), mean, atol=0.05)
    assert torch.allclose(found[0].std(0), spread, atol=0.05)
    assert torch.allclose(found[1], 2 * found[0])
    assert spread.min() >= 0.5
    assert spread.max() <= 1.5
    assert mean.std() > 0.1


def test_a_step_draws_anew_but_for_frozen_members_and_layers_differ():
    noise = why.ShiftingNoise([1.0, 1.0], frozen=[True, False])
    before, other, again = (noise(layer, zeros(2)).mean(1) for layer in (0, 1, 0))
    assert (again - before).abs().max() < 0.05  # the same law within a step
    assert (other - before).abs().amax(1).min() > 0.1
    noise.step()
    after = noise(0, zeros(2)).mean(1)
    assert (after[0] - before[0]).abs().max() < 0.05
    assert (after[1] - before[1]).abs().max() > 0.1


def test_a_mere_shift_is_the_same_for_all_examples_and_no_dose_changes_no_bit():
    found = why.ShiftingNoise([1.0, 1.0], shift_only=[True, False])(0, zeros(2, n=50))
    assert torch.equal(found[0], found[0][:1].expand(50, -1))
    assert (found[1].std(0) > 0.2).all()
    x = draw(0, 2, 5, 3)
    assert torch.equal(why.ShiftingNoise([0.0, 1.0])(0, x)[0], x[0])


def test_drift_is_the_wasserstein_distance_over_the_width():
    # 2 members, 1 layer, 2 units: member 0 moves its means by 3 and 4 in the first step only
    means = torch.zeros(3, 2, 1, 2, dtype=torch.float64)
    means[1:, 0, 0] = torch.tensor([3.0, 4.0], dtype=torch.float64)
    spreads = torch.full_like(means, 2.0)
    spreads[2, 1] = 5.0  # member 1 widens by 3 in the second step
    moments = list(torch.stack([means, spreads], 1))
    assert why.drift(moments).tolist() == pytest.approx([5 / 8**0.5 / 2, 18**0.5 / 8**0.5 / 2])


def test_the_meter_keeps_what_enters_the_activations_and_moves_the_noise_on():
    noise, meter, entering = why.ShiftingNoise([0.0, 1.0]), why.DriftMeter(INPUTS), []
    stack = why.MLPEnsemble(members_of(KINDS[0], count=2), change=noise)
    meter(stack)
    law = noise.now[0]
    meter(stack)
    assert not torch.equal(law[0], noise.now[0][0])
    stack.outputs(INPUTS, entering)
    expected = torch.stack([x[0] for x in entering])  # of the member without noise
    mean, spread = meter.moments[1][:, 0]
    assert torch.allclose(mean, expected.mean(1))
    assert torch.allclose(spread, expected.std(1, correction=0))


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
    found = why.along_the_step(bowl, None, None, [0.05, 0.1, 0.2])
    assert torch.equal(bowl.weights, start)
    # member 0: w shrinks by 1 − a; member 1 lands on the bottom at 0.1 and beyond it at 0.2
    expected = {
        "loss_low": [12.5 * 0.8**2, 0.0],
        "loss_high": [12.5 * 0.95**2, 20.0],
        "gradient_change": [1.0, 40.0],
        "gradient": [5.0, 20.0],
        "smoothness": [1.0, 10.0],
    }
    for name, values in found._asdict().items():
        assert values.tolist() == pytest.approx(expected[name])


def test_a_network_by_hand():
    (model,) = members_of(KINDS[0], count=1)
    found = why.along_the_step(why.MLPEnsemble([model]), *BATCH, [0.7])

    def slope(model):
        loss = torch.nn.functional.cross_entropy(model(INPUTS), TARGETS)
        parts = torch.autograd.grad(loss, list(model.parameters()))
        return loss.item(), parameters_to_vector(parts)

    _, before = slope(model)
    there = parameters_to_vector(model.parameters()) - 0.7 * before
    vector_to_parameters(there, model.parameters())
    loss, after = slope(model)
    change = (after - before).norm().item()
    assert found.loss_low.item() == pytest.approx(loss)
    assert found.gradient_change.item() == pytest.approx(change)
    assert found.smoothness.item() == pytest.approx(change / (0.7 * before.norm().item()))


def test_the_meter_looks_every_so_often():
    meter, bowl = why.LandscapeMeter(None, None, [0.1], every=2), Bowl()
    for _ in range(5):
        meter(bowl)
        bowl.weights *= 0.5
    assert meter.steps == [0, 2, 4]
    assert meter.path().gradient[0].tolist() == pytest.approx([5.0, 1.25, 0.3125])
    assert len(meter.path().gradient) == 2


# --- refusals ---


def train_on_batches_of_their_own():
    options = {"steps": 1, "learning_rate": 0.1, "batch_size": 6, "seed": [0, 1, 2]}
    why.MLPEnsemble(members_of(KINDS[0])).train(*BATCH, **options)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: why.MLPEnsemble(members_of(KINDS[1]), [True]), "skips must be one a member"),
        (lambda: why.MLPEnsemble(members_of(KINDS[0]), [True] * 3), "skips must be one a member"),
        (lambda: why.MLPEnsemble(members_of({"norm": "layer"})), "must have BatchNorm or no norm"),
        (train_on_batches_of_their_own, "seed must be one for all"),
        (lambda: why.ShiftingNoise([]), "doses must be"),
        (lambda: why.ShiftingNoise([-0.1]), "doses must be"),
        (lambda: why.ShiftingNoise([0.1], frozen=[True, False]), "frozen must have one entry"),
        (lambda: why.ShiftingNoise([0.1], shift_only=[]), "shift_only must have one entry"),
        (lambda: why.drift([torch.ones(2, 1, 1, 1)]), "at least 2 steps"),
        (lambda: why.along_the_step(Bowl(), None, None, []), "distances must be"),
        (lambda: why.along_the_step(Bowl(), None, None, [0.1, 0.0]), "distances must be"),
    ],
)
def test_refusals(call, words):
    with pytest.raises(ValueError, match=words):
        call()
