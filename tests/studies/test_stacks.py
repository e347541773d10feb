"""A stack of MLPs is its members: the same outputs, gradients and training."""

import pytest
import torch

from normbook.lab import ensembles, models, stacks, training

KINDS = [
    {"norm": None, "residual": False},
    {"norm": None, "residual": True},
    {"norm": "batch", "residual": False},
    {"norm": "batch", "residual": True, "activation": "tanh"},
]


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(12, 1, 2, 3, generator=generator, dtype=torch.float64)
    return inputs, torch.randint(4, (12,), generator=generator)


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
def test_outputs_and_gradients_are_the_members(kind, batch):
    inputs, targets = batch
    members = members_of(kind)
    stack = stacks.Stack(members)
    losses, gradient = stack.gradient(inputs, targets)
    for index, member in enumerate(members):
        member.train()
        outputs = member(inputs)
        loss = training.cross_entropy(outputs, targets)
        own = torch.autograd.grad(loss, list(member.parameters()))
        assert torch.allclose(stack.outputs(inputs)[index], outputs, atol=1e-12)
        assert losses[index].item() == pytest.approx(loss.item(), abs=1e-12)
        assert torch.allclose(gradient[index], torch.cat([g.flatten() for g in own]), atol=1e-12)
        share = (outputs.argmax(-1) == targets).double().mean()
        assert stack.accuracy(inputs, targets)[index] == share


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_training_is_that_of_train_many(kind, optimizer, batch):
    settings = {"steps": 5, "learning_rate": [0.01, 0.02, 0.05], "batch_size": 6, "seed": 3}
    expected = members_of(kind)
    histories = ensembles.train_many(expected, *batch, optimizer=optimizer, **settings)
    members = members_of(kind)
    stack = stacks.Stack(members)
    found = stacks.train(stack, *batch, optimizer=optimizer, **settings)
    stack.unstack()
    assert torch.allclose(found.losses, histories.losses, atol=1e-9)
    for one, other in zip(members, expected, strict=True):
        for mine, theirs in zip(one.parameters(), other.parameters(), strict=True):
            assert torch.allclose(mine, theirs, atol=1e-7)


def test_a_member_that_diverges_stops_alone(batch):
    stack = stacks.Stack(members_of(KINDS[1], count=2))
    start = stack.weights.clone()
    rates = [1e4, 1e-3]
    found = stacks.train(stack, *batch, steps=6, learning_rate=rates, optimizer="sgd", bound=50.0)
    assert found.diverged_at[0] == 1
    assert found.diverged_at[1] is None
    assert found.losses[0, 2:].isnan().all()
    assert found.losses[1].isfinite().all()
    assert not torch.equal(stack.weights[1], start[1])


def test_meddling_and_record_see_what_enters_each_activation(batch):
    stack = stacks.Stack(members_of(KINDS[2], depth=2))
    record, seen = [], []

    def meddle(layer, x):
        seen.append((layer, x))
        return x + 3.0

    stack.outputs(batch[0], meddle, record)
    assert [layer for layer, _ in seen] == [0, 1]
    for (_, before), after in zip(seen, record, strict=True):
        assert before.shape == (3, 12, 5)
        assert torch.equal(after, before + 3.0)
    bias = stack.parameters["blocks.0.1.bias"]
    assert torch.allclose(seen[0][1].mean(1), bias, atol=1e-12)  # BatchNorm's β is its mean


def test_watching_comes_before_each_step(batch):
    stack = stacks.Stack(members_of(KINDS[0]))
    start, seen = stack.weights.clone(), []
    watch = lambda stack: seen.append(stack.weights.clone())  # noqa: E731
    stacks.train(stack, *batch, steps=3, learning_rate=0.1, watch=watch)
    assert len(seen) == 3
    assert torch.equal(seen[0], start)
    assert not torch.equal(seen[1], start)


@pytest.mark.parametrize("norm", [None, "batch"])
def test_a_member_without_its_skips_is_the_plain_network(norm, batch):
    residual = members_of({"norm": norm, "residual": True})
    plain = members_of({"norm": norm, "residual": False})
    stack = stacks.Stack(residual, skips=[False, True, False])
    outputs = stack.outputs(batch[0])
    for index, expected in enumerate([plain[0], residual[1], plain[2]]):
        expected.train()
        assert torch.allclose(outputs[index], expected(batch[0]), atol=1e-12)


def test_refuses_skips_that_do_not_fit():
    with pytest.raises(ValueError, match="skips must be one a member"):
        stacks.Stack(members_of(KINDS[1]), skips=[True])
    with pytest.raises(ValueError, match="skips must be one a member"):
        stacks.Stack(members_of(KINDS[0]), skips=[True] * 3)


def test_refuses_other_norms_and_different_members():
    with pytest.raises(ValueError, match="must have BatchNorm or no norm"):
        stacks.Stack(members_of({"norm": "layer", "residual": True}))
    with pytest.raises(ValueError, match="one architecture"):
        stacks.Stack(members_of(KINDS[0], count=1) + members_of(KINDS[1], count=1))
