"""Digits and Markov text: what they promise, checked against counts and closed forms."""

import math

import pytest
import torch
from engine_helpers import refused

from normbook.lab.data import digits_images, digits_tokens, markov_chain, markov_text

# --- digits ---


@pytest.fixture(scope="module")
def images():
    return digits_images()


def test_digits_are_scikit_learns_each_once(images):
    from sklearn.datasets import load_digits

    assert images.train_inputs.shape == (1437, 1, 8, 8)
    assert images.test_inputs.shape == (360, 1, 8, 8)
    assert images.train_inputs.dtype == torch.float64
    pixels, labels = load_digits(return_X_y=True)
    ours = torch.cat([images.train_inputs, images.test_inputs]).reshape(-1, 64).cpu()
    targets = torch.cat([images.train_targets, images.test_targets]).cpu()
    # undo the standardization: the darkest pixel is 0, the brightest 16
    back = (ours - ours.min()) / (ours.max() - ours.min()) * 16
    rows = {(*map(round, row), int(t)) for row, t in zip(back.tolist(), targets, strict=True)}
    assert rows == {(*map(int, p), int(label)) for p, label in zip(pixels, labels, strict=True)}


def test_training_pixels_alone_have_mean_0_and_variance_1(images):
    assert abs(images.train_inputs.mean()) < 1e-12
    assert abs(images.train_inputs.square().mean() - 1) < 1e-12
    assert abs(images.test_inputs.mean()) > 1e-6


def test_tokens_are_the_rows_of_the_images_always_in_one_order(images):
    torch.manual_seed(99)
    tokens = digits_tokens()
    assert torch.equal(tokens.train_inputs[5, 3], images.train_inputs[5, 0, 3])
    assert torch.equal(tokens.train_targets, images.train_targets)
    assert torch.equal(tokens.test_targets, images.test_targets)


# --- Markov text ---

TWO = torch.tensor([[0.9, 0.1], [0.4, 0.6]], dtype=torch.float64)


def entropy(*probabilities):
    return -sum(p * math.log(p) for p in probabilities)


def test_entropy_rate_of_a_chain_solved_by_hand():
    text = markov_chain(TWO)
    assert text.stationary.tolist() == pytest.approx([0.8, 0.2], abs=1e-14)
    rate = 0.8 * entropy(0.9, 0.1) + 0.2 * entropy(0.4, 0.6)
    assert text.entropy_rate == pytest.approx(rate, abs=1e-14)
    assert text.entropies.tolist() == pytest.approx([entropy(0.8, 0.2), rate], abs=1e-14)


def test_entropy_rate_at_the_two_extremes():
    assert markov_text(7, sharpness=0.0).entropy_rate == pytest.approx(math.log(7), abs=1e-13)
    cycle = markov_chain(torch.eye(3).roll(1, 1))
    assert cycle.entropy_rate == 0.0
    assert cycle.stationary.tolist() == pytest.approx([1 / 3] * 3)


def test_second_order_knows_less_from_one_symbol():
    text = markov_text(5, order=2, seed=3)
    none, one, two = text.entropies.tolist()
    assert none > one + 0.05 > two + 0.1
    assert text.floor(1) == pytest.approx(one)
    assert text.floor(4) == pytest.approx((one + 3 * two) / 4)
    assert text.entropy_rate == two


def test_an_order_two_chain_that_copies_the_symbol_two_back():
    # the next symbol is the earlier of the two: with one symbol known nothing is
    transition = torch.zeros(4, 2)
    transition[[0, 1, 2, 3], [0, 0, 1, 1]] = 0.9
    transition[[0, 1, 2, 3], [1, 1, 0, 0]] = 0.1
    text = markov_chain(transition)
    assert text.order == 2
    assert text.entropies.tolist() == pytest.approx(
        [math.log(2), math.log(2), entropy(0.9, 0.1)], abs=1e-7
    )
    tokens = text.sample(400, 50, seed=0)
    assert (tokens[:, 2:] == tokens[:, :-2]).double().mean() == pytest.approx(0.9, abs=0.01)
    assert (tokens[:, 1:] == tokens[:, :-1]).double().mean() == pytest.approx(0.5, abs=0.02)


def test_the_true_chain_loses_the_entropy_rate():
    # by hand: the mean negative log-probability
    expected = -sum(map(math.log, (0.9, 0.1, 0.6, 0.4))) / 4
    loss = markov_chain(TWO).loss(torch.tensor([[0, 0, 1], [1, 1, 0]]))
    assert loss == pytest.approx(expected, abs=1e-14)
    for order in (1, 2, 3):
        text = markov_text(4, order=order, seed=order)
        tokens = text.sample(2000, 50, seed=1)
        assert text.loss(tokens) == pytest.approx(text.entropy_rate, abs=0.01)


def test_samples_are_stationary_from_the_first_symbol_on():
    text = markov_text(3, order=2, seed=5)
    tokens = text.sample(40_000, 6, seed=0).cpu()
    for start in (0, 4):
        state = tokens[:, start] * 3 + tokens[:, start + 1]
        share = torch.bincount(state, minlength=9) / len(state)
        assert share.tolist() == pytest.approx(text.stationary.tolist(), abs=0.01)


def test_samples_follow_their_seed():
    text = markov_text(6)
    assert torch.equal(text.sample(5, 9, seed=1), text.sample(5, 9, seed=1))
    assert not torch.equal(text.sample(5, 9, seed=1), text.sample(5, 9, seed=2))
    assert not torch.equal(text.transition, markov_text(6, seed=1).transition)


# --- what is refused ---

SECOND = markov_text(4, order=2)
BAD = [
    (lambda: markov_text(1), ValueError, "vocabulary"),
    (lambda: markov_text(order=0), ValueError, "order"),
    (lambda: markov_text(64, order=3), ValueError, "4096 states"),
    (lambda: markov_text(sharpness=-1.0), ValueError, "sharpness"),
    (lambda: markov_text(sharpness=math.inf), ValueError, "sharpness"),
    (lambda: markov_chain(torch.ones(3)), ValueError, "transition"),
    (lambda: markov_chain(torch.full((3, 2), 0.5)), ValueError, "transition"),
    (lambda: markov_chain(torch.tensor([[0.5, 0.6], [0.5, 0.5]])), ValueError, "transition"),
    (lambda: markov_chain(torch.tensor([[1.5, -0.5], [0.5, 0.5]])), ValueError, "transition"),
    (lambda: markov_chain(torch.eye(2)), ValueError, "transition must have one stationary"),
    (lambda: SECOND.sample(0, 5, seed=0), ValueError, "count"),
    (lambda: SECOND.sample(3, 1, seed=0), ValueError, "length must be at least 2"),
    (lambda: SECOND.loss(torch.zeros(3, 2, dtype=torch.int64)), ValueError, "tokens"),
    (lambda: SECOND.floor(0), ValueError, "length"),
]
test_bad_chains_and_samples_are_refused = refused(BAD)
