"""μP: kinds, variances and rates against the mup package; both tables; the coordinate check."""

import copy
import math
from functools import partial

import pytest
import torch
from engine_helpers import assert_functional_gradients, refused
from engine_helpers import normal as draw
from torch import nn

import normalization as nz

normal = partial(draw, seed=1)  # not the seed of the weights


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def mlp(width, inputs=10, outputs=3):
    """Widths that grow at different speeds: width, 2 width, width²/64."""
    return nn.Sequential(
        nn.Linear(inputs, width),
        nn.ReLU(),
        nn.Linear(width, 2 * width),
        nn.LayerNorm(2 * width),
        nn.Linear(2 * width, width * width // 64),
        nn.ReLU(),
        nn.Linear(width * width // 64, outputs),
    ).double()


class Transformer(nn.Module):
    """Embedding, positions, one block, head."""

    def __init__(self, dim, tied=False):
        super().__init__()
        self.embedding = nn.Embedding(50, dim, padding_idx=0)
        self.positions = nn.Parameter(torch.full((7, dim), 0.25))
        self.block = nz.TransformerBlock(dim, 2)
        self.head = nn.Linear(dim, 50, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.head(self.block(self.embedding(tokens) + self.positions))


def rates(model, base, optimizer, table=8):
    groups = nz.mup_param_groups(model, base, 1.0, optimizer, table)
    found = {p: group["lr"] for group in groups for p in group["params"]}
    return {name: found[parameter] for name, parameter in model.named_parameters()}


# --- the mup package ---

# microsoft/mup 1.0.0 on torch 2.13: the "lr" of MuAdam's and MuSGD's groups for mlp(256) with a
# MuReadout as its last layer, base mlp(64), lr = 1; and MuReadout.width_mult() = 16
MUP_ADAM = {
    **{"0.weight": 1.0, "0.bias": 1.0, "2.weight": 0.25, "2.bias": 1.0, "3.weight": 1.0},
    **{"3.bias": 1.0, "4.weight": 0.25, "4.bias": 1.0, "6.weight": 1.0, "6.bias": 1.0},
}
MUP_SGD = {
    **{"0.weight": 4.0, "0.bias": 4.0, "2.weight": 1.0, "2.bias": 4.0, "3.weight": 4.0},
    **{"3.bias": 4.0, "4.weight": 4.0, "4.bias": 16.0, "6.weight": 16.0, "6.bias": 1.0},
}
KINDS = {
    **{"0.weight": "input", "0.bias": "vector", "2.weight": "hidden", "2.bias": "vector"},
    **{"3.weight": "vector", "3.bias": "vector", "4.weight": "hidden", "4.bias": "vector"},
    **{"6.weight": "output", "6.bias": "fixed"},
}


def test_rates_and_multiplier_are_the_mup_packages():
    model, base = mlp(256), mlp(64)
    nz.mup_init_(model, base)
    assert rates(model, base, "adam") == MUP_ADAM
    assert rates(model, base, "sgd") == MUP_SGD
    assert isinstance(model[6], nz.MupReadout)
    assert model[6].multiplier == 1 / 16
    assert nz.mup_kinds(model, base) == KINDS


def test_scalars_keep_their_rate():
    model, base = nz.FixupBranch(32), nz.FixupBranch(8)
    kinds = nz.mup_kinds(model, base)
    assert kinds["multiplier"] == kinds["layer_biases"] == "fixed"
    for optimizer in ("adam", "sgd"):
        assert rates(model, base, optimizer)["multiplier"] == 1.0


def test_parameters_tied_within_a_kind_are_one():
    def net(width):
        model = mlp(width, outputs=10)
        model[2] = nn.Linear(width, width)
        tied = nn.Sequential(model[0], model[1], model[2], nn.ReLU(), nn.Linear(width, width))
        tied[4].weight = tied[2].weight
        return tied

    kinds = nz.mup_kinds(net(128), net(64))
    assert kinds["2.weight"] == "hidden"
    assert "4.weight" not in kinds
    groups = nz.mup_param_groups(net(128), net(64), 1.0)
    assert sum(len(group["params"]) for group in groups) == 5


def test_table_3_differs_in_the_output_weight_only():
    model, base = nz.mup_init_(mlp(256), mlp(64), table=3), mlp(64)
    assert type(model[6]) is nn.Linear
    assert rates(model, base, "adam", 3) == MUP_ADAM | {"6.weight": 1 / 16}
    assert rates(model, base, "sgd", 3) == MUP_SGD | {"6.weight": 1 / 16}


@pytest.mark.parametrize(("table", "output"), [(3, 1 / 4), (8, 4.0)])
def test_standard_deviations(table, output):
    # the package's kaiming_normal_ has √(fan_in)·std = 1, 1, 1 and 4 here (table 8)
    model = nz.mup_init_(mlp(256), mlp(64), table, gain=1.5, generator=seeded())
    for name, factor in {"0": 1.0, "2": 1.0, "4": 1.0, "6": output}.items():
        layer = model.get_submodule(name)
        size = layer.weight.square().mean().sqrt().item() * math.sqrt(layer.in_features)
        assert size == pytest.approx(1.5 * factor, rel=0.08)
        assert layer.bias.eq(0).all()
    assert model[3].weight.eq(1).all()


def test_a_transformers_kinds():
    kinds = nz.mup_kinds(Transformer(32), Transformer(8))
    assert kinds["embedding.weight"] == kinds["positions"] == "input"
    assert kinds["head.weight"] == "output"
    inside = [name for name in kinds if name.startswith("block") and ".branch." in name]
    assert len(inside) == 12
    for name in inside:
        assert kinds[name] == ("hidden" if name.endswith("weight") else "vector")
    assert kinds["block.attention.norm.weight"] == "vector"


def test_convolutions_count_their_kernels():
    def net(width):
        return nn.Sequential(
            nn.Conv2d(3, width, 3), nn.Conv2d(width, 2 * width, 3), nn.Conv2d(2 * width, 5, 1)
        )

    model, base = net(32).double(), net(8)
    assert list(nz.mup_kinds(model, base).values()) == [
        *("input", "vector", "hidden", "vector", "output", "fixed")
    ]
    nz.mup_init_(model, base, table=3, generator=seeded())
    assert model[1].weight.std().item() == pytest.approx(1 / math.sqrt(32 * 9), rel=0.03)
    with pytest.raises(ValueError, match=r"nn.Linear inside .*2.weight of Conv2d"):
        nz.mup_init_(model, base)


# --- mup_init_ ---


def test_at_base_width_it_is_a_plain_kaiming_draw():
    model = nz.mup_init_(mlp(64), mlp(64), gain=math.sqrt(2), generator=seeded())
    expected, generator = mlp(64), seeded()
    for layer in expected:
        if isinstance(layer, nn.Linear):
            nz.kaiming_normal_(layer.weight, nonlinearity="relu", generator=generator)
    for name, weight in expected.named_parameters():
        if weight.dim() == 2:
            torch.testing.assert_close(dict(model.named_parameters())[name], weight)
    assert type(model[6]) is nn.Linear
    assert set(rates(model, mlp(64), "adam").values()) == {1.0}
    assert set(nz.mup_kinds(model, mlp(64)).values()) == {"fixed"}


@pytest.mark.parametrize("table", [3, 8])
def test_init_is_repeatable_and_tables_can_be_changed(table):
    model, base = mlp(128), mlp(64)
    other = {3: 8, 8: 3}[table]
    assert nz.mup_init_(model, base, table, generator=seeded()) is model
    first = copy.deepcopy(model)
    x = normal(5, 10)
    nz.mup_init_(model, base, other, generator=seeded())
    assert getattr(model[6], "multiplier", 1.0) == {3: 1.0, 8: 1 / 4}[other]
    torch.testing.assert_close(model(x), first(x))  # the same function in either table
    nz.mup_init_(model, base, table, generator=seeded())
    assert torch.equal(model(x), first(x))
    nz.mup_init_(model, base, table, generator=seeded(1))
    assert not torch.equal(model(x), first(x))


def test_embeddings_are_standard_normal_and_positions_stay():
    model = nz.mup_init_(Transformer(32), Transformer(8), generator=seeded())
    assert model.embedding.weight[1:].std().item() == pytest.approx(1.0, rel=0.06)
    assert model.embedding.weight[0].eq(0).all()
    assert model.positions.eq(0.25).all()
    assert model.head.multiplier == 1 / 4
    assert model.head.bias is None


def test_the_readout_keeps_names_parameters_and_mode():
    model = mlp(128).eval()
    names, weight = list(model.state_dict()), model[6].weight
    nz.mup_init_(model, mlp(64))
    assert list(model.state_dict()) == names
    assert model[6].weight is weight
    assert not model[6].training
    mlp(128).load_state_dict(model.state_dict())
    x = normal(4, 256)
    torch.testing.assert_close(model[6](x), nn.functional.linear(x / 4, weight, model[6].bias))
    assert "multiplier=0.25" in repr(model[6])
    wrapped = nn.Sequential(nn.Sequential(mlp(128)))
    nz.mup_init_(wrapped, nn.Sequential(nn.Sequential(mlp(64))))
    assert isinstance(wrapped[0][0][6], nz.MupReadout)


def test_a_readout_is_by_default_a_plain_linear_layer():
    readout, x = nz.MupReadout(4, 2), torch.ones(3, 4)
    assert readout.multiplier == 1
    linear = nn.Linear(4, 2)
    linear.load_state_dict(readout.state_dict())
    assert torch.equal(readout(x), linear(x))
    assert nz.MupReadout(4, 2, bias=False, dtype=torch.float64).weight.dtype == torch.float64
    assert nz.MupReadout(4, 2, bias=False).bias is None


def test_the_readout_under_function_transforms():
    model = nz.mup_init_(mlp(128), mlp(64), generator=seeded())
    assert_functional_gradients(model, normal(5, 10))


def test_a_gain_of_zero_and_a_rate_of_zero_are_allowed():
    model = nz.mup_init_(mlp(128), mlp(64), gain=0)
    assert model[2].weight.eq(0).all()
    groups = nz.mup_param_groups(model, mlp(64), lr=0, eps=0)
    assert {(group["lr"], group["eps"]) for group in groups} == {(0, 0)}


# --- the two tables are one parametrization ---


def trajectory(table, optimizer, steps=25, eps=1e-8, constant_eps=None):
    """Losses of a net three times as wide as its base: no factor is a power of 2."""
    model, base = mlp(48), mlp(16)
    nz.mup_init_(model, base, table, generator=seeded())
    groups = nz.mup_param_groups(model, base, 1e-2, optimizer, table, eps)
    if constant_eps is not None:
        groups = [group | {"eps": constant_eps} for group in groups]
    descent = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[optimizer](groups)
    inputs, targets, losses = normal(30, 10), normal(30, 3, seed=2), []
    for _ in range(steps):
        loss = (model(inputs) - targets).square().mean()
        losses.append(loss.item())
        descent.zero_grad()
        loss.backward()
        descent.step()
    return torch.tensor(losses, dtype=torch.float64)


@pytest.mark.parametrize(
    "options", [{"optimizer": "adam"}, {"optimizer": "adam", "eps": 1e-3}, {"optimizer": "sgd"}]
)
def test_both_tables_give_the_same_training(options):
    third, eighth = trajectory(3, **options), trajectory(8, **options)
    assert (third - eighth).abs().max() < 1e-8
    assert third[-1] < 0.9 * third[0]


@pytest.mark.parametrize(("eps", "apart"), [(1e-8, 1e-8), (1e-3, 1e-3)])
def test_with_a_constant_epsilon_they_part(eps, apart):
    third = trajectory(3, "adam", constant_eps=eps)
    eighth = trajectory(8, "adam", constant_eps=eps)
    assert (third - eighth).abs().max() > apart


def test_groups_have_kinds_and_epsilons_for_adam_alone():
    model, base = mlp(256), mlp(64)
    nz.mup_init_(model, base)
    groups = nz.mup_param_groups(model, base, 0.5, "adam", eps=1e-6)
    found = {(g["kind"], g["lr"], g["eps"]) for g in groups}
    assert found == {
        ("input", 0.5, 1e-6 / 4),
        ("hidden", 0.125, 1e-6 / 4),
        ("hidden", 0.125, 1e-6 / 16),
        ("vector", 0.5, 1e-6 / 4),
        ("vector", 0.5, 1e-6 / 16),
        ("output", 0.5, 1e-6 / 16),
        ("fixed", 0.5, 1e-6),
    }
    assert sum(len(group["params"]) for group in groups) == 10
    assert all("eps" not in g for g in nz.mup_param_groups(model, base, 0.5, "sgd"))


# --- what it is for ---

WIDTHS = (64, 128, 256, 512)


def relu_net(width):
    return nn.Sequential(
        *(nn.Linear(16, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()),
        nn.Linear(width, 4),
    ).double()


def slope(sizes):
    """Slope of log2 size over log2 width, by least squares; sizes [widths, …]."""
    x = torch.tensor(WIDTHS, dtype=torch.float64).log2()
    x = x - x.mean()
    return torch.einsum("w,w...->...", x, torch.stack(sizes).log2()) / x.square().sum()


def coordinates(width, base_width, optimizer, lr, table, seed, steps=5):
    """Mean |h| of both hidden layers and mean |h - h₀| after steps 2 to `steps`: [steps - 1, 4].

    The readout starts at 0, as the authors advise: its initial size falls with width, by design.
    """
    model, base = relu_net(width), relu_net(base_width)
    nz.mup_init_(model, base, table, math.sqrt(2), seeded(seed))
    nn.init.zeros_(model[4].weight)
    groups = nz.mup_param_groups(model, base, lr, optimizer, table)
    descent = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[optimizer](groups)
    inputs, targets = normal(32, 16, seed=7), normal(32, 4, seed=8)
    layers = []
    for _ in range(steps + 1):
        first = model[:2](inputs)
        second = model[2:4](first)
        layers.append((first.detach(), second.detach()))
        descent.zero_grad()
        (model[4](second) - targets).square().mean().backward()
        descent.step()
    size = lambda h: h.abs().mean().item()  # noqa: E731
    start = layers[0]
    return torch.tensor(
        [
            [size(h[0]), size(h[1]), size(h[0] - start[0]), size(h[1] - start[1])]
            for h in layers[2:]
        ],
        dtype=torch.float64,
    )


def coordinate_slopes(optimizer, lr, table=8, standard=False):
    sizes = []
    for width in WIDTHS:
        base = width if standard else WIDTHS[0]
        runs = [coordinates(width, base, optimizer, lr, table, seed) for seed in range(4)]
        sizes.append(torch.stack(runs).mean(0))
    return slope(sizes)


@pytest.mark.parametrize("table", [3, 8])
@pytest.mark.parametrize(("optimizer", "lr"), [("adam", 3e-3), ("adam", 1e-3), ("sgd", 1e-2)])
def test_coordinate_check(optimizer, lr, table):
    slopes = coordinate_slopes(optimizer, lr, table)
    assert slopes[:, :2].abs().max() < 0.1
    # and the features are learned: their change neither grows nor dies out
    assert slopes[:, 2:].abs().max() < 0.1


@pytest.mark.parametrize(("optimizer", "lr"), [("adam", 1e-3), ("sgd", 1e-3)])
def test_features_of_a_standard_parametrization_change_more_in_wider_nets(optimizer, lr):
    # the second layer's: 0.66 to 0.72 with Adam, 0.74 to 0.86 with SGD. (The mup package's own
    # check has 0.98 for the size itself after two large steps, widths 64 to 1024.)
    slopes = coordinate_slopes(optimizer, lr, standard=True)
    assert slopes[:, 3].min() > 0.5


@pytest.mark.parametrize("table", [3, 8])
def test_gradients_shrink_as_epsilon_does(table):
    directions, sizes = normal(32, 4, seed=8), []
    for width in WIDTHS:
        model = relu_net(width)
        nz.mup_init_(model, relu_net(WIDTHS[0]), table, math.sqrt(2), seeded())
        (model(normal(32, 16, seed=7)) * directions).sum().backward()
        sizes.append(torch.stack([p.grad.abs().mean() for p in model.parameters()]))
    expected = [-1.0, -1.0, -1.0, -1.0, {3: 0.0, 8: -1.0}[table], 0.0]
    assert slope(sizes).tolist() == pytest.approx(expected, abs=0.1)


# --- bad input ---

WIDE, BASE = mlp(128), mlp(64)
READY = nz.mup_init_(mlp(128), BASE)
LINEAR = nn.Linear(64, 3)


class Own(nn.Module):
    def __init__(self, *shape):
        super().__init__()
        self.matrix = nn.Parameter(torch.zeros(shape))


def groups(model=READY, base=BASE, lr=0.1, **options):
    return nz.mup_param_groups(model, base, lr, **options)


BAD = [
    (lambda: nz.mup_init_("model", BASE), TypeError, "model must be a module, got str"),
    (lambda: nz.mup_init_(WIDE, 64), TypeError, "base must be a module, got int"),
    (
        lambda: nz.mup_kinds(WIDE, BASE[:5]),
        ValueError,
        "base must have a parameter 6.weight .*none",
    ),
    (lambda: nz.mup_kinds(WIDE[:5], BASE), ValueError, "only, got 6.weight, 6.bias"),
    (
        lambda: nz.mup_kinds(Own(4), Own(4, 2)),
        ValueError,
        r"matrix .*\(4,\), got shape \(4, 2\)",
    ),
    (lambda: nz.mup_kinds(Own(4, 4), Own(2, 2)), ValueError, r"widths only.*\(4, 4\) in Own"),
    (lambda: nz.mup_kinds(Own(4, 2), Own(2, 2)), ValueError, r"widths only.*matrix"),
    (
        lambda: nz.mup_kinds(nn.Conv1d(2, 4, 3), nn.Conv1d(2, 2, 1)),
        ValueError,
        r"widths only, got \(2, 2, 1\) for weight of shape \(4, 2, 3\) in Conv1d",
    ),
    (
        lambda: nz.mup_kinds(nn.Embedding(9, 4), nn.Embedding(5, 4)),
        ValueError,
        "widths only.*Embedding",
    ),
    (
        lambda: nz.mup_kinds(Transformer(16, tied=True), Transformer(8, tied=True)),
        ValueError,
        "share a parameter.*head.weight: output and embedding.weight: input",
    ),
    (lambda: nz.mup_init_(WIDE, BASE, table=9), ValueError, "table must be one of 3, 8, got 9"),
    (lambda: nz.mup_init_(WIDE, BASE, gain=-1.0), ValueError, "gain .*-1"),
    (lambda: nz.mup_init_(WIDE, BASE, gain="relu"), TypeError, "gain .*str"),
    (lambda: nz.mup_init_(LINEAR, nn.Linear(32, 3)), ValueError, "inside of the model.*weight"),
    (lambda: groups(optimizer="lion"), ValueError, "optimizer .*'lion'"),
    (lambda: groups(table="8"), ValueError, "table .*'8'"),
    (lambda: groups(lr=-0.1), ValueError, "lr .*-0.1"),
    (lambda: groups(lr=None), TypeError, "lr .*NoneType"),
    (lambda: groups(eps=-1e-8), ValueError, "eps .*-1e-08"),
    # the multiplier of one table with the rates of the other
    (lambda: groups(table=3), ValueError, "multiplier of 1, got 0.25 in 6.weight"),
    (lambda: groups(mlp(128)), ValueError, "multiplier of 0.25, got 1 in 6.weight"),
    (lambda: nz.MupReadout(4, 2, multiplier=0.0), ValueError, "multiplier .*above 0, got 0"),
    (lambda: nz.MupReadout(4, 2, multiplier="1"), TypeError, "multiplier .*str"),
]
test_bad_input_is_refused = refused(BAD)
