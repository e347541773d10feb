"""DeepNorm's constants (section 6 of the book), from the number of layers.

`Residual` takes alpha as its `skip_scale`, `deepnorm_init_` draws with beta.
"""

from typing import NamedTuple

from normbook.engine.checks import require_size


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
