"""The dispatcher's record agrees with counts done by hand."""

import pytest
import torch
from torch.nn import functional as F

import normalization as nz
from normbook.lab.dispatch import Operator, record, traffic

ROWS, WIDTH = 8, 32
INPUT = ROWS * WIDTH * 8  # bytes in float64
ROW = ROWS * 8


@pytest.fixture
def x():
    return torch.randn(ROWS, WIDTH, dtype=torch.float64)


def test_an_elementwise_operator_reads_and_writes_its_tensors(x):
    assert record(lambda: x + x) == [Operator("add", False, False, 2 * INPUT, INPUT)]
    assert record(lambda: x.mul_(2)) == [Operator("mul_", False, False, INPUT, INPUT)]


def test_a_mean_reads_all_and_writes_a_column(x):
    assert record(lambda: x.mean(-1, keepdim=True)) == [Operator("mean", True, False, INPUT, ROW)]


def test_operators_come_in_their_order_and_views_move_nothing(x):
    assert [op.name for op in record(lambda: (x.exp() - 1).sum())] == ["exp", "sub", "sum"]
    views = (
        *(lambda: x.reshape(2, -1), lambda: x.T, lambda: x.detach(), lambda: x[1:3]),
        lambda: x.expand(3, ROWS, WIDTH),
    )
    assert [record(view) for view in views] == [[]] * len(views)
    assert [op.name for op in record(lambda: x.T.contiguous())] == ["clone"]


def test_an_expanded_tensor_counts_what_is_in_memory(x):
    column = x[:, :1].contiguous().expand(ROWS, WIDTH)
    assert record(lambda: x * column)[0].read == INPUT + ROW


def test_fused_norms_are_one_operator_and_no_visible_reduction(x):
    for call in (
        lambda: F.layer_norm(x, (WIDTH,)),
        lambda: F.group_norm(x, 2),
        lambda: F.batch_norm(x, None, None, training=True),
    ):
        (operator,) = record(call)
        assert operator.fused
        assert not operator.reduction
        assert operator.read == INPUT


def test_layer_norm_by_hand(x):
    """Mean, difference, square, mean of squares, product: 5 + 1 passes over the input."""
    found = traffic(record(lambda: nz.layer_norm(x, WIDTH)))
    assert found.reductions == 2
    # reads: mean 1, subtraction 1 + row, square 1, mean 1, (+ eps, rsqrt: 2 rows), product 1 + row
    assert found.read == 5 * INPUT + 4 * ROW
    # writes: a row, difference 1, square 1, a row, 2 rows, product 1
    assert found.written == 3 * INPUT + 4 * ROW
    assert found.operators == 7
    assert traffic(record(lambda: nz.rms_norm(x, WIDTH))).reductions == 1


def test_a_backward_pass_is_counted(x):
    x.requires_grad_()
    forward = traffic(record(lambda: nz.layer_norm(x, WIDTH)))
    both = traffic(record(lambda: nz.layer_norm(x, WIDTH).square().sum().backward()))
    assert both.operators > 2 * forward.operators


def test_an_error_leaves_no_recorder_behind(x):
    with pytest.raises(TypeError, match="function must be callable, got int"):
        record(3)
    with pytest.raises(ZeroDivisionError):
        record(lambda: 1 / 0)
    assert (x + 1).shape == x.shape
    assert traffic(record(lambda: None)) == (0, 0, 0, 0)
