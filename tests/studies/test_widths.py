"""The deep network is the engine's, and the coordinates those of a step made by hand."""

import pytest
import torch
from torch import nn

import normalization as nz
from normbook.lab import draw, ensembles, models
from normbook.studies import widths


def net(seed):
    return models.build(lambda: models.MLP(inputs=6, width=32, depth=1, outputs=4), seed)


DATA = draw(0, 40, 6), torch.arange(40) % 4


def test_evaluation_is_a_loss_a_member():
    members = [net(0), net(1)]
    expected = [nn.functional.cross_entropy(m(DATA[0]), DATA[1]).item() for m in members]
    assert widths.evaluate_all(members, *DATA).tolist() == pytest.approx(expected)


def test_the_deep_network_is_drawn_to_keep_the_second_moment_and_scales_its_branches():
    model = models.build(lambda: widths.scaled_mlp(6, 50, 40, 4, scale=0.5), 0)
    x = model.stem(draw(0, 200, 6))
    assert x.square().mean().item() == pytest.approx(1, rel=0.2)
    block = model.blocks[0]
    written = block.branch(x / x.square().mean(1, keepdim=True).sqrt())
    assert written.square().mean().item() == pytest.approx(1, rel=0.2)
    norm = nz.LayerNorm(50, elementwise_affine=False)
    assert torch.allclose(block(x), x + 0.5 * block.branch(norm(x)))
    assert model.stem.bias is None
    assert not model.head.bias.any()
    assert model.head(norm(x)).shape == (200, 4)


def test_widths_train_to_the_end_and_say_so():
    members = [net(0), net(1)]
    groups = [ensembles.plain_group(*pair) for pair in zip(members, (0.01, 1e200), strict=True)]
    losses = widths.train(members, groups, *DATA, steps=6, optimizer="sgd")
    assert losses[0].isfinite().all()
    assert losses[1].isnan().any()


def test_coordinates_are_those_of_a_hand_made_step():
    model, before, after = net(0), net(0), net(0)
    nn.functional.cross_entropy(after(DATA[0]), DATA[1]).backward()
    with torch.no_grad():
        for weight in after.parameters():
            weight -= 0.05 * weight.grad
    layers, groups = [model.stem, model.head], ensembles.plain_group(model, 0.05)
    found = widths.coordinates(model, groups, *DATA, layers, steps=1, optimizer="sgd")
    outputs = [[m.stem(DATA[0]), m(DATA[0])] for m in (before, after)]
    for column in (0, 1):
        start, end = outputs[0][column], outputs[1][column]
        sizes = [x.square().mean().sqrt().item() for x in (start, end, end - start)]
        assert found.size[:, column].tolist() == pytest.approx(sizes[:2])
        assert found.change[:, column].tolist() == pytest.approx([0, sizes[2]])


def test_attentions_add_their_logits():
    options = {"dim": 8, "depth": 2, "outputs": 4, "length": 5, "features": 6}
    model = models.build(lambda: models.Transformer(**options, attention={"scale": 0.1}), 0)
    tokens, targets = draw(0, 3, 5, 6), torch.zeros(3, 5, dtype=torch.int64)
    first = model.blocks[0].attention
    expected = first.branch.logits(first.norm(model.embedding(tokens) + model.positions))
    groups = ensembles.plain_group(model, 0.1)
    found = widths.coordinates(model, groups, tokens, targets, [model.head], steps=1)
    assert found.size.shape == (2, 3)
    assert found.size[0, 1].item() == pytest.approx(expected.square().mean().sqrt().item())
    assert found.change[1].min() > 0


def test_rms_leaves_infinite_entries_out():
    values = torch.tensor([3.0, -4.0, -torch.inf])
    assert widths.rms(values).item() == pytest.approx((25 / 2) ** 0.5)
