"""Members with rates of their own: each ends where torch.optim alone takes it; the coordinates."""

import copy

import pytest
import torch
from torch import nn

import normalization as nz
from normbook.lab import models, widths


def normal(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def make(width):
    return models.MLP(inputs=6, width=width, depth=1, outputs=4, init=1.0)


def net(seed, width=32):
    return models.build(lambda: nz.mup_init_(make(width), make(8)), seed)


DATA = normal(40, 6), torch.arange(40) % 4
RATES = 0.003, 0.01, 0.03


def groups_of(model, rate, optimizer):
    return nz.mup_param_groups(model, make(8), rate, optimizer, eps=1e-3)


def alone(model, groups, optimizer, steps):
    descent = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[optimizer](groups, lr=1.0)
    losses = []
    for _ in range(steps):
        descent.zero_grad()
        loss = nn.functional.cross_entropy(model(DATA[0]), DATA[1])
        losses.append(loss.item())
        loss.backward()
        descent.step()
    return losses


# --- many members at once ---


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_each_member_ends_where_torch_optim_takes_it_alone(optimizer):
    members = [net(seed) for seed in range(3)]
    single = copy.deepcopy(members)
    groups = [groups_of(m, r, optimizer) for m, r in zip(members, RATES, strict=True)]
    losses = widths.train_rows(members, groups, *DATA, steps=12, optimizer=optimizer)
    for index, model in enumerate(single):
        expected = alone(model, groups_of(model, RATES[index], optimizer), optimizer, 12)
        assert losses[index].tolist() == pytest.approx(expected, abs=1e-10)
        for own, other in zip(model.parameters(), members[index].parameters(), strict=True):
            assert (own - other).abs().max() < 1e-10
    assert not torch.equal(losses[0], losses[1])


def test_epsilon_and_rates_of_the_groups_are_used():
    def final(eps, factor):
        model = net(0)
        groups = groups_of(model, 0.01, "adam")
        for group in groups:
            group["eps"], group["lr"] = eps, group["lr"] * factor[group["kind"] == "hidden"]
        return widths.train_rows([model], [groups], *DATA, steps=5)[0, -1]

    usual = final(1e-8, (1, 1))
    assert abs(final(1e-2, (1, 1)) - usual) > 1e-3
    assert abs(final(1e-8, (1, 4)) - usual) > 1e-3
    assert abs(final(1e-8, (4, 1)) - usual) > 1e-3


def test_batches_are_those_of_their_seed():
    def run(seed):
        model = net(0)
        groups = [widths.plain_groups(model, 0.01)]
        return widths.train_rows([model], groups, *DATA, steps=4, batch_size=8, seed=seed)

    assert torch.equal(run(1), run(1))
    assert not torch.equal(run(1), run(2))


def test_evaluation_is_a_loss_a_member():
    members = [net(0), net(1)]
    expected = [nn.functional.cross_entropy(m(DATA[0]), DATA[1]).item() for m in members]
    assert widths.evaluate_rows(members, *DATA).tolist() == pytest.approx(expected)


def test_wrong_groups_are_refused():
    first, second = net(0), net(1)
    plain = widths.plain_groups
    both = [plain(first, 0.1), plain(first, 0.1)]
    with pytest.raises(ValueError, match=r"groups\[1\]"):
        widths.train_rows([first, second], both, *DATA, steps=1)
    with pytest.raises(ValueError, match="one list a model"):
        widths.train_rows([first, second], [plain(first, 0.1)], *DATA, steps=1)
    with pytest.raises(ValueError, match="optimizer"):
        widths.train_rows([first], [plain(first, 0.1)], *DATA, steps=1, optimizer="lion")


# --- the deep network ---


def test_the_deep_network_is_the_engines_residual():
    model = models.build(lambda: widths.DeepMLP(6, 5, 2, 4, scale=0.5), 0)
    norm = nz.LayerNorm(5, elementwise_affine=False)
    x = DATA[0] @ model.stem
    for up, down in zip(model.up, model.down, strict=True):
        x = nz.Residual(lambda h, u=up, d=down: (h @ u).relu() @ d, norm, "pre", scale=0.5)(x)
    expected = norm(x) @ model.head + model.bias
    assert (model(DATA[0]) - expected).abs().max() < 1e-12


# --- the coordinate check ---


def test_coordinates_are_those_of_a_hand_made_step():
    model = net(0)
    before, after = copy.deepcopy(model), copy.deepcopy(model)
    rate = 0.05
    loss = nn.functional.cross_entropy(after(DATA[0]), DATA[1])
    loss.backward()
    with torch.no_grad():
        for weight in after.parameters():
            weight -= rate * weight.grad
    layers = [model.stem, model.head]
    groups = widths.plain_groups(model, rate)
    found = widths.coordinates(model, groups, *DATA, layers, steps=1, optimizer="sgd")
    outputs = [[m.stem(DATA[0]), m(DATA[0])] for m in (before, after)]
    for column in (0, 1):
        start, end = outputs[0][column], outputs[1][column]
        expected = [start.square().mean().sqrt().item(), end.square().mean().sqrt().item()]
        assert found.size[:, column].tolist() == pytest.approx(expected)
        moved = (end - start).square().mean().sqrt().item()
        assert found.change[:, column].tolist() == pytest.approx([0, moved])


def test_attentions_add_their_logits():
    def make(scale):
        options = {"dim": 8, "depth": 2, "outputs": 4, "length": 5, "features": 6}
        return models.Transformer(**options, attention={"scale": scale})

    model = models.build(lambda: make(0.1), 0)
    tokens, targets = normal(3, 5, 6), torch.zeros(3, 5, dtype=torch.int64)
    first = model.blocks[0].attention
    expected = first.branch.logits(first.norm(model.embedding(tokens) + model.positions))
    groups = widths.plain_groups(model, 0.1)
    found = widths.coordinates(model, groups, tokens, targets, [model.head], steps=1)
    assert found.size.shape == (2, 3)
    assert found.size[0, 1].item() == pytest.approx(expected.square().mean().sqrt().item())
    assert found.change[1].min() > 0


def test_rms_leaves_infinite_entries_out():
    values = torch.tensor([3.0, -4.0, -torch.inf])
    assert widths.rms(values).item() == pytest.approx((25 / 2) ** 0.5)
