"""The ledger: what the book claims, and what the recorded notebooks say of it.

`python -m normbook.press.ledger` writes `claims.json` for the chapters, which know no YAML.
"""

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path

from normbook.press.pages import (
    BOOK,
    ROOT,
    Page,
    PressError,
    load_references,
    load_yaml,
    write_whole,
)

CLAIMS_JSON = ROOT / "code/normbook/lab/claims.json"
CALL = re.compile(r"""\bclaim\(\s*["']([\w-]+)["']""")
LINE = re.compile(r"^([✓✗]) ([\w-]+): (.*); (expected .*)$", re.M)
STATUSES = ("exact", "measured", "cited", "corrected", "contested")
EXPECTATIONS = ("expected", "below", "above", "between")
KEYS = {"id", "section", "status", "claim", "source", "tolerance", "each", "over", *EXPECTATIONS}


@dataclass(frozen=True)
class Measurement:
    """One line that `claim` printed: where, whether it held, what was measured and expected."""

    page: str
    passed: bool
    measured: str
    expected: str


def load_claims(book: Path = BOOK) -> list[dict]:
    """Return the entries of claims.yml. Raises `PressError` for a malformed one."""
    entries = load_yaml(book / "claims.yml")
    references = load_references(book)
    seen = set()
    for entry in entries:
        for problem in problems_of(entry, references):
            raise PressError(f"claims.yml: {entry.get('id', entry)}: {problem}")
        if entry["id"] in seen:
            raise PressError(f"claims.yml: {entry['id']}: stands twice")
        seen.add(entry["id"])
    return entries


def problems_of(entry: dict, references: dict) -> list[str]:
    """Return what is wrong with one entry."""
    problems = [
        f"lacks {key!r}" for key in ("id", "section", "status", "claim") if key not in entry
    ]
    problems += [f"has an unknown key {key!r}" for key in entry if key not in KEYS]
    if problems:
        return problems
    if entry["status"] not in STATUSES:
        problems.append(f"status must be one of {STATUSES}, got {entry['status']!r}")
    problems += [f"cites unknown {key!r}" for key in sources(entry) if key not in references]
    if needs_cell(entry) and not any(key in entry for key in EXPECTATIONS):
        problems.append("is measured, so it must say what is expected")
    if "expected" in entry and not isinstance(entry["expected"], str) and "tolerance" not in entry:
        problems.append("expects a number, so it needs a tolerance")
    if entry["status"] in ("cited", "contested") and not sources(entry):
        problems.append(f"is {entry['status']}, so it needs a source")
    return problems


def sources(entry: dict) -> list[str]:
    """Return the bibliography keys an entry rests on."""
    source = entry.get("source", [])
    return [source] if isinstance(source, str) else source


def needs_cell(entry: dict) -> bool:
    """Whether a cell must measure the entry: exact, measured, or corrected without a source."""
    measured = entry["status"] in ("exact", "measured")
    return measured or (entry["status"] == "corrected" and not sources(entry))


def claims_in(page: Page) -> list[str]:
    """Return the ids that the code cells of a page claim, in order."""
    cells = page.notebook.cells if page.is_chapter else []
    return [
        name for cell in cells if cell.cell_type == "code" for name in CALL.findall(cell.source)
    ]


def unmatched(entries: list[dict], pages: dict[str, Page]) -> list[str]:
    """Return claims without a cell, and cells whose claim is not listed."""
    claimed = {name: page.name for page in pages.values() for name in claims_in(page)}
    listed = {entry["id"]: entry for entry in entries}
    problems = [
        f"claims.yml: {name}: no cell measures it"
        for name, entry in listed.items()
        if needs_cell(entry) and name not in claimed
    ]
    return problems + [
        f"{page}: claims {name!r}, which claims.yml does not list"
        for name, page in claimed.items()
        if name not in listed
    ]


def measurements(page: Page) -> dict[str, Measurement]:
    """Return the claim lines in a page's recorded notebook, by id."""
    if not page.sibling.exists():
        return {}
    found = {}
    for cell in json.loads(page.sibling.read_text(encoding="utf-8"))["cells"]:
        for output in cell.get("outputs", []):
            for mark, name, seen, expected in LINE.findall("".join(output.get("text", ""))):
                found[name] = Measurement(page.name, mark == "✓", seen, expected)
    return found


def claims_hash(page: Page, entries: list[dict]) -> str:
    """Return a digest of the entries that a page's cells compare with."""
    used = set(claims_in(page))
    text = json.dumps([entry for entry in entries if entry["id"] in used], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def write_json(entries: list[dict], path: Path = CLAIMS_JSON) -> None:
    """Write the entries where `normbook.lab.claims` reads them."""
    text = json.dumps(entries, ensure_ascii=False, indent=1) + "\n"
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        write_whole(path, text)


if __name__ == "__main__":
    write_json(load_claims())
