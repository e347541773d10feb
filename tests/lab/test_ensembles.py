"""Ensembles against a plain loop of torch.optim over each member alone, and closed forms."""

import copy
import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from engine_helpers import normal, refused
from torch import nn

import normalization as nz
from normbook.lab.ensembles import Ensemble, join_spans, plain_group, train
from normbook.lab.models import MLP, Transformer, build
from normbook.lab.training import batch_indices, mean_square

N = 40
KINDS = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}


def examples():
    return normal(N, 6), torch.randint(4, (N,), generator=torch.Generator().manual_seed(0))


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
PARABOLA = {"optimizer": "sgd", "loss": mean_square}


def cross_entropy(outputs, targets):
    return F.cross_entropy(outputs.flatten(0, -2), targets.flatten())


def train_alone(
    model, inputs, targets, *, steps, optimizer="adam", loss=cross_entropy, groups=None, **own
):
    """The same, one member, step by step: the losses, NaN after a divergence, and its step."""
    groups = groups or [{"params": model.parameters(), "lr": own["learning_rate"]}]
    descent = KINDS[optimizer](groups, lr=1.0, foreach=False)
    warmup, batch_size = own.get("warmup", 0), own.get("batch_size")
    schedule = torch.optim.lr_scheduler.LambdaLR(
        descent, lambda t: min(1, (t + 1) / warmup) if warmup else 1
    )
    batches = batch_indices(len(inputs), batch_size, steps, own.get("seed", 0))
    losses = [math.nan] * steps
    model.train()
    for step in range(steps):
        chosen = ... if batch_size is None else batches[step]
        value = loss(model(inputs[chosen]), targets[chosen])
        losses[step] = value.item()
        if not losses[step] <= 1e3:
            return losses, step
        descent.zero_grad()
        value.backward()
        descent.step()
        schedule.step()
    return losses, None


def check_twins(models, inputs, targets, each, **options):
    """Train all at once, then each alone; `each` holds one value a member."""
    alone = copy.deepcopy(models)
    together = train(models, inputs, targets, **{k: list(v) for k, v in each.items()}, **options)
    for index, model in enumerate(alone):
        own = {name: values[index] for name, values in each.items()}
        losses, step = train_alone(model, inputs, targets, **own, **options)
        assert together.losses[index].tolist() == pytest.approx(losses, abs=1e-10, nan_ok=True)
        assert together.diverged_at[index] == step
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


def test_running_statistics_train_with_their_member_in_training_mode():
    models = [mlp(seed, norm="batch", residual=True).eval() for seed in range(3)]
    check_twins(models, *examples(), {"learning_rate": [0.01] * 3}, steps=6, batch_size=10)
    assert all(model.training for model in models)
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
    models, rates = [scalar(1.0), scalar(1.0), scalar(2.0)], {"learning_rate": [0.1, 2.0, 0.25]}
    together = check_twins(models, ONE, ZERO, rates, steps=400, **PARABOLA)
    assert together.diverged_at == [None, 4, None]
    assert together.losses[1, 5:].isnan().all()
    assert together.losses[[0, 2]].isfinite().all()


def test_divergence_is_where_the_parabola_passes_the_bound():
    # loss w², w_t = (1 − 2 rate)^t w_0: |1 − 2 rate| = 3, loss 9^t, above 1000 at t = 4
    models = [scalar(1.0), scalar(-5.0)]
    history = train(models, ONE, ZERO, steps=50, learning_rate=2.0, **PARABOLA)
    assert history.diverged_at == [4, 2]
    assert history.losses[0, :5].tolist() == [1.0, 9.0, 81.0, 729.0, 6561.0]
    assert history.losses[0, 5:].isnan().all()
    assert [model.weight.item() for model in models] == [81.0, -45.0], "no step is taken after it"


def test_a_member_whose_loss_is_not_finite_stops_alone():
    models, rates = [scalar(1.0), scalar(math.nan)], torch.tensor([0.25, 0.25])
    history = train(models, ONE, ZERO, steps=5, learning_rate=rates, **PARABOLA)
    assert history.diverged_at == [None, 0]
    assert history.losses[0].tolist() == [1.0, 1 / 4, 1 / 16, 1 / 64, 1 / 256]


def test_watch_sees_the_ensemble_before_each_step():
    seen = []
    ensemble = Ensemble([scalar(1.0)], mean_square)
    watch = lambda found: seen.append(found.weights.item())  # noqa: E731
    ensemble.train(ONE, ZERO, steps=4, learning_rate=0.25, optimizer="sgd", watch=watch)
    assert seen == [1.0, 0.5, 0.25, 0.125]


# --- rates of their own ---


def make(width):
    return MLP(inputs=6, width=width, depth=1, outputs=4, init=1.0)


def wide(seed, width=32):
    return build(lambda: nz.mup_init_(make(width), make(8)), seed)


def groups_of(model, rate, optimizer):
    return nz.mup_param_groups(model, make(8), rate, optimizer, eps=1e-3)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_members_with_groups_end_where_torch_optim_takes_them_alone(optimizer):
    members, rates = [wide(seed) for seed in range(4)], (0.003, 0.01, 0.03, 0.01)
    single = copy.deepcopy(members)
    groups = [groups_of(m, r, optimizer) for m, r in zip(members, rates, strict=True)]
    found = train(members, *examples(), groups=groups, steps=12, optimizer=optimizer).losses
    for index, model in enumerate(single):
        own = groups_of(model, rates[index], optimizer)
        expected, _ = train_alone(model, *examples(), groups=own, steps=12, optimizer=optimizer)
        assert found[index].tolist() == pytest.approx(expected, abs=1e-10)
        assert (weights(model) - weights(members[index])).abs().max() < 1e-10
    assert not torch.equal(found[0], found[1])


def test_spans_that_touch_are_one():
    assert join_spans([(4, 6), (0, 2), (2, 4), (7, 9)]) == [(0, 6), (7, 9)]


# --- what is refused ---


def run(*models, targets=N, **options):
    inputs, labels = examples()
    options = {"steps": 2, "learning_rate": 0.1} | options
    return lambda: train(models, inputs, labels[:targets], **options)


A, B = mlp(0), mlp(1)
FROZEN = [mlp(seed).requires_grad_(False) for seed in (0, 1)]
BAD = [
    (run(A, B, steps=0), ValueError, "steps"),
    (run(A, B, learning_rate=0.0), ValueError, "learning_rate"),
    (run(A, B, learning_rate=math.nan), ValueError, "learning_rate"),
    (run(A, B, learning_rate=[0.1] * 3), ValueError, "learning_rate must have one entry for each"),
    (run(A, B, seed=[1], batch_size=4), ValueError, "seed must have one entry"),
    (run(A, B, optimizer="lamb"), ValueError, "optimizer"),
    (run(A, B, warmup=-1), ValueError, "warmup"),
    (run(A, B, batch_size=0), ValueError, "batch_size"),
    (run(A, B, batch_size=N + 1), ValueError, "batch_size"),
    (run(A, B, targets=N - 1), ValueError, "inputs and targets"),
    (run(), ValueError, "separate objects, got none"),
    (run(A, A), ValueError, "one of them twice"),
    (run(A, mlp(1, width=7)), ValueError, r"models\[1\] differs"),
    (run(A, mlp(1, activation="relu")), ValueError, r"models\[1\] differs"),
    (run(*FROZEN), ValueError, "parameters to train"),
    (run(A, B, groups=[plain_group(A, 0.1)] * 2), ValueError, r"groups\[1\]"),
    (run(A, B, groups=[plain_group(A, 0.1)]), ValueError, "one list a model"),
]
test_bad_ensembles_are_refused = refused(BAD)
