"""The descent, its losses and what is said of a run, against PyTorch and closed forms."""

import io
import itertools
import math

import pytest
import torch
import torch.nn.functional as F

from normbook.lab import training
from normbook.lab.models import MLP, build
from normbook.lab.training import (
    batch_indices,
    classify,
    cross_entropy,
    descend,
    evaluate,
    mean_square,
    progress,
)

# --- losses ---


def test_cross_entropy_is_pytorchs():
    scores = torch.randn(3, 5, 7, dtype=torch.float64)
    targets = torch.randint(7, (3, 5))
    expected = F.cross_entropy(scores.flatten(0, 1), targets.flatten())
    assert torch.allclose(cross_entropy(scores, targets), expected, rtol=0, atol=1e-14)
    assert torch.allclose(
        cross_entropy(scores[0], targets[0]),
        F.cross_entropy(scores[0], targets[0]),
        rtol=0,
        atol=1e-14,
    )


def test_mean_square_does_not_broadcast():
    assert mean_square(torch.tensor([1.0, 3.0]), torch.tensor([0.0, 1.0])) == 2.5
    with pytest.raises(ValueError, match="targets"):
        mean_square(torch.zeros(3, 1), torch.zeros(3))


# --- the descent ---


def test_a_descent_is_whatever_optimizer_it_is_given():
    # two parabolas of one parameter; Adagrad, whose first step is the rate whatever the gradient
    weights = torch.nn.Parameter(torch.tensor([2.0, -3.0], dtype=torch.float64))

    def losses_at(step):
        losses = weights.square()
        weights.grad = torch.autograd.grad(losses.sum(), weights)[0]
        return losses.detach()

    found = descend(torch.optim.Adagrad([weights], lr=0.5), losses_at, steps=2)
    assert found.losses[:, 0].tolist() == [4.0, 9.0]
    assert found.losses[:, 1].tolist() == pytest.approx([2.25, 6.25])
    assert found.diverged_at == [None, None]


def test_batches_go_through_all_examples_before_repeating_one():
    batches = batch_indices(10, 4, 5, seed=1)
    assert batches.shape == (5, 4)
    first, second = batches.flatten().split(10)
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(10))
    assert first.tolist() != second.tolist()
    assert torch.equal(batches, batch_indices(10, 4, 5, seed=1))
    assert not torch.equal(batches, batch_indices(10, 4, 5, seed=2))


def test_evaluate_uses_evaluation_mode_and_puts_the_mode_back():
    sizes = {"inputs": 6, "width": 5, "depth": 3, "outputs": 4}
    model = build(lambda: MLP(**sizes, norm="batch"), 0)
    inputs = torch.randn(40, 6, dtype=torch.float64)
    targets = torch.arange(40) % 4
    model(3 * inputs)  # moves the running statistics
    before = {name: value.clone() for name, value in model.state_dict().items()}
    score = evaluate(model, inputs, targets)
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    outputs = model.eval()(inputs)
    assert score.loss == pytest.approx(F.cross_entropy(outputs, targets).item(), abs=1e-12)
    assert score.accuracy == (outputs.argmax(1) == targets).double().mean().item()
    evaluate(model, inputs, targets)
    assert not model.training


# --- what may be said of a run ---

CHANCE = math.log(10)


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        (torch.linspace(CHANCE, 0.3, 50), "trains"),
        (torch.full((50,), CHANCE), "at chance"),
        (torch.linspace(1.2 * CHANCE, 0.95 * CHANCE, 50), "at chance"),
        (torch.linspace(CHANCE, 5 * CHANCE, 50), "diverged"),
        (torch.cat([torch.linspace(CHANCE, 0.3, 40), torch.full((10,), math.nan)]), "diverged"),
        (torch.tensor([CHANCE, 1.0, math.inf]), "diverged"),
        (torch.cat([torch.tensor([900.0]), torch.linspace(CHANCE, 0.3, 49)]), "trains"),
    ],
    ids=["falls", "stays", "drifts", "rises", "stops", "infinite", "spikes first"],
)
def test_classification_of_histories(losses, expected):
    assert classify(losses, CHANCE) == expected


def test_classification_of_many_and_its_thresholds():
    runs = torch.stack([torch.full((20,), CHANCE * f) for f in (0.7, 0.9, 1.5, 2.5)])
    assert classify(runs, CHANCE) == ["trains", "at chance", "at chance", "diverged"]
    strict = classify(runs, CHANCE, trains=0.5, diverges=1.2)
    assert strict == ["at chance", "at chance", "diverged", "diverged"]
    for wrong in (
        lambda: classify(torch.zeros(0), CHANCE),
        lambda: classify(runs, 0.0),
        lambda: classify(runs, CHANCE, trains=3.0),
    ):
        with pytest.raises(ValueError, match="must be"):
            wrong()


# --- progress ---


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    """Half a second passes whenever the time is asked for."""
    times = itertools.count(0, 0.5)
    monkeypatch.setattr(training.time, "monotonic", lambda: next(times))


def test_progress_is_drawn_on_a_terminal_and_wiped(monkeypatch, clock):
    monkeypatch.setattr(training.sys, "stderr", Terminal())
    assert list(progress(8, "training")) == list(range(8))
    drawn = training.sys.stderr.getvalue().split("\r")
    assert drawn[1].startswith("training: ")
    assert drawn[1].endswith(" of 8 steps")
    assert drawn[-1] == ""
    assert drawn[-2].strip() == ""


def test_progress_is_wiped_when_the_run_ends_early(monkeypatch, clock):
    monkeypatch.setattr(training.sys, "stderr", Terminal())
    steps = progress(20, "training")
    for step in steps:
        if step == 10:
            break
    steps.close()
    assert training.sys.stderr.getvalue().endswith(" \r")


@pytest.mark.parametrize(("strict", "shown"), [("1", False), ("0", True)])
def test_progress_in_jupyter_is_never_recorded(monkeypatch, clock, capsys, strict, shown):
    monkeypatch.setitem(training.sys.modules, "ipykernel", object())
    monkeypatch.setenv("NORMBOOK_STRICT", strict)
    list(progress(8, "training"))
    assert bool(capsys.readouterr().err) == shown


def test_progress_is_silent_where_nobody_watches(clock, capsys, monkeypatch):
    monkeypatch.delitem(training.sys.modules, "ipykernel", raising=False)
    list(progress(8, "training"))
    captured = capsys.readouterr()
    assert captured.err == captured.out == ""
