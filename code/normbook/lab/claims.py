"""Check what a chapter states against what its cell measured.

The entries stand in `book/claims.yml`. The maker of the book turns them into `claims.json` beside
this file, so that a chapter needs no YAML reader to run.
"""

import json
import os
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from normbook.lab.values import significant

CLAIMS_FILE = Path(__file__).with_name("claims.json")


class ClaimError(AssertionError):
    """A measurement is outside the tolerance that the ledger states for it."""


@cache
def load_claims() -> dict[str, dict]:
    """Return the ledger's entries by id. Raises `FileNotFoundError` before `make book` ran."""
    if not CLAIMS_FILE.exists():
        raise FileNotFoundError(f"{CLAIMS_FILE.name} is missing: run `make book` once")
    return {entry["id"]: entry for entry in json.loads(CLAIMS_FILE.read_text(encoding="utf-8"))}


def claim(claim_id: str, values: float | str | Iterable) -> None:
    """Compare `values` (one a seed) with the ledger's entry and print one line.

    The line begins with ✓ or ✗, then the id, what was measured and what was expected. While the
    book is recorded or tested (`NORMBOOK_STRICT=1`) a ✗ raises `ClaimError` as well; a reader who
    changes a number just sees it. Raises `ValueError` for an id that is not in the ledger, an entry
    that expects nothing, or no values.
    """
    entries = load_claims()
    if claim_id not in entries:
        raise ValueError(f"claim_id must be an id of book/claims.yml, got {claim_id!r}")
    entry, values = entries[claim_id], as_list(values)
    if not values:
        raise ValueError(f"values for the claim {claim_id!r} must not be empty")
    passed = holds(entry, values)
    line = f"{'✓' if passed else '✗'} {claim_id}: {measured(entry, values)}; {expectation(entry)}"
    print(line)
    if not passed and os.environ.get("NORMBOOK_STRICT") == "1":
        raise ClaimError(line)


def as_list(values: float | str | Iterable) -> list:
    """Return a flat list of floats or strings from a number, a string, a tensor or an iterable."""
    if isinstance(values, str):
        return [values]
    if hasattr(values, "tolist"):
        values = values.tolist()
    if not isinstance(values, Iterable):
        return [float(values)]
    return [item for value in values for item in as_list(value)]


def holds(entry: dict, values: list) -> bool:
    """Say whether `values` meet the entry: in the mean, or each of them where it says `each`.

    A bound (`below`, `above`) and a class ("trains") hold for every value; NaN meets nothing.
    """
    if "below" in entry or "above" in entry:
        return all(
            entry.get("above", float("-inf")) < value < entry.get("below", float("inf"))
            for value in values
        )
    if isinstance(entry.get("expected"), str):
        return all(value == entry["expected"] for value in values)
    low, high = limits(entry)
    tested = values if entry.get("each") else [sum(values) / len(values)]
    return all(low <= value <= high for value in tested)


def limits(entry: dict) -> tuple[float, float]:
    """Return the lowest and the highest accepted value of an entry that expects a number."""
    if "between" in entry:
        return tuple(entry["between"])
    if "expected" not in entry or "tolerance" not in entry:
        raise ValueError(f"the claim {entry['id']!r} expects nothing that a cell could measure")
    return entry["expected"] - entry["tolerance"], entry["expected"] + entry["tolerance"]


def measured(entry: dict, values: list) -> str:
    """Return what was measured, in words.

    A bound says only that it holds: what lies under 1e-12 is rounding, and differs by machine.
    """
    count = f"{len(values)} {entry.get('over', 'seeds')}" if len(values) > 1 else ""
    if "below" in entry or "above" in entry:
        bounds = [f"{side} {entry[side]:g}" for side in ("above", "below") if side in entry]
        word = "all" if holds(entry, values) else "not all"
        return f"{word} {count} {' and '.join(bounds)}" if count else f"{word} {bounds[0]}"
    if isinstance(values[0], str):
        kinds = ", ".join(f"{values.count(kind)} × {kind}" for kind in sorted(set(values)))
        return kinds if count else values[0]
    if not count:
        return significant(values[0])
    low, high = significant(min(values)), significant(max(values))
    return f"mean {significant(sum(values) / len(values))}, range {low} to {high}, {count}"


def expectation(entry: dict) -> str:
    """Return what the ledger expects, in words; the ledger page prints the same."""
    each = " each" if entry.get("each") else ""
    if "below" in entry or "above" in entry:
        bounds = [f"{side} {entry[side]:g}" for side in ("above", "below") if side in entry]
        return f"expected {' and '.join(bounds)}"
    if "between" in entry:
        return f"expected{each} {entry['between'][0]:g} to {entry['between'][1]:g}"
    if isinstance(entry.get("expected"), str):
        return f"expected {entry['expected']}"
    limits(entry)
    return f"expected{each} {entry['expected']:g} ± {entry['tolerance']:g}"
