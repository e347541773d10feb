"""`claim` says what holds, and says it in the words that the ledger reads back."""

import json

import pytest
import torch

from normbook.lab import claims
from normbook.lab.claims import ClaimError, claim
from normbook.press.ledger import LINE

ENTRIES = [
    {"id": "near", "expected": 0.5, "tolerance": 0.1},
    {"id": "near-each", "expected": 0.5, "tolerance": 0.1, "each": True},
    {"id": "inside", "between": [1, 3], "over": "depths"},
    {"id": "tiny", "below": 1e-12},
    {"id": "huge", "above": 50},
    {"id": "both", "above": 1, "below": 2},
    {"id": "kind", "expected": "trains"},
    {"id": "cited-only"},
]


@pytest.fixture(autouse=True)
def entries(tmp_path, monkeypatch):
    path = tmp_path / "claims.json"
    path.write_text(json.dumps(ENTRIES))
    monkeypatch.setattr(claims, "CLAIMS_FILE", path)
    monkeypatch.delenv("NORMBOOK_STRICT", raising=False)
    claims.load_claims.cache_clear()
    yield
    claims.load_claims.cache_clear()


@pytest.mark.parametrize(
    ("name", "values", "line"),
    [
        (
            "near",
            [0.49, 0.50, 0.52],
            "✓ near: mean 0.503, range 0.490 to 0.520, 3 seeds; expected 0.5 ± 0.1",
        ),
        ("near", 0.61, "✗ near: 0.610; expected 0.5 ± 0.1"),
        (
            "near",
            [0.3, 0.7],
            "✓ near: mean 0.500, range 0.300 to 0.700, 2 seeds; expected 0.5 ± 0.1",
        ),
        (
            "near-each",
            [0.3, 0.7],
            "✗ near-each: mean 0.500, range 0.300 to 0.700, 2 seeds; expected each 0.5 ± 0.1",
        ),
        (
            "inside",
            [2.0, 4.0],
            "✓ inside: mean 3.00, range 2.00 to 4.00, 2 depths; expected 1 to 3",
        ),
        ("tiny", [3e-16, -1e-17], "✓ tiny: all 2 seeds below 1e-12; expected below 1e-12"),
        ("tiny", 1e-11, "✗ tiny: not all below 1e-12; expected below 1e-12"),
        ("huge", [51, 70], "✓ huge: all 2 seeds above 50; expected above 50"),
        (
            "both",
            [1.5, 2.5],
            "✗ both: not all 2 seeds above 1 and below 2; expected above 1 and below 2",
        ),
        ("kind", ["trains"] * 3, "✓ kind: 3 × trains; expected trains"),
        ("kind", ["at chance", "trains"], "✗ kind: 1 × at chance, 1 × trains; expected trains"),
        ("near", [float("nan")], "✗ near: nan; expected 0.5 ± 0.1"),
        ("tiny", [float("nan")], "✗ tiny: not all below 1e-12; expected below 1e-12"),
    ],
)
def test_claim_prints_what_it_found(name, values, line, capsys):
    claim(name, values)
    printed = capsys.readouterr().out
    assert printed == line + "\n"
    assert LINE.match(printed), "the ledger must be able to read the line back"


def test_values_may_be_a_tensor_of_any_shape(capsys):
    claim("near", torch.tensor([[0.4, 0.5], [0.5, 0.6]], dtype=torch.float64))
    assert capsys.readouterr().out.startswith("✓ near: mean 0.500, range 0.400 to 0.600, 4 seeds")


def test_a_failed_claim_raises_only_when_the_book_is_made(monkeypatch, capsys):
    claim("near", 0.9)
    monkeypatch.setenv("NORMBOOK_STRICT", "1")
    with pytest.raises(ClaimError, match="✗ near"):
        claim("near", 0.9)
    assert capsys.readouterr().out.count("✗ near") == 2
    claim("near", 0.5)


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("unknown", 1.0, "claim_id must be an id of book/claims.yml, got 'unknown'"),
        ("near", [], "must not be empty"),
        ("cited-only", 1.0, "expects nothing"),
    ],
)
def test_bad_claims_are_refused(name, values, message):
    with pytest.raises(ValueError, match=message):
        claim(name, values)


def test_a_missing_ledger_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setattr(claims, "CLAIMS_FILE", tmp_path / "none.json")
    claims.load_claims.cache_clear()
    with pytest.raises(FileNotFoundError, match="make book"):
        claim("near", 1.0)
