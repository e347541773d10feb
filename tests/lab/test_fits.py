"""Exponents are those of the power law that made the points."""

import numpy as np
import pytest
import torch

from normbook.lab.fits import exponent


def test_exponent_of_exact_power_laws():
    x = torch.tensor([1.0, 2.0, 5.0, 40.0])
    y = torch.stack([3 * x**0.5, 7 * x**-2.0])
    assert torch.allclose(exponent(x, y), torch.tensor([0.5, -2.0], dtype=torch.float64))


def test_exponent_is_numpys_least_squares():
    generator = np.random.default_rng(0)
    x = np.arange(1, 30)
    y = x**0.7 * np.exp(0.1 * generator.standard_normal(29))
    assert exponent(x, y).item() == pytest.approx(np.polyfit(np.log(x), np.log(y), 1)[0], abs=1e-12)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        ([1.0], [1.0], r"x must be \[points\]"),
        ([1.0, 2.0], [1.0, 2.0, 3.0], r"x must be \[points\]"),
        ([1.0, 2.0], [1.0, 0.0], "must be positive"),
        ([0.0, 2.0], [1.0, 1.0], "must be positive"),
        ([1.0, 2.0], [1.0, float("nan")], "must be positive"),
    ],
)
def test_exponent_refuses(x, y, message):
    with pytest.raises(ValueError, match=message):
        exponent(x, y)
