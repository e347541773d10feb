"""The probes against what PyTorch's functions, backward() and pencil and paper give."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from engine_helpers import assert_close, normal, refused
from torch import nn

from normbook.lab import probes
from normbook.lab.models import MLP, Transformer, build
from normbook.lab.training import mean_square

TINY = {"dim": 8, "depth": 3, "outputs": 5, "length": 6, "features": 4}


def xiong(seed=0, **options):
    """The setting of Xiong et al. 2020, section 3.3: uniform attention without an output matrix."""
    model = build(lambda: Transformer(**options), seed)
    with torch.no_grad():
        model.positions.zero_()
        nn.init.eye_(model.embedding.weight)
        for block in model.blocks:
            attention = block.attention.branch
            attention.query.weight.zero_()
            attention.key.weight.zero_()
            nn.init.eye_(attention.output.weight)
    return model


def transformer(seed=0, **options):
    return build(lambda: Transformer(**TINY | options), seed)


def mlp(seed=0, **options):
    sizes = {"inputs": 6, "width": 7, "depth": 4, "outputs": 5}
    return build(lambda: MLP(**sizes | options), seed)


def labels(*shape):
    return torch.randint(5, shape, generator=torch.Generator().manual_seed(1))


# --- activations and the residual stream ---


def test_moments_of_each_layer():
    model, x = mlp(), normal(9, 6)
    start, found = x, probes.activation_moments(model, x)
    x = model.stem(x)
    for layer, block in enumerate(model.blocks):
        x = block(x)
        assert found.mean[layer].item() == pytest.approx(x.mean().item())
        assert found.std[layer].item() == pytest.approx(x.std(correction=0).item())
        assert found.mean_square[layer].item() == pytest.approx(x.square().mean().item())
    chosen = probes.activation_moments(model, start, [model.head, model.stem]).mean  # in this order
    assert_close(chosen, torch.stack([model(start).mean(), model.stem(start).mean()]))


def test_a_probe_leaves_the_model_as_it_was():
    model, x, y = mlp(norm="batch"), normal(9, 6), labels(9)
    before = copy.deepcopy(model.state_dict())
    probes.activation_moments(model, x)
    probes.residual_stream(model, x)
    probes.block_gradients(model, x, y)
    probes.logit_scale(model, x)
    after = model.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert model.training
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def stream_by_hand(model, x, placement):
    """(after each sublayer, the sum before the norm that follows), the embedding first in both."""
    norm = lambda x: F.layer_norm(x, x.shape[-1:])  # noqa: E731
    x = model.embedding(x) + model.positions
    outputs, sums = [x], [x]
    for block in model.blocks:
        for part in (block.attention, block.feed_forward):
            total = x + part.branch(norm(x) if placement == "pre" else x)
            x = norm(total) if placement == "post" else total
            outputs.append(x)
            sums.append(total)
    return torch.stack(outputs), torch.stack(sums)


@pytest.mark.parametrize("placement", ["pre", "post"])
def test_the_stream_at_its_three_places(placement):
    model, x = transformer(placement=placement), normal(3, 6, 4)
    sublayers, sums = stream_by_hand(model, x, placement)
    assert_close(probes.residual_stream(model, x), sublayers[::2])
    assert_close(probes.residual_stream(model, x, "sublayers"), sublayers)
    assert_close(probes.residual_stream(model, x, "sums"), sums)
    assert torch.allclose(sublayers, sums) == (placement == "pre")
    assert all("add" not in vars(block.attention) for block in model.blocks)


def test_the_stream_of_an_mlp():
    model, x = mlp(residual=True), normal(9, 6)
    stream = probes.residual_stream(model, x)
    assert stream.shape == (5, 9, 7)
    assert torch.equal(stream[0], model.stem(x))
    assert_close(model.head(stream[-1]), model(x))
    assert torch.equal(probes.residual_stream(model, x, "sums"), stream)


def test_a_stream_of_right_angles_and_doublings():
    # (1, 0) → (0, 1) → (0, 3) for one example, (2, 0) → (2, 0) → (−2, 0) for the other
    stream = torch.tensor(
        [[[1.0, 0.0], [2.0, 0.0]], [[0.0, 1.0], [2.0, 0.0]], [[0.0, 3.0], [-2.0, 0.0]]]
    )
    assert probes.mean_square_norm(stream).tolist() == [2.5, 2.5, 6.5]
    assert probes.contribution(stream).tolist() == pytest.approx([math.sqrt(2) / 2, 2.0])
    assert probes.consecutive_cosine(stream).tolist() == pytest.approx([0.5, 0.0])


def test_xiongs_lemma_2_with_one_token():
    # one token: attention writes x W_V with ‖·‖² = d, the feed-forward network writes d/2
    dim, depth = 96, 4
    sizes = {"dim": dim, "depth": depth, "hidden": dim, "features": dim, "length": 1, "outputs": 3}
    x = normal(300, 1, dim)
    pre, post = [], []
    for seed in range(4):
        stream = probes.residual_stream(xiong(seed, **sizes, placement="pre"), x)
        pre.append(probes.mean_square_norm(stream) / dim)
        sums = probes.residual_stream(xiong(seed, **sizes, placement="post"), x, "sums")
        post.append(probes.mean_square_norm(sums)[2::2] / dim)
    expected = 1 + 1.5 * torch.arange(depth + 1)
    assert torch.stack(pre).mean(0).tolist() == pytest.approx(expected.tolist(), rel=0.05)
    assert torch.stack(post).mean(0).tolist() == pytest.approx([1.5] * depth, rel=0.05)


@pytest.mark.parametrize("index", [0, 2, -1])
def test_a_model_without_one_block_gets_it_back(index):
    model, x = mlp(), normal(9, 6)
    blocks = list(model.blocks)
    with probes.without_block(model, index) as shorter:
        found = shorter(x)
    expected = model.stem(x)
    for block in blocks:
        expected = expected if block is blocks[index] else block(expected)
    assert torch.equal(found, model.head(expected))
    assert list(model.blocks) == blocks
    with pytest.raises(RuntimeError), probes.without_block(model, index):
        model(normal(9, 3))
    assert list(model.blocks) == blocks


# --- gradients ---


def test_gradient_norms_are_those_of_backward():
    model, x, y = transformer(pool="mean"), normal(3, 6, 4), labels(3)
    with torch.no_grad():
        norms = probes.gradient_norms(model, x, y)
    blocks = probes.block_gradients(model, x, y)
    downs = probes.block_gradients(model, x, y, part="feed_forward.branch.down.weight")
    F.cross_entropy(model(x), y).backward()
    grads = {name: p.grad.norm().item() for name, p in model.named_parameters()}
    assert norms == pytest.approx(grads, abs=1e-13)
    for index, block in enumerate(model.blocks):
        total = math.sqrt(sum(p.grad.square().sum().item() for p in block.parameters()))
        assert blocks[index].item() == pytest.approx(total)
        down = block.feed_forward.branch.down.weight.grad.norm().item()
        assert downs[index].item() == pytest.approx(down)


def test_block_1_is_not_block_10():
    model, x, y = mlp(depth=12), normal(9, 6), labels(9)
    found = probes.block_gradients(model, x, y, part="0.weight")
    norms = probes.gradient_norms(model, x, y)
    expected = [norms[f"blocks.{index}.0.weight"] for index in range(12)]
    assert found.tolist() == pytest.approx(expected)


def test_gradients_under_another_loss():
    model, x = mlp(), normal(9, 6)
    found = probes.block_gradients(model, x, torch.zeros(9, 5), loss=mean_square)
    model(x).square().mean().backward()
    expected = [
        block[0].weight.grad.square().sum() + block[0].bias.grad.square().sum()
        for block in model.blocks
    ]
    assert torch.allclose(found.square(), torch.stack(expected))


def test_gradient_that_reaches_the_last_depth_by_hand():
    model, x, y = mlp(), normal(9, 6), labels(9)
    with torch.no_grad():
        found = probes.stream_gradients(model, x, y)
    assert found.shape == (5,)
    surprise = model(x).softmax(-1) - F.one_hot(y, 5)
    expected = (surprise @ model.head.weight / 9).norm()
    assert found[-1].item() == pytest.approx(expected.item())
    # and the first, by the chain rule through every block
    start = model.stem(x).detach().requires_grad_()
    out = start
    for block in model.blocks:
        out = block(out)
    F.cross_entropy(model.head(out), y).backward()
    assert found[0].item() == pytest.approx(start.grad.norm().item())


# --- attention and logits ---


@pytest.mark.parametrize("causal", [False, True])
def test_uniform_attention_has_the_entropy_of_its_keys(causal):
    sizes = {"dim": 4, "depth": 2, "hidden": 4, "outputs": 3, "length": 6, "features": 4}
    model, x = xiong(**sizes, causal=causal), normal(3, 6, 4)
    seen = sum(map(math.log, range(1, 7))) / 6 if causal else math.log(6)
    assert probes.attention_entropies(model, x).flatten().tolist() == pytest.approx([seen] * 2)
    assert probes.attention_logit_peaks(model, x).tolist() == [[0.0], [0.0]]
    normalized = probes.attention_entropies(model, x, normalized=True)
    assert normalized.flatten().tolist() == pytest.approx([1.0, 1.0])


def test_attention_of_each_head_by_hand():
    model, x = transformer(heads=2), normal(3, 6, 4)
    entropies, peaks = probes.attention_entropies(model, x), probes.attention_logit_peaks(model, x)
    assert entropies.shape == peaks.shape == (3, 2)
    block = model.blocks[0]
    entering = F.layer_norm(model.embedding(x) + model.positions, (8,))
    for head in range(2):
        columns = slice(4 * head, 4 * head + 4)
        query = block.attention.branch.query(entering)[..., columns]
        key = block.attention.branch.key(entering)[..., columns]
        logits = query @ key.mT / 2
        entropy = torch.special.entr(logits.softmax(-1)).sum(-1).mean()
        assert entropies[0, head].item() == pytest.approx(entropy.item())
        assert peaks[0, head].item() == pytest.approx(logits.abs().max().item())


def test_logit_scale_is_the_spread_over_the_classes():
    model = mlp()
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.copy_(torch.tensor([10.0, 10.0, 10.0, 10.0, 15.0]))
    assert probes.logit_scale(model, normal(9, 6)) == pytest.approx(2.0)


# --- what is refused ---

PLAIN, X, Y = nn.Linear(6, 5, dtype=torch.float64), normal(9, 6), labels(9)
BAD = [
    (lambda: probes.activation_moments(PLAIN, X), ValueError, "model must have"),
    (lambda: probes.residual_stream(PLAIN, X), ValueError, "model must have"),
    (lambda: probes.block_gradients(PLAIN, X, Y), ValueError, "model must have"),
    (lambda: probes.attention_entropies(PLAIN, X), ValueError, "model must have"),
    (lambda: probes.residual_stream(mlp(), X, "sublayers"), ValueError, "model must have"),
    (lambda: probes.residual_stream(mlp(), X, "branches"), ValueError, "at must be one of"),
    (lambda: probes.block_gradients(mlp(), X, Y, part="value"), ValueError, "part must be in"),
    *[
        (probes.without_block(mlp(), index).__enter__, ValueError, f"one of 4 blocks, got {index}")
        for index in (4, -5)
    ],
]
test_bad_models_and_places_are_refused = refused(BAD)
