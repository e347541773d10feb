"""BatchNorm over two processes against PyTorch's own BatchNorm on the whole batch."""

import os
import subprocess
import sys

import pytest
import torch
from engine_helpers import normal, refused
from helpers import ROOT

from normbook.studies.engineering import synced

TOLERANCE = 1e-12
SHAPES = {"vectors": (32, 5), "images": (12, 3, 4, 2)}
SIZES = {"equal": [0.5, 0.5], "unequal": [0.75, 0.25]}
CASES = [("vectors", "unequal"), ("images", "equal")]
CHANNELS_MEAN = 50.0


def case(shape, sizes, synchronized=True):
    x = normal(*shape, offset=CHANNELS_MEAN, scale=2.0)
    grad = normal(*shape, seed=1)
    weight, bias = normal(shape[1], seed=2), normal(shape[1], seed=3)
    split = [round(size * shape[0]) for size in sizes]
    return x, grad, synced.Job(x.split(split), grad.split(split), weight, bias, synchronized)


def whole(x, grad, job):
    """PyTorch's own, on one process with everything: output and the three gradients."""
    norm = torch.nn.BatchNorm1d if x.dim() == 2 else torch.nn.BatchNorm2d
    norm = norm(x.shape[1], job.eps, dtype=torch.float64)
    with torch.no_grad():
        norm.weight.copy_(job.weight)
        norm.bias.copy_(job.bias)
    leaf = x.clone().requires_grad_()
    output = norm(leaf)
    return output, *torch.autograd.grad(output, [leaf, norm.weight, norm.bias], grad)


def joined(parts):
    return [
        torch.cat([part.output for part in parts]),
        torch.cat([part.grad_input for part in parts]),
        sum(part.grad_weight for part in parts),
        sum(part.grad_bias for part in parts),
    ]


def gap(actual, expected):
    return (actual - expected).abs().max().item()


def assert_whole(parts, x, grad, job):
    for actual, expected in zip(joined(parts), whole(x, grad, job), strict=True):
        assert gap(actual, expected) < TOLERANCE * max(1.0, expected.abs().max().item())


@pytest.fixture(scope="module")
def done():
    """All cases in one start of the two processes: each costs an import of PyTorch."""
    keys = [(*names, synchronized) for names in CASES for synchronized in (True, False)]
    cases = [case(SHAPES[shape], SIZES[sizes], flag) for shape, sizes, flag in keys]
    keys, cases = [*keys, "single"], [*cases, case((7, 4), [6 / 7, 1 / 7])]
    parts = synced.run([job for _, _, job in cases])
    return {key: (*one, got) for key, one, got in zip(keys, cases, parts, strict=True)}


@pytest.mark.parametrize(("shape", "sizes"), CASES)
def test_synchronized_it_is_the_whole_batchs_norm(done, shape, sizes):
    x, grad, job, parts = done[shape, sizes, True]
    assert_whole(parts, x, grad, job)
    axes = [axis for axis in range(x.dim()) if axis != 1]
    for part in parts:
        assert gap(part.mean, x.mean(axes)) < TOLERANCE * CHANNELS_MEAN
        assert gap(part.variance, x.var(axes, correction=0)) < 10 * TOLERANCE


@pytest.mark.parametrize(("shape", "sizes"), CASES)
def test_alone_each_process_norms_its_own_share(done, shape, sizes):
    x, grad, job, parts = done[shape, sizes, False]
    for part, share, upstream in zip(parts, job.inputs, job.gradients, strict=True):
        assert_whole([part], share, upstream, job)
    # and that is not the norm of the whole batch
    assert gap(joined(parts)[0], whole(x, grad, job)[0]) > 0.01
    assert gap(joined(parts)[1], whole(x, grad, job)[1]) > 0.01


def test_a_share_of_one_value_is_enough(done):
    x, grad, job, parts = done["single"]
    assert_whole(parts, x, grad, job)


@pytest.mark.parametrize(("shape", "sizes"), CASES)
def test_the_bytes_depend_on_the_channels_alone(done, shape, sizes):
    channels = SHAPES[shape][1]
    for part in done[shape, sizes, True][-1]:
        assert part.sent_forward == 8 * (2 * channels + 1)
        assert part.sent_backward == 8 * 2 * channels
        assert part.collectives == 2
    for part in done[shape, sizes, False][-1]:
        assert (part.sent_forward, part.sent_backward, part.collectives) == (0, 0, 0)


def test_combine_merges_any_number_of_parts():
    x = normal(60, 3, offset=5.0)
    pieces = x.split([1, 9, 20, 30])
    counts = torch.tensor([float(len(piece)) for piece in pieces], dtype=torch.float64)
    means = torch.stack([piece.mean(0) for piece in pieces])
    squares = torch.stack([(piece - piece.mean(0)).square().sum(0) for piece in pieces])
    total, mean, square = synced.combine(counts, means, squares)
    assert total == 60
    assert gap(mean, x.mean(0)) < TOLERANCE
    assert gap(square / 60, x.var(0, correction=0)) < TOLERANCE


def test_a_process_that_fails_is_reported():
    job = case((4, 2), [0.5, 0.5])[-1]
    halves = [job.inputs[0], job.inputs[1].float()]  # the collectives will not take both
    with pytest.raises(RuntimeError, match=r"process \d failed"):
        synced.run([job._replace(inputs=halves)], timeout=60)


def test_time_runs_out():
    with pytest.raises(RuntimeError, match=r"done in 0\.01 s"):
        synced.run([case((4, 2), [0.5, 0.5])[-1]], timeout=0.01)


def changed(**changes):
    """Two processes' job, with something in it that does not fit."""
    return lambda: synced.run([case((4, 2), [0.5, 0.5])[-1]._replace(**changes)])


CHANGES = [
    (lambda: synced.run([]), "same number of shares"),
    (changed(inputs=[]), "same number of shares"),
    (changed(weight=torch.ones(3)), "weight must have shape"),
    (changed(bias=torch.ones(3)), "bias must have shape"),
    (changed(inputs=[torch.ones(2), torch.ones(2)]), "not empty"),
    (changed(gradients=[torch.ones(2, 3), torch.ones(2, 2)]), "shaped alike"),
]
test_jobs_that_do_not_fit_are_refused = refused([(run, ValueError, say) for run, say in CHANGES])


def test_a_program_without_a_main_guard_may_call_it():
    """A notebook has none either: nothing of the caller runs again in the processes."""
    program = (
        "print('once')\n"
        "import torch\n"
        "from normbook.studies.engineering import synced\n"
        "x = torch.randn(4, 2, dtype=torch.float64)\n"
        "one = torch.ones(2, dtype=torch.float64)\n"
        "parts = synced.run([synced.Job(x.split(2), x.split(2), one, one)])\n"
        "print(len(parts[0]))\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT / "code")},
        capture_output=True,
        text=True,
    )
    assert answer.stdout.split() == ["once", "2"], answer.stderr
