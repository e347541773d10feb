"""The networks: wired as their formulas say, initialized as they promise, reproducible."""

import math

import pytest
import torch
import torch.nn.functional as F
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


def data(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# --- build ---


def test_a_seed_gives_one_model_whatever_the_caller_does():
    first = mlp(seed=3)
    torch.manual_seed(12)
    torch.rand(5)
    second = mlp(seed=3)
    other = mlp(seed=4)
    assert torch.equal(first.head.weight, second.head.weight)
    assert not torch.equal(first.head.weight, other.head.weight)


@pytest.fixture
def float32():
    """The default dtype of a fresh Python, whatever ran before."""
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    yield
    torch.set_default_dtype(dtype)


@pytest.mark.usefixtures("float32")
def test_build_leaves_the_callers_generator_and_dtype_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    model = mlp()
    assert torch.equal(torch.rand(3), expected)
    assert torch.get_default_dtype() == torch.float32
    assert {p.dtype for p in model.parameters()} == {torch.float64}


@pytest.mark.usefixtures("float32")
def test_build_puts_the_dtype_back_after_an_error():
    with pytest.raises(ValueError, match="activation"):
        mlp(activation="sine")
    assert torch.get_default_dtype() == torch.float32


def test_perturb_changes_every_weight_by_the_relative_amount():
    model, same = mlp(), mlp()
    perturb_(same, 1e-6)
    change = torch.cat(
        [(b / a - 1).flatten() for a, b in zip(model.parameters(), same.parameters(), strict=True)]
    )
    assert (change != 0).all()
    assert change.std().item() == pytest.approx(1e-6, rel=0.2)
    with pytest.raises(ValueError, match="relative"):
        perturb_(model, -1.0)


def test_the_environment_perturbs_whatever_is_built(monkeypatch):
    plain = mlp()
    monkeypatch.setenv("NORMBOOK_PERTURB", "1e-12")
    shaken = mlp()
    assert not torch.equal(plain.head.weight, shaken.head.weight)
    assert torch.allclose(plain.head.weight, shaken.head.weight, rtol=1e-11)


# --- MLP ---


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("norm", [None, "layer", "batch"])
def test_mlp_is_its_formula(norm, residual):
    model, input = mlp(norm=norm, residual=residual, activation="tanh"), data(7, 6)
    x = F.linear(input, model.stem.weight, model.stem.bias)
    for block in model.blocks:
        linear = next(m for m in block.modules() if isinstance(m, nn.Linear))
        y = F.linear(x, linear.weight, linear.bias)
        if norm == "layer":
            y = F.layer_norm(y, (5,))
        if norm == "batch":
            y = F.batch_norm(y, None, None, training=True)
        x = torch.tanh(y) + (x if residual else 0)
    expected = F.linear(x, model.head.weight, model.head.bias)
    assert torch.allclose(model(input), expected, rtol=0, atol=1e-12)


def test_mlp_flattens_images():
    model, input = mlp(), data(7, 1, 2, 3)
    assert torch.equal(model(input), model(input.flatten(1)))


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
    squares = [model(data(64, 256)).square().mean() for model in models]
    assert torch.stack(squares).mean().item() == pytest.approx(1.0, abs=0.25)


@pytest.mark.parametrize(
    ("options", "error", "named"),
    [
        ({"depth": 0}, ValueError, "depth"),
        ({"width": 2.5}, TypeError, "width"),
        ({"norm": "group"}, ValueError, "norm"),
        ({"activation": "sine"}, ValueError, "activation"),
        ({"init": "he"}, ValueError, "rule"),
    ],
)
def test_mlp_refuses_what_it_does_not_know(options, error, named):
    with pytest.raises(error, match=named):
        mlp(**options)


# --- residual MLP ---


def test_residual_mlp_is_stem_blocks_norm_head():
    block = lambda index: nz.Residual(nz.FeedForward(5), placement="none", scale=index + 1)  # noqa: E731
    sizes = {"width": 5, "depth": 3, "inputs": 6, "outputs": 4}
    model = build(lambda: ResidualMLP(block, **sizes, norm=nz.RMSNorm(5)), 0)
    x = data(7, 2, 3)
    stream = model.stem(x.flatten(1))
    for index in range(3):
        stream = stream + (index + 1) * model.blocks[index].branch(stream)
    torch.testing.assert_close(model(x), model.head(nz.RMSNorm(5).double()(stream)))


def test_residual_mlp_without_ends_maps_the_stream_to_itself():
    block = lambda _: nz.Residual(nz.FeedForward(5), placement="none")  # noqa: E731
    model = build(lambda: ResidualMLP(block, width=5, depth=2), 0)
    assert model(data(7, 5)).shape == (7, 5)
    assert not [name for name, _ in model.named_parameters() if name.startswith(("stem", "head"))]
    with pytest.raises(ValueError, match="depth"):
        ResidualMLP(block, width=5, depth=0)


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
            if placement == "pre":
                x = x + branch(norm(x))
            elif placement == "post":
                x = norm(x + branch(x))
            else:
                x = x + branch(x)
    return model.head(norm(x) if final else x)


@pytest.mark.parametrize(
    ("placement", "final_norm", "final"),
    [
        ("pre", None, True),
        ("pre", False, False),
        ("post", None, False),
        ("post", True, True),
        ("none", None, True),
    ],
)
def test_transformer_is_its_formula(placement, final_norm, final):
    model, input = transformer(placement=placement, final_norm=final_norm), data(4, 6, 3)
    assert torch.allclose(model(input), by_hand(model, input, placement, final), rtol=0, atol=1e-12)


def test_transformer_without_any_norm():
    model, input = transformer(norm=None, placement="none"), data(4, 6, 3)
    assert torch.allclose(model(input), by_hand(model, input, "none", False), rtol=0, atol=1e-12)
    assert not [m for m in model.modules() if isinstance(m, nz.LayerNorm)]


def test_mean_pooling_is_the_mean_of_the_positions_before_the_head():
    each, pooled = transformer(), transformer(pool="mean")
    pooled.load_state_dict(each.state_dict())
    input = data(4, 6, 3)
    assert torch.allclose(pooled(input), each(input).mean(1), rtol=0, atol=1e-12)


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
    custom = transformer(norm=lambda dim: nz.LayerNorm(dim, eps=0.5))
    assert custom.final_norm.eps == 0.5


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"vocabulary": 5, "features": 3}, "exactly one"),
        ({"features": None}, "exactly one"),
        ({"norm": "batch"}, "norm"),
        ({"norm": None}, "norm must be given"),
        ({"norm": None, "placement": "none", "final_norm": True}, "norm must be given"),
        ({"placement": "between"}, "placement"),
        ({"pool": "max"}, "pool"),
        ({"length": 0}, "length"),
        ({"heads": 3}, "heads"),
    ],
)
def test_transformer_refuses_what_excludes_itself(options, named):
    with pytest.raises(ValueError, match=named):
        transformer(**options)


def test_longer_sequences_than_positions_are_refused():
    with pytest.raises(ValueError, match="at most 6 positions, got 7"):
        transformer()(data(2, 7, 3))


@pytest.mark.parametrize(
    "make",
    [
        lambda seed: transformer(seed, vocabulary=7, causal=True),
        lambda seed: transformer(seed, placement="post", pool="mean", heads=2),
        lambda seed: mlp(seed, norm="batch", residual=True),
        lambda seed: mlp(seed, norm="rms"),
    ],
    ids=["text", "features", "batch norm", "rms norm"],
)
def test_models_run_under_vmap_with_stacked_parameters(make):
    models = [make(seed) for seed in range(3)]
    if hasattr(models[0], "positions"):
        text = isinstance(models[0].embedding, nn.Embedding)
        input = torch.arange(12).reshape(2, 6) % 7 if text else data(2, 6, 3)
    else:
        input = data(9, 6)
    state = stack_module_state(models)
    together = vmap(lambda p, b: functional_call(models[0], (p, b), (input,)))(*state)
    for model, output in zip(models, together, strict=True):
        assert torch.allclose(output, model(input), rtol=0, atol=1e-12)


# --- initialization ---


def test_initialize_refuses_unknown_rules():
    for rule in ("glorot", None, True):
        with pytest.raises(ValueError, match="rule"):
            initialize_(nn.Linear(2, 2), rule)


def test_cross_entropy_of_the_untrained_model_is_near_chance():
    model = transformer(vocabulary=7, causal=True)
    tokens = torch.randint(7, (64, 6), generator=torch.Generator().manual_seed(1))
    loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten() % 5)
    assert abs(loss.item() - math.log(5)) < 1.5
