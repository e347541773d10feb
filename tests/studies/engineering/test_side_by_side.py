"""The table of norms says what it says of PyTorch's layers, and notices a norm that differs."""

import pytest
import torch
from torch import nn

from normbook.lab import invariances
from normbook.studies.engineering import side_by_side
from normbook.studies.engineering.side_by_side import NAMES, WIDTH

NATIVE = {
    "BatchNorm": lambda: invariances.ChannelsLast(nn.BatchNorm1d(WIDTH)),
    "LayerNorm": lambda: nn.LayerNorm(WIDTH),
    "RMSNorm": lambda: nn.RMSNorm(WIDTH, eps=1e-5),
    "GroupNorm": lambda: invariances.ChannelsLast(nn.GroupNorm(2, WIDTH)),
    "InstanceNorm": lambda: invariances.ChannelsLast(nn.InstanceNorm1d(WIDTH, affine=True)),
}


pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.parametrize("name", NATIVE)
def test_pytorchs_layer_gives_the_same_column(name, monkeypatch):
    ours = side_by_side.dependence(name, range(2)) | side_by_side.stored(name)
    monkeypatch.setattr(side_by_side, "norm_of", lambda _, width: NATIVE[name]())
    assert side_by_side.dependence(name, range(2)) | side_by_side.stored(name) == ours


@pytest.mark.parametrize("name", NAMES)
def test_a_layer_is_the_linear_map_and_its_norm(name):
    layer, x = side_by_side.layer_of(name), invariances.draw_sequences(0)
    assert layer(x).shape == x.shape
    assert torch.equal(layer(x), layer.norm(x @ layer.linear.weight.T))


def test_weight_norm_keeps_the_rows_that_were_drawn_and_parametrizes_no_other_layer():
    plain, ours = side_by_side.layer_of("DyT"), side_by_side.layer_of("WeightNorm")
    rows = (ours.linear.weight / plain.linear.weight).detach()
    assert torch.allclose(rows, rows[:, :1].expand_as(rows))
    assert isinstance(plain.linear.weight, nn.Parameter)
    assert not isinstance(ours.linear.weight, nn.Parameter)


def test_a_layer_that_mixes_features_moves(monkeypatch):
    class Mixes(nn.Module):
        def forward(self, input):
            return input + input.sum(-1, keepdim=True)

    monkeypatch.setattr(side_by_side, "norm_of", lambda *_: Mixes())
    found = side_by_side.dependence("DyT", range(2))
    assert (found["other features"], found["other examples"]) == ("moves", "same")


def test_counts_are_written_in_widths():
    found = [side_by_side.in_widths(count) for count in (0, 1, 8, 16, 17, 80)]
    assert found == ["0", "1", "d", "2d", "2d + 1", "10d"]


def test_a_fused_norm_makes_two_passes(monkeypatch):
    monkeypatch.setattr(side_by_side, "norm_of", lambda _, width: nn.LayerNorm(width))
    found = side_by_side.moved_data("LayerNorm")
    assert found["reductions"] == "0"
    assert float(found["passes"]) == pytest.approx(2, abs=0.1)


def test_an_unknown_norm_is_refused():
    with pytest.raises(ValueError, match="name must be one of 'BatchNorm'"):
        side_by_side.norm_of("PowerNorm", 8)
