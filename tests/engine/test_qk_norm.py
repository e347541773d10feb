"""Normalized queries and keys, the scales of the logits and their cap, against the formulas."""

import math

import pytest
import torch
import torch.nn.functional as F
from engine_helpers import (
    DTYPES,
    TOLERANCE,
    assert_close,
    assert_transforms,
    gradients,
    normal,
    randomize,
    refused,
)

import normalization as nz

NORMS = ["l2", "rms", "layer"]
PEERS = {
    "l2": lambda x, g: F.normalize(x, dim=-1),
    "rms": lambda x, g: F.rms_norm(x, x.shape[-1:], g, 1e-6),
    "layer": lambda x, g: F.layer_norm(x, x.shape[-1:], g, None, 1e-6),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NORMS)
def test_qk_normalize_is_pytorchs(name, dtype):
    features, gain = normal(2, 5, 8, dtype=dtype).requires_grad_(), normal(8, seed=1, dtype=dtype)
    mine = nz.qk_normalize(features, name, None if name == "l2" else gain)
    peer = PEERS[name](features, gain)
    assert_close(mine, peer, TOLERANCE[dtype])
    assert_close(*(gradients(output, features)[0] for output in (mine, peer)), TOLERANCE[dtype])
    assert nz.qk_normalize(features, None) is features


def test_scales():
    query, key = normal(3, 16), normal(4, 16, seed=1)
    products = query @ key.T
    assert_close(nz.attention_logits(query, key), products / 4)
    assert_close(nz.attention_logits(query, key, scale="1/d"), products / 16)
    assert_close(nz.attention_logits(query, key, scale=0.3), 0.3 * products)
    temperature = torch.tensor(0.3, dtype=torch.float64)
    assert_close(nz.attention_logits(query, key, scale=temperature), 0.3 * products)


@pytest.mark.parametrize("scale", ["1/sqrt(d)", "1/d", 0.3])
def test_attention_with_a_scale_is_pytorchs(scale):
    leaves = [normal(2, 5, 4, seed=s).requires_grad_() for s in range(3)]
    number = {"1/sqrt(d)": 0.5, "1/d": 0.25}.get(scale, scale)
    mine = nz.attention(*leaves, causal=True, scale=scale)
    peer = F.scaled_dot_product_attention(*leaves, is_causal=True, scale=number)
    assert_close(mine, peer)
    for actual, expected in zip(gradients(mine, leaves), gradients(peer, leaves), strict=True):
        assert_close(actual, expected, 1e-11)


def test_the_cap_bounds_the_logits_before_the_mask():
    query, key = 30 * normal(4, 8), 30 * normal(4, 8, seed=1)
    logits = nz.attention_logits(query, key, causal=True, soft_cap=50.0)
    allowed = torch.ones(4, 4, dtype=torch.bool).tril()
    assert logits[allowed].abs().max() <= 50
    assert logits[~allowed].isneginf().all()
    expected = 50 * torch.tanh(query @ key.T / math.sqrt(8) / 50)
    assert_close(logits[allowed], expected[allowed])
    small = nz.attention_logits(query / 1e3, key / 1e3)
    assert_close(nz.attention_logits(query / 1e3, key / 1e3, soft_cap=50.0), small, 1e-5)


@pytest.mark.parametrize("name", NORMS)
def test_attention_normalizes_queries_and_keys_and_not_values(name):
    query, key, value = (normal(2, 5, 4, seed=seed) for seed in range(3))
    output = nz.attention(query, key, value, qk_norm=name, scale=2.0)
    wide = [PEERS[name](x, None) for x in (query, key)]
    assert_close(output, F.scaled_dot_product_attention(*wide, value, scale=2.0))
    assert_close(nz.attention(1e3 * query, key, value, qk_norm=name, scale=2.0), output, 1e-5)


@pytest.mark.parametrize("over", ["head", "projection"])
@pytest.mark.parametrize("name", [None, *NORMS])
def test_module_is_its_formula(name, over):
    module = nz.MultiHeadAttention(8, 2, causal=True, qk_norm=name, qk_norm_over=over).double()
    randomize(module)
    input = normal(3, 5, 8)

    def split(features):
        return features.unflatten(-1, (2, 4)).transpose(1, 2)

    def prepare(features, gain):
        if name is None:
            return split(features)
        if over == "projection":
            return split(PEERS[name](features, gain))
        return PEERS[name](split(features), gain)

    query = prepare(module.query(input), module.query_gain)
    key = prepare(module.key(input), module.key_gain)
    scale = module.temperature.item() if name == "l2" else 0.5
    heads = F.scaled_dot_product_attention(
        query, key, split(module.value(input)), is_causal=True, scale=scale
    )
    assert_close(module(input), module.output(heads.transpose(1, 2).flatten(-2)))
    logits = scale * query @ key.transpose(-2, -1)
    assert_close(module.logits(input).tril(), logits.tril())


def test_gains_and_temperature_are_where_they_should_be():
    plain = set(dict(nz.MultiHeadAttention(8, 2).named_parameters()))
    projections = ("query", "key", "value", "output")
    assert plain == {f"{name}.{kind}" for name in projections for kind in ("weight", "bias")}
    for name, over, size in (("rms", "head", 4), ("layer", "projection", 8)):
        module = nz.MultiHeadAttention(8, 2, qk_norm=name, qk_norm_over=over)
        assert set(dict(module.named_parameters())) - plain == {"query_gain", "key_gain"}
        assert module.query_gain.tolist() == module.key_gain.tolist() == [1.0] * size
    module = nz.MultiHeadAttention(8, 2, qk_norm="l2")
    assert set(dict(module.named_parameters())) - plain == {"temperature"}
    assert module.temperature.item() == 2.0  # sqrt(8 / 2)
    module = nz.MultiHeadAttention(8, 2, qk_norm="l2", init_temperature=7.5)
    assert module.temperature.item() == 7.5


def test_l2_starts_as_rms():
    l2 = nz.MultiHeadAttention(8, 2, qk_norm="l2").double()
    rms = nz.MultiHeadAttention(8, 2, qk_norm="rms").double()
    rms.load_state_dict(l2.state_dict(), strict=False)
    assert_close(l2(normal(3, 5, 8)), rms(normal(3, 5, 8)), 1e-4)


@pytest.mark.parametrize("name", NORMS)
def test_logits_are_bounded_whatever_the_weights(name):
    module = nz.MultiHeadAttention(8, 2, qk_norm=name).double()
    with torch.no_grad():
        module.query.weight *= 1e4
        module.key.weight *= 1e4
    bound = math.sqrt(4)  # the gains' largest, 1, twice, times sqrt(d); or the temperature
    assert module.logits(normal(3, 50, 8)).abs().max() <= bound + 1e-9
    plain = nz.MultiHeadAttention(8, 2).double()
    with torch.no_grad():
        plain.query.weight *= 1e4
    assert plain.logits(normal(3, 50, 8)).abs().max() > 100


def test_per_head_and_full_projection_differ():
    heads = nz.MultiHeadAttention(8, 2, qk_norm="rms").double()
    whole = nz.MultiHeadAttention(8, 2, qk_norm="rms", qk_norm_over="projection").double()
    for name in ("query", "key"):
        getattr(whole, name).load_state_dict(getattr(heads, name).state_dict())
    input = normal(3, 5, 8)
    assert (heads.logits(input) - whole.logits(input)).abs().max() > 0.01


def test_zero_vectors_and_large_halves():
    assert nz.qk_normalize(torch.zeros(2, 4), "l2").tolist() == [[0.0] * 4] * 2
    leaf = torch.zeros(2, 4, requires_grad=True)
    assert torch.autograd.grad(nz.qk_normalize(leaf, "l2").sum(), leaf)[0].isfinite().all()
    large = torch.full((1, 4), 6e4, dtype=torch.float16)
    for name in NORMS[:2]:
        assert nz.qk_normalize(large, name).unique().tolist() == [0.5 if name == "l2" else 1.0]


def test_nan_stays_in_its_row_and_empty_batches_stay_empty():
    features = normal(3, 4)
    features[1, 2] = math.nan
    for name in NORMS:
        assert nz.qk_normalize(features, name).isnan().any(-1).tolist() == [False, True, False]
        module = nz.MultiHeadAttention(4, 2, qk_norm=name)
        assert module(torch.ones(0, 5, 4)).shape == (0, 5, 4)


def test_a_block_passes_the_settings_on():
    options = {"qk_norm": "rms", "soft_cap": 30.0, "scale": "1/d"}
    block = nz.TransformerBlock(8, 2, attention=options)
    branch = block.attention.branch
    assert (branch.qk_norm, branch.soft_cap, branch.scale) == ("rms", 30.0, "1/d")
    for part in ("qk_norm='rms' over head", "soft_cap=30", "scale='1/d'"):
        assert part in repr(branch)


def test_a_block_makes_a_scale_for_each_residual():
    block = nz.TransformerBlock(8, 2, scale=lambda dim: nz.LayerScale(dim, 0.1))
    scales = block.attention.scale, block.feed_forward.scale
    assert all(isinstance(scale, nz.LayerScale) for scale in scales)
    assert scales[0] is not scales[1]


@pytest.mark.parametrize("name", NORMS)
def test_transforms(name):
    gain = () if name == "l2" else (normal(3, 4, seed=1),)
    assert_transforms(lambda x, *g: nz.qk_normalize(x, name, *g), normal(3, 5, 4), *gain)
    query, key = normal(3, 5, 4), normal(3, 5, 4, seed=2)
    assert_transforms(
        lambda q, k, s: nz.attention_logits(q, k, scale=s, qk_norm=name, soft_cap=3.0),
        query,
        key,
        normal(3, seed=3),
    )


ONES = torch.ones(2, 4)
MHA = nz.MultiHeadAttention
BAD = [
    (
        lambda: nz.attention_logits(ONES, ONES, scale="1/4"),
        ValueError,
        "scale .*'1/d', got '1/4'",
    ),
    (lambda: nz.attention_logits(ONES, ONES, scale=None), TypeError, "scale .*NoneType"),
    (lambda: nz.attention_logits(ONES, ONES, scale=math.inf), ValueError, "scale .*inf"),
    (lambda: nz.attention_logits(ONES, ONES, scale=ONES), ValueError, r"scale .*\(2, 4\)"),
    (lambda: nz.attention_logits(ONES, ONES, qk_norm="batch"), ValueError, "qk_norm .*'batch'"),
    (
        lambda: nz.attention_logits(ONES, ONES, soft_cap=0),
        ValueError,
        "soft_cap must be above 0",
    ),
    (lambda: nz.attention_logits(ONES, ONES, soft_cap=-5.0), ValueError, "soft_cap .*-5"),
    (lambda: nz.attention_logits(ONES, ONES, soft_cap="30"), TypeError, "soft_cap .*str"),
    (lambda: nz.attention(ONES, ONES, ONES, qk_norm="none"), ValueError, "qk_norm .*'none'"),
    (lambda: nz.qk_normalize(ONES, "l2", ONES[0]), ValueError, "gain must be None .*'l2'"),
    (lambda: nz.qk_normalize(ONES, None, ONES[0]), ValueError, "gain must be None"),
    (lambda: nz.qk_normalize(ONES, "rms", torch.ones(2)), ValueError, r"weight .*\(2,\)"),
    (lambda: nz.qk_normalize(ONES.long(), "l2"), TypeError, "features .*int64"),
    (lambda: nz.qk_normalize(ONES, "layer", eps=-1.0), ValueError, "eps .*-1"),
    (lambda: MHA(8, qk_norm="group"), ValueError, "qk_norm .*'group'"),
    (lambda: MHA(8, qk_norm="rms", qk_norm_over="heads"), ValueError, "qk_norm_over .*'heads'"),
    (lambda: MHA(8, scale="d"), ValueError, "scale .*'d'"),
    (lambda: MHA(8, scale=None), TypeError, "scale .*NoneType"),
    (lambda: MHA(8, qk_norm="l2", scale="1/d"), ValueError, "scale must be left alone .*'1/d'"),
    (
        lambda: MHA(8, qk_norm="rms", init_temperature=1.0),
        ValueError,
        "init_temperature .*'rms'",
    ),
    (lambda: MHA(8, qk_norm="l2", init_temperature="1"), TypeError, "init_temperature .*str"),
    (lambda: MHA(8, soft_cap=-1), ValueError, "soft_cap .*-1"),
    (lambda: nz.TransformerBlock(8, attention={"qk_norm": "x"}), ValueError, "qk_norm .*'x'"),
]
test_bad_input_is_refused = refused(BAD)
