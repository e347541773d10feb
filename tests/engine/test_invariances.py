"""What each norm does not see, for inputs that hypothesis draws: shift, scale, order, neighbors."""

import pytest
import torch
from engine_helpers import assert_close, normal
from hypothesis import given, settings
from hypothesis import strategies as st

import normalization as nz

FEW = settings(max_examples=15, deadline=None, derandomize=True)
SEEDS = st.integers(0, 10**6)
SHIFTS = st.floats(-1e3, 1e3)
FACTORS = st.floats(0.1, 1e3)
SHAPE = (3, 4, 5, 3)  # [N, C, H, W]

# which axes of [N, C, H, W] each norm takes its statistics over, and whether it centers
NORMS = {
    "batch": (lambda x: nz.batch_norm(x, None, None, training=True, eps=0.0), (0, 2, 3), True),
    "layer": (lambda x: nz.layer_norm(x, 3, eps=0.0), (3,), True),
    "layer over (C, H, W)": (lambda x: nz.layer_norm(x, (4, 5, 3), eps=0.0), (1, 2, 3), True),
    "group of all": (lambda x: nz.group_norm(x, 1, eps=0.0), (1, 2, 3), True),
    "instance": (lambda x: nz.instance_norm(x, eps=0.0), (2, 3), True),
    "rms": (lambda x: nz.rms_norm(x, (5, 3), eps=0.0), (2, 3), False),
}


def constant_over(axes, seed):
    """Draw one number for each set of values that share their statistics."""
    return normal(*(1 if axis in axes else size for axis, size in enumerate(SHAPE)), seed=seed)


@pytest.mark.parametrize("name", NORMS)
@FEW
@given(seed=SEEDS, shift=SHIFTS)
def test_a_shift_is_not_seen_by_norms_that_center(name, seed, shift):
    norm, axes, centers = NORMS[name]
    input = normal(*SHAPE, seed=seed)
    shifted = norm(input + shift * constant_over(axes, seed + 1))
    if centers:
        assert_close(shifted, norm(input), 1e-7)
    elif abs(shift) > 0.1:
        assert (shifted - norm(input)).abs().max() > 1e-4


@pytest.mark.parametrize("name", NORMS)
@FEW
@given(seed=SEEDS, factor=FACTORS)
def test_a_positive_scale_is_not_seen_and_a_negative_one_flips(name, seed, factor):
    norm, axes, _ = NORMS[name]
    input = normal(*SHAPE, seed=seed)
    scales = factor * constant_over(axes, seed + 1).abs().clamp(min=0.01)
    assert_close(norm(scales * input), norm(input), 1e-7)
    assert_close(norm(-factor * input), -norm(input), 1e-7)


@pytest.mark.parametrize("name", NORMS)
@FEW
@given(seed=SEEDS)
def test_the_order_of_the_values_is_carried_through(name, seed):
    norm, axes, _ = NORMS[name]
    input, generator = normal(*SHAPE, seed=seed), torch.Generator().manual_seed(seed)
    for axis in axes:
        order = torch.randperm(SHAPE[axis], generator=generator)
        permuted = norm(input.index_select(axis, order))
        assert_close(permuted, norm(input).index_select(axis, order), 1e-10)


@pytest.mark.parametrize("name", NORMS)
@FEW
@given(seed=SEEDS)
def test_only_batch_norm_sees_the_other_examples(name, seed):
    norm, axes, _ = NORMS[name]
    input = normal(*SHAPE, seed=seed)
    changed = input.clone()
    changed[1:] = normal(2, *SHAPE[1:], seed=seed + 1, scale=5)
    moved = (norm(changed)[0] - norm(input)[0]).abs().max()
    assert moved > 1e-3 if 0 in axes else moved < 1e-12


@pytest.mark.parametrize("name", NORMS)
@FEW
@given(seed=SEEDS, factor=st.floats(0.5, 2))
def test_the_weights_before_a_norm_have_no_scale_and_a_gradient_across_them(name, seed, factor):
    norm, _, _ = NORMS[name]
    weight = normal(3, 3, seed=seed).requires_grad_()
    input, probe = normal(*SHAPE, seed=seed + 1), normal(*SHAPE, seed=seed + 2)

    def loss(weight):
        # one matrix scales every set of statistics alike
        return (probe * norm(input @ weight.T)).sum().sin()

    assert_close(loss(factor * weight), loss(weight), 1e-6)
    gradient = torch.autograd.grad(loss(weight), weight)[0]
    size = gradient.norm() * weight.norm()
    assert (gradient * weight).sum().abs() <= 1e-9 * size + 1e-12
    scaled = factor * weight.detach()
    smaller = torch.autograd.grad(loss(scaled.requires_grad_()), scaled)[0]
    torch.testing.assert_close(factor * smaller, gradient, rtol=1e-5, atol=1e-5 * size.item())


@FEW
@given(seed=SEEDS, groups=st.sampled_from([1, 2, 4]))
def test_group_norm_permutes_channels_within_and_groups_among_each_other(seed, groups):
    input = normal(*SHAPE, seed=seed)
    blocks = input.unflatten(1, (groups, -1))
    flipped = blocks.flip(1).flip(2).flatten(1, 2)
    output = nz.group_norm(input, groups).unflatten(1, (groups, -1))
    assert_close(nz.group_norm(flipped, groups), output.flip(1).flip(2).flatten(1, 2), 1e-10)


@FEW
@given(seed=SEEDS, factor=FACTORS)
def test_weight_norm_forgets_the_length_of_v_and_its_gradient_lies_across(seed, factor):
    v, g = normal(4, 3, seed=seed).requires_grad_(), normal(4, 1, seed=seed + 1)
    assert_close(nz.weight_norm(factor * v, g), nz.weight_norm(v, g), 1e-10)
    gradient = torch.autograd.grad(nz.weight_norm(v, g).sin().sum(), v)[0]
    assert (gradient * v).sum(1).abs().max() < 1e-10


@FEW
@given(seed=SEEDS, factor=FACTORS, shift=SHIFTS)
def test_standardized_weights_forget_shift_and_scale(seed, factor, shift):
    weight = normal(4, 6, seed=seed)
    moved = nz.scaled_weight_standardize(factor * weight + shift)
    assert_close(moved, nz.scaled_weight_standardize(weight), 1e-7)
