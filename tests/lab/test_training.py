"""The descent, its losses and what is said of a run, against PyTorch and closed forms."""

import io
import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from engine_helpers import assert_close, normal, refused

from normbook.lab import training
from normbook.lab.models import MLP, build

# --- losses ---


@pytest.mark.parametrize("shape", [(5,), (3, 5)])
def test_cross_entropy_is_pytorchs(shape):
    scores, targets = normal(*shape, 7), torch.randint(7, shape)
    expected = F.cross_entropy(scores.reshape(-1, 7), targets.flatten())
    assert_close(training.cross_entropy(scores, targets), expected)


def test_mean_square_is_over_all_elements():
    assert training.mean_square(torch.tensor([1.0, 3.0]), torch.tensor([0.0, 1.0])) == 2.5


# --- the descent ---


def test_a_descent_is_whatever_optimizer_it_is_given():
    # two parabolas of one parameter; Adagrad, whose first step is the rate whatever the gradient
    weights = torch.nn.Parameter(torch.tensor([2.0, -3.0], dtype=torch.float64))

    def losses_at(step):
        losses = weights.square()
        weights.grad = torch.autograd.grad(losses.sum(), weights)[0]
        return losses.detach()

    found = training.descend(torch.optim.Adagrad([weights], lr=0.5), losses_at, steps=2)
    assert found.losses[:, 0].tolist() == [4.0, 9.0]
    assert found.losses[:, 1].tolist() == pytest.approx([2.25, 6.25])
    assert found.diverged_at == [None, None]


def test_batches_go_through_all_examples_before_repeating_one():
    batches = training.batch_indices(10, 4, 5, seed=1)
    assert batches.shape == (5, 4)
    first, second = batches.flatten().split(10)
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(10))
    assert first.tolist() != second.tolist()
    assert torch.equal(batches, training.batch_indices(10, 4, 5, seed=1))
    assert not torch.equal(batches, training.batch_indices(10, 4, 5, seed=2))


def test_evaluate_uses_evaluation_mode_and_puts_the_mode_back():
    model = build(lambda: MLP(inputs=6, width=5, depth=3, outputs=4, norm="batch"), 0)
    inputs, targets = normal(40, 6), torch.arange(40) % 4
    model(3 * inputs)  # moves the running statistics
    score = training.evaluate(model, inputs, targets)
    assert model.training
    outputs = model.eval()(inputs)
    assert score.loss == pytest.approx(F.cross_entropy(outputs, targets).item(), abs=1e-12)
    assert score.accuracy == (outputs.argmax(1) == targets).double().mean().item()
    training.evaluate(model, inputs, targets)
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
    assert training.classify(losses, CHANCE) == expected


def test_classification_of_many_and_its_thresholds():
    runs = torch.stack([torch.full((20,), CHANCE * f) for f in (0.7, 0.9, 1.5, 2.5)])
    assert training.classify(runs, CHANCE) == ["trains", "at chance", "at chance", "diverged"]
    strict = training.classify(runs, CHANCE, trains=0.5, diverges=1.2)
    assert strict == ["at chance", "at chance", "diverged", "diverged"]


BAD = [
    (lambda: training.mean_square(torch.zeros(3, 1), torch.zeros(3)), ValueError, "targets"),
    (lambda: training.classify(torch.zeros(0), CHANCE), ValueError, "must be"),
    (lambda: training.classify(torch.zeros(9), 0.0), ValueError, "must be"),
    (lambda: training.classify(torch.zeros(9), CHANCE, trains=3.0), ValueError, "must be"),
]
test_bad_histories_are_refused = refused(BAD)


# --- progress ---


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    """Half a second passes whenever the time is asked for."""
    times = itertools.count(0, 0.5)
    monkeypatch.setattr(training.time, "monotonic", lambda: next(times))


@pytest.mark.parametrize("last", [8, 20])
def test_progress_is_drawn_on_a_terminal_and_wiped_at_the_end_or_before(monkeypatch, clock, last):
    monkeypatch.setattr(training.sys, "stderr", Terminal())
    steps = training.progress(20, "training")
    assert list(itertools.islice(steps, last)) == list(range(last))
    steps.close()
    drawn = training.sys.stderr.getvalue().split("\r")
    assert drawn[1].startswith("training: ")
    assert drawn[1].endswith(" of 20 steps")
    assert drawn[-1] == ""
    assert drawn[-2].strip() == ""


@pytest.mark.parametrize(
    ("jupyter", "strict", "is_shown"), [(True, "1", False), (True, "0", True), (False, "0", False)]
)
def test_progress_is_shown_to_who_watches(monkeypatch, clock, capsys, jupyter, strict, is_shown):
    monkeypatch.delitem(training.sys.modules, "ipykernel", raising=False)
    if jupyter:
        monkeypatch.setitem(training.sys.modules, "ipykernel", object())
    monkeypatch.setenv("NORMBOOK_STRICT", strict)
    list(training.progress(8, "training"))
    captured = capsys.readouterr()
    assert (bool(captured.err), captured.out) == (is_shown, "")
