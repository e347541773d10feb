"""Learned scales on the branch of a residual connection (section 7 of the book)."""

import torch
from torch import Tensor, nn

from normbook.engine.checks import (
    require_features,
    require_floating,
    require_number,
    require_parameter,
    require_size,
)


def layer_scale_init(depth: int) -> float:
    """Look up what LayerScale starts at: 0.1 to 18 layers deep, 1e-5 to 24, 1e-6 beyond.

    Raises: ValueError when depth is below 1; TypeError when it is not a whole number.

    Source: Touvron et al. 2021 (arXiv 2103.17239), section 2.
    """
    require_size("depth", depth)
    if depth <= 18:
        return 0.1
    return 1e-5 if depth <= 24 else 1e-6


class LayerScale(nn.Module):
    r"""Multiply each feature of a branch by a learned number that starts small.

    $$y = \gamma x, \qquad \gamma_i = \mathrm{init}$$

    Shapes: input and output [..., dim].

    Raises: ValueError when the input does not end in dim; TypeError on a dtype the rule of `shared`
    excludes.

    Source: Touvron et al. 2021 (arXiv 2103.17239), section 2.
    """

    def __init__(self, dim: int, init: float) -> None:
        super().__init__()
        require_size("dim", dim)
        require_number("init", init)
        self.dim = dim
        self.init = init
        self.gamma = nn.Parameter(torch.full((dim,), float(init)))

    def forward(self, input: Tensor) -> Tensor:
        """Scale the features of `input`."""
        require_features(input, self.dim)
        require_parameter("gamma", self.gamma, (self.dim,), input)
        return (self.gamma * input).to(input.dtype)

    def extra_repr(self) -> str:
        """Name the settings."""
        return f"{self.dim}, init={self.init:g}"


class SkipInit(nn.Module):
    r"""Multiply a branch by one learned number that starts at 0 or near it.

    $$y = \alpha x$$

    Shapes: input and output any; alpha [].

    Raises: TypeError on a dtype the rule of `shared` excludes, or an init that is no number.

    Source: De & Smith 2020 (arXiv 2002.10444).
    """

    def __init__(self, init: float = 0.0) -> None:
        super().__init__()
        require_number("init", init)
        self.init = init
        self.alpha = nn.Parameter(torch.tensor(float(init)))

    def forward(self, input: Tensor) -> Tensor:
        """Scale `input`."""
        require_floating("input", input)
        require_parameter("alpha", self.alpha, (), input)
        return (self.alpha * input).to(input.dtype)

    def extra_repr(self) -> str:
        """Name the start."""
        return f"init={self.init:g}"


class ReZero(SkipInit):
    r"""Multiply a branch by one learned number that starts at 0; ReZero uses no norms.

    The block starts as the identity, Jacobian included: until alpha moves, only alpha has a
    gradient.

    Shapes: input and output any; alpha [].

    Raises: TypeError on a dtype the rule of `shared` excludes.

    Source: Bachlechner et al. 2020 (arXiv 2003.04887).
    """

    def __init__(self) -> None:
        super().__init__(0.0)
