"""Norm-free networks: variance by arithmetic, clipping a member at a time, and fits of a tanh."""

import math

import pytest
import torch
from torch import nn

import normalization as nz
from normbook.lab import draw, ensembles, models, training
from normbook.studies import norm_free


def build(recipe, seed, **options):
    return models.build(lambda: norm_free.residual_mlp(recipe, 2, **options), seed)


# --- the NF-ResNet ---


def test_the_predicted_variance_is_a_sawtooth():
    stage = [1.0, 1.04, 1.08, 1.12, 1.16]
    expected = [*stage, *stage[1:], *stage[1:]]
    assert norm_free.predicted_variances().tolist() == pytest.approx(expected)


@pytest.mark.parametrize("gain", [0.0, 1.0])
def test_the_stream_is_that_of_the_forward_pass(gain):
    network = models.build(lambda: norm_free.NFResNet(channels=4, skip_gain=gain), 0)
    images = draw(0, 3, 1, 8, 8)
    x = network.stem(images)
    x = x / x.square().mean().sqrt()
    for block in network.blocks:
        x = block(x)
    found = norm_free.stream_variances(network, images)
    assert len(found) == 13
    assert found[0].item() == pytest.approx(1)
    assert found[-1].item() == pytest.approx(x.square().mean().item())
    flat = [abs(found[i + 1] - found[i]).item() < 1e-12 for i in range(4)]
    assert all(flat) == (gain == 0)
    # the stages halve the side and double the channels, past the shortcut too
    assert network(images).shape == (3, 16, 2, 2)
    assert network.blocks[4].shortcut.weight.shape == (8, 4, 1, 1)


# --- the MLP ---


def test_a_standardized_linear_layer_is_a_standardized_convolution():
    linear = models.build(lambda: norm_free.StandardizedLinear(6, 5, 1.5), 0)
    convolution = models.build(lambda: nz.ScaledWSConv2d(6, 5, 1, gamma=1.5, bias=False), 1)
    with torch.no_grad():
        linear.gain.copy_(draw(0, 5, 1))
        convolution.weight.copy_(linear.weight[..., None, None])
        convolution.gain.copy_(linear.gain[..., None, None])
    x = draw(0, 4, 6)
    torch.testing.assert_close(linear(x), convolution(x[..., None, None])[..., 0, 0])


def test_alpha_starts_where_it_is_told_and_an_unknown_recipe_is_refused():
    found = [m.alpha.item() for m in build("DyT", 0, alpha=3.0).modules() if isinstance(m, nz.DyT)]
    assert found == [3.0] * 3
    with pytest.raises(ValueError, match="recipe must be one of"):
        norm_free.residual_mlp("norm")


# --- training ---


@pytest.mark.parametrize(
    ("recipe", "clip"), [("none", 0.01), ("BatchNorm", None), ("NF", None), ("NF", 0.01)]
)
def test_descending_at_once_is_descending_alone(recipe, clip):
    inputs, targets = draw(0, 40, 1, 8, 8), torch.arange(40) % 10
    rates, members = [0.05, 0.2], [build(recipe, seed) for seed in range(2)]
    options = {"steps": 4, "learning_rate": rates, "optimizer": "sgd", "batch_size": 8}
    adjust = None if clip is None else norm_free.agc(clip)
    found = ensembles.train(members, inputs, targets, adjust=adjust, **options).losses
    for seed, rate in enumerate(rates):
        network, losses = build(recipe, seed), []
        descent = torch.optim.SGD(network.parameters(), lr=rate)
        for chosen in training.batch_indices(40, 8, 4, 0):
            loss = nn.functional.cross_entropy(network(inputs[chosen]), targets[chosen])
            losses.append(loss.item())
            descent.zero_grad()
            loss.backward()
            if clip is not None:
                body = [p for n, p in network.named_parameters() if not n.startswith("head")]
                nz.adaptive_clip_grad_(body, clip)
            descent.step()
        assert found[seed].tolist() == pytest.approx(losses, rel=1e-9)


# --- fits ---


def test_a_tanh_is_found_again():
    x = draw(0, 5000)
    steepness = (10 ** (-0.5) / x.std()).item()  # one of the grid
    fit = norm_free.fit_squash(x, 3 * torch.tanh(steepness * x))
    assert fit.steepness == pytest.approx(steepness, rel=0.05)
    assert fit.left_by_tanh < 1e-4 < fit.left_by_line


def test_a_line_leaves_what_least_squares_leaves():
    x, noise = draw(0, 5000), draw(1, 5000)
    y = 2 * x + noise
    slope = torch.linalg.lstsq(x[:, None], y[:, None]).solution
    left = (y - slope[0] * x).square().sum() / y.square().sum()
    assert norm_free.fit_squash(x, y).left_by_line == pytest.approx(left.item())
    assert math.isclose(norm_free.fit_squash(x, 2 * x).left_by_line, 0, abs_tol=1e-12)


def test_what_norms_read_comes_in_order():
    network = nn.Sequential(nz.LayerNorm(4), nn.Linear(4, 4), nz.LayerNorm(4)).double()
    x = draw(0, 3, 4)
    first, second = norm_free.norm_inputs(network, nz.LayerNorm, x)
    torch.testing.assert_close(first, x)
    torch.testing.assert_close(second, network[1](network[0](x)).detach())
    assert not network[0]._forward_pre_hooks
