"""Deep stacks of residual blocks without norms, whose recipes differ in a few numbers only.

All recipes are one architecture: so networks of all recipes and seeds train as one ensemble.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

import normalization as nz

# What multiplies the skip and what the branch, before anything is learned, for `depth` blocks.
RECIPES = {
    "plain": lambda depth: (0.0, 1.0),
    "unscaled": lambda depth: (1.0, 1.0),
    "1/sqrt(2)": lambda depth: (math.sqrt(0.5), math.sqrt(0.5)),
    "1/sqrt(N)": lambda depth: (1.0, depth**-0.5),
    "SkipInit": lambda depth: (1.0, 0.0),
    "LayerScale": lambda depth: (1.0, 0.0),
}


def he_pair(depth: int, width: int, count: int | None = None, seed: int = 0) -> Tensor:
    """Draw W₁ and W₂ of `depth` branches W₂ ReLU(W₁ x): [2, depth, width, width].

    W₁ has variance 2/width (Kaiming) and W₂ 1/width, so that a branch keeps the energy of what it
    reads. They stand to be multiplied from the right, x @ W₁. With `count`, that many networks:
    [2, depth, count, width, width].
    """
    generator = torch.Generator().manual_seed(seed)
    shape = (width, width) if count is None else (count, width, width)
    pair = torch.randn(2, depth, *shape, generator=generator, dtype=torch.float64)
    pair[0] *= math.sqrt(2)
    return pair / math.sqrt(width)


def jacobians(
    pairs: Tensor,
    input: Tensor,
    *,
    scale: float = 1.0,
    normalized: bool = False,
    relu_after: bool = False,
) -> tuple[Tensor, Tensor]:
    """Follow the Jacobian ∂x_l/∂x₀ of unrolled blocks x ↦ x + scale · W₂ ReLU(W₁ x).

    `pairs` [2, depth, count, d, d] as from `he_pair`; input [count, d], one example for each of
    `count` networks. With `normalized` a branch reads x over its root mean square; with
    `relu_after` each sum passes a ReLU, as in the first ResNets.

    Returns the Jacobians [depth + 1, count, d, d], in the order in which x multiplies from the
    left; and the share of the units that no ReLU after a sum has cut so far [depth + 1, count].
    """
    count, width = input.shape
    x, jacobian = input, torch.eye(width).to(input).expand(count, width, width)
    whole = torch.ones_like(input)
    found, kept = [jacobian], [whole.mean(1)]
    for up, down in zip(*pairs, strict=True):
        size = x.square().mean(1, keepdim=True).sqrt() if normalized else torch.ones_like(x[:, :1])
        read = x / size
        hidden = torch.einsum("ni,nij->nj", read, up)
        branch = (up * (hidden > 0)[:, None]) @ down
        if normalized:  # the derivative of x over its root mean square
            branch = (branch - read[:, :, None] * (read[:, None] @ branch) / width) / size[
                ..., None
            ]
        x = x + scale * torch.einsum("ni,nij->nj", hidden.relu(), down)
        jacobian = jacobian + scale * jacobian @ branch
        if relu_after:
            on = (x > 0).to(x)
            x, jacobian, whole = x * on, jacobian * on[:, None], whole * on
        found.append(jacobian)
        kept.append(whole.mean(1))
    return torch.stack(found), torch.stack(kept)


class ResidualStack(nn.Module):
    """`depth` blocks x ↦ skip · x + scale · W₂ ReLU(W₁ norm(x)), between a linear stem and a head.

    The recipe sets skip and scale. "plain" has no skip; "unscaled", "1/sqrt(2)" (on the skip, too)
    and "1/sqrt(N)" have constants; "SkipInit" learns one number a block, from 0 (without norms this
    is ReZero); "LayerScale" learns one a feature, from `nz.layer_scale_init`. With `norm="batch"`
    each branch reads its batch normalized, without gain and bias and in training mode always.

    Shapes: input [n, …] with `inputs` values an example, output [n, outputs]; without `inputs`
    there is neither stem nor head, and both are [n, width].

    Raises: ValueError on an unknown recipe or norm.
    """

    def __init__(
        self,
        recipe: str,
        *,
        width: int,
        depth: int,
        inputs: int | None = None,
        outputs: int | None = None,
        norm: str | None = None,
    ) -> None:
        super().__init__()
        if recipe not in RECIPES:
            raise ValueError(f"recipe must be one of {list(RECIPES)}, got {recipe!r}")
        if norm not in (None, "batch"):
            raise ValueError(f"norm must be None or 'batch', got {norm!r}")
        self.norm = norm
        ends = (inputs, width), (width, outputs)
        self.stem, self.head = (nn.Linear(*end) if inputs else nn.Identity() for end in ends)
        draws = torch.randn(2, depth, width, width) / math.sqrt(width)
        self.up = nn.Parameter(math.sqrt(2) * draws[0])
        self.down = nn.Parameter(draws[1])
        start = nz.layer_scale_init(depth) if recipe == "LayerScale" else 0.0
        self.alpha = nn.Parameter(torch.zeros(depth))
        self.gamma = nn.Parameter(torch.full((depth, width), start))
        skip, constant = RECIPES[recipe](depth)
        # One vector for what the recipes differ in, so that all share one architecture.
        own = skip, constant, float(recipe == "SkipInit"), float(recipe == "LayerScale")
        self.register_buffer("recipe", torch.tensor(own))

    def blocks(self) -> list[Callable[[Tensor], Tensor]]:
        """Return the blocks as functions of x [n, width], in their order."""
        # Taken apart at once: a gradient through self.up[index] fills a tensor of all blocks.
        parts = (part.unbind() for part in (self.up, self.down, self.alpha, self.gamma))
        return [partial(self._block, *own) for own in zip(*parts, strict=True)]

    def _block(self, up: Tensor, down: Tensor, alpha: Tensor, gamma: Tensor, x: Tensor) -> Tensor:
        """Apply one block to x [n, width]."""
        skip, constant, use_alpha, use_gamma = self.recipe
        read = nz.batch_norm(x, None, None, training=True) if self.norm else x
        write = (read @ up).relu() @ down
        return skip * x + (constant + use_alpha * alpha + use_gamma * gamma) * write

    def forward(self, input: Tensor) -> Tensor:
        """Flatten each example; stem, blocks, head."""
        x = self.stem(input.flatten(1))
        for block in self.blocks():
            x = block(x)
        return self.head(x)
