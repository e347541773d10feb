"""Deep Transformers side by side are the engine's own: losses, steps and training."""

import pytest
import torch

import normalization as nz
from normbook.lab import data, draw, models, training
from normbook.studies import deep_transformers

SEEDS, DEPTH, DIM = 2, 3, 8


@pytest.fixture(autouse=True)
def float64():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.fixture
def tokens():
    return data.markov_text(8, order=2, seed=0).sample(6, 9, seed=1)


def shaken(method):
    """A stack whose every parameter, gains and biases too, is away from its start."""
    stack = deep_transformers.DeepTransformers(method, DEPTH, SEEDS, dim=DIM)
    with torch.no_grad():
        for seed, value in enumerate(stack.parameters()):
            value.add_(0.1 * draw(seed, *value.shape))
    return stack


def member(stack, seed):
    """The engine's Transformer with the weights of one seed."""
    sizes = {"dim": DIM, "hidden": DIM, "depth": DEPTH, "vocabulary": 8, "outputs": 8, "length": 8}
    kind = {"placement": stack.placement, "skip_scale": stack.skip_scale}
    model = models.build(lambda: models.Transformer(causal=True, **sizes, **kind), seed=0)
    with torch.no_grad():
        model.embedding.weight.copy_(stack.ends["embedding"][seed])
        model.positions.copy_(stack.ends["positions"][seed, 0])
        model.head.weight.copy_(stack.ends["head"][seed].T)
        model.head.bias.copy_(stack.ends["head_bias"][seed, 0])
        if "norm" in stack.ends:
            model.final_norm.weight.copy_(stack.ends["norm"][0, seed, 0])
            model.final_norm.bias.copy_(stack.ends["norm"][1, seed, 0])
        for index, block in enumerate(model.blocks):
            fill_block(block, stack, index, seed)
    return model


def fill_block(block, stack, index, seed):
    attention, feed = block.attention.branch, block.feed_forward.branch
    order = (attention.query, attention.key, attention.value, attention.output, feed.up, feed.down)
    for part, linear in enumerate(order):
        linear.weight.copy_(stack.matrices[index, part, seed].T)
        linear.bias.copy_(stack.biases[index, part, seed, 0])
    for write, residual in enumerate((block.attention, block.feed_forward)):
        for kind, name in enumerate(nz.PLACEMENTS[stack.placement].norms):
            own = stack.norms[index, write, kind, :, seed, 0]
            getattr(residual, name).weight.copy_(own[0])
            getattr(residual, name).bias.copy_(own[1])


# --- DeepTransformers ---


@pytest.mark.parametrize("method", deep_transformers.KNOWN_METHODS)
def test_a_stack_computes_what_the_engine_computes(method, tokens):
    stack = shaken(method)
    logits = stack(tokens[:, :-1])
    for seed in range(SEEDS):
        expected = member(stack, seed)(tokens[:, :-1])
        assert (logits[seed] - expected).abs().max() < 1e-12


def test_the_stream_has_an_entry_for_every_write(tokens):
    stack = shaken("pre")
    stream = stack.stream(tokens[:, :-1])
    assert len(stream) == 2 * DEPTH + 1
    assert all(x.shape == (SEEDS, 6, 8, DIM) for x in stream)
    start = stack.ends["embedding"][1][tokens[:, :-1]] + stack.ends["positions"][1, 0]
    assert torch.equal(stream[0][1], start)


def test_deepnorm_draws_four_matrices_with_gain_beta():
    stack = deep_transformers.DeepTransformers("deepnorm", 100, 5, dim=16)
    constants = nz.deepnorm_constants(0, 100)
    assert stack.skip_scale == constants.decoder_alpha
    found = stack.matrices.square().mean((0, 2, 3, 4)).sqrt() * 4
    beta = constants.decoder_beta
    expected = torch.tensor([1.0, 1.0, beta, beta, beta, beta])
    assert torch.allclose(found, expected, rtol=0.02)


def test_scale_multiplies_every_matrix_and_nothing_else():
    plain, scaled = (
        dict(deep_transformers.DeepTransformers("pre", 2, 3, scale=scale).named_parameters())
        for scale in (1.0, 4.0)
    )
    for name, value in plain.items():
        assert torch.allclose(scaled[name], (4 if name == "matrices" else 1) * value), name


def test_the_environment_perturbs_the_start(monkeypatch):
    plain = deep_transformers.DeepTransformers("pre", 2, 3).matrices
    monkeypatch.setenv("NORMBOOK_PERTURB", "1e-6")
    change = (deep_transformers.DeepTransformers("pre", 2, 3).matrices - plain).abs().max()
    assert 0 < change < 1e-4


@pytest.mark.parametrize("method", ["none", "deep"])
def test_an_unknown_method_is_refused(method):
    with pytest.raises(ValueError, match=f"method must be one of .*, got '{method}'"):
        deep_transformers.DeepTransformers(method, 2)


# --- losses, one step, training ---


def test_an_update_is_one_step_of_torch(tokens):
    stack, rate = shaken("deepnorm"), 1e-3
    before = [value.clone() for value in stack.parameters()]
    sizes = deep_transformers.update_sizes(stack, tokens, rate, {"everything": ("",)})
    assert all(torch.equal(a, b) for a, b in zip(before, stack.parameters(), strict=True))
    for name, kind in (("sgd", torch.optim.SGD), ("adam", torch.optim.Adam)):
        for seed in range(SEEDS):
            model = member(stack, seed)
            outputs = model(tokens[:, :-1])
            training.cross_entropy(outputs, tokens[:, 1:]).backward()
            kind(model.parameters(), lr=rate).step()
            change = (model(tokens[:, :-1]) - outputs).square().mean().sqrt() / rate
            assert sizes[name, "everything"][seed].item() == pytest.approx(change.item(), rel=1e-6)


def test_only_the_named_parameters_take_the_step(tokens):
    stack = shaken("pre")
    parts = {"all": ("",), "norms": ("norms",), "rest": ("matrices", "biases", "ends")}
    sizes = deep_transformers.update_sizes(stack, tokens, 1e-7, parts)
    assert (sizes["sgd", "norms"] > 0).all()
    assert (sizes["sgd", "all"] <= (sizes["sgd", "norms"] + sizes["sgd", "rest"]) * 1.001).all()
    assert not torch.allclose(sizes["sgd", "all"], sizes["sgd", "rest"], rtol=1e-3)


def test_training_is_that_of_each_seed_alone(tokens):
    stack = shaken("sandwich")
    alone = [member(stack, seed) for seed in range(SEEDS)]
    seen = []
    losses, watched = deep_transformers.train(
        stack, tokens, steps=4, rate=1e-2, batch_size=3, watch=lambda s: seen.append(s) or 7
    )
    assert watched == [7] * 4
    assert seen == [stack] * 4
    for seed, model in enumerate(alone):
        descent = torch.optim.Adam(model.parameters(), lr=1e-2)
        for step, chosen in enumerate(training.batch_indices(len(tokens), 3, 4, seed=0)):
            logits = model(tokens[chosen, :-1])
            loss = torch.nn.functional.cross_entropy(logits.mT, tokens[chosen, 1:])
            assert losses[seed, step].item() == pytest.approx(loss.item(), abs=1e-9)
            descent.zero_grad()
            loss.backward()
            descent.step()
