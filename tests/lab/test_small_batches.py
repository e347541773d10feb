"""Small batches: ghosts are BatchNorm on each part, and the network takes any norm."""

import copy

import pytest
import torch
from engine_helpers import assert_close, gradients, normal
from torch import nn

import normalization as nz
from normbook.lab import data, models, small_batches
from normbook.lab.small_batches import DigitsCNN, GhostBatchNorm


def norms(size):
    """A GhostBatchNorm and a BatchNorm of PyTorch with the same, not trivial, state."""
    ghost, peer = GhostBatchNorm(5, size).double(), nn.BatchNorm2d(5).double()
    with torch.no_grad():
        for place, value in enumerate((ghost.weight, ghost.bias, ghost.running_mean)):
            value.copy_(normal(5, seed=10 + place))
        ghost.running_var.copy_(normal(5, seed=13).square() + 0.5)
    peer.load_state_dict(ghost.state_dict())
    return ghost, peer


@pytest.mark.parametrize("size", [2, 3, 6])
def test_ghosts_are_pytorchs_batch_norm_on_each_part(size):
    x = normal(6, 5, 4, 3).requires_grad_()
    ghost, peer = norms(size)
    alone = [copy.deepcopy(peer) for _ in x.split(size)]
    for own, part in zip(alone, x.split(size), strict=True):
        own(part)
    output, expected = ghost(x), torch.cat([peer(part) for part in x.split(size)])
    assert_close(output, expected)
    assert_close(ghost.running_mean, sum(own.running_mean for own in alone) / len(alone))
    assert_close(ghost.running_var, sum(own.running_var for own in alone) / len(alone))
    found = gradients(output, (x, ghost.weight, ghost.bias))
    for mine, other in zip(found, gradients(expected, (x, peer.weight, peer.bias)), strict=True):
        assert_close(mine, other, 1e-10)


def test_ghosts_use_the_running_statistics_in_evaluation_and_refuse_what_does_not_divide():
    x = normal(5, 5, 4, 3)
    ghost, peer = norms(2)
    assert_close(ghost.eval()(x), peer.eval()(x))
    with pytest.raises(ValueError, match="size must divide the 5 examples, got 2"):
        ghost.train()(x)


@pytest.fixture(scope="module")
def digits():
    return data.digits_images()


def train(digits, norm, **changes):
    words = {"batch_size": 8, "steps": 3, "learning_rate": 0.1, "seeds": (0, 1), **changes}
    return small_batches.train_at(digits, norm, **words)


def test_one_ghost_a_batch_is_training_with_batch_norm(digits):
    whole = train(digits, nz.BatchNorm)
    ghosts = train(digits, lambda channels: GhostBatchNorm(channels, 8))
    halves = train(digits, lambda channels: GhostBatchNorm(channels, 4))
    images = digits.test_inputs[:5]
    for mine, other, apart in zip(ghosts, whole, halves, strict=True):
        assert_close(mine.eval()(images), other.eval()(images))
        assert not torch.allclose(apart.eval()(images), other.eval()(images))


@pytest.mark.parametrize("norm", [nz.BatchNorm, nn.Identity, lambda c: nz.GroupNorm(2, c)])
def test_members_are_what_one_seed_alone_gives(digits, norm):
    both, second = train(digits, norm), train(digits, norm, seeds=(1,))
    images = digits.test_inputs[:5]
    assert_close(both[1].eval()(images), second[0].eval()(images))
    assert not torch.allclose(both[0].eval()(images), both[1].eval()(images))


def test_the_network_has_the_values_a_channel_that_it_says():
    seen = []

    class Spy(nn.Identity):
        def forward(self, input):
            seen.append(input[:, 0].numel())
            return input

    models.build(lambda: DigitsCNN(Spy), 0)(normal(3, 1, 8, 8))
    assert seen == [16 * 3, 4 * 3]


def test_wrong_counts_the_test_images(digits):
    class Constant(nn.Module):
        def forward(self, input):
            return torch.eye(10, dtype=torch.float64)[torch.full((len(input),), 3)]

    share = (digits.test_targets != 3).double().mean() * 100
    assert small_batches.percent_wrong([Constant()], digits).item() == pytest.approx(share.item())


def test_by_batch_statistics_is_each_batch_in_training_mode(digits):
    model = train(digits, nz.BatchNorm)[0].eval()
    images, before = digits.test_inputs[:6], copy.deepcopy(model.state_dict())
    found = small_batches.by_batch_statistics(model, images, 2)
    assert not model.training
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    peer = copy.deepcopy(model).train()
    expected = torch.cat([peer(part) for part in images.split(2)])
    assert_close(found, expected.detach(), 1e-10)
