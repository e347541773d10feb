"""The paths against binomial numbers, brute force and backpropagation."""

import itertools
import math

import matplotlib.pyplot as plt
import pytest
import torch

from normbook.lab.paths import (
    draw_paths,
    energy_by_length,
    expand,
    gradient_by_length,
    path_lengths,
)


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_equal_energies_count_paths():
    expected = [math.comb(9, length) / 2**9 for length in range(10)]
    assert path_lengths(torch.ones(9)).tolist() == pytest.approx(expected)


def test_unequal_energies_against_all_subsets():
    energies = [0.5, 2.0, 0.0, 1.5]
    expected = [0.0] * 5
    for chosen in itertools.product((0, 1), repeat=4):
        weight = math.prod(e for e, through in zip(energies, chosen, strict=True) if through)
        expected[sum(chosen)] += weight
    total = sum(expected)
    assert path_lengths(energies).tolist() == pytest.approx([e / total for e in expected])


@pytest.mark.parametrize("energies", [torch.ones(2, 2), torch.tensor([1.0, -0.1])])
def test_energies_that_make_no_sense(energies):
    with pytest.raises(ValueError, match="energies must be"):
        path_lengths(energies)


def test_terms_are_products_in_the_order_of_the_blocks():
    first, second, third = normal(3, 4, 4)
    terms, lengths = expand(torch.stack([first, second, third]))
    eye = torch.eye(4, dtype=torch.float64)
    assert torch.allclose(terms.sum(0), (eye + third) @ (eye + second) @ (eye + first))
    assert torch.allclose(terms[0b101], third @ first)
    assert lengths.tolist() == [number.bit_count() for number in range(8)]


@pytest.mark.parametrize("shape", [(3, 4, 5), (4, 4), (13, 2, 2)])
def test_jacobians_of_another_shape(shape):
    with pytest.raises(ValueError, match="jacobians must be"):
        expand(torch.zeros(shape))


def blocks_and_parts():
    weights = 0.3 * normal(4, 5, 5)
    blocks = [lambda x, w=w: x + (x @ w).tanh() for w in weights]
    x, gradient = normal(2, 3, 5, seed=1), normal(2, 3, 5, seed=2)
    return weights, blocks, x, gradient, gradient_by_length(blocks, x, gradient)


def test_parts_add_up_to_backpropagation():
    _, blocks, x, gradient, parts = blocks_and_parts()
    x = x.clone().requires_grad_()
    output = x
    for block in blocks:
        output = block(output)
    (expected,) = torch.autograd.grad(output, x, gradient)
    assert parts.shape == (5, 2, 3, 5)
    assert torch.allclose(parts.sum(0), expected)
    assert torch.allclose(parts[0], gradient)


def test_parts_against_every_path():
    weights, blocks, x, gradient, parts = blocks_and_parts()
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
    assert energy_by_length(parts).tolist() == [[9 / 25, 16 / 25], [0.5, 0.5]]


def test_picture_has_a_box_for_every_block_passed_through():
    figure, axis = plt.subplots()
    draw_paths(axis, 3, "#0072B2")
    assert len(axis.patches) == 12
    assert "$J_3J_2J_1$" in [text.get_text() for text in axis.texts]
    plt.close(figure)
