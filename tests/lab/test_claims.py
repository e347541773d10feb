"""`claim` says what holds and which rivals fail, in words and as data, and can fail itself."""

import json

import pytest
import torch

from normbook.lab import claims
from normbook.lab.claims import ClaimError, claim
from normbook.press import ledger

ENTRIES = [
    {"id": "near", "expected": 0.5, "tolerance": 0.1},
    {"id": "near-each", "expected": 0.5, "tolerance": 0.1, "each": True},
    {"id": "inside", "between": [1, 3], "over": "depths"},
    {"id": "tiny", "below": 1e-12},
    {"id": "huge", "above": 50},
    {"id": "both", "above": 1, "below": 2},
    {"id": "kind", "expected": "trains"},
    {"id": "falls", "below": 0, "margin": 0.5},
    {"id": "count", "expected": 3, "tolerance": 0},
    {"id": "cited-only"},
]
BY_NAME = {entry["id"]: entry for entry in ENTRIES}
# A value with which each of them holds.
TRUE = {
    **{"near": 0.5, "near-each": 0.5, "inside": 2, "tiny": 0, "huge": 60, "both": 1.5},
    **{"kind": "trains", "falls": -1, "count": 3},
}


class Shown(list):
    """What `claim` has displayed: its lines, and the data beside them."""

    @property
    def lines(self):
        return [data["text/plain"] for data in self]

    @property
    def last(self):
        return self[-1][claims.MIME]


@pytest.fixture
def shown(monkeypatch):
    displayed = Shown()
    monkeypatch.setattr(claims, "display", lambda data, raw: displayed.append(data))
    return displayed


def let(monkeypatch, tmp_path, *listed):
    """Let these be the entries of the ledger."""
    path = tmp_path / "claims.json"
    path.write_text(json.dumps(listed))
    claims.load_claims.cache_clear()
    monkeypatch.setattr(claims, "CLAIMS_FILE", path)


@pytest.fixture(autouse=True)
def entries(tmp_path, monkeypatch):
    let(monkeypatch, tmp_path, *ENTRIES)
    monkeypatch.delenv("NORMBOOK_STRICT", raising=False)
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
def test_claim_prints_what_it_found(name, values, line, shown):
    claim(name, values)
    assert shown.lines == [line]


def test_values_may_be_a_tensor_of_any_shape(shown):
    claim("near", torch.tensor([[0.4, 0.5], [0.5, 0.6]], dtype=torch.float64))
    assert shown.lines[0].startswith("✓ near: mean 0.500, range 0.400 to 0.600, 4 seeds")


def test_a_failed_claim_raises_only_when_the_book_is_made(monkeypatch, shown):
    claim("near", 0.9)
    monkeypatch.setenv("NORMBOOK_STRICT", "1")
    with pytest.raises(ClaimError, match="✗ near"):
        claim("near", 0.9)
    assert sum(line.startswith("✗ near") for line in shown.lines) == 2
    claim("near", 0.5)


def test_the_data_say_what_the_line_says_in_strings(shown):
    claim("near", [0.49, 0.52], rivals={"half of it": [0.25, 0.26]})
    assert shown.last == {
        "id": "near",
        "passed": True,
        "measured": "mean 0.505, range 0.490 to 0.520, 2 seeds",
        "expected": "expected 0.5 ± 0.1",
        "rivals": [{"name": "half of it", "shown": "0.255", "verdict": "not"}],
    }
    assert claims.MIME == ledger.CLAIM_DATA, "the press must look for what the cells say"


# --- rivals ---


@pytest.mark.parametrize(
    ("name", "rival", "ending"),
    [
        # numbers of the entry, with a margin: as far again as the tolerance, …
        ("near", {"linear": 1}, "✓; not linear (1)"),
        ("near", {"linear": 0.7}, "✓; not linear (0.7)"),
        ("near", {"linear": 0.69}, "✗; too near linear (0.69)"),
        ("near", {"linear": 0.55}, "✗; but so passes linear (0.55)"),
        ("near-each", {"none": 0}, "✓; not none (0)"),
        # … half the width of an interval, …
        ("inside", {"low": 0, "high": 4}, "✓; not low (0); not high (4)"),
        ("inside", {"low": 0.1}, "✗; too near low (0.1)"),
        # … a tenth of a bound, or what the entry says
        ("tiny", {"half precision": 1e-3}, "✓; not half precision (0.001)"),
        ("huge", {"chance": 45}, "✓; not chance (45)"),
        ("huge", {"chance": 46}, "✗; too near chance (46)"),
        ("both", {"low": 0.9, "high": 2.2}, "✓; not low (0.9); not high (2.2)"),
        ("both", {"high": 2.1}, "✗; too near high (2.1)"),
        ("falls", {"nothing": 0.5}, "✓; not nothing (0.5)"),
        ("falls", {"nothing": 0.4}, "✗; too near nothing (0.4)"),
        ("kind", {"Post-LN": "at chance"}, "✓; not Post-LN (at chance)"),
        ("kind", {"Post-LN": "trains"}, "✗; but so passes Post-LN (trains)"),
        ("count", {"two": 4}, "✓; not two (4)"),
        ("count", {"two": 3}, "✗; but so passes two (3)"),
    ],
)
def test_a_rivals_number_is_refused_with_a_margin(
    name, rival, ending, shown, monkeypatch, tmp_path
):
    let(monkeypatch, tmp_path, {**BY_NAME[name], "rival": rival})
    claim(name, TRUE[name])
    line = shown.lines[0]
    assert line[0] + line.partition(claims.expectation(BY_NAME[name]))[2] == ending


@pytest.mark.parametrize(
    ("name", "rival", "ending"),
    [
        ("huge", [10, 20, 30], "✓; not rival (0 of 3)"),
        ("huge", [10, 20, 60], "✗; but so passes rival (1 of 3)"),  # one of many is enough
        ("huge", [60, 60, 60, 60, 10], "✗; but so passes rival (4 of 5)"),
        ("near-each", [0.5, 0.5, 0.5, 0.5, 3], "✗; but so passes rival (4 of 5)"),
        ("near-each", [0.9, 0.1], "✓; not rival (0 of 2)"),
        ("near", [0.9, 0.1], "✗; but so passes rival (0.500)"),  # its mean is what counts
        ("near", [0.5, 0.5, 0.5, 0.5, 3], "✓; not rival (1.00)"),
        ("near", 0.9, "✓; not rival (0.900)"),
        ("near", [0.9, float("nan")], "✓; not rival (diverged)"),
        ("tiny", [float("nan")] * 3, "✓; not rival (diverged)"),
        ("huge", [float("inf")], "✓; not rival (diverged)"),
        ("kind", ["at chance"] * 3, "✓; not rival (3 × at chance)"),
        ("kind", ["trains", "at chance"], "✗; but so passes rival (1 × at chance, 1 × trains)"),
    ],
)
def test_a_measured_rival_must_fail_the_check(name, rival, ending, shown):
    claim(name, TRUE[name], rivals={"rival": rival})
    line = shown.lines[0]
    assert line[0] + line.partition(claims.expectation(BY_NAME[name]))[2] == ending


def test_a_rival_that_passes_stops_the_recording(monkeypatch, shown):
    monkeypatch.setenv("NORMBOOK_STRICT", "1")
    claim("near", 0.5, rivals={"other": 0.9})
    with pytest.raises(ClaimError, match=r"✗ near.* but so passes other"):
        claim("near", 0.5, rivals={"other": 0.55})


def test_a_claim_that_fails_is_not_saved_by_its_rival(shown):
    claim("near", 0.9, rivals={"other": 3.0})
    assert shown.lines == ["✗ near: 0.900; expected 0.5 ± 0.1; not other (3.00)"]


def test_rivals_of_the_ledger_and_of_the_cell_come_together(shown, monkeypatch, tmp_path):
    let(monkeypatch, tmp_path, {**BY_NAME["near"], "rival": {"told": 1}})
    claim("near", 0.5, rivals={"measured": 2.0})
    assert shown.lines[0].endswith("; not told (1); not measured (2.00)")
    with pytest.raises(ValueError, match=r"named twice: \['told'\]"):
        claim("near", 0.5, rivals={"told": 2.0})
    with pytest.raises(ValueError, match="the rival 'empty' of the claim 'near' must not be empty"):
        claim("near", 0.5, rivals={"empty": []})


def test_a_class_for_a_number_says_who_gave_it(shown, monkeypatch, tmp_path):
    with pytest.raises(TypeError, match="the rival 'word' of the claim 'near' must be numbers"):
        claim("near", 0.5, rivals={"word": "trains"})
    with pytest.raises(
        TypeError, match="values for the claim 'near' must be numbers, got 'trains'"
    ):
        claim("near", ["trains"])
    let(monkeypatch, tmp_path, {"id": "learns", "expected": "trains"})
    with pytest.raises(TypeError, match="the rival 'half' of the claim 'learns' must be classes"):
        claim("learns", "trains", rivals={"half": [0.5, 0.6]})


def test_a_bound_of_zero_needs_a_margin(monkeypatch, tmp_path):
    let(monkeypatch, tmp_path, {"id": "falls", "below": 0, "rival": {"nothing": 0.5}})
    with pytest.raises(ValueError, match="has the bound 0, so it needs a margin"):
        claim("falls", -1.0)


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("unknown", 1.0, "claim_id must be an id of book/claims/, got 'unknown'"),
        ("near", [], "must not be empty"),
        ("cited-only", 1.0, "expects nothing"),
    ],
)
def test_bad_claims_are_refused(name, values, message):
    with pytest.raises(ValueError, match=message):
        claim(name, values)


def test_a_missing_ledger_says_what_to_do(monkeypatch, tmp_path):
    claims.load_claims.cache_clear()
    monkeypatch.setattr(claims, "CLAIMS_FILE", tmp_path / "none.json")
    with pytest.raises(FileNotFoundError, match="make book"):
        claim("near", 1.0)
