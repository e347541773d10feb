"""The instruments of the chapter on initialization against closed forms and plain loops."""

import math

import pytest
import torch
from torch import nn

import normalization as nz
from normbook.lab import draw, ensembles, models, training
from normbook.studies import starts


def test_the_moment_map_its_iteration_and_its_slope():
    assert starts.moment_map(torch.relu, math.sqrt(2), 0.7) == pytest.approx(0.7, abs=1e-9)
    # the fourth moment of √2 z
    assert starts.moment_map(torch.square, 1.0, 2.0) == pytest.approx(3 * 4, abs=1e-6)
    assert starts.iterate(torch.relu, 1.0, 1.0, 3) == pytest.approx([1, 0.5, 0.25, 0.125])
    # q' = 3 q² has the derivative 6 q
    assert starts.slope(torch.square, 1.0, 2.0) == pytest.approx(12, rel=1e-5)


def test_a_linear_wide_net_keeps_its_energy_and_rescaled_a_deviation_exactly():
    found = starts.wide_net(lambda x: x, 1.0, nets=4, width=128, layers=3)
    assert found.shape == (4, 4)
    assert torch.allclose(found[:, 0], torch.ones(4).double())
    assert (found - 1).abs().max() < 0.4
    found = starts.wide_net(lambda x: x, 3.0, start=1.05, width=32, layers=4, rescaled=True)
    assert torch.allclose(found, torch.full_like(found, 1.05), rtol=1e-12)


@pytest.mark.parametrize(("rule", "signal", "gradient"), [("fan_in", 1, 4), ("fan_out", 0.25, 1)])
def test_linear_energies_of_one_growing_layer(rule, signal, gradient):
    forward, backward = starts.linear_energies([64, 256], rule, nets=8, examples=64, seed=0)
    assert forward[:, 0].tolist() == backward[:, 1].tolist() == [1] * 8
    assert forward[:, 1].mean() == pytest.approx(signal, rel=0.05)
    assert backward[:, 0].mean() == pytest.approx(gradient, rel=0.05)


def test_diagnose_reads_what_a_step_does():
    net = models.build(lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), 0).cpu()
    inputs, targets = draw(0, 6, 4), torch.arange(6) % 3
    found = starts.diagnose(net, inputs, targets, rate=0.1)
    last, outputs = net[2].weight.detach().clone(), net(inputs)
    # the gradient of the mean cross-entropy by the logits is (softmax − one-hot) / n
    error = outputs.softmax(-1) - nn.functional.one_hot(targets, 3)
    training.cross_entropy(outputs, targets).backward()
    torch.optim.SGD(net.parameters(), lr=0.1).step()
    named = {"activations": outputs, "gradients": error, "weights": last}
    expected = {name: values.square().mean().sqrt().item() for name, values in named.items()}
    expected["updates"] = ((net[2].weight.detach() - last).norm() / last.norm()).item()
    assert {name: sizes[1].item() for name, sizes in found.items()} == pytest.approx(expected)


# --- Fixup ---


def make(recipe, depth=4, seed=0):
    size = {"inputs": 6, "width": 8, "depth": depth, "outputs": 3}
    return models.build(lambda: starts.fixup_mlp(recipe, **size), seed).cpu()


@pytest.mark.parametrize("recipe", starts.LEAVES_OUT)
def test_each_recipe_leaves_out_its_rule(recipe):
    net = make(recipe, depth=16)
    everything = recipe in ("naive", "batch")
    branch = net.blocks[0].branch
    first, last = (m for m in branch.modules() if isinstance(m, nn.Linear))
    assert (last.weight.abs().max() > 0) == (everything or recipe == "last")
    assert (net.head.weight.abs().max() > 0) == (everything or recipe == "classifier")
    shrunk = first.weight.square().mean().item() * 8 / 2
    assert (shrunk > 0.4) == (everything or recipe == "depth")  # 1, or 1/16
    assert isinstance(branch, nz.FixupBranch) == (recipe != "batch")


def test_scalars_that_do_not_learn_stay():
    recipes = ["fixup", "naive", "scalars"]
    members = [make(recipe) for recipe in recipes]
    data = draw(0, 20, 6), torch.arange(20) % 3
    hold = starts.hold_scalars(recipes)
    ensembles.train(members, *data, steps=3, learning_rate=0.1, optimizer="sgd", adjust=hold)
    for recipe, member in zip(recipes, members, strict=True):
        branch = member.blocks[0].branch
        biases = torch.cat([branch.layer_biases, branch.activation_biases])
        assert bool(branch.multiplier != 1 or biases.any()) == (recipe == "fixup")
        assert branch.layers[1].weight.abs().max() > 0, "the weights learn"


def test_batch_normalizes_each_branch_and_an_unknown_recipe_is_refused():
    x = draw(2, 50, 8)
    written = make("batch").blocks[0](x) - x
    assert written.mean(0).abs().max() < 1e-12
    assert written.var(0, correction=0).mean().item() == pytest.approx(1, abs=1e-3)
    with pytest.raises(ValueError, match="recipe must be one of"):
        make("fixdown")
