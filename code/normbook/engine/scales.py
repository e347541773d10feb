"""Scales on the branch and on the skip of a residual connection (sections 6, 7 and 10)."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from normbook.engine.checks import (
    require_callable,
    require_features,
    require_floating,
    require_number,
    require_parameter,
    require_positive,
    require_size,
)
from normbook.engine.initialization import second_moment_gain

# --- on the branch ---


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


# --- on the skip ---


class DeepNormConstants(NamedTuple):
    """DeepNorm's two constants for each part of a Transformer; None for a part that is absent.

    alpha multiplies the skip (`Residual` with placement "post" and `skip_scale=alpha`), beta is the
    gain of Xavier's draw for value, output and feed-forward weights. See `deepnorm_constants` for
    the errors.

    Source: Wang et al. 2022 (arXiv 2203.00555), Figure 2.
    """

    encoder_alpha: float | None
    encoder_beta: float | None
    decoder_alpha: float | None
    decoder_beta: float | None


def deepnorm_constants(n_encoder: int, n_decoder: int) -> DeepNormConstants:
    r"""Compute DeepNorm's constants from the numbers of layers; 0 for the part that is absent.

    One part of N layers: $\alpha = (2N)^{1/4}$, $\beta = (8N)^{-1/4}$. Encoder of N and decoder of
    M layers: $\alpha_e = 0.81\,(N^4 M)^{1/16}$, $\beta_e = 0.87\,(N^4 M)^{-1/16}$ and
    $\alpha_d = (3M)^{1/4}$, $\beta_d = (12M)^{-1/4}$.

    Raises: ValueError when a number is negative or both are 0; TypeError when one is not whole.

    Source: Wang et al. 2022 (arXiv 2203.00555), Figure 2.
    """
    require_size("n_encoder", n_encoder, low=0)
    require_size("n_decoder", n_decoder, low=0)
    if n_encoder == n_decoder == 0:
        raise ValueError("n_encoder and n_decoder must not both be 0")
    if n_encoder and n_decoder:
        root = (n_encoder**4 * n_decoder) ** (1 / 16)
        encoder = (0.81 * root, 0.87 / root)
        decoder = ((3 * n_decoder) ** 0.25, (12 * n_decoder) ** -0.25)
        return DeepNormConstants(*encoder, *decoder)
    layers = n_encoder + n_decoder
    alone = ((2 * layers) ** 0.25, (8 * layers) ** -0.25)
    return (
        DeepNormConstants(*alone, None, None)
        if n_encoder
        else DeepNormConstants(None, None, *alone)
    )


# --- in place of norms ---


def variance_gain(function: Callable[[Tensor], Tensor]) -> float:
    r"""Work out the gain that keeps the variance through a nonlinearity, by quadrature.

    $$\gamma = 1 / \sqrt{\mathrm{Var}[f(z)]}, \qquad z \sim N(0, 1)$$

    It differs from `second_moment_gain` by the mean, which weights of mean 0 (`ScaledWSConv2d`)
    do not see: for relu it is sqrt(2 / (1 - 1 / pi)) = 1.7129 and not sqrt(2).

    Raises: as `second_moment_gain`.

    Source: Brock, De & Smith 2021 (arXiv 2101.08692), section 4; their own constants are
    estimates from samples, and off by up to 0.1 %.
    """
    second = second_moment_gain(function) ** -2
    # E[f] from E[(f + 1)²] = E[f²] + 2 E[f] + 1
    shifted = second_moment_gain(lambda z: function(z) + 1) ** -2
    mean = (shifted - second - 1) / 2
    return second_moment_gain(lambda z: function(z) - mean)


def nf_betas(depth: int, alpha: float = 0.2, transitions: Sequence[int] = ()) -> list[float]:
    r"""Predict the standard deviation of the stream at the input of every block.

    $$\beta_0 = 1, \qquad \beta_{l+1}^2 = \beta_l^2 + \alpha^2$$

    as each block adds a branch of variance 1 times alpha. A transition block, whose skip
    starts from the normalized stream (`NFResidual` with a `shortcut`), resets the variance: behind
    it stands $1 + \alpha^2$.

    Raises: ValueError when depth is below 1, alpha is negative or a transition is no block;
    TypeError on values of another kind.

    Source: Brock, De & Smith 2021 (arXiv 2101.08692), section 3.
    """
    require_size("depth", depth)
    require_number("alpha", alpha, low=0)
    for block in transitions:
        require_size("transitions", block, low=0)
        if block >= depth:
            raise ValueError(f"transitions must be below depth {depth}, got {block}")
    betas, variance = [], 1.0
    for block in range(depth):
        betas.append(math.sqrt(variance))
        variance = (1.0 if block in transitions else variance) + alpha**2
    return betas


class NFResidual(nn.Module):
    r"""A residual connection without norms: the branch sees the stream over its predicted scale.

    $$y = x + \alpha f(x / \beta)$$

    With `shortcut`, as in a block that changes resolution or width, $y = s(x/\beta) + \alpha
    f(x/\beta)$. beta comes from `nf_betas`; the branch f must keep the variance.

    Shapes: input and output alike, as branch and shortcut have them.

    Raises: ValueError when beta is not above 0, or the branch's shape is not that of the skip;
    TypeError on anything that cannot be called, or alpha and beta that are no numbers.

    Source: Brock, De & Smith 2021 (arXiv 2101.08692), section 3.
    """

    def __init__(
        self,
        branch: Callable[[Tensor], Tensor],
        beta: float,
        alpha: float = 0.2,
        shortcut: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__()
        require_callable("branch", branch)
        if shortcut is not None:
            require_callable("shortcut", shortcut)
        require_number("alpha", alpha)
        require_positive("beta", beta)
        self.branch = branch
        self.beta = beta
        self.alpha = alpha
        self.shortcut = shortcut

    def forward(self, input: Tensor) -> Tensor:
        """Add the scaled branch of the scaled input to the skip."""
        require_floating("input", input)
        scaled = input / self.beta
        skip = input if self.shortcut is None else self.shortcut(scaled)
        write = self.branch(scaled)
        if write.shape != skip.shape:
            raise ValueError(
                f"branch must have the skip's shape {tuple(skip.shape)}, got {tuple(write.shape)}"
            )
        return skip + self.alpha * write

    def extra_repr(self) -> str:
        """Name the two constants."""
        return f"beta={self.beta:g}, alpha={self.alpha:g}"
