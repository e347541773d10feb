"""Check what a chapter states against what its cell measured, and against what a rival predicts.

The entries stand in `book/claims/`, a file a page. The maker of the book turns them into
`claims.json` beside this file, so that a chapter needs no YAML reader to run.
"""

import json
import math
import os
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from IPython.display import display

from normbook.lab.values import significant

# A book that does not lie around this file names its own claims.
CLAIMS_FILE = Path(os.environ.get("NORMBOOK_CLAIMS") or Path(__file__).with_name("claims.json"))
MIME = "application/vnd.normbook.claim+json"  # what the pages read; the text is for people
# What is printed before a rival's name: the claim stands only if all are refused.
REFUSED, PASSES, NEAR = "not", "but so passes", "too near"


class ClaimError(AssertionError):
    """A measurement is outside the tolerance that the ledger states, or a rival is inside it."""


@cache
def load_claims() -> dict[str, dict]:
    """Return the ledger's entries by id. Raises `FileNotFoundError` before `make book` ran."""
    if not CLAIMS_FILE.exists():
        raise FileNotFoundError(f"{CLAIMS_FILE.name} is missing: run `make book` once")
    return {entry["id"]: entry for entry in json.loads(CLAIMS_FILE.read_text(encoding="utf-8"))}


def claim(
    claim_id: str,
    values: float | str | Iterable,
    rivals: Mapping[str, float | str | Iterable] | None = None,
) -> None:
    """Compare `values` (one a seed) with the ledger's entry, refuse its rivals, print one line.

    The line begins with ✓ or ✗, then the id, what was measured, what was expected, and which
    rivals failed. While the book is recorded or tested (`NORMBOOK_STRICT=1`) a ✗ raises
    `ClaimError` as well; a reader who changes a number just sees it.

    Args:
        claim_id: an id of the ledger.
        values: what was measured: a number, a class such as "trains", or many of them.
        rivals: what the same measurement gave for what the claim argues against, by name. They
            must fail the check, as must the numbers that the entry itself names as rivals.

    Raises: ValueError for an id that is not in the ledger, an entry that expects nothing, no
        values, or a rival that is named twice.
    """
    entries = load_claims()
    if claim_id not in entries:
        raise ValueError(f"claim_id must be an id of book/claims/, got {claim_id!r}")
    entry, values = entries[claim_id], as_list(values)
    if not values:
        raise ValueError(f"values for the claim {claim_id!r} must not be empty")
    tried = try_rivals(entry, rivals or {})
    passed = holds(entry, values) and all(r["verdict"] == REFUSED for r in tried)
    found = {
        "id": claim_id,
        "passed": passed,
        "measured": measured(entry, values),
        "expected": expectation(entry),
        "rivals": tried,
    }
    line = in_words(found)
    display({"text/plain": line, MIME: found}, raw=True)
    if not passed and os.environ.get("NORMBOOK_STRICT") == "1":
        raise ClaimError(line)


def in_words(found: dict) -> str:
    """Return the line that a claim prints."""
    parts = [f"{found['id']}: {found['measured']}", found["expected"]]
    parts += [f"{r['verdict']} {r['name']} ({r['shown']})" for r in found["rivals"]]
    return f"{'✓' if found['passed'] else '✗'} {'; '.join(parts)}"


def as_list(values: float | str | Iterable) -> list:
    """Return a flat list of floats or strings from a number, a string, a tensor or an iterable."""
    if isinstance(values, str):
        return [values]
    if hasattr(values, "tolist"):
        values = values.tolist()
    if not isinstance(values, Iterable):
        return [float(values)]
    return [item for value in values for item in as_list(value)]


# --- what is expected ---


def of_every_value(entry: dict) -> bool:
    """Say whether the entry is about every value (a bound, a class, `each`) and not their mean."""
    bound = "below" in entry or "above" in entry
    return bound or isinstance(entry.get("expected"), str) or bool(entry.get("each"))


def holds(entry: dict, values: list) -> bool:
    """Say whether `values` meet the entry, each of them or in the mean; NaN meets nothing."""
    if of_every_value(entry):
        return all(meets(entry, value) for value in values)
    return meets(entry, sum(values) / len(values))


def meets(entry: dict, value: float | str) -> bool:
    """Say whether one value is what the entry expects."""
    if isinstance(entry.get("expected"), str):
        return value == entry["expected"]
    low, high = limits(entry)
    if "below" in entry or "above" in entry:
        return low < value < high
    return low <= value <= high


def limits(entry: dict) -> tuple[float, float]:
    """Return the lowest and the highest value that an entry accepts."""
    if "below" in entry or "above" in entry:
        return entry.get("above", -math.inf), entry.get("below", math.inf)
    if "between" in entry:
        return tuple(entry["between"])
    if "expected" not in entry or "tolerance" not in entry:
        raise ValueError(f"the claim {entry['id']!r} expects nothing that a cell could measure")
    return entry["expected"] - entry["tolerance"], entry["expected"] + entry["tolerance"]


# --- what a rival predicts ---


def try_rivals(entry: dict, rivals: Mapping) -> list[dict]:
    """Return for each rival its name, what it gives as printed, and the verdict on it.

    A number of the entry must fail the check by a margin. Of measured values none may pass where
    the check is for every value; else their mean may not.
    """
    predicted = entry.get("rival", {})
    if twice := sorted(predicted.keys() & rivals.keys()):
        raise ValueError(f"rivals of the claim {entry['id']!r} are named twice: {twice}")
    found = []
    for name, value in predicted.items():
        near = PASSES if meets(entry, value) else NEAR
        verdict = REFUSED if is_far(entry, value) else near
        found.append({"name": name, "shown": as_number(value), "verdict": verdict})
    for name, given in rivals.items():
        values = as_list(given)
        if not values:
            raise ValueError(f"the rival {name!r} of the claim {entry['id']!r} has no values")
        some = any(meets(entry, value) for value in values)
        passes = some if of_every_value(entry) else holds(entry, values)
        verdict = PASSES if passes else REFUSED
        found.append({"name": name, "shown": rival_as_shown(entry, values), "verdict": verdict})
    return found


def is_far(entry: dict, value: float | str) -> bool:
    """Say whether a rival's number fails the entry by a margin, and a rival's class at all.

    The margin is as much again as the tolerance, half the width of an interval, a tenth of a bound
    or what the entry gives as its `margin`. Raises `ValueError` for a bound of 0 without one.
    """
    if meets(entry, value) or isinstance(entry.get("expected"), str):
        return not meets(entry, value)
    low, high = limits(entry)
    if "below" in entry or "above" in entry:
        if "margin" not in entry and 0 in (low, high):
            raise ValueError(f"the claim {entry['id']!r} has the bound 0, so it needs a margin")
        low -= entry.get("margin", abs(low) / 10)
        high += entry.get("margin", abs(high) / 10)
    else:
        low, high = low - (high - low) / 2, high + (high - low) / 2
    at_edge = math.isclose(value, low) or math.isclose(value, high)  # which is far enough
    return value < low or value > high or at_edge


def rival_as_shown(entry: dict, values: list) -> str:
    """Return what a rival gave, in the claim's form: a class, a count of those that pass, a mean.

    Rivals are often runs that diverge: their digits would hang on rounding.
    """
    if isinstance(values[0], str):
        return classes(values)
    if not all(map(math.isfinite, values)):
        return "diverged"
    if of_every_value(entry):
        return f"{sum(meets(entry, value) for value in values)} of {len(values)}"
    return significant(sum(values) / len(values))


# --- in words ---


def as_number(value: float | str) -> str:
    """Return a number of the ledger as it was written there, or a class."""
    return value if isinstance(value, str) else f"{value:g}"


def classes(values: list[str]) -> str:
    """Return how often each class came: "2 × at chance, 3 × trains", or the one there is."""
    if len(values) == 1:
        return values[0]
    return ", ".join(f"{values.count(kind)} × {kind}" for kind in sorted(set(values)))


def measured(entry: dict, values: list) -> str:
    """Return what was measured, in words.

    A bound says only that it holds: what lies under 1e-12 is rounding, and differs by machine.
    """
    count = f"{len(values)} {entry.get('over', 'seeds')}" if len(values) > 1 else ""
    if "below" in entry or "above" in entry:
        word = "all" if holds(entry, values) else "not all"
        return f"{word} {count} {bounds(entry)}" if count else f"{word} {bounds(entry)}"
    if isinstance(values[0], str):
        return classes(values)
    if not count:
        return significant(values[0])
    low, high = significant(min(values)), significant(max(values))
    return f"mean {significant(sum(values) / len(values))}, range {low} to {high}, {count}"


def bounds(entry: dict) -> str:
    """Return an entry's bounds: "above 1 and below 2"."""
    return " and ".join(f"{side} {entry[side]:g}" for side in ("above", "below") if side in entry)


def expectation(entry: dict) -> str:
    """Return what the ledger expects, in words; the ledger page prints the same."""
    each = " each" if entry.get("each") else ""
    if "below" in entry or "above" in entry:
        return f"expected {bounds(entry)}"
    if "between" in entry:
        return f"expected{each} {entry['between'][0]:g} to {entry['between'][1]:g}"
    if isinstance(entry.get("expected"), str):
        return f"expected {entry['expected']}"
    limits(entry)
    return f"expected{each} {entry['expected']:g} ± {entry['tolerance']:g}"
