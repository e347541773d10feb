"""Numbers in the book: how they are written, handed to a sentence, and held against a claim.

`claim` checks what a chapter states against what its cell measured, and what a rival predicts.

The entries stand in `book/claims/`, a file a page. The maker of the book turns them into
`claims.json` beside this file, so that a chapter needs no YAML reader to run.
"""

import json
import math
import os
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

import torch
from IPython.display import display
from torch import Tensor

# A book that does not lie around this file names its own claims.
CLAIMS_FILE = Path(os.environ.get("NORMBOOK_CLAIMS") or Path(__file__).with_name("claims.json"))
# The prefix under which MyST-NB looks for glued values; no notebook reader draws it.
PREFIX = "application/papermill.record/"
MIME = "application/vnd.normbook.claim+json"  # what the pages read; the text is for people
# What is printed before a rival's name: the claim stands only if all are refused.
REFUSED, PASSES, NEAR = "not", "but so passes", "too near"


def significant(value: float, digits: int = 3) -> str:
    """Return `value` with `digits` significant digits: 1234.5 is "1230", 0.5 is "0.500".

    Plain notation from 0.001 up to a million, powers of ten outside (1.00e-12). Raises
    `ValueError` when fewer than one digit is asked for.
    """
    if digits < 1:
        raise ValueError(f"digits must be at least 1, got {digits}")
    value = float(value)
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    mantissa, _, power = f"{value:.{digits - 1}e}".partition("e")
    if -3 <= int(power) < 6:
        return f"{float(f'{mantissa}e{power}'):.{max(digits - 1 - int(power), 0)}f}"
    return f"{mantissa}e{int(power)}"


def glue(name: str, value: float | str, digits: int = 3) -> None:
    """Store `value` under `name`, for ``{glue:text}`name` `` in the prose of the same chapter.

    A number is stored with `digits` significant digits, a string as it is. Raises `TypeError` for
    anything else, and `ValueError` for an empty name.
    """
    if not isinstance(name, str) or not name:
        raise ValueError(f"name must be a non-empty string, got {name!r}")
    if not isinstance(value, str):
        try:
            value = significant(float(value), digits)
        except (TypeError, ValueError) as error:
            raise TypeError(f"value must be a number or a string, got {value!r}") from error
    display(
        {PREFIX + "text/plain": repr(value)},  # quoted, or MyST-NB would write 0.280 as 0.28
        metadata={"scrapbook": {"name": name, "mime_prefix": PREFIX}},
        raw=True,
    )


def exponent(x, y) -> Tensor:
    """Fit y = c · x^a by least squares in the logarithms and return a: y [..., points] to [...].

    Raises `ValueError` for fewer than two points or anything that has no logarithm.
    """
    x, y = (torch.as_tensor(values, dtype=torch.float64) for values in (x, y))
    if x.ndim != 1 or len(x) < 2 or y.shape[-1:] != x.shape:
        raise ValueError(f"x must be [points] and y [..., points], got {x.shape} and {y.shape}")
    if not (x > 0).all() or not (y > 0).all():
        raise ValueError("x and y must be positive to have a logarithm")
    across, along = x.log() - x.log().mean(), y.log() - y.log().mean(-1, keepdim=True)
    return (along * across).sum(-1) / across.square().sum()


# --- claims ---


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
        values, or a rival that is named twice; TypeError for classes where the entry expects
        numbers, or numbers where it expects a class.
    """
    entries = load_claims()
    if claim_id not in entries:
        raise ValueError(f"claim_id must be an id of book/claims/, got {claim_id!r}")
    entry, values = entries[claim_id], as_list(values)
    require_values(entry, f"values for the claim {claim_id!r}", values)
    tried = try_rivals(entry, rivals or {})
    passed = holds(entry, values) and all(r["verdict"] == REFUSED for r in tried)
    words = {"measured": measured(entry, values), "expected": expectation(entry)}
    found = {"id": claim_id, "passed": passed, **words, "rivals": tried}
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


def require_values(entry: dict, name: str, values: list) -> None:
    """Raise unless there are values, all of the kind that the entry expects."""
    if not values:
        raise ValueError(f"{name} must not be empty")
    wrong = [value for value in values if isinstance(value, str) != is_class(entry)]
    if wrong:
        expected = "classes, as strings" if is_class(entry) else "numbers"
        raise TypeError(f"{name} must be {expected}, got {wrong[0]!r}")


# --- what is expected ---


def is_bound(entry: dict) -> bool:
    """Say whether the entry names bounds, which no value may reach."""
    return "below" in entry or "above" in entry


def is_class(entry: dict) -> bool:
    """Say whether the entry expects a class, such as "trains"."""
    return isinstance(entry.get("expected"), str)


def of_every_value(entry: dict) -> bool:
    """Say whether the entry is about every value (a bound, a class, `each`) and not their mean."""
    return is_bound(entry) or is_class(entry) or bool(entry.get("each"))


def holds(entry: dict, values: list) -> bool:
    """Say whether `values` meet the entry, each of them or in the mean; NaN meets nothing."""
    if of_every_value(entry):
        return all(meets(entry, value) for value in values)
    return meets(entry, sum(values) / len(values))


def meets(entry: dict, value: float | str) -> bool:
    """Say whether one value is what the entry expects."""
    if is_class(entry):
        return value == entry["expected"]
    low, high = limits(entry)
    return low < value < high if is_bound(entry) else low <= value <= high


def limits(entry: dict) -> tuple[float, float]:
    """Return the lowest and the highest value that an entry accepts."""
    if is_bound(entry):
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
        shown = value if isinstance(value, str) else f"{value:g}"
        found.append({"name": name, "shown": shown, "verdict": verdict})
    for name, given in rivals.items():
        values = as_list(given)
        require_values(entry, f"the rival {name!r} of the claim {entry['id']!r}", values)
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
    if meets(entry, value) or is_class(entry):
        return not meets(entry, value)
    low, high = limits(entry)
    if is_bound(entry):
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
    if is_bound(entry):
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
    if is_bound(entry):
        return f"expected {bounds(entry)}"
    if "between" in entry:
        return f"expected{each} {entry['between'][0]:g} to {entry['between'][1]:g}"
    if is_class(entry):
        return f"expected {entry['expected']}"
    limits(entry)
    return f"expected{each} {entry['expected']:g} ± {entry['tolerance']:g}"
