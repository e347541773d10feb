"""The loop against torch.optim and closed forms; the batched twin against the loop."""

import copy
import io
import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from normbook.lab import training
from normbook.lab.ensembles import train_many
from normbook.lab.models import MLP, Transformer, build
from normbook.lab.training import (
    batch_indices,
    classify,
    cross_entropy,
    evaluate,
    mean_square,
    progress,
    stable_digits,
    train,
    warmup_factor,
)

N = 40


def examples(seed=0):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(N, 6, generator=generator, dtype=torch.float64)
    return inputs, torch.randint(4, (N,), generator=generator)


def mlp(seed=0, **options):
    sizes = {"inputs": 6, "width": 5, "depth": 3, "outputs": 4, "activation": "tanh"}
    return build(lambda: MLP(**sizes | options), seed)


def weights(model):
    return torch.cat([value.detach().double().flatten() for value in model.state_dict().values()])


def scalar(weight):
    """A model that multiplies by one weight."""
    model = nn.Linear(1, 1, bias=False, dtype=torch.float64)
    nn.init.constant_(model.weight, weight)
    return model


ONE, ZERO = torch.ones(1, 1, dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64)


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


# --- one model ---


@pytest.mark.parametrize("name", ["adam", "sgd"])
def test_train_is_torch_optim_with_warmup(name):
    inputs, targets = examples()
    # with skips: in a plain net the first norm would leave the stem's bias to rounding noise
    ours, reference = (mlp(norm="batch", residual=True) for _ in range(2))
    history = train(
        ours,
        inputs,
        targets,
        steps=25,
        learning_rate=0.02,
        optimizer=name,
        warmup=10,
        batch_size=16,
        seed=7,
    )
    kinds = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}
    optimizer = kinds[name](reference.parameters(), lr=0.02, foreach=False)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: min(1, (t + 1) / 10))
    for step, index in enumerate(batch_indices(N, 16, 25, seed=7)):
        loss = F.cross_entropy(reference(inputs[index]), targets[index])
        assert history.losses[step] == pytest.approx(loss.item(), abs=1e-10)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    assert torch.allclose(weights(ours), weights(reference), rtol=0, atol=1e-10)


def test_sgd_on_a_parabola_is_a_power():
    # loss w²: w_t = (1 − 2 rate)^t w_0
    history = train(
        scalar(3.0), ONE, ZERO, steps=6, learning_rate=0.1, optimizer="sgd", loss=mean_square
    )
    expected = [(3 * 0.8**t) ** 2 for t in range(6)]
    assert history.losses.tolist() == pytest.approx(expected, rel=1e-12)
    assert history.diverged_at is None


def test_divergence_is_where_the_parabola_passes_the_bound():
    # |1 − 2 rate| = 3, loss 9^t: above 1000 at t = 4
    model = scalar(1.0)
    history = train(model, ONE, ZERO, steps=9, learning_rate=2.0, optimizer="sgd", loss=mean_square)
    assert history.diverged_at == 4
    assert history.losses[:5].tolist() == [1.0, 9.0, 81.0, 729.0, 6561.0]
    assert history.losses[5:].isnan().all()
    assert model.weight.item() == 81.0, "no step is taken after the divergence"


def test_a_loss_that_is_not_finite_is_a_divergence():
    inputs, targets = examples()
    model = mlp()
    with torch.no_grad():
        model.head.weight[0, 0] = math.nan
    assert train(model, inputs, targets, steps=3, learning_rate=0.1).diverged_at == 0


def test_watch_sees_the_model_before_each_step():
    history = train(
        scalar(1.0),
        ONE,
        ZERO,
        steps=4,
        learning_rate=0.25,
        optimizer="sgd",
        loss=mean_square,
        watch=lambda model: model.weight.item(),
    )
    assert history.watched == [1.0, 0.5, 0.25, 0.125]


def test_warmup_rises_in_equal_steps():
    assert [warmup_factor(t, 4) for t in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert warmup_factor(0, 0) == 1.0


def test_batches_go_through_all_examples_before_repeating_one():
    batches = batch_indices(10, 4, 5, seed=1)
    assert batches.shape == (5, 4)
    first, second = batches.flatten().split(10)
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(10))
    assert first.tolist() != second.tolist()
    assert torch.equal(batches, batch_indices(10, 4, 5, seed=1))
    assert not torch.equal(batches, batch_indices(10, 4, 5, seed=2))


def test_evaluate_uses_evaluation_mode_and_puts_the_mode_back():
    inputs, targets = examples()
    model = mlp(norm="batch")
    train(model, inputs, targets, steps=5, learning_rate=0.01)
    before = weights(model)
    score = evaluate(model, inputs, targets)
    assert model.training
    assert torch.equal(weights(model), before)
    outputs = model.eval()(inputs)
    assert score.loss == pytest.approx(F.cross_entropy(outputs, targets).item(), abs=1e-12)
    assert score.accuracy == (outputs.argmax(1) == targets).double().mean().item()
    assert not model.training
    evaluate(model, inputs, targets)
    assert not model.training


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"steps": 0}, "steps"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"learning_rate": math.nan}, "learning_rate"),
        ({"optimizer": "lamb"}, "optimizer"),
        ({"warmup": -1}, "warmup"),
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": N + 1}, "batch_size"),
    ],
)
@pytest.mark.parametrize("many", [False, True])
def test_bad_arguments_are_refused(options, named, many):
    inputs, targets = examples()
    options = {"steps": 2, "learning_rate": 0.1} | options
    models = [mlp(0), mlp(1)]
    run = train_many if many else train
    with pytest.raises(ValueError, match=named):
        run(models if many else models[0], inputs, targets, **options)


def test_inputs_and_targets_must_be_as_many():
    inputs, targets = examples()
    with pytest.raises(ValueError, match="inputs and targets"):
        train(mlp(), inputs, targets[:-1], steps=1, learning_rate=0.1)


# --- many models at once ---


def check_twins(models, inputs, targets, each, **options):
    """Train all at once, then each alone; `each` holds one value a member."""
    alone = copy.deepcopy(models)
    together = train_many(
        models, inputs, targets, **{k: list(v) for k, v in each.items()}, **options
    )
    for index, model in enumerate(alone):
        own = {name: values[index] for name, values in each.items()}
        history = train(model, inputs, targets, **own, **options)
        assert torch.allclose(
            together.losses[index], history.losses, rtol=0, atol=1e-10, equal_nan=True
        )
        assert together.diverged_at[index] == history.diverged_at
        assert torch.allclose(weights(models[index]), weights(model), rtol=0, atol=1e-10)
    return together


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_members_train_as_they_would_alone(optimizer):
    grid = list(itertools.product(range(2), (0.01, 0.03), (0, 5)))
    each = {"learning_rate": [rate for _, rate, _ in grid], "warmup": [w for _, _, w in grid]}
    models = [mlp(seed) for seed, _, _ in grid]
    together = check_twins(
        models, *examples(), each, steps=12, optimizer=optimizer, batch_size=8, seed=3
    )
    assert together.losses.shape == (8, 12)
    assert len({round(loss, 6) for loss in together.losses[:, -1].tolist()}) == 8


def test_running_statistics_train_with_their_member():
    models = [mlp(seed, norm="batch", residual=True) for seed in range(3)]
    check_twins(models, *examples(), {"learning_rate": [0.01] * 3}, steps=6, batch_size=10)
    tracked = [m for m in models[0].modules() if hasattr(m, "num_batches_tracked")]
    assert tracked
    assert all(m.num_batches_tracked == 6 for m in tracked)
    means = [next(m for m in x.modules() if hasattr(m, "running_mean")) for x in models]
    assert not torch.allclose(means[0].running_mean, means[1].running_mean)


def test_members_may_see_their_own_batches():
    models = [mlp(0), mlp(0)]
    each = {"learning_rate": [0.02, 0.02], "seed": [1, 2]}
    together = check_twins(models, *examples(), each, steps=6, batch_size=8)
    assert together.losses[0, -1] != together.losses[1, -1]


@pytest.mark.parametrize("placement", ["pre", "post"])
def test_transformers_on_text_train_as_they_would_alone(placement):
    sizes = {"dim": 8, "depth": 2, "outputs": 5, "length": 6, "vocabulary": 5, "heads": 2}
    make = lambda: Transformer(**sizes, causal=True, placement=placement)  # noqa: E731
    models = [build(make, seed) for seed in range(3)]
    tokens = torch.randint(5, (20, 7), generator=torch.Generator().manual_seed(0))
    each = {"learning_rate": [0.01, 0.02, 0.03], "warmup": [0, 3, 6]}
    together = check_twins(models, tokens[:, :-1], tokens[:, 1:], each, steps=8, batch_size=10)
    assert together.losses.shape == (3, 8)
    assert together.losses.isfinite().all()


def test_frozen_parameters_stay():
    models = [mlp(0), mlp(1)]
    for model in models:
        model.stem.requires_grad_(False)
    before = [model.stem.weight.clone() for model in models]
    check_twins(models, *examples(), {"learning_rate": [0.02, 0.02]}, steps=4)
    assert all(torch.equal(m.stem.weight, w) for m, w in zip(models, before, strict=True))


def test_a_member_that_diverges_leaves_the_others_alone():
    models = [scalar(1.0), scalar(1.0), scalar(2.0)]
    together = check_twins(
        models,
        ONE,
        ZERO,
        {"learning_rate": [0.1, 2.0, 0.25]},
        steps=400,
        optimizer="sgd",
        loss=mean_square,
    )
    assert together.diverged_at == [None, 4, None]
    assert together.losses[1, 5:].isnan().all()
    assert together.losses[[0, 2]].isfinite().all()


def test_nothing_is_left_to_do_when_all_have_diverged():
    models = [scalar(1.0), scalar(-5.0)]
    history = train_many(
        models, ONE, ZERO, steps=50, learning_rate=2.0, optimizer="sgd", loss=mean_square
    )
    assert history.diverged_at == [4, 2]
    assert [model.weight.item() for model in models] == [81.0, -45.0]


def test_a_member_whose_loss_is_not_finite_stops_alone():
    models = [scalar(1.0), scalar(math.nan)]
    history = train_many(
        models, ONE, ZERO, steps=5, learning_rate=0.25, optimizer="sgd", loss=mean_square
    )
    assert history.diverged_at == [None, 0]
    assert history.losses[0].tolist() == [1.0, 1 / 4, 1 / 16, 1 / 64, 1 / 256]


def test_models_are_put_into_training_mode():
    inputs, targets = examples()
    alone, member = mlp(norm="batch").eval(), mlp(norm="batch").eval()
    train(alone, inputs, targets, steps=1, learning_rate=0.01)
    train_many([member], inputs, targets, steps=1, learning_rate=0.01)
    assert alone.training
    assert member.training
    assert torch.allclose(weights(alone), weights(member), rtol=0, atol=1e-12)
    assert not torch.equal(weights(alone), weights(mlp(norm="batch")))


def test_rates_may_be_a_tensor():
    models = [mlp(0), mlp(1)]
    rates = torch.tensor([0.01, 0.02], dtype=torch.float64)
    history = train_many(models, *examples(), steps=2, learning_rate=rates)
    assert history.losses.shape == (2, 2)


def test_ensembles_that_are_none_are_refused():
    inputs, targets = examples()
    run = lambda models, **o: train_many(  # noqa: E731
        models, inputs, targets, **{"steps": 1, "learning_rate": 0.1} | o
    )
    with pytest.raises(ValueError, match="learning_rate must have one entry for each of 2"):
        run([mlp(0), mlp(1)], learning_rate=[0.1, 0.2, 0.3])
    with pytest.raises(ValueError, match="seed must have one entry"):
        run([mlp(0), mlp(1)], seed=[1], batch_size=4)
    with pytest.raises(ValueError, match="one entry for each of 0"):
        run([])
    with pytest.raises(ValueError, match=r"models\[1\] differs"):
        run([mlp(0), mlp(1, width=7)])
    with pytest.raises(ValueError, match=r"models\[1\] differs"):
        run([mlp(0), mlp(1, activation="relu")])
    with pytest.raises(ValueError, match="twice"):
        run([mlp(0)] * 2)
    with pytest.raises(ValueError, match="parameters to train"):
        run([mlp(0).requires_grad_(False), mlp(1).requires_grad_(False)])


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


def test_digits_of_a_calm_run_are_stable_and_its_models_untouched():
    inputs, targets = examples()
    models = [mlp(0), mlp(1)]
    before = weights(models[0])

    def final_losses(models):
        return train_many(models, inputs, targets, steps=10, learning_rate=0.01).losses[:, -1]

    assert stable_digits(final_losses, models)
    assert torch.equal(weights(models[0]), before)
    assert stable_digits(
        lambda model: train(model, inputs, targets, steps=5, learning_rate=0.01).losses[-1],
        models[0],
    )


def logistic(steps):
    """A chaotic map of the weight: an error doubles in each of the steps."""

    def run(model):
        x = model.weight.item()
        for _ in range(steps):
            x = 4 * x * (1 - x)
        return x

    return run


def test_digits_of_a_chaotic_run_are_not_stable():
    # 1e-12 · 2^60 is far above 1, 1e-12 · 2^10 far below the third digit
    assert not stable_digits(logistic(60), scalar(0.3))
    assert stable_digits(logistic(10), scalar(0.3))
    assert not stable_digits(logistic(10), scalar(0.3), digits=12)


def test_one_unstable_number_among_stable_ones_is_enough():
    run = logistic(60)
    assert not stable_digits(lambda model: [1.0, run(model)], scalar(0.3))
    with pytest.raises(ValueError, match="relative"):
        stable_digits(run, scalar(0.3), relative=0.0)


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
