"""DeepNorm's constants against the published ones."""

import math

import pytest
from engine_helpers import refused

import normalization as nz


@pytest.mark.parametrize(
    ("layers", "alpha", "beta"),
    [(6, 1.8612, 0.3799), (12, 2.2134, 0.3195), (100, 3.7606, 0.1880)],
)
def test_deepnorm_of_one_part(layers, alpha, beta):
    # (2N)^(1/4) and (8N)^(-1/4), written out to four digits
    encoder = nz.deepnorm_constants(layers, 0)
    assert encoder[:2] == pytest.approx((alpha, beta), abs=5e-5)
    assert encoder[2:] == (None, None)
    decoder = nz.deepnorm_constants(0, layers)
    assert decoder == (None, None, *encoder[:2])
    assert decoder.decoder_alpha == encoder.encoder_alpha


@pytest.mark.parametrize(("n", "m"), [(6, 6), (12, 12), (100, 100), (18, 6)])
def test_deepnorm_of_encoder_and_decoder(n, m):
    # torchscale's code, which divides by 1.15 where the paper multiplies by 0.87
    constants = nz.deepnorm_constants(n, m)
    assert constants.encoder_alpha == pytest.approx(math.pow(math.pow(n, 4) * m, 0.0625) * 0.81)
    assert constants.encoder_beta == pytest.approx(
        1 / (math.pow(math.pow(n, 4) * m, 0.0625) * 1.15), rel=1e-3
    )
    assert constants.decoder_alpha == pytest.approx(math.pow(3 * m, 0.25))
    assert constants.decoder_beta == pytest.approx(1 / math.pow(12 * m, 0.25))
    if n == m == 6:
        assert constants == pytest.approx((1.4179, 0.4970, 2.0598, 0.3433), abs=5e-5)


BAD = [
    (lambda: nz.deepnorm_constants(0, 0), ValueError, "n_encoder and n_decoder .* both be 0"),
    (lambda: nz.deepnorm_constants(-1, 6), ValueError, "n_encoder .*-1"),
    (lambda: nz.deepnorm_constants(6, 0.5), TypeError, "n_decoder .*0.5"),
]
test_bad_input_is_refused = refused(BAD)
