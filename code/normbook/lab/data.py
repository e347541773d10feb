"""Real data and known data: handwritten digits, and Markov text whose entropy is exact.

Everything is drawn on the CPU in float64 from its own generator, then moved to the device of
`pick_device`; nothing is downloaded.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch

from normbook.engine.checks import require_number, require_size
from normbook.lab.session import draw, pick_device

DIGITS_TEST = 360  # of 1797: one in five


class Split(NamedTuple):
    """A data set in four tensors, training examples first. Targets are class indices [n]."""

    train_inputs: torch.Tensor
    train_targets: torch.Tensor
    test_inputs: torch.Tensor
    test_targets: torch.Tensor


def digits_images() -> Split:
    """Load handwritten digits as images: inputs [n, 1, 8, 8] in float64, targets 0 … 9.

    The 1797 images of scikit-learn's `load_digits` (UCI optdigits), always split the same way:
    1437 to train on, 360 to test on. One mean and one standard deviation, those of all training
    pixels, standardize every pixel, so that the borders stay constant instead of becoming noise.
    """
    from sklearn.datasets import load_digits  # slow to import, and only needed here

    pixels, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(pixels, dtype=torch.float64)[order].reshape(-1, 1, 8, 8)
    targets = torch.tensor(labels, dtype=torch.int64)[order]
    train = images[:-DIGITS_TEST]
    images = (images - train.mean()) / train.std(correction=0)
    parts = [part[:-DIGITS_TEST] for part in (images, targets)]
    parts += [part[-DIGITS_TEST:] for part in (images, targets)]
    return Split(*(part.to(pick_device()) for part in parts))


def digits_tokens() -> Split:
    """Load the same digits, same split, as sequences [n, 8, 8]: token t is row t of the image."""
    split = digits_images()
    return split._replace(
        train_inputs=split.train_inputs.squeeze(1), test_inputs=split.test_inputs.squeeze(1)
    )


@dataclass(frozen=True, eq=False)
class MarkovText:
    """Text drawn from a Markov chain: the next symbol depends on the `order` symbols before it.

    The state s numbers those symbols, the latest as the last digit in base V = `vocabulary`.

    Attributes:
        vocabulary: number of symbols V.
        order: length k of the context.
        transition: [V**k, V], row s is the distribution of the next symbol in state s.
        stationary: [V**k], the stationary distribution of the states, solved exactly.
        entropies: [k + 1], entry j is H(next symbol | the j symbols before it) in nats.
    """

    vocabulary: int
    order: int
    transition: torch.Tensor
    stationary: torch.Tensor
    entropies: torch.Tensor

    @property
    def entropy_rate(self) -> float:
        """H(next symbol | all before it) in nats: no model's loss is lower."""
        return float(self.entropies[-1])

    def floor(self, length: int) -> float:
        """Average over positions the lowest loss of a causal model on inputs of `length` symbols.

        In nats. Position t of a sequence sees t + 1 symbols, so the first order − 1 positions
        cannot reach the entropy rate.
        """
        require_size("length", length)
        seen = torch.arange(1, length + 1).clamp(max=self.order)
        return float(self.entropies[seen].mean())

    def sample(self, count: int, length: int, seed: int) -> torch.Tensor:
        """Draw `count` independent stretches of the stationary chain: int64 [count, length].

        A language model takes `tokens[:, :-1]` as inputs and `tokens[:, 1:]` as targets.
        """
        require_size("count", count)
        require_size("length", length, low=self.order)
        generator = torch.Generator().manual_seed(seed)
        draws = torch.rand(count, length + 1, generator=generator, dtype=torch.float64)
        state = _draw(self.stationary.expand(count, -1), draws[:, length])
        tokens = torch.empty(count, length, dtype=torch.int64)
        for position in range(self.order):
            tokens[:, position] = state // self.vocabulary ** (self.order - 1 - position)
        tokens[:, : self.order] %= self.vocabulary
        for position in range(self.order, length):
            symbol = _draw(self.transition[state], draws[:, position])
            state = (state * self.vocabulary + symbol) % len(self.stationary)
            tokens[:, position] = symbol
        return tokens.to(pick_device())

    def loss(self, tokens: torch.Tensor) -> float:
        """Average the cross-entropy, in nats, of the true chain on tokens [count, length > order].

        Only symbols with a full context count; the mean tends to `entropy_rate`.
        """
        if tokens.ndim != 2 or tokens.shape[1] <= self.order:
            expected = f"[count, length] with length > order = {self.order}"
            raise ValueError(f"tokens must be {expected}, got shape {tuple(tokens.shape)}")
        windows = tokens.cpu().unfold(1, self.order + 1, 1)
        digits = self.vocabulary ** torch.arange(self.order - 1, -1, -1)
        state = (windows[..., :-1] * digits).sum(-1)
        return float(-self.transition[state, windows[..., -1]].log().mean())


def markov_text(
    vocabulary: int = 16, *, order: int = 1, sharpness: float = 2.0, seed: int = 0
) -> MarkovText:
    """Draw a Markov chain of the given order at random; its entropy rate is known exactly.

    Each row of the transition matrix is softmax(sharpness · z) with z standard normal: sharpness 0
    is uniform noise (entropy ln V), and the entropy falls as it grows.
    """
    require_size("vocabulary", vocabulary, low=2)
    require_size("order", order)
    require_number("sharpness", sharpness, low=0)
    if vocabulary**order > 4096:
        raise ValueError(f"there must be at most 4096 states, got {vocabulary}**{order}")
    logits = draw(seed, vocabulary**order, vocabulary)
    return markov_chain((sharpness * logits).softmax(-1))


def markov_chain(transition: torch.Tensor) -> MarkovText:
    """Make Markov text from a transition matrix [V**k, V], whose rows sum to 1.

    Raises: ValueError where rows are no distributions, or their number is no power k >= 1 of V.
    """
    if transition.ndim != 2:
        raise ValueError(f"transition must be [V**k, V], got shape {tuple(transition.shape)}")
    states, vocabulary = transition.shape
    order = max(1, round(math.log(states, max(vocabulary, 2))))
    if vocabulary < 2 or vocabulary**order != states:
        raise ValueError(f"transition must be [V**k, V], V >= 2, got shape {states, vocabulary}")
    transition = transition.detach().cpu().double()
    if (transition < 0).any() or not torch.allclose(transition.sum(-1), torch.ones(1).double()):
        raise ValueError("transition must have non-negative rows that sum to 1, got others")
    stationary = _stationary(transition)
    return MarkovText(vocabulary, order, transition, stationary, _entropies(transition, stationary))


def _stationary(transition: torch.Tensor) -> torch.Tensor:
    """Solve πP = π, Σπ = 1 for the chain of states: [V**k]."""
    states, vocabulary = transition.shape
    state, symbol = torch.arange(states)[:, None], torch.arange(vocabulary)
    moves = torch.zeros(states, states, dtype=torch.float64)
    moves[state, (state * vocabulary + symbol) % states] = transition
    # πP = π holds one equation twice over; in its place stands Σπ = 1.
    equations = moves.T - torch.eye(states, dtype=torch.float64)
    equations[-1] = 1.0
    right = torch.zeros(states, dtype=torch.float64)
    right[-1] = 1.0
    try:
        solution = torch.linalg.solve(equations, right)
    except torch.linalg.LinAlgError as error:
        raise ValueError("transition must have one stationary distribution, got more") from error
    return solution.clamp(min=0.0)  # a state that is never reached may come out as -1e-18


def _entropies(transition: torch.Tensor, stationary: torch.Tensor) -> torch.Tensor:
    """Subtract block entropies: H(next | j symbols before it) = H_{j+1} − H_j, j = 0 … k."""
    vocabulary = transition.shape[1]
    block = stationary[:, None] * transition  # P(k + 1 consecutive symbols), earliest first
    blocks = []
    while block.numel() > 1:
        blocks.append(torch.special.entr(block).sum())
        block = block.reshape(vocabulary, -1).sum(0)  # forget the earliest symbol
    return torch.stack([*blocks, torch.zeros_like(blocks[0])]).flip(0).diff()


def _draw(distribution: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """Draw one index a row of distribution [n, m] by inverting its sum at uniform [n] in [0, 1)."""
    steps = distribution.cumsum(-1)
    # The last step may fall short of 1 by rounding: then the last index is meant.
    return (steps[:, :-1] <= uniform[:, None]).sum(-1)
