"""The instruments of the chapter on initialization against closed forms and plain loops."""

import pytest
import torch
from torch import nn

import normalization as nz
from normbook.lab import draw, ensembles, models, training
from normbook.studies import starts


@pytest.mark.parametrize(
    ("function", "gain", "q", "expected"),
    [(torch.relu, 1.0, 3.0, 1.5), (torch.relu, 2**0.5, 0.7, 0.7), (torch.square, 1.0, 2.0, 3 * 4)],
)
def test_moment_map_of_relu_halves_and_of_a_square_is_its_fourth_moment(
    function, gain, q, expected
):
    assert starts.moment_map(function, gain, q) == pytest.approx(expected, rel=1e-8)


def test_iterate_applies_the_map_and_slope_is_its_derivative():
    assert starts.iterate(torch.relu, 1.0, 1.0, 3) == pytest.approx([1, 0.5, 0.25, 0.125])
    # q' = 3 q² has the derivative 6 q
    assert starts.slope(torch.square, 1.0, 2.0) == pytest.approx(12, rel=1e-5)


def test_wide_net_without_a_nonlinearity_keeps_its_energy():
    found = starts.wide_net(lambda x: x, 1.0, nets=4, width=128, layers=3)
    assert found.shape == (4, 4)
    assert torch.allclose(found[:, 0], torch.ones(4).double())
    assert (found - 1).abs().max() < 0.4


def test_a_held_linear_net_keeps_a_deviation_exactly():
    found = starts.wide_net(lambda x: x, 3.0, start=1.05, width=32, layers=4, held=True)
    assert torch.allclose(found, torch.full_like(found, 1.05), rtol=1e-12)


@pytest.mark.parametrize(("rule", "signal", "gradient"), [("fan_in", 1, 4), ("fan_out", 0.25, 1)])
def test_linear_energies_of_one_growing_layer(rule, signal, gradient):
    forward, backward = starts.linear_energies([64, 256], rule, nets=8, examples=64, seed=0)
    assert forward[:, 0].tolist() == backward[:, 1].tolist() == [1] * 8
    assert forward[:, 1].mean() == pytest.approx(signal, rel=0.05)
    assert backward[:, 0].mean() == pytest.approx(gradient, rel=0.05)


def test_diagnose_reads_what_a_step_does():
    net = models.build(lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), 0).cpu()
    inputs = draw(0, 6, 4)
    targets = torch.tensor([0, 1, 2, 0, 1, 2])
    found = starts.diagnose(net, inputs, targets, rate=0.1)
    last = net[2].weight.detach().clone()
    outputs = net(inputs)
    assert found["activations"][1].item() == pytest.approx(outputs.square().mean().sqrt().item())
    # the gradient of the mean cross-entropy by the logits is (softmax − one-hot) / n
    error = outputs.softmax(-1) - nn.functional.one_hot(targets, 3)
    assert found["gradients"][1].item() == pytest.approx(error.square().mean().sqrt().item())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    training.cross_entropy(outputs, targets).backward()
    optimizer.step()
    moved = (net[2].weight.detach() - last).norm() / last.norm()
    assert found["updates"][1].item() == pytest.approx(moved.item())
    assert found["weights"][1].item() == pytest.approx(last.square().mean().sqrt().item())


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
    data = torch.randn(20, 6, dtype=torch.float64), torch.arange(20) % 3
    hold = starts.hold_scalars(recipes)
    ensembles.train(members, *data, steps=3, learning_rate=0.1, optimizer="sgd", adjust=hold)
    for recipe, member in zip(recipes, members, strict=True):
        branch = member.blocks[0].branch
        moved = (
            branch.multiplier != 1 or branch.layer_biases.any() or branch.activation_biases.any()
        )
        assert bool(moved) == (recipe == "fixup")
        assert member.blocks[0].branch.layers[1].weight.abs().max() > 0, "the weights learn"


def test_batch_normalizes_each_branch():
    x = draw(2, 50, 8)
    written = make("batch").blocks[0](x) - x
    assert written.mean(0).abs().max() < 1e-12
    assert written.var(0, correction=0).mean().item() == pytest.approx(1, abs=1e-3)


def test_an_unknown_recipe_is_refused():
    with pytest.raises(ValueError, match="recipe must be one of"):
        make("fixdown")
