"""The table of invariances: for norms written here, whose verdicts follow from their axes."""

import copy

import pytest
import torch
from engine_helpers import assert_close, refused
from matplotlib.figure import Figure
from torch import nn

import normalization as nz
from normbook.lab import figures, invariances
from normbook.lab.invariances import (
    SHAPE,
    ChannelsLast,
    draw_sequences,
    draw_table,
    measure,
    verdicts,
)


def norm_over(*axes, centers=True):
    """A norm over these axes of [n, T, d], by torch's own variance."""

    def norm(x):
        rest = x - x.mean(axes, keepdim=True) if centers else x
        return rest / rest.square().mean(axes, keepdim=True).sqrt()

    return norm


def blind_to(norm):
    """The probes that the norm does not see."""
    return {name for name, word in verdicts(measure(norm)).items() if word == "same"}


WHOLE = {"everything + 3", "everything × 3", "weight × 3"}
SHIFTS = {"everything + 3", "one token + 3", "one feature + 3", "same row added to all"}
ALONE = {"other examples", "other tokens", "length"}
TOKEN = {"one token + 3", "one token × 3", "same row added to all"}
FEATURE = {"one feature + 3", "one feature × 3", "one row of it × 3"}
MODE = {"train or eval"}
LAYER = WHOLE | TOKEN | ALONE | MODE
EXAMPLE = WHOLE | {"other examples"} | MODE
INSTANCE = EXAMPLE | FEATURE


@pytest.mark.parametrize(
    ("norm", "expected"),
    [
        (lambda x: x, ALONE | MODE),
        (norm_over(2), LAYER),
        (nz.LayerNorm(8, eps=0.0).double(), LAYER),
        (norm_over(2, centers=False), LAYER - SHIFTS),
        (nz.RMSNorm(8, eps=0.0).double(), LAYER - SHIFTS),
        (norm_over(0, 1), WHOLE | FEATURE | MODE),
        (norm_over(1), INSTANCE),
        (ChannelsLast(nn.InstanceNorm1d(8, eps=0.0).double()), INSTANCE),
        (norm_over(1, 2), EXAMPLE),
        (ChannelsLast(nn.GroupNorm(1, 8, eps=0.0).double()), EXAMPLE),
        (norm_over(0, 1, 2), WHOLE | MODE),
        (lambda x: x - x.mean(2, keepdim=True), SHIFTS - {"one feature + 3"} | ALONE | MODE),
        (lambda x: x.cumsum(1), {"other examples", "length"} | MODE),
    ],
)
def test_verdicts_follow_from_the_axes(norm, expected):
    assert blind_to(norm) == expected


def test_batch_norm_differs_by_mode_and_is_left_as_it_was():
    layer = ChannelsLast(nz.BatchNorm(8, eps=0.0).double())
    before = copy.deepcopy(layer.state_dict())
    assert blind_to(layer) == WHOLE | FEATURE
    assert layer.training
    for name, value in layer.state_dict().items():
        assert torch.equal(value, before[name])
    layer(draw_sequences(99))
    assert blind_to(layer.eval()) == ALONE


def test_channels_last_is_the_layer_on_swapped_axes():
    expected = nn.functional.batch_norm(draw_sequences(0).mT, None, None, training=True).mT
    assert_close(ChannelsLast(nn.BatchNorm1d(8).double())(draw_sequences(0)), expected)


def test_draws_differ_by_example_token_and_feature():
    x = draw_sequences(0)
    assert x.shape == SHAPE
    assert torch.equal(x, draw_sequences(0))
    assert not torch.equal(x, draw_sequences(1))
    for axes in ((1, 2), (0, 2), (0, 1)):
        assert x.mean(axes).std() > 1
        assert x.std(axes).log().std() > 0.2


def test_a_change_is_of_one_token_or_of_one_feature():
    x = draw_sequences(0)
    for change, index in ((invariances.added, (0, 0)), (invariances.scaled, (..., 0))):
        moved = (change(x, *index) != x).nonzero()
        touched = torch.zeros_like(x, dtype=torch.bool)
        touched[index] = True
        assert torch.equal(moved, touched.nonzero())
    assert torch.equal(invariances.added(x), x + 3)
    assert torch.equal(invariances.scaled(x), x * 3)


def test_moved_is_a_share_of_the_largest_value():
    before = torch.tensor([1.0, -4.0])
    assert invariances.moved(before, torch.tensor([1.5, -6.0])) == 0.5


def test_the_table_shows_every_verdict_where_it_belongs():
    columns = {
        "A": {"x": "same", "y": "moves", "z": "moves"},
        "B": {"x": "moves", "y": "same", "z": "moves"},
    }
    figure = Figure()
    axis = figure.add_subplot()
    draw_table(axis, columns)
    assert [label.get_text() for label in axis.get_xticklabels()] == ["A", "B"]
    assert [label.get_text() for label in axis.get_yticklabels()] == ["x", "y", "z"]
    assert axis.yaxis_inverted()
    for number, text in enumerate(axis.texts):
        row, column = divmod(number, 2)
        assert text.get_position() == (column + 0.5, row + 0.5)
        assert text.get_text() == columns["AB"[column]]["xyz"[row]]
    filled = axis.collections[0].get_array().reshape(3, 2)
    assert filled.tolist() == [[0, 1], [1, 0], [1, 1]]
    assert "moves: 6 points" in figures.digest(figure)


# --- what is refused ---

BAD = [
    # seeds disagree, or rounding cannot be told from a move, or 0 / 0
    (lambda: verdicts({"length": [0.0, 1.0]}), ValueError, "'length' must be below"),
    (lambda: verdicts({"length": [1e-6, 1e-6]}), ValueError, "'length' must be below"),
    (lambda: verdicts({"length": [1.0, 1e-5]}), ValueError, "'length' must be below"),
    (lambda: blind_to(torch.zeros_like), ValueError, "got .*nan"),
    # an epsilon makes a scale visible a little
    (
        lambda: blind_to(nz.LayerNorm(8, eps=1e-6).double()),
        *(ValueError, "'everything × 3' must be below"),
    ),
    *[
        (lambda c=columns: draw_table(None, c), ValueError, "columns must hold norms")
        for columns in ({}, {"A": {}}, {"A": {"x": "same"}, "B": {"y": "same"}})
    ],
]
test_no_verdict_and_no_table_of_these = refused(BAD)
