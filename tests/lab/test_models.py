"""The networks: wired as their formulas say, initialized as they promise, reproducible."""

import pytest
import torch
import torch.nn.functional as F
from engine_helpers import assert_close, normal, refused
from torch import nn
from torch.func import functional_call, stack_module_state, vmap

import normalization as nz
from normbook.lab.models import MLP, ResidualMLP, Transformer, build, initialize_, perturb_

MLP_SIZES = {"inputs": 6, "width": 5, "depth": 3, "outputs": 4}
TINY = {"dim": 8, "depth": 2, "outputs": 5, "length": 6}


def mlp(seed=0, **options):
    return build(lambda: MLP(**MLP_SIZES | options), seed)


def transformer(seed=0, **options):
    options = options if "vocabulary" in options else {"features": 3} | options
    return build(lambda: Transformer(**TINY | options), seed)


# --- build ---


def test_a_seed_gives_one_model_and_leaves_the_callers_generator_and_dtype_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first = mlp(seed=3)
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(first.head.weight, mlp(seed=3).head.weight)
    assert not torch.equal(first.head.weight, mlp(seed=4).head.weight)
    assert torch.get_default_dtype() == torch.float32
    assert {p.dtype for p in first.parameters()} == {torch.float64}


def test_build_puts_the_dtype_back_after_an_error():
    with pytest.raises(ValueError, match="activation"):
        mlp(activation="sine")
    assert torch.get_default_dtype() == torch.float32


def test_perturb_changes_every_weight_by_the_relative_amount(monkeypatch):
    model, same = mlp(), mlp()
    perturb_(same, 1e-6)
    change = torch.cat(
        [(b / a - 1).flatten() for a, b in zip(model.parameters(), same.parameters(), strict=True)]
    )
    assert (change != 0).all()
    assert change.std().item() == pytest.approx(1e-6, rel=0.2)
    monkeypatch.setenv("NORMBOOK_PERTURB", "1e-12")
    shaken = mlp()
    assert not torch.equal(model.head.weight, shaken.head.weight)
    assert torch.allclose(model.head.weight, shaken.head.weight, rtol=1e-11)


# --- MLP ---


@pytest.mark.parametrize(
    ("norm", "residual"), [(None, False), ("layer", True), ("batch", False), ("batch", True)]
)
def test_mlp_is_its_formula(norm, residual):
    model, input = mlp(norm=norm, residual=residual, activation="tanh"), normal(7, 1, 2, 3)
    x = F.linear(input.flatten(1), model.stem.weight, model.stem.bias)
    for block in model.blocks:
        linear = next(m for m in block.modules() if isinstance(m, nn.Linear))
        y = F.linear(x, linear.weight, linear.bias)
        if norm == "layer":
            y = F.layer_norm(y, (5,))
        if norm == "batch":
            y = F.batch_norm(y, None, None, training=True)
        x = torch.tanh(y) + (x if residual else 0)
    expected = F.linear(x, model.head.weight, model.head.bias)
    assert_close(model(input), expected)


@pytest.mark.parametrize(
    ("init", "variance"), [("default", 1 / 3), ("xavier", 1.0), ("kaiming", 2.0), (0.01, None)]
)
def test_mlp_weights_have_the_variance_of_their_rule(init, variance):
    model = build(lambda: MLP(inputs=9, width=200, depth=2, outputs=3, init=init), seed=0)
    weight = model.blocks[1][0].weight
    expected = 0.01**2 if variance is None else variance / 200
    assert weight.square().mean().item() == pytest.approx(expected, rel=0.03)
    if init != "default":
        assert not model.blocks[1][0].bias.any()


def test_kaiming_keeps_the_mean_square_of_a_deep_relu_net():
    # exact at infinite width, for the layers' outputs as for the logits; without the gain 2^-8
    sizes = {"inputs": 256, "width": 256, "depth": 8, "outputs": 256, "init": "kaiming"}
    models = [mlp(seed, **sizes) for seed in range(6)]
    squares = [model(normal(64, 256)).square().mean() for model in models]
    assert torch.stack(squares).mean().item() == pytest.approx(1.0, abs=0.25)


# --- residual MLP ---


def test_residual_mlp_is_stem_blocks_norm_head():
    block = lambda index: nz.Residual(nz.FeedForward(5), placement="none", scale=index + 1)  # noqa: E731
    sizes = {"width": 5, "depth": 3, "inputs": 6, "outputs": 4}
    model = build(lambda: ResidualMLP(block, **sizes, norm=nz.RMSNorm(5)), 0)
    x = normal(7, 2, 3)
    stream = model.stem(x.flatten(1))
    for index in range(3):
        stream = stream + (index + 1) * model.blocks[index].branch(stream)
    torch.testing.assert_close(model(x), model.head(nz.RMSNorm(5).double()(stream)))


def test_residual_mlp_without_ends_maps_the_stream_to_itself():
    block = lambda _: nz.Residual(nz.FeedForward(5), placement="none")  # noqa: E731
    model = build(lambda: ResidualMLP(block, width=5, depth=2), 0)
    assert model(normal(7, 5)).shape == (7, 5)
    assert not [name for name, _ in model.named_parameters() if name.startswith(("stem", "head"))]


# --- Transformer ---


def by_hand(model, input, placement, final):
    """The same network from PyTorch's functions: one head, no causality."""
    norm = lambda x: F.layer_norm(x, x.shape[-1:])  # noqa: E731
    x = model.embedding(input) + model.positions[: input.shape[1]]
    for block in model.blocks:
        a, f = block.attention.branch, block.feed_forward.branch
        attend = lambda x, a=a: a.output(  # noqa: E731
            F.scaled_dot_product_attention(a.query(x), a.key(x), a.value(x))
        )
        feed = lambda x, f=f: f.down(torch.relu(f.up(x)))  # noqa: E731
        for branch in (attend, feed):
            x = x + branch(norm(x) if placement == "pre" else x)
            x = norm(x) if placement == "post" else x
    return model.head(norm(x) if final else x)


@pytest.mark.parametrize(
    ("options", "final"),
    [
        ({"placement": "pre"}, True),
        ({"placement": "pre", "final_norm": False}, False),
        ({"placement": "post"}, False),
        ({"placement": "post", "final_norm": True}, True),
        ({"placement": "none"}, True),
        ({"placement": "none", "norm": None}, False),
    ],
)
def test_transformer_is_its_formula(options, final):
    model, input = transformer(**options), normal(4, 6, 3)
    assert_close(model(input), by_hand(model, input, options["placement"], final))


def test_mean_pooling_is_the_mean_of_the_positions_before_the_head():
    each, pooled = transformer(), transformer(pool="mean")
    pooled.load_state_dict(each.state_dict())
    input = normal(4, 6, 3)
    assert_close(pooled(input), each(input).mean(1))


def test_a_causal_model_does_not_look_ahead():
    model = transformer(vocabulary=7, causal=True, heads=2)
    tokens = torch.randint(7, (3, 6), generator=torch.Generator().manual_seed(0))
    changed = tokens.clone()
    changed[:, 4] = (changed[:, 4] + 1) % 7
    difference = (model(tokens) - model(changed)).abs().amax((0, 2))
    assert (difference[:4] == 0).all()
    assert (difference[4:] > 1e-6).all()


def test_norm_kinds_and_block_options_reach_the_blocks():
    model = transformer(norm="rms", hidden=11, skip_scale=2.0)
    assert isinstance(model.blocks[0].attention.norm, nz.RMSNorm)
    assert isinstance(model.final_norm, nz.RMSNorm)
    assert model.blocks[1].feed_forward.branch.up.out_features == 11
    assert model.blocks[1].attention.skip_scale == 2.0
    assert not any(
        m.bias.any() for m in model.modules() if isinstance(m, nn.Linear) and m.bias is not None
    )
    custom = transformer(norm=lambda dim: nz.LayerNorm(dim, eps=0.5))
    assert custom.final_norm.eps == 0.5


@pytest.mark.parametrize(
    ("make", "input"),
    [
        (lambda i: transformer(i, vocabulary=7, causal=True), torch.arange(12).view(2, 6) % 7),
        (lambda i: transformer(i, placement="post", pool="mean", heads=2), normal(2, 6, 3)),
        (lambda i: mlp(i, norm="batch", residual=True), normal(9, 6)),
        (lambda i: mlp(i, norm="rms"), normal(9, 6)),
    ],
    ids=["text", "features", "batch norm", "rms norm"],
)
def test_models_run_under_vmap_with_stacked_parameters(make, input):
    models = [make(seed) for seed in range(3)]
    state = stack_module_state(models)
    together = vmap(lambda p, b: functional_call(models[0], (p, b), (input,)))(*state)
    assert_close(together, torch.stack([model(input) for model in models]))


# --- what is refused ---

BAD = [
    (lambda: perturb_(mlp(), -1.0), ValueError, "relative"),
    (lambda: mlp(depth=0), ValueError, "depth"),
    (lambda: mlp(width=2.5), TypeError, "width"),
    (lambda: mlp(norm="group"), ValueError, "norm"),
    (lambda: mlp(activation="sine"), ValueError, "activation"),
    (lambda: mlp(init="he"), ValueError, "rule"),
    *[
        (lambda r=r: initialize_(nn.Linear(2, 2), r), ValueError, "rule")
        for r in ("he", None, True)
    ],
    (lambda: ResidualMLP(nn.Linear, width=5, depth=0), ValueError, "depth"),
    (lambda: transformer(vocabulary=5, features=3), ValueError, "exactly one"),
    (lambda: transformer(features=None), ValueError, "exactly one"),
    (lambda: transformer(norm="batch"), ValueError, "norm"),
    (lambda: transformer(norm=None), ValueError, "norm must be given"),
    (
        lambda: transformer(norm=None, placement="none", final_norm=True),
        *(ValueError, "norm must be given"),
    ),
    (lambda: transformer(placement="between"), ValueError, "placement"),
    (lambda: transformer(pool="max"), ValueError, "pool"),
    (lambda: transformer(length=0), ValueError, "length"),
    (lambda: transformer(heads=3), ValueError, "heads"),
    (lambda: transformer()(normal(2, 7, 3)), ValueError, "at most 6 positions, got 7"),
]
test_bad_models_are_refused = refused(BAD)
