"""The paths of a residual network: each block is either passed by or passed through.

A path's length is the number of blocks that it passes through. Blocks are given as functions
x ↦ x + F(x), or by the Jacobians of their branches F.
"""

import itertools
from collections.abc import Callable, Sequence

import torch
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from torch import Tensor

Block = Callable[[Tensor], Tensor]


def path_lengths(energies: Tensor) -> Tensor:
    """Share of each length 0 … blocks when block l multiplies a path's energy by energies[l].

    The shares are the coefficients of Π (1 + c_l t), over their sum. With energies 1 they count
    paths: Binomial(blocks, 1/2). Shapes: [blocks] to [blocks + 1].

    Raises: ValueError when energies are no vector, or one is negative.
    """
    energies = torch.as_tensor(energies, dtype=torch.float64)
    if energies.ndim != 1 or (energies < 0).any():
        raise ValueError(f"energies must be [blocks] and not negative, got {energies}")
    shares = torch.ones(1, dtype=torch.float64)
    for energy in energies:
        through = torch.nn.functional.pad(shares, (1, 0)) * energy
        shares = (torch.nn.functional.pad(shares, (0, 1)) + through) / (1 + energy)
    return shares


def expand(jacobians: Tensor) -> tuple[Tensor, Tensor]:
    """Multiply out Π (I + J_l): the terms [2**blocks, d, d], and the length of each path.

    `jacobians` [blocks, d, d] in the order in which the blocks are applied. Term number
    b₀ + 2b₁ + 4b₂ + … passes through block l where b_l = 1.

    Raises: ValueError on another shape, or more than 12 blocks.
    """
    if jacobians.ndim != 3 or jacobians.shape[1] != jacobians.shape[2] or len(jacobians) > 12:
        shape = tuple(jacobians.shape)
        raise ValueError(f"jacobians must be [blocks, d, d] of at most 12 blocks, got {shape}")
    terms = torch.eye(jacobians.shape[1], dtype=jacobians.dtype)[None]
    lengths = torch.zeros(1, dtype=torch.int64)
    for jacobian in jacobians:
        terms = torch.cat([terms, jacobian @ terms])
        lengths = torch.cat([lengths, lengths + 1])
    return terms, lengths


def gradient_by_length(blocks: Sequence[Block], input: Tensor, gradient: Tensor) -> Tensor:
    """Split the gradient at the input by the length of the paths that carried it.

    `gradient` is the one at the output of the last block. Entry k of the result, of the input's
    shape, is the sum over all paths through k blocks; the entries add up to what backpropagation
    gives. Shapes: input and gradient [...] alike, result [blocks + 1, ...].
    """
    inputs = [input.detach()]
    with torch.no_grad():
        for block in blocks[:-1]:
            inputs.append(block(inputs[-1]))
    parts = gradient.detach()[None]
    for block, x in zip(reversed(blocks), reversed(inputs), strict=True):
        x.requires_grad_()
        pulled = torch.autograd.grad(block(x), x, parts, is_grads_batched=True)[0]
        nothing = torch.zeros_like(parts[:1])
        parts = torch.cat([parts, nothing]) + torch.cat([nothing, pulled - parts])
    return parts


def energy_by_length(parts: Tensor) -> Tensor:
    """Energy of each length over the sum of all: [lengths, seeds, …] to [seeds, lengths]."""
    energy = parts.square().flatten(2).sum(-1).T
    return energy / energy.sum(-1, keepdim=True)


def draw_paths(axis: Axes, blocks: int, colour: str) -> None:
    """Draw every path through `blocks` blocks, sorted by length: a box where it passes through."""
    chosen = sorted(itertools.product((0, 1), repeat=blocks), key=lambda path: (sum(path), path))
    for row, path in enumerate(chosen):
        axis.plot([0, blocks + 0.5], [-row, -row], color="#333333", linewidth=1.6, zorder=1)
        for column in (index for index, through in enumerate(path) if through):
            place = (column + 0.25, -row - 0.32)
            box = Rectangle(place, 0.75, 0.64, facecolor=colour, edgecolor="#333333", zorder=2)
            axis.add_patch(box)
            name = f"$F_{column + 1}$"
            axis.text(column + 0.62, -row - 0.03, name, ha="center", va="center", color="white")
        term = "".join(f"J_{index + 1}" for index in reversed(range(blocks)) if path[index])
        axis.text(blocks + 0.65, -row - 0.03, f"${term or 'I'}$", va="center")
    axis.set(xlim=(-0.1, blocks + 1.7), ylim=(0.6 - len(chosen), 0.6))
    axis.axis("off")
