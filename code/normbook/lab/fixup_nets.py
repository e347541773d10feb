"""Deep residual networks without norms: Fixup, and Fixup with one of its rules left out.

All recipes but "batch" are one architecture, so that they train as one ensemble: a recipe is a
draw of the weights, and a mask on what the scalars learn.
"""

import torch
from torch import Tensor, nn

import normalization as nz

RECIPES = ("naive", "fixup", "last", "classifier", "depth", "scalars", "batch")


class FixupNet(nn.Module):
    """`depth` blocks x ↦ x + FixupBranch(x), between a linear stem and a linear head.

    Recipes: "fixup" follows all rules; "naive" draws every layer by Kaiming and has no scalars
    that learn. The others leave one rule out: "last" keeps Kaiming's draw in the last layer of each
    branch; "classifier" in the head; "depth" leaves out the factor L**(-1/2); "scalars" fixes
    the scalars at 0 and 1. "batch" is "naive" with a BatchNorm after each layer of a branch.

    Shapes: input [n, …] with `inputs` values an example, output [n, outputs].

    Raises: ValueError on an unknown recipe.
    """

    def __init__(self, recipe: str, *, inputs: int, width: int, depth: int, outputs: int) -> None:
        super().__init__()
        if recipe not in RECIPES:
            raise ValueError(f"recipe must be one of {', '.join(RECIPES)}, got {recipe!r}")
        self.normalized = recipe == "batch"
        self.stem = nn.Linear(inputs, width)
        self.blocks = nn.ModuleList(nz.FixupBranch(width) for _ in range(depth))
        self.head = nn.Linear(width, outputs)
        learns = recipe not in ("naive", "scalars", "batch")
        self.register_buffer("learns", torch.tensor(float(learns)))
        nz.fixup_init_(self, self.head)
        self._leave_out(recipe)

    def _leave_out(self, recipe: str) -> None:
        """Undo the rules that the recipe does without."""
        everything = recipe in ("naive", "batch")
        if everything or recipe == "classifier":
            nz.kaiming_normal_(self.head.weight, nonlinearity="linear")
        for block in self.blocks:
            first, last = block.layers
            if everything or recipe == "depth":
                with torch.no_grad():
                    first.weight *= len(self.blocks) ** 0.5
            if everything or recipe == "last":
                nz.kaiming_normal_(last.weight, nonlinearity="linear")

    def forward(self, input: Tensor) -> Tensor:
        """Flatten each example; stem, blocks, head."""
        x = self.stem(input.flatten(1)).relu()
        for block in self.blocks:
            x = x + self._branch(block, x)
        return self.head(x)

    def _branch(self, block: nz.FixupBranch, x: Tensor) -> Tensor:
        """Apply one branch, whose scalars stay at 0, 0 and 1 where they do not learn."""
        first, last = (layer.weight for layer in block.layers)
        before, between = self.learns * block.layer_biases, self.learns * block.activation_biases
        hidden = self._norm((x + before[0]) @ first.mT)
        hidden = (hidden + between[0]).relu() + before[1]
        return (1 + self.learns * (block.multiplier - 1)) * self._norm(hidden @ last.mT)

    def _norm(self, x: Tensor) -> Tensor:
        """Normalize over the batch, if this network does."""
        return nz.batch_norm(x, None, None, training=True) if self.normalized else x
