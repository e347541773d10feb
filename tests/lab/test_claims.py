"""`claim` says what holds and which rivals fail, in words and as data, and can fail itself."""

import json
import math

import pytest
import torch
from engine_helpers import refused

from normbook.lab import claims
from normbook.lab.claims import ClaimError, claim
from normbook.press import ledger

NAN = math.nan
NEAR = {"expected": 0.5, "tolerance": 0.1}
# By id: the ledger's entry, a value with which it holds, and what a claim prints of it.
ENTRIES = {
    "near": (NEAR, 0.5, "expected 0.5 ± 0.1"),
    "near-each": ({**NEAR, "each": True}, 0.5, "expected each 0.5 ± 0.1"),
    "inside": ({"between": [1, 3], "over": "depths"}, 2, "expected 1 to 3"),
    "tiny": ({"below": 1e-12}, 0, "expected below 1e-12"),
    "huge": ({"above": 50}, 60, "expected above 50"),
    "both": ({"above": 1, "below": 2}, 1.5, "expected above 1 and below 2"),
    "kind": ({"expected": "trains"}, "trains", "expected trains"),
    "falls": ({"below": 0, "margin": 0.5}, -1, "expected below 0"),
    "count": ({"expected": 3, "tolerance": 0}, 3, "expected 3 ± 0"),
    "told": ({**NEAR, "rival": {"told": 1}}, 0.5, "expected 0.5 ± 0.1; not told (1)"),
    "no-margin": ({"below": 0, "rival": {"nothing": 0.5}}, -1, ""),
    "cited-only": ({}, 1, ""),
}


def let(monkeypatch, tmp_path, entries):
    """Let these be the entries of the ledger, by id."""
    path = tmp_path / "claims.json"
    path.write_text(json.dumps([{"id": name, **entry} for name, entry in entries.items()]))
    claims.load_claims.cache_clear()
    monkeypatch.setattr(claims, "CLAIMS_FILE", path)


@pytest.fixture(autouse=True)
def shown(tmp_path, monkeypatch):
    """What is displayed by claims from a ledger of these entries."""
    let(monkeypatch, tmp_path, {name: entry for name, (entry, _, _) in ENTRIES.items()})
    monkeypatch.delenv("NORMBOOK_STRICT", raising=False)
    displayed = []
    monkeypatch.setattr(claims, "display", lambda data, raw: displayed.append(data))
    yield displayed
    claims.load_claims.cache_clear()


def lines(shown):
    return [data["text/plain"] for data in shown]


def ending(shown, name):
    """The mark of the line that was printed, and what stands after what is expected."""
    (line,) = lines(shown)
    return line[0] + line.partition(f"; {ENTRIES[name][2]}")[2]


@pytest.mark.parametrize(
    ("name", "values", "mark", "measured"),
    [
        ("near", [0.49, 0.50, 0.52], "✓", "mean 0.503, range 0.490 to 0.520, 3 seeds"),
        ("near", 0.61, "✗", "0.610"),
        ("near", [0.3, 0.7], "✓", "mean 0.500, range 0.300 to 0.700, 2 seeds"),
        ("near-each", [0.3, 0.7], "✗", "mean 0.500, range 0.300 to 0.700, 2 seeds"),
        ("inside", [2.0, 4.0], "✓", "mean 3.00, range 2.00 to 4.00, 2 depths"),
        ("tiny", [3e-16, -1e-17], "✓", "all 2 seeds below 1e-12"),
        ("tiny", 1e-11, "✗", "not all below 1e-12"),
        ("huge", 50, "✗", "not all above 50"),
        ("huge", [51, 70], "✓", "all 2 seeds above 50"),
        ("both", [1.5, 2.5], "✗", "not all 2 seeds above 1 and below 2"),
        ("kind", ["trains"] * 3, "✓", "3 × trains"),
        ("kind", ["at chance", "trains"], "✗", "1 × at chance, 1 × trains"),
        ("near", [NAN], "✗", "nan"),
        ("tiny", [NAN], "✗", "not all below 1e-12"),
        (  # a tensor of any shape
            *("near", torch.tensor([[0.4, 0.5], [0.5, 0.6]], dtype=torch.float64)),
            *("✓", "mean 0.500, range 0.400 to 0.600, 4 seeds"),
        ),
    ],
)
def test_claim_prints_what_it_found(name, values, mark, measured, shown):
    claim(name, values)
    (line,) = lines(shown)
    assert line == f"{mark} {name}: {measured}; {ENTRIES[name][2]}"


def test_a_failed_claim_raises_only_when_the_book_is_made(monkeypatch, shown):
    claim("near", 0.9)
    monkeypatch.setenv("NORMBOOK_STRICT", "1")
    with pytest.raises(ClaimError, match="✗ near"):
        claim("near", 0.9)
    assert sum(line.startswith("✗ near") for line in lines(shown)) == 2
    claim("near", 0.5, rivals={"other": 0.9})
    with pytest.raises(ClaimError, match=r"✗ near.* but so passes other"):
        claim("near", 0.5, rivals={"other": 0.55})


def test_the_data_say_what_the_line_says_in_strings(shown):
    claim("near", [0.49, 0.52], rivals={"half of it": [0.25, 0.26]})
    assert shown[-1][claims.MIME] == {
        "id": "near",
        "passed": True,
        "measured": "mean 0.505, range 0.490 to 0.520, 2 seeds",
        "expected": "expected 0.5 ± 0.1",
        "rivals": [{"name": "half of it", "shown": "0.255", "verdict": "not"}],
    }
    assert claims.MIME == ledger.CLAIM_DATA, "the press must look for what the cells say"


# --- rivals ---


@pytest.mark.parametrize(
    ("name", "rival", "said"),
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
def test_a_rivals_number_is_refused_with_a_margin(name, rival, said, shown, monkeypatch, tmp_path):
    let(monkeypatch, tmp_path, {name: {**ENTRIES[name][0], "rival": rival}})
    claim(name, ENTRIES[name][1])
    assert ending(shown, name) == said


@pytest.mark.parametrize(
    ("name", "rival", "said"),
    [
        ("huge", [10, 20, 30], "✓; not rival (0 of 3)"),
        ("huge", [10, 20, 60], "✗; but so passes rival (1 of 3)"),  # one of many is enough
        ("huge", [60, 60, 60, 60, 10], "✗; but so passes rival (4 of 5)"),
        ("near-each", [0.5, 0.5, 0.5, 0.5, 3], "✗; but so passes rival (4 of 5)"),
        ("near-each", [0.9, 0.1], "✓; not rival (0 of 2)"),
        ("near", [0.9, 0.1], "✗; but so passes rival (0.500)"),  # its mean is what counts
        ("near", [0.5, 0.5, 0.5, 0.5, 3], "✓; not rival (1.00)"),
        ("near", 0.9, "✓; not rival (0.900)"),
        ("near", [0.9, NAN], "✓; not rival (diverged)"),
        ("tiny", [NAN] * 3, "✓; not rival (diverged)"),
        ("huge", [math.inf], "✓; not rival (diverged)"),
        ("kind", ["at chance"] * 3, "✓; not rival (3 × at chance)"),
        ("told", 2.0, "✓; not rival (2.00)"),  # beside the entry's own
        ("kind", ["trains", "at chance"], "✗; but so passes rival (1 × at chance, 1 × trains)"),
    ],
)
def test_a_measured_rival_must_fail_the_check(name, rival, said, shown):
    claim(name, ENTRIES[name][1], rivals={"rival": rival})
    assert ending(shown, name) == said


def test_a_claim_that_fails_is_not_saved_by_its_rival(shown):
    claim("near", 0.9, rivals={"other": 3.0})
    assert lines(shown) == ["✗ near: 0.900; expected 0.5 ± 0.1; not other (3.00)"]


# --- what is refused ---

BAD = [
    (lambda: claim("unknown", 1), ValueError, "claim_id must be an id of book/claims/, got 'unkno"),
    (lambda: claim("near", []), ValueError, "must not be empty"),
    (lambda: claim("cited-only", 1.0), ValueError, "expects nothing"),
    (lambda: claim("no-margin", -1.0), ValueError, "has the bound 0, so it needs a margin"),
    (lambda: claim("told", 0.5, {"told": 2.0}), ValueError, r"named twice: \['told'\]"),
    (
        lambda: claim("near", 0.5, {"empty": []}),
        *(ValueError, "the rival 'empty' of the claim 'near' must not be empty"),
    ),
    (
        lambda: claim("near", ["trains"]),
        *(TypeError, "values for the claim 'near' must be numbers, got 'trains'"),
    ),
    (
        lambda: claim("near", 0.5, {"word": "trains"}),
        *(TypeError, "the rival 'word' of the claim 'near' must be numbers"),
    ),
    (
        lambda: claim("kind", "trains", {"half": [0.5, 0.6]}),
        *(TypeError, "the rival 'half' of the claim 'kind' must be classes"),
    ),
]
test_bad_claims_are_refused = refused(BAD)


def test_a_missing_ledger_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setattr(claims, "CLAIMS_FILE", tmp_path / "none.json")
    with pytest.raises(FileNotFoundError, match="make book"):
        claim("near", 1.0)
