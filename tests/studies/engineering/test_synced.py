"""BatchNorm over two processes against PyTorch's own BatchNorm on the whole batch."""

import pytest
import torch
from engine_helpers import assert_close, normal
from helpers import output_of

from normbook.studies.engineering import synced

CASES = {  # shape of the batch, shares, and whether the statistics are
    "equal": ((32, 5), [16, 16], True),
    "unequal": ((32, 5), [24, 8], True),
    "images": ((12, 3, 4, 2), [9, 3], True),
    "one value": ((7, 4), [6, 1], True),
    "alone": ((32, 5), [24, 8], False),
    "images alone": ((12, 3, 4, 2), [6, 6], False),
}
SYNCED = [name for name, (*_, synchronized) in CASES.items() if synchronized]
ALONE = [name for name in CASES if name not in SYNCED]


def case(shape, sizes, synchronized=True):
    x, grad = normal(*shape, offset=50.0, scale=2.0), normal(*shape, seed=1)
    weight, bias = normal(shape[1], seed=2), normal(shape[1], seed=3)
    return (
        x,
        grad,
        synced.SharedBatch(x.split(sizes), grad.split(sizes), weight, bias, synchronized),
    )


BATCH = case((4, 2), [2, 2])[-1]


def whole(x, grad, batch):
    """PyTorch's own, on one process with everything: output and the three gradients."""
    leaves = [value.clone().requires_grad_() for value in (x, batch.weight, batch.bias)]
    own = torch.nn.functional.batch_norm
    output = own(leaves[0], None, None, *leaves[1:], training=True, eps=batch.eps)
    return output, *torch.autograd.grad(output, leaves, grad)


def joined(parts):
    return [
        torch.cat([part.output for part in parts]),
        torch.cat([part.grad_input for part in parts]),
        sum(part.grad_weight for part in parts),
        sum(part.grad_bias for part in parts),
    ]


@pytest.fixture(scope="module")
def done():
    """All cases in one start of the two processes: each costs an import of PyTorch."""
    cases = [case(*given) for given in CASES.values()]
    parts = synced.run([batch for _, _, batch in cases])
    return {name: (*one, got) for name, one, got in zip(CASES, cases, parts, strict=True)}


@pytest.mark.parametrize("name", SYNCED)
def test_synchronized_it_is_the_whole_batchs_norm(done, name):
    x, grad, batch, parts = done[name]
    for actual, expected in zip(joined(parts), whole(x, grad, batch), strict=True):
        assert_close(actual, expected)
    axes = [axis for axis in range(x.dim()) if axis != 1]
    for part in parts:
        assert_close(part.mean, x.mean(axes))
        assert_close(part.variance, x.var(axes, correction=0))
        # the bytes depend on the channels alone
        assert part.sent_forward == 8 * (2 * x.shape[1] + 1)
        assert part.sent_backward == 8 * 2 * x.shape[1]
        assert part.collectives == 2


@pytest.mark.parametrize("name", ALONE)
def test_alone_each_process_norms_its_own_share(done, name):
    x, grad, batch, parts = done[name]
    for part, share, upstream in zip(parts, batch.inputs, batch.gradients, strict=True):
        for actual, expected in zip(joined([part]), whole(share, upstream, batch), strict=True):
            assert_close(actual, expected)
        assert (part.sent_forward, part.sent_backward, part.collectives) == (0, 0, 0)
    # and that is not the norm of the whole batch
    for actual, expected in zip(joined(parts)[:2], whole(x, grad, batch)[:2], strict=True):
        assert (actual - expected).abs().max() > 0.01


def test_combine_merges_any_number_of_parts():
    x = normal(60, 3, offset=5.0)
    pieces = x.split([1, 9, 20, 30])
    counts = torch.tensor([float(len(piece)) for piece in pieces], dtype=torch.float64)
    means = torch.stack([piece.mean(0) for piece in pieces])
    squares = torch.stack([(piece - piece.mean(0)).square().sum(0) for piece in pieces])
    total, mean, square = synced.combine(counts, means, squares)
    assert total == 60
    assert_close(mean, x.mean(0))
    assert_close(square / 60, x.var(0, correction=0))


def test_a_process_that_fails_is_reported_and_time_runs_out():
    halves = [BATCH.inputs[0], BATCH.inputs[1].float()]  # the collectives will not take both
    with pytest.raises(RuntimeError, match=r"process \d failed"):
        synced.run([BATCH._replace(inputs=halves)], timeout=60)
    with pytest.raises(RuntimeError, match=r"done in 0\.01 s"):
        synced.run([BATCH], timeout=0.01)


@pytest.mark.parametrize(
    ("batches", "words"),
    [
        ([], "same number of shares"),
        ([BATCH._replace(inputs=[])], "same number of shares"),
        ([BATCH._replace(inputs=[], gradients=[])], "same number of shares"),
        ([BATCH._replace(weight=torch.ones(3))], "weight must have shape"),
        ([BATCH._replace(bias=torch.ones(3))], "bias must have shape"),
        ([BATCH._replace(inputs=[torch.ones(2)] * 2)], "not empty"),
        ([BATCH._replace(gradients=[torch.ones(2, 3), torch.ones(2, 2)])], "shaped alike"),
    ],
)
def test_batches_that_do_not_fit_are_refused(batches, words):
    with pytest.raises(ValueError, match=words):
        synced.run(batches)


NO_GUARD = """
print('once')
import torch
from normbook.studies.engineering import synced
x = torch.randn(4, 2, dtype=torch.float64)
one = torch.ones(2, dtype=torch.float64)
parts = synced.run([synced.SharedBatch(x.split(2), x.split(2), one, one)])
print(len(parts[0]))
"""


def test_a_program_without_a_main_guard_may_call_it():
    """A notebook has none either: nothing of the caller runs again in the processes."""
    assert output_of(NO_GUARD).split() == ["once", "2"]
