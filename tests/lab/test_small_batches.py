"""Small batches: ghosts are BatchNorm on each part, and the network takes any norm."""

import copy

import pytest
import torch
from torch import nn

import normalization as nz
from normbook.lab import data, models, small_batches
from normbook.lab.small_batches import DigitsCNN, GhostBatchNorm


def normal(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


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
    x = normal(6, 5, 4, 3)
    ghost, peer = norms(size)
    start = copy.deepcopy(peer.state_dict())
    outputs, means, variances = [], [], []
    for part in x.split(size):
        peer.load_state_dict(start)
        outputs.append(peer(part))
        means.append(peer.running_mean.clone())
        variances.append(peer.running_var.clone())
    torch.testing.assert_close(ghost(x), torch.cat(outputs), rtol=1e-12, atol=1e-12)
    for moved, parts in ((ghost.running_mean, means), (ghost.running_var, variances)):
        torch.testing.assert_close(moved, torch.stack(parts).mean(0), rtol=1e-12, atol=1e-12)


def test_ghosts_pass_the_same_gradients_as_the_parts():
    x = normal(6, 5, 4, 3).requires_grad_()
    ghost, peer = norms(2)
    leaves = x, ghost.weight, ghost.bias
    found = torch.autograd.grad(ghost(x).sin().sum(), leaves)
    total = torch.cat([peer(part) for part in x.split(2)]).sin().sum()
    expected = torch.autograd.grad(total, (x, peer.weight, peer.bias))
    for mine, other in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-10, atol=1e-10)


def test_in_evaluation_ghosts_use_the_running_statistics():
    x = normal(5, 5, 4, 3)
    ghost, peer = norms(2)
    torch.testing.assert_close(ghost.eval()(x), peer.eval()(x), rtol=1e-12, atol=1e-12)


def test_a_batch_that_does_not_divide_is_refused():
    with pytest.raises(ValueError, match="size must divide the 5 examples, got 2"):
        norms(2)[0](normal(5, 5, 4, 3))


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
        torch.testing.assert_close(mine.eval()(images), other.eval()(images))
        assert not torch.allclose(apart.eval()(images), other.eval()(images))


@pytest.mark.parametrize("norm", [nz.BatchNorm, nn.Identity, lambda c: nz.GroupNorm(2, c)])
def test_members_are_what_one_seed_alone_gives(digits, norm):
    both, second = train(digits, norm), train(digits, norm, seeds=(1,))
    images = digits.test_inputs[:5]
    torch.testing.assert_close(both[1].eval()(images), second[0].eval()(images))
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
    torch.testing.assert_close(found, expected.detach(), rtol=1e-10, atol=1e-10)
