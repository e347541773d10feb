"""Attention and the feed-forward network against PyTorch's own and against their formulas."""

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
    refused,
)
from torch import nn

import normalization as nz


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("leading", "causal"), [((), True), ((2,), False), ((2, 3), True)])
def test_attention_is_pytorchs(leading, causal, dtype):
    leaves = [normal(*leading, 5, 4, seed=s, dtype=dtype).requires_grad_() for s in range(3)]
    mine = nz.attention(*leaves, causal=causal)
    peer = F.scaled_dot_product_attention(*leaves, is_causal=causal)
    assert_close(mine, peer, TOLERANCE[dtype])
    for actual, expected in zip(gradients(mine, leaves), gradients(peer, leaves), strict=True):
        assert_close(actual, expected, 10 * TOLERANCE[dtype])


def test_logits_are_scaled_by_the_root_of_the_width_and_masked_above_the_diagonal():
    query, key = normal(3, 16), normal(3, 16, seed=1)
    assert_close(nz.attention_logits(query, key), query @ key.T / 4)
    masked = nz.attention_logits(query, key, causal=True)
    assert masked.isneginf().tolist() == [
        [False, True, True],
        [False, False, True],
        [False, False, False],
    ]
    assert_close(masked.tril(), (query @ key.T / 4).tril())


def test_keys_may_outnumber_queries():
    query, key, value = normal(2, 4), normal(5, 4, seed=1), normal(5, 3, seed=2)
    expected = F.scaled_dot_product_attention(query, key, value)
    assert_close(nz.attention(query, key, value), expected)


def test_entropy_of_uniform_certain_and_random_rows():
    assert_close(nz.attention_entropy(torch.zeros(2, 8)), torch.full((2,), math.log(8)), 1e-6)
    certain = torch.tensor([0.0, 1e4, -1e4])
    assert nz.attention_entropy(certain).item() == 0
    logits = normal(3, 4, 5)
    expected = torch.distributions.Categorical(logits=logits).entropy()
    assert_close(nz.attention_entropy(logits), expected)


def test_entropy_of_masked_rows_and_its_gradient_are_finite():
    zeros = torch.zeros(3, 3, dtype=torch.float64, requires_grad=True)
    entropy = nz.attention_entropy(nz.attention_logits(zeros, zeros, causal=True))
    assert_close(entropy.detach(), torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64).log())
    logits = normal(2, 4)
    logits[0, 1] = -math.inf
    gradient = torch.autograd.grad(
        nz.attention_entropy(leaf := logits.requires_grad_()).sum(), leaf
    )
    assert gradient[0].isfinite().all()
    assert gradient[0][0, 1] == 0
    assert torch.autograd.gradcheck(nz.attention_entropy, normal(2, 4).requires_grad_())


@pytest.mark.parametrize(
    ("heads", "causal", "bias"), [(1, True, False), (2, True, True), (4, False, True)]
)
def test_multi_head_attention_is_pytorchs(heads, causal, bias):
    peer = nn.MultiheadAttention(8, heads, bias=bias, batch_first=True, dtype=torch.float64)
    mine = nz.MultiHeadAttention(8, heads, causal=causal, bias=bias).double()
    with torch.no_grad():
        if bias:
            peer.in_proj_bias.copy_(normal(24, seed=5))
        for index, layer in enumerate((mine.query, mine.key, mine.value)):
            layer.weight.copy_(peer.in_proj_weight.chunk(3)[index])
            if bias:
                layer.bias.copy_(peer.in_proj_bias.chunk(3)[index])
    mine.output.load_state_dict(peer.out_proj.state_dict())
    input = normal(2, 5, 8)
    mask = torch.ones(5, 5, dtype=torch.bool).triu(1) if causal else None
    expected = peer(input, input, input, attn_mask=mask, need_weights=False)[0]
    assert_close(mine(input), expected)
    assert_close(mine(input[0]), expected[0])
    assert_close(mine(input[:, None]), expected[:, None])


def test_logits_of_a_module_are_those_it_attends_with():
    module = nz.MultiHeadAttention(8, 2, causal=True).double()
    input = normal(3, 5, 8)
    logits = module.logits(input)
    assert logits.shape == (3, 2, 5, 5)
    values = module.value(input).unflatten(-1, (2, 4)).transpose(1, 2)
    heads = (logits.softmax(-1) @ values).transpose(1, 2).reshape(3, 5, 8)
    assert_close(module(input), module.output(heads))


def test_causal_attention_does_not_see_the_future():
    module = nz.MultiHeadAttention(8, 2, causal=True).double()
    input = normal(5, 8)
    changed = input.clone()
    changed[3:] += 1
    assert_close(module(changed)[:3], module(input)[:3])
    assert (module(changed)[3:] - module(input)[3:]).abs().max() > 1e-3


def test_feed_forward_is_its_formula():
    for activation in (torch.relu, nn.GELU(), torch.tanh):
        module = nz.FeedForward(4, 6, activation).double()
        input = normal(2, 3, 4)
        hidden = activation(input @ module.up.weight.T + module.up.bias)
        assert_close(module(input), hidden @ module.down.weight.T + module.down.bias)
    assert nz.FeedForward(4).up.weight.shape == (16, 4)
    assert nz.FeedForward(4, bias=False).down.bias is None
    assert nz.FeedForward(4).activation(torch.tensor(-1.0)) == 0


def test_transforms():
    query, key, value = (normal(3, 5, 4, seed=seed) for seed in range(3))
    assert_transforms(lambda *x: nz.attention(*x, causal=True), query, key, value)
    assert_transforms(lambda q, k: nz.attention_entropy(nz.attention_logits(q, k)), query, key)


ONES = torch.ones(2, 3)
WIDE = torch.ones(2, 5, 7)
BAD = [
    (lambda: nz.attention_logits(ONES.long(), ONES), TypeError, "query .*int64"),
    (lambda: nz.attention_logits(ONES, ONES.to(torch.complex64)), TypeError, "key .*complex64"),
    (lambda: nz.attention_logits(ONES, torch.ones(2, 4)), ValueError, "key .*width 3, got 4"),
    (lambda: nz.attention_logits(WIDE, WIDE[..., :4]), ValueError, "key .*width 7, got 4"),
    (lambda: nz.attention_logits(ONES[0], ONES), ValueError, r"\(3,\)"),
    (lambda: nz.attention_logits(ONES[None], ONES), ValueError, "same leading axes"),
    (
        lambda: nz.attention_logits(ONES, torch.ones(3, 3), causal=True),
        ValueError,
        "3 keys and 2",
    ),
    (lambda: nz.attention(ONES, ONES, torch.ones(1, 3)), ValueError, r"value .*\(1, 3\)"),
    (lambda: nz.attention(ONES, ONES, ONES.int()), TypeError, "value .*int32"),
    (lambda: nz.attention(ONES, ONES.double(), ONES), TypeError, "key .*float64"),
    (lambda: nz.attention(ONES, ONES, ONES.double()), TypeError, "value .*float64"),
    (lambda: nz.attention_entropy(torch.tensor(1.0)), ValueError, "logits .*scalar"),
    (lambda: nz.attention_entropy(torch.tensor([1])), TypeError, "logits .*int64"),
    (lambda: nz.MultiHeadAttention(8, 3), ValueError, "dim must be a multiple of heads.*8.*3"),
    (lambda: nz.MultiHeadAttention(0), ValueError, "dim must be at least 1, got 0"),
    (lambda: nz.MultiHeadAttention(8, 0), ValueError, "heads .*0"),
    (lambda: nz.MultiHeadAttention(8.0), TypeError, "dim .*8.0"),
    (lambda: nz.MultiHeadAttention(8)(torch.ones(8)), ValueError, r"T, 8\], got \(8,\)"),
    (lambda: nz.MultiHeadAttention(8)(torch.ones(2, 4)), ValueError, r"\(2, 4\)"),
    (lambda: nz.MultiHeadAttention(8).logits(torch.ones(2, 4)), ValueError, r"\(2, 4\)"),
    (lambda: nz.FeedForward(0), ValueError, "dim .*0"),
    (lambda: nz.FeedForward("8"), TypeError, "dim .*'8'"),
    (lambda: nz.FeedForward(8, -1), ValueError, "hidden .*-1"),
    (lambda: nz.FeedForward(8, activation="relu"), TypeError, "activation .*str"),
    (lambda: nz.FeedForward(8)(torch.ones(2, 4)), ValueError, r"\(2, 4\)"),
    (
        lambda: nz.FeedForward(8)(torch.ones(2, 8, dtype=torch.int32)),
        TypeError,
        "input .*int32",
    ),
]
test_bad_input_is_refused = refused(BAD)
