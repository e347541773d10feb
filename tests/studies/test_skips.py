"""Stacks of skips against the engine's residual blocks, and their Jacobians against autograd."""

import math

import pytest
import torch
from torch import nn

import normalization as nz
from normbook.lab.models import build
from normbook.lab.skips import RECIPES, ResidualStack, he_pair, jacobians


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def stack(recipe, depth=3, **options):
    return build(lambda: ResidualStack(recipe, width=6, depth=depth, **options), seed=0)


def engine_scale(recipe, depth):
    if recipe == "SkipInit":
        return nz.ReZero()
    if recipe == "LayerScale":
        return nz.LayerScale(6, nz.layer_scale_init(depth))
    return RECIPES[recipe](depth)[1]


@pytest.mark.parametrize("depth", [3, 24])
@pytest.mark.parametrize("recipe", list(RECIPES))
@pytest.mark.parametrize("norm", [None, "batch"])
def test_stack_is_a_chain_of_engine_residuals(recipe, norm, depth):
    model = stack(recipe, depth, norm=norm)
    batch_norm = nn.BatchNorm1d(6, affine=False, track_running_stats=False).double()
    x = expected = normal(8, 6, seed=1)
    for up, down in zip(model.up, model.down, strict=True):

        def branch(x, up=up, down=down):
            return (x @ up).relu() @ down

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


def test_learned_scales_reach_the_output():
    for recipe, name in (("SkipInit", "alpha"), ("LayerScale", "gamma")):
        model, x = stack(recipe), normal(8, 6, seed=1)
        before = model(x)
        with torch.no_grad():
            getattr(model, name).add_(0.5)
        assert not torch.allclose(model(x), before)
    fixed = stack("1/sqrt(N)")
    with torch.no_grad():
        fixed.alpha.add_(1.0)
        fixed.gamma.add_(1.0)
    assert torch.equal(fixed(x), stack("1/sqrt(N)")(x))


def test_stem_and_head():
    model = stack("SkipInit", inputs=4, outputs=3)
    x = normal(5, 2, 2)
    assert torch.allclose(model(x), model.head(model.stem(x.flatten(1))))


def test_unknown_names():
    with pytest.raises(ValueError, match="recipe must be one of"):
        ResidualStack("fixup", width=4, depth=2)
    with pytest.raises(ValueError, match="norm must be"):
        ResidualStack("plain", width=4, depth=2, norm="layer")


def test_pairs_keep_the_energy():
    pairs = he_pair(2, 64, count=200)
    assert pairs.shape == (2, 2, 200, 64, 64)
    assert he_pair(3, 8).shape == (2, 3, 8, 8)
    x = normal(200, 1, 64, seed=1)
    for up, down in zip(*pairs, strict=True):
        write = (x @ up).relu() @ down
        assert write.square().mean().item() == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("relu_after", [False, True])
def test_jacobians_against_autograd(normalized, relu_after):
    pairs, x = he_pair(4, 6, count=3), normal(3, 6, seed=1)
    found, kept = jacobians(pairs, x, scale=0.7, normalized=normalized, relu_after=relu_after)

    def network(x, index):
        for up, down in zip(pairs[0, :, index], pairs[1, :, index], strict=True):
            read = x / x.square().mean().sqrt() if normalized else x
            x = x + 0.7 * (read @ up).relu() @ down
            x = x.relu() if relu_after else x
        return x

    for index in range(3):
        expected = torch.autograd.functional.jacobian(lambda x, i=index: network(x, i), x[index])
        assert torch.allclose(found[-1, index], expected.T)
    assert found.shape == (5, 3, 6, 6)
    assert torch.equal(found[0], torch.eye(6, dtype=torch.float64).expand(3, 6, 6))
    if not relu_after:
        assert (kept == 1).all()
    else:
        assert (kept.diff(dim=0) <= 0).all()
        assert (kept[1] == (network_once(pairs, x, normalized) > 0).double().mean(1)).all()


def network_once(pairs, x, normalized):
    read = x / x.square().mean(1, keepdim=True).sqrt() if normalized else x
    return x + 0.7 * torch.einsum(
        "nj,njk->nk", torch.einsum("ni,nij->nj", read, pairs[0, 0]).relu(), pairs[1, 0]
    )


def test_a_branch_of_the_start_grows_as_the_theory_says():
    found, _ = jacobians(he_pair(20, 64, count=20), normal(20, 64, seed=1), scale=20**-0.5)
    size = found[-1].square().sum((1, 2)).mean() / 64
    assert size.item() == pytest.approx((1 + 1 / 20) ** 20, rel=0.1)
    assert math.isfinite(size.item())
