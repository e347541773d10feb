"""Deep Transformers side by side are the engine's own: losses, steps and training."""

import pytest
import torch

import normalization as nz
from normbook.lab import data, draw, models, training
from normbook.studies import deep_transformers as deep

SEEDS, DEPTH, DIM = 2, 3, 8
TOKENS = data.markov_text(8, order=2, seed=0).sample(6, 9, seed=1)
INPUTS, TARGETS = TOKENS[:, :-1], TOKENS[:, 1:]


pytestmark = pytest.mark.usefixtures("float64")


def shaken(method):
    """A stack whose every parameter, gains and biases too, is away from its start."""
    stack = deep.DeepTransformers(method, DEPTH, SEEDS, dim=DIM)
    with torch.no_grad():
        for seed, value in enumerate(stack.parameters()):
            value.add_(0.1 * draw(seed, *value.shape))
    return stack


def member(stack, seed):
    """The engine's Transformer with the weights of one seed."""
    sizes = {"dim": DIM, "hidden": DIM, "depth": DEPTH, "vocabulary": 8, "outputs": 8, "length": 8}
    placed = {"placement": stack.placement, "skip_scale": stack.skip_scale}
    model = models.build(lambda: models.Transformer(causal=True, **sizes, **placed), seed=0)
    with torch.no_grad():
        model.embedding.weight.copy_(stack.ends["embedding"][seed])
        model.positions.copy_(stack.ends["positions"][seed, 0])
        fill(model.head, stack.ends["head"][seed].T, stack.ends["head_bias"][seed, 0])
        if "norm" in stack.ends:
            fill(model.final_norm, *stack.ends["norm"][:, seed, 0])
        for index, block in enumerate(model.blocks):
            fill_block(block, stack, index, seed)
    return model


def fill(layer, weight, bias):
    layer.weight.copy_(weight)
    layer.bias.copy_(bias)


def fill_block(block, stack, index, seed):
    attention, feed = block.attention.branch, block.feed_forward.branch
    order = (attention.query, attention.key, attention.value, attention.output, feed.up, feed.down)
    for part, linear in enumerate(order):
        fill(linear, stack.matrices[index, part, seed].T, stack.biases[index, part, seed, 0])
    for write, residual in enumerate((block.attention, block.feed_forward)):
        for kind, name in enumerate(nz.PLACEMENTS[stack.placement].norms):
            fill(getattr(residual, name), *stack.norms[index, write, kind, :, seed, 0])


# --- DeepTransformers ---


@pytest.mark.parametrize("method", deep.KNOWN_METHODS)
def test_a_stack_computes_what_the_engine_computes(method):
    stack = shaken(method)
    logits, losses = stack(INPUTS), deep.losses_of(stack, TOKENS)
    for seed in range(SEEDS):
        model = member(stack, seed)
        assert (logits[seed] - model(INPUTS)).abs().max() < 1e-12
        loss = training.evaluate(model, INPUTS, TARGETS).loss
        assert losses[seed].item() == pytest.approx(loss, abs=1e-12)


def test_the_stream_has_an_entry_for_every_write():
    stack = shaken("pre")
    stream = stack.stream(INPUTS)
    assert len(stream) == 2 * DEPTH + 1
    assert all(x.shape == (SEEDS, 6, 8, DIM) for x in stream)
    start = stack.ends["embedding"][1][INPUTS] + stack.ends["positions"][1, 0]
    assert torch.equal(stream[0][1], start)


def test_deepnorm_draws_four_matrices_with_gain_beta_and_scale_multiplies_all():
    stack = deep.DeepTransformers("deepnorm", 100, 5, dim=16)
    constants = nz.deepnorm_constants(0, 100)
    assert stack.skip_scale == constants.decoder_alpha
    found = stack.matrices.square().mean((0, 2, 3, 4)).sqrt() * 4
    expected = torch.tensor([1.0] * 2 + [constants.decoder_beta] * 4)
    assert torch.allclose(found, expected, rtol=0.02)
    assert stack.ends["head"].std().item() == pytest.approx((2 / (16 + 8)) ** 0.5, rel=0.1)
    plain, scaled = (deep.DeepTransformers("pre", 2, 3, scale=scale) for scale in (1.0, 4.0))
    assert torch.allclose(scaled.matrices, 4 * plain.matrices)
    assert torch.equal(scaled.ends["embedding"], plain.ends["embedding"])


def test_the_environment_perturbs_the_start(monkeypatch):
    plain = deep.DeepTransformers("pre", 2, 3).matrices
    monkeypatch.setenv("NORMBOOK_PERTURB", "1e-6")
    change = (deep.DeepTransformers("pre", 2, 3).matrices - plain).abs().max()
    assert 0 < change < 1e-4


@pytest.mark.parametrize("method", ["none", "deep"])
def test_an_unknown_method_is_refused(method):
    with pytest.raises(ValueError, match=f"method must be one of .*, got '{method}'"):
        deep.DeepTransformers(method, 2)


# --- one step, and training ---


@pytest.mark.parametrize(("name", "kind"), [("sgd", torch.optim.SGD), ("adam", torch.optim.Adam)])
def test_an_update_is_one_step_of_torch(name, kind):
    stack, rate = shaken("deepnorm"), 1e-3
    before = [value.clone() for value in stack.parameters()]
    sizes = deep.update_sizes(stack, TOKENS, rate, {"everything": ("",)})
    assert all(torch.equal(a, b) for a, b in zip(before, stack.parameters(), strict=True))
    for seed in range(SEEDS):
        model = member(stack, seed)
        outputs = model(INPUTS)
        training.cross_entropy(outputs, TARGETS).backward()
        kind(model.parameters(), lr=rate).step()
        change = (model(INPUTS) - outputs).square().mean().sqrt() / rate
        assert sizes[name, "everything"][seed].item() == pytest.approx(change.item(), rel=1e-6)


def test_only_the_named_parameters_take_the_step():
    parts = {"all": ("",), "norms": ("norms",), "rest": ("matrices", "biases", "ends")}
    sizes = deep.update_sizes(shaken("pre"), TOKENS, 1e-7, parts)
    whole, norms, rest = (sizes["sgd", part] for part in parts)
    assert (norms > 0).all()
    assert (whole <= (norms + rest) * 1.001).all()
    assert not torch.allclose(whole, rest, rtol=1e-3)


def test_training_is_that_of_each_seed_alone():
    stack = shaken("sandwich")
    alone = [member(stack, seed) for seed in range(SEEDS)]
    options = {"steps": 4, "rate": 1e-2, "batch_size": 3}
    losses, watched = deep.train(stack, TOKENS, watch=lambda s: (s, 7), **options)
    assert watched == [(stack, 7)] * 4
    for seed, model in enumerate(alone):
        descent = torch.optim.Adam(model.parameters(), lr=1e-2)
        for step, chosen in enumerate(training.batch_indices(len(TOKENS), 3, 4, seed=0)):
            loss = torch.nn.functional.cross_entropy(model(INPUTS[chosen]).mT, TARGETS[chosen])
            assert losses[seed, step].item() == pytest.approx(loss.item(), abs=1e-9)
            descent.zero_grad()
            loss.backward()
            descent.step()
