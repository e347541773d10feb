"""Residual blocks against the engine's, paths against brute force, read-outs against logits."""

import itertools
import math
from functools import partial

import pytest
import torch
from torch import nn

import normalization as nz
from normbook.lab import draw
from normbook.lab.models import Transformer, build
from normbook.studies import residuals


def stack(recipe, depth=3, **options):
    return build(lambda: residuals.recipe_mlp(recipe, width=6, depth=depth, **options), seed=0)


@pytest.mark.parametrize(("norm", "depth"), [(None, 3), ("batch", 24)])
@pytest.mark.parametrize("recipe", list(residuals.RECIPES))
def test_stack_is_a_chain_of_engine_residuals(recipe, norm, depth, float64):
    model = stack(recipe, depth, norm=norm)
    batch_norm = nn.BatchNorm1d(6, affine=False, track_running_stats=False)
    placed = (batch_norm, "pre") if norm else (None, "none")
    skip, constant = residuals.RECIPES[recipe](depth)
    learned = {"SkipInit": nz.ReZero(), "LayerScale": nz.LayerScale(6, nz.layer_scale_init(depth))}
    scale = learned.get(recipe, constant)
    with torch.no_grad():  # what is learned counts in the recipe that has it, and in no other
        own = [p for block in model.blocks for p in (block.alpha, block.gamma)]
        for parameter in [*own, *(scale.parameters() if recipe in learned else [])]:
            parameter.add_(0.3)
    x = expected = draw(1, 8, 6)
    for block in model.blocks:
        branch = lambda x, block=block: (x @ block.up).relu() @ block.down  # noqa: E731
        expected = nz.Residual(branch, *placed, scale=scale, skip_scale=skip)(expected)
    assert torch.allclose(model(x), expected, rtol=1e-9)
    ends = stack(recipe, inputs=4, outputs=3)
    assert ends(draw(0, 5, 2, 2)).shape == (5, 3)


def test_pairs_keep_the_energy():
    pairs = residuals.he_pair(2, 64, count=200)
    assert pairs.shape == (2, 2, 200, 64, 64)
    assert residuals.he_pair(3, 8).shape == (2, 3, 8, 8)
    x = draw(1, 200, 1, 64)
    for up, down in zip(*pairs, strict=True):
        write = (x @ up).relu() @ down
        assert write.square().mean().item() == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("relu_after", [False, True])
def test_jacobians_against_autograd(normalized, relu_after):
    pairs, x = residuals.he_pair(4, 6, count=3), draw(1, 3, 6)
    found, kept = residuals.jacobians(
        pairs, x, scale=0.7, normalized=normalized, relu_after=relu_after
    )

    def stream(x, index):
        places = [x]
        for up, down in pairs[:, :, index].unbind(1):
            read = x / x.square().mean().sqrt() if normalized else x
            x = x + 0.7 * (read @ up).relu() @ down
            places.append(x := x.relu() if relu_after else x)
        return torch.stack(places)

    for index in range(3):
        expected = torch.autograd.functional.jacobian(partial(stream, index=index), x[index])
        assert torch.allclose(found[:, index], expected.mT)
        alive = stream(x[index], index)[1:] > 0 if relu_after else torch.ones(4, 6).bool()
        assert kept[0, index] == 1
        assert kept[1:, index].tolist() == pytest.approx(alive.cumprod(0).double().mean(1).tolist())


def test_a_branch_of_the_start_grows_as_the_theory_says():
    found, _ = residuals.jacobians(
        residuals.he_pair(20, 64, count=20), draw(1, 20, 64), scale=20**-0.5
    )
    size = found[-1].square().sum((1, 2)).mean() / 64
    assert size.item() == pytest.approx((1 + 1 / 20) ** 20, rel=0.1)


# --- paths ---


def test_energies_against_all_subsets():
    energies, expected = [0.5, 2.0, 0.0, 1.5], [0.0] * 5
    for chosen in itertools.product((0, 1), repeat=4):
        weight = math.prod(e for e, through in zip(energies, chosen, strict=True) if through)
        expected[sum(chosen)] += weight
    total = sum(expected)
    assert residuals.path_lengths(energies).tolist() == pytest.approx([e / total for e in expected])


def test_terms_are_products_in_the_order_of_the_blocks():
    first, second, third = draw(0, 3, 4, 4)
    terms, lengths = residuals.expand(torch.stack([first, second, third]))
    eye = torch.eye(4, dtype=torch.float64)
    assert torch.allclose(terms.sum(0), (eye + third) @ (eye + second) @ (eye + first))
    assert torch.allclose(terms[0b101], third @ first)
    assert lengths.tolist() == [number.bit_count() for number in range(8)]


def test_parts_are_those_of_every_path_and_add_up_to_backpropagation():
    weights, x, gradient = 0.3 * draw(0, 4, 5, 5), draw(1, 2, 3, 5), draw(2, 2, 3, 5)
    blocks = [lambda x, w=w: x + (x @ w).tanh() for w in weights]
    parts = residuals.gradient_by_length(blocks, x, gradient)
    leaf = output = x.clone().requires_grad_()
    for block in blocks:
        output = block(output)
    assert parts.shape == (5, 2, 3, 5)
    assert torch.allclose(parts.sum(0), torch.autograd.grad(output, leaf, gradient)[0])
    point, slopes = x[0, 0], []
    for w, block in zip(weights, blocks, strict=True):
        slopes.append(w * (1 - (point @ w).tanh().square()))  # ∂(branch)/∂x, x from the left
        point = block(point)
    expected = torch.zeros(5, 5, dtype=torch.float64)
    for chosen in itertools.product((0, 1), repeat=4):
        pulled = gradient[0, 0]
        for slope, through in zip(reversed(slopes), reversed(chosen), strict=True):
            pulled = slope @ pulled if through else pulled
        expected[sum(chosen)] += pulled
    assert torch.allclose(parts[:, 0, 0], expected)


def test_energy_is_shared_out_per_seed():
    values = [[[3.0, 0.0], [1.0, 0.0]], [[0.0, 4.0], [0.0, 1.0]]]
    parts = torch.tensor(values, dtype=torch.float64)[:, :, None]
    assert residuals.energy_by_length(parts).tolist() == [[9 / 25, 16 / 25], [0.5, 0.5]]


# --- read-outs ---

SIZE = {"dim": 8, "depth": 3, "outputs": 5, "length": 6, "vocabulary": 5, "causal": True}


def model_and_tokens(**options):
    model = build(lambda: Transformer(**SIZE | options), seed=0)
    with torch.no_grad():  # gains and biases that are not 1 and 0
        for parameter in model.final_norm.parameters():
            parameter.add_(0.1 * torch.randn(8, generator=torch.Generator().manual_seed(1)))
        model.head.bias.add_(0.3)
    return model, torch.randint(5, (4, 6), generator=torch.Generator().manual_seed(2))


NORMS = ["layer", "rms", partial(nz.RMSNorm, offset=1.0), partial(nz.LayerNorm, bias=False)]


@pytest.mark.parametrize("norm", NORMS)
def test_writes_add_up_to_the_logits(norm):
    model, tokens = model_and_tokens(norm=norm)
    writes = residuals.logit_writes(model, tokens)
    assert writes.shape == (8, 4, 6, 5)
    assert torch.allclose(writes.sum(0), model(tokens), atol=1e-12)


def test_a_silent_branch_contributes_nothing():
    model, tokens = model_and_tokens()
    with torch.no_grad():
        for parameter in model.blocks[1].feed_forward.branch.down.parameters():
            parameter.zero_()
    writes = residuals.logit_writes(model, tokens)
    assert writes[4].abs().max() < 1e-12
    assert writes[3].abs().max() > 1e-3


def test_lens_reads_the_stream_at_every_depth():
    model, tokens = model_and_tokens()
    lens = residuals.logit_lens(model, tokens)
    assert lens.shape == (4, 4, 6, 5)
    assert torch.allclose(lens[-1], model(tokens))
    embedded = model.embedding(tokens) + model.positions
    assert torch.allclose(lens[0], model.head(model.final_norm(embedded)))
    assert torch.allclose(lens[1], model.head(model.final_norm(model.blocks[0](embedded))))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: residuals.recipe_mlp("fixup", width=4, depth=2), "recipe must be one of"),
        (
            lambda: residuals.recipe_mlp("plain", width=4, depth=2, norm="layer"),
            "norm must be one of",
        ),
        (lambda: residuals.path_lengths(torch.ones(2, 2)), "energies must be"),
        (lambda: residuals.path_lengths(torch.tensor([1.0, -0.1])), "energies must be"),
        (lambda: residuals.expand(torch.zeros(3, 4, 5)), "jacobians must be"),
        (lambda: residuals.expand(torch.zeros(4, 4)), "jacobians must be"),
        (lambda: residuals.expand(torch.zeros(13, 2, 2)), "jacobians must be"),
        (
            lambda: residuals.logit_writes(*model_and_tokens(norm=None, placement="none")),
            "final norm must",
        ),
    ],
)
def test_refusals(call, words):
    with pytest.raises((ValueError, TypeError), match=words):
        call()
