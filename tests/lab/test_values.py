"""Numbers as the book writes them, and values carried into sentences."""

import numpy as np
import pytest
import torch
from engine_helpers import refused

from normbook.lab import exponent, glue, significant
from normbook.lab.session import begin


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *[(0.5, "0.500"), (1234.5, "1230"), (99.96, "100"), (0.99951, "1.00"), (0.001, "0.00100")],
        *[(0.00099, "9.90e-4"), (-2.345, "-2.35"), (123456, "123000"), (1e6, "1.00e6")],
        *[(1e-12, "1.00e-12"), (0.0, "0"), (-0.0, "0"), (float("inf"), "inf")],
        (float("nan"), "nan"),
    ],
)
def test_significant_digits(value, text):
    assert significant(value) == text


def test_glue_emits_what_myst_nb_emits(monkeypatch):
    myst_nb = pytest.importorskip("myst_nb")
    from myst_nb.core.variables import format_plain_text

    seen = []
    keep = lambda data, metadata, raw: seen.append((data, metadata))  # noqa: E731
    monkeypatch.setattr("normbook.lab.claims.display", keep)
    monkeypatch.setattr("myst_nb.ext.glue.ipy_display", keep)
    glue("share", 0.28)
    myst_nb.glue("share", "0.280", display=False)
    ours, theirs = seen
    assert ours[1]["scrapbook"]["name"] == theirs[1]["scrapbook"]["name"]
    assert set(ours[0]) <= set(theirs[0])
    (text,) = ours[0].values()
    assert text == "'0.280'"
    assert format_plain_text(text, "s") == "0.280"  # keeps its last zero


@pytest.mark.parametrize("threads", ["0", "two", "-1"])
def test_begin_refuses_a_bad_number_of_threads(threads, monkeypatch):
    monkeypatch.setenv("NORMBOOK_THREADS", threads)
    with pytest.raises(ValueError, match="NORMBOOK_THREADS must be a whole number from 1"):
        begin()


# --- exponents ---


def test_exponent_of_exact_power_laws():
    x = torch.tensor([1.0, 2.0, 5.0, 40.0])
    y = torch.stack([3 * x**0.5, 7 * x**-2.0])
    assert torch.allclose(exponent(x, y), torch.tensor([0.5, -2.0], dtype=torch.float64))


def test_exponent_is_numpys_least_squares():
    generator = np.random.default_rng(0)
    x = np.arange(1, 30)
    y = x**0.7 * np.exp(0.1 * generator.standard_normal(29))
    assert exponent(x, y).item() == pytest.approx(np.polyfit(np.log(x), np.log(y), 1)[0], abs=1e-12)


# --- what is refused ---

BAD = [
    (lambda: significant(1.0, 0), ValueError, "digits must be at least 1, got 0"),
    (lambda: glue("", 1.0), ValueError, "name must be a non-empty string"),
    (lambda: glue(3, 1.0), ValueError, "name must be a non-empty string"),
    (lambda: glue("x", [1, 2]), TypeError, "value must be a number or a string"),
    (lambda: exponent([1.0], [1.0]), ValueError, r"x must be \[points\]"),
    (lambda: exponent([1.0, 2.0], [1.0, 2.0, 3.0]), ValueError, r"x must be \[points\]"),
    (lambda: exponent([1.0, 2.0], [1.0, 0.0]), ValueError, "must be positive"),
    (lambda: exponent([0.0, 2.0], [1.0, 1.0]), ValueError, "must be positive"),
    (lambda: exponent([1.0, 2.0], [1.0, float("nan")]), ValueError, "must be positive"),
]
test_bad_values_are_refused = refused(BAD)
