"""Residual blocks against the engine's, paths against brute force, read-outs against logits."""

import itertools
import math

import pytest
import torch
from engine_helpers import refused
from torch import nn

import normalization as nz
from normbook.lab import draw
from normbook.lab.models import Transformer, build
from normbook.studies.residuals import (
    RECIPES,
    energy_by_length,
    expand,
    gradient_by_length,
    he_pair,
    jacobians,
    logit_lens,
    logit_writes,
    path_lengths,
    recipe_mlp,
)


def stack(recipe, depth=3, **options):
    return build(lambda: recipe_mlp(recipe, width=6, depth=depth, **options), seed=0)


def engine_scale(recipe, depth):
    if recipe == "SkipInit":
        return nz.ReZero()
    if recipe == "LayerScale":
        return nz.LayerScale(6, nz.layer_scale_init(depth))
    return RECIPES[recipe](depth)[1]


@pytest.mark.parametrize("recipe", list(RECIPES))
@pytest.mark.parametrize(("norm", "depth"), [(None, 3), ("batch", 24)])
def test_stack_is_a_chain_of_engine_residuals(recipe, norm, depth):
    model = stack(recipe, depth, norm=norm)
    batch_norm = nn.BatchNorm1d(6, affine=False, track_running_stats=False).double()
    x = expected = draw(1, 8, 6)
    for block in model.blocks:

        def branch(x, block=block):
            return (x @ block.up).relu() @ block.down

        scale = engine_scale(recipe, depth)
        residual = nz.Residual(
            branch,
            batch_norm if norm else None,
            "pre" if norm else "none",
            scale=scale.double() if isinstance(scale, nn.Module) else scale,
            skip_scale=RECIPES[recipe](depth)[0],
        )
        expected = residual(expected)
    assert torch.allclose(model(x), expected, rtol=1e-9)


@pytest.mark.parametrize("recipe", RECIPES)
def test_each_recipe_learns_its_own_scale_alone(recipe):
    block, x = stack(recipe).blocks[0], draw(1, 8, 6)
    write = (x @ block.up).relu() @ block.down
    alpha, gamma = torch.autograd.grad(block(x).sum(), [block.alpha, block.gamma])
    assert torch.allclose(alpha, write.sum() * (recipe == "SkipInit"))
    assert torch.allclose(gamma, write.sum(0) * (recipe == "LayerScale"))


def test_stem_and_head():
    model = stack("SkipInit", inputs=4, outputs=3)
    x = draw(0, 5, 2, 2)
    assert torch.allclose(model(x), model.head(model.stem(x.flatten(1))))


def test_pairs_keep_the_energy():
    pairs = he_pair(2, 64, count=200)
    assert pairs.shape == (2, 2, 200, 64, 64)
    assert he_pair(3, 8).shape == (2, 3, 8, 8)
    x = draw(1, 200, 1, 64)
    for up, down in zip(*pairs, strict=True):
        write = (x @ up).relu() @ down
        assert write.square().mean().item() == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize(("normalized", "relu_after"), [(True, False), (False, True)])
def test_jacobians_against_autograd(normalized, relu_after):
    pairs, x = he_pair(4, 6, count=3), draw(1, 3, 6)
    found, kept = jacobians(pairs, x, scale=0.7, normalized=normalized, relu_after=relu_after)

    def network(x, index, depth=4):
        for up, down in zip(pairs[0, :depth, index], pairs[1, :depth, index], strict=True):
            read = x / x.square().mean().sqrt() if normalized else x
            x = x + 0.7 * (read @ up).relu() @ down
            x = x.relu() if relu_after else x
        return x

    for index in range(3):
        expected = torch.autograd.functional.jacobian(lambda x, i=index: network(x, i), x[index])
        assert torch.allclose(found[-1, index], expected.T)
        left = (network(x[index], index, 1) > 0).double().mean() if relu_after else 1
        assert kept[1, index] == left
    assert found.shape == (5, 3, 6, 6)
    assert torch.equal(found[0], torch.eye(6, dtype=torch.float64).expand(3, 6, 6))
    assert (kept.diff(dim=0) <= 0).all() if relu_after else (kept == 1).all()


def test_a_branch_of_the_start_grows_as_the_theory_says():
    found, _ = jacobians(he_pair(20, 64, count=20), draw(1, 20, 64), scale=20**-0.5)
    size = found[-1].square().sum((1, 2)).mean() / 64
    assert size.item() == pytest.approx((1 + 1 / 20) ** 20, rel=0.1)


# --- paths ---


def test_unequal_energies_against_all_subsets():
    energies = [0.5, 2.0, 0.0, 1.5]
    expected = [0.0] * 5
    for chosen in itertools.product((0, 1), repeat=4):
        weight = math.prod(e for e, through in zip(energies, chosen, strict=True) if through)
        expected[sum(chosen)] += weight
    total = sum(expected)
    assert path_lengths(energies).tolist() == pytest.approx([e / total for e in expected])


def test_terms_are_products_in_the_order_of_the_blocks():
    first, second, third = draw(0, 3, 4, 4)
    terms, lengths = expand(torch.stack([first, second, third]))
    eye = torch.eye(4, dtype=torch.float64)
    assert torch.allclose(terms.sum(0), (eye + third) @ (eye + second) @ (eye + first))
    assert torch.allclose(terms[0b101], third @ first)
    assert lengths.tolist() == [number.bit_count() for number in range(8)]


def test_parts_against_backpropagation_and_every_path():
    weights = 0.3 * draw(0, 4, 5, 5)
    blocks = [lambda x, w=w: x + (x @ w).tanh() for w in weights]
    x, gradient = draw(1, 2, 3, 5).requires_grad_(), draw(2, 2, 3, 5)
    parts, output, slopes = gradient_by_length(blocks, x, gradient), x, []
    for w, block in zip(weights, blocks, strict=True):
        # ∂(branch)/∂x for the first example, x from the left
        slopes.append(w * (1 - (output[0, 0].detach() @ w).tanh().square()))
        output = block(output)
    (whole,) = torch.autograd.grad(output, x, gradient)
    assert parts.shape == (5, 2, 3, 5)
    assert torch.allclose(parts.sum(0), whole)
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
    assert energy_by_length(parts).tolist() == [[9 / 25, 16 / 25], [0.5, 0.5]]


# --- read-outs ---

SIZE = {"dim": 8, "depth": 3, "outputs": 5, "length": 6, "vocabulary": 5, "causal": True}


def model_and_tokens(**options):
    model = build(lambda: Transformer(**SIZE | options), seed=0)
    with torch.no_grad():  # gains and biases that are not 1 and 0
        for parameter in model.final_norm.parameters():
            parameter.add_(0.1 * draw(1, 8))
        model.head.bias.add_(0.3)
    return model, torch.randint(5, (4, 6), generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize(
    "norm",
    ["layer", lambda dim: nz.RMSNorm(dim, offset=1.0), lambda dim: nz.LayerNorm(dim, bias=False)],
)
def test_writes_add_up_to_the_logits(norm):
    model, tokens = model_and_tokens(norm=norm)
    writes = logit_writes(model, tokens)
    assert writes.shape == (8, 4, 6, 5)
    assert torch.allclose(writes.sum(0), model(tokens), atol=1e-12)


def test_a_silent_branch_contributes_nothing():
    model, tokens = model_and_tokens()
    with torch.no_grad():
        model.blocks[1].feed_forward.branch.down.weight.zero_()
        model.blocks[1].feed_forward.branch.down.bias.zero_()
    writes = logit_writes(model, tokens)
    assert writes[4].abs().max() < 1e-12
    assert writes[3].abs().max() > 1e-3


def test_lens_reads_the_stream_at_every_depth():
    model, tokens = model_and_tokens()
    lens = logit_lens(model, tokens)
    assert lens.shape == (4, 4, 6, 5)
    assert torch.allclose(lens[-1], model(tokens))
    embedded = model.embedding(tokens) + model.positions
    assert torch.allclose(lens[0], model.head(model.final_norm(embedded)))
    assert torch.allclose(lens[1], model.head(model.final_norm(model.blocks[0](embedded))))


test_what_does_not_fit_is_refused = refused(
    [
        (lambda: recipe_mlp("fixup", width=4, depth=2), ValueError, "recipe must be one of"),
        (lambda: recipe_mlp("plain", width=4, depth=2, norm="layer"), ValueError, "norm must be"),
        (lambda: path_lengths(torch.ones(2, 2)), ValueError, "energies must be"),
        (lambda: path_lengths([1.0, -0.1]), ValueError, "energies must be"),
        (lambda: expand(torch.zeros(3, 4, 5)), ValueError, "jacobians must be"),
        (lambda: expand(torch.zeros(4, 4)), ValueError, "jacobians must be"),
        (lambda: expand(torch.zeros(13, 2, 2)), ValueError, "at most 12 blocks"),
        (
            lambda: logit_writes(*model_and_tokens(norm=None, placement="none")),
            TypeError,
            "final norm must be",
        ),
    ]
)
