"""The probes against what PyTorch's functions, backward() and pencil and paper give."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from normbook.lab.models import MLP, Transformer, build
from normbook.lab.probes import (
    activation_moments,
    attention_entropies,
    attention_logit_peaks,
    block_gradients,
    consecutive_cosine,
    contribution,
    gradient_norms,
    logit_scale,
    mean_square_norm,
    residual_stream,
    stream_gradients,
    without_block,
)
from normbook.lab.training import mean_square

TINY = {"dim": 8, "depth": 3, "outputs": 5, "length": 6, "features": 4}


def xiong(**options):
    """The setting of Xiong et al. 2020, section 3.3: uniform attention without an output matrix."""
    model = Transformer(**options)
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


def data(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def labels(*shape):
    return torch.randint(5, shape, generator=torch.Generator().manual_seed(1))


# --- activations and the residual stream ---


def test_moments_of_each_layer():
    model, x = mlp(), data(9, 6)
    found = activation_moments(model, x)
    x = model.stem(x)
    for layer, block in enumerate(model.blocks):
        x = block(x)
        assert found.mean[layer].item() == pytest.approx(x.mean().item())
        assert found.std[layer].item() == pytest.approx(x.std(correction=0).item())
        assert found.mean_square[layer].item() == pytest.approx(x.square().mean().item())


def test_moments_of_chosen_layers_in_the_order_asked_for():
    model, x = mlp(), data(9, 6)
    found = activation_moments(model, x, [model.head, model.stem])
    assert found.mean.tolist() == pytest.approx(
        [model(x).mean().item(), model.stem(x).mean().item()]
    )


def test_a_probe_leaves_the_model_as_it_was():
    model, x, y = mlp(norm="batch"), data(9, 6), labels(9)
    before = copy.deepcopy(model.state_dict())
    activation_moments(model, x)
    residual_stream(model, x)
    block_gradients(model, x, y)
    logit_scale(model, x)
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
    model, x = transformer(placement=placement), data(3, 6, 4)
    sublayers, sums = stream_by_hand(model, x, placement)
    assert torch.allclose(residual_stream(model, x), sublayers[::2], rtol=0, atol=1e-12)
    assert torch.allclose(residual_stream(model, x, "sublayers"), sublayers, rtol=0, atol=1e-12)
    assert torch.allclose(residual_stream(model, x, "sums"), sums, rtol=0, atol=1e-12)
    assert torch.allclose(sublayers, sums) == (placement == "pre")
    assert all("add" not in vars(block.attention) for block in model.blocks)


def test_the_stream_of_an_mlp():
    model, x = mlp(residual=True), data(9, 6)
    stream = residual_stream(model, x)
    assert stream.shape == (5, 9, 7)
    assert torch.equal(stream[0], model.stem(x))
    assert torch.allclose(model.head(stream[-1]), model(x), rtol=0, atol=1e-12)
    assert torch.equal(residual_stream(model, x, "sums"), stream)


def test_a_stream_of_right_angles_and_doublings():
    # (1, 0) → (0, 1) → (0, 3) for one example, (2, 0) → (2, 0) → (−2, 0) for the other
    stream = torch.tensor(
        [[[1.0, 0.0], [2.0, 0.0]], [[0.0, 1.0], [2.0, 0.0]], [[0.0, 3.0], [-2.0, 0.0]]]
    )
    assert mean_square_norm(stream).tolist() == [2.5, 2.5, 6.5]
    assert contribution(stream).tolist() == pytest.approx([math.sqrt(2) / 2, 2.0])
    assert consecutive_cosine(stream).tolist() == pytest.approx([0.5, 0.0])


def test_xiongs_lemma_2_with_one_token():
    # one token: attention writes x W_V with ‖·‖² = d, the feed-forward network writes d/2
    dim, depth = 96, 4
    sizes = {"dim": dim, "depth": depth, "hidden": dim, "features": dim, "length": 1, "outputs": 3}
    x = data(300, 1, dim)
    pre, post = [], []
    for seed in range(4):
        make = lambda place: xiong(**sizes, placement=place)  # noqa: E731
        model = build(lambda make=make: make("pre"), seed)
        pre.append(mean_square_norm(residual_stream(model, x)) / dim)
        model = build(lambda make=make: make("post"), seed)
        post.append(mean_square_norm(residual_stream(model, x, "sums"))[2::2] / dim)
    expected = 1 + 1.5 * torch.arange(depth + 1)
    assert torch.stack(pre).mean(0).tolist() == pytest.approx(expected.tolist(), rel=0.05)
    assert torch.stack(post).mean(0).tolist() == pytest.approx([1.5] * depth, rel=0.05)


@pytest.mark.parametrize("index", [0, 2, -1])
def test_a_model_without_one_block(index):
    model, x = mlp(), data(9, 6)
    kept = [block for block in model.blocks if block is not model.blocks[index]]
    with without_block(model, index) as shorter:
        found = shorter(x)
    expected = model.stem(x)
    for block in kept:
        expected = block(expected)
    assert torch.equal(found, model.head(expected))
    assert len(model.blocks) == 4
    assert not any(isinstance(block, nn.Identity) for block in model.blocks)


def test_the_block_comes_back_after_an_error():
    model = mlp()
    with pytest.raises(RuntimeError), without_block(model, 1):
        model(data(9, 3))
    assert not isinstance(model.blocks[1], nn.Identity)
    with (
        pytest.raises(ValueError, match="index must be one of 4 blocks, got 4"),
        without_block(model, 4),
    ):
        pass


# --- gradients ---


def test_gradient_norms_are_those_of_backward():
    model, x, y = transformer(pool="mean"), data(3, 6, 4), labels(3)
    norms = gradient_norms(model, x, y)
    blocks = block_gradients(model, x, y)
    downs = block_gradients(model, x, y, part="feed_forward.branch.down.weight")
    F.cross_entropy(model(x), y).backward()
    grads = {name: p.grad.norm().item() for name, p in model.named_parameters()}
    assert norms == pytest.approx(grads, abs=1e-13)
    for index, block in enumerate(model.blocks):
        total = math.sqrt(sum(p.grad.square().sum().item() for p in block.parameters()))
        assert blocks[index].item() == pytest.approx(total)
        down = block.feed_forward.branch.down.weight.grad.norm().item()
        assert downs[index].item() == pytest.approx(down)


def test_block_1_is_not_block_10():
    model, x, y = mlp(depth=12), data(9, 6), labels(9)
    found = block_gradients(model, x, y, part="0.weight")
    norms = gradient_norms(model, x, y)
    expected = [norms[f"blocks.{index}.0.weight"] for index in range(12)]
    assert found.tolist() == pytest.approx(expected)


def test_gradients_under_another_loss():
    model, x = mlp(), data(9, 6)
    found = block_gradients(model, x, torch.zeros(9, 5), loss=mean_square)
    model(x).square().mean().backward()
    expected = [
        block[0].weight.grad.square().sum() + block[0].bias.grad.square().sum()
        for block in model.blocks
    ]
    assert torch.allclose(found.square(), torch.stack(expected))


def test_gradient_that_reaches_the_last_depth_by_hand():
    model, x, y = mlp(), data(9, 6), labels(9)
    found = stream_gradients(model, x, y)
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


def test_gradients_need_no_grad_mode():
    model, x, y = mlp(), data(9, 6), labels(9)
    with torch.no_grad():
        assert (stream_gradients(model, x, y) > 0).all()
        assert (block_gradients(model, x, y) > 0).all()


# --- attention and logits ---


def test_uniform_attention_has_the_entropy_of_its_keys():
    make = lambda causal: xiong(  # noqa: E731
        dim=4, depth=2, hidden=4, outputs=3, length=6, features=4, causal=causal
    )
    model, x = build(lambda: make(False), 0), data(3, 6, 4)
    assert attention_entropies(model, x).flatten().tolist() == pytest.approx([math.log(6)] * 2)
    assert attention_logit_peaks(model, x).tolist() == [[0.0], [0.0]]
    model = build(lambda: make(True), 0)
    seen = sum(math.log(keys) for keys in range(1, 7)) / 6
    assert attention_entropies(model, x).flatten().tolist() == pytest.approx([seen] * 2)
    for causal in (False, True):
        model = build(lambda causal=causal: make(causal), 0)
        normalized = attention_entropies(model, x, normalized=True)
        assert normalized.flatten().tolist() == pytest.approx([1.0, 1.0])


def test_attention_of_each_head_by_hand():
    model, x = transformer(heads=2), data(3, 6, 4)
    entropies, peaks = attention_entropies(model, x), attention_logit_peaks(model, x)
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


def test_attention_that_looks_at_one_key_has_no_entropy():
    model, x = transformer(), data(3, 6, 4)
    with torch.no_grad():
        model.blocks[0].attention.branch.query.weight *= 1e6
    assert attention_entropies(model, x)[0, 0] < 1e-3
    assert attention_logit_peaks(model, x)[0, 0] > 1e4


def test_logit_scale_is_the_spread_over_the_classes():
    model = mlp()
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.copy_(torch.tensor([10.0, 10.0, 10.0, 10.0, 15.0]))
    assert logit_scale(model, data(9, 6)) == pytest.approx(2.0)


# --- errors ---


def test_models_that_a_probe_cannot_read_are_refused():
    plain, x, y = nn.Linear(6, 5, dtype=torch.float64), data(9, 6), labels(9)
    for probe in (
        lambda: activation_moments(plain, x),
        lambda: residual_stream(plain, x),
        lambda: block_gradients(plain, x, y),
        lambda: attention_entropies(plain, x),
        lambda: residual_stream(mlp(), x, "sublayers"),
    ):
        with pytest.raises(ValueError, match="model must have"):
            probe()
    with pytest.raises(ValueError, match="at must be one of"):
        residual_stream(mlp(), x, "branches")
    with pytest.raises(ValueError, match="part must be in"):
        block_gradients(mlp(), x, y, part="value")
