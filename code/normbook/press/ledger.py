"""The ledger: what the book claims, and what the recorded notebooks say of it."""

import hashlib
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import nbformat
import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError, best_match

from normbook.press.files import ROOT, PressError, load_yaml, write_if_new
from normbook.press.pages import Page

CLAIMS = "claims"  # the folder
WITHOUT_RIVAL = "without-rival.txt"  # claims whose rival is still to be found
SCHEMA = ROOT / "book" / CLAIMS / "schema.json"
CLAIM_DATA = "application/vnd.normbook.claim+json"  # as normbook.lab.claims writes it
STATUSES = ("exact", "measured", "cited", "corrected", "contested", "illustration")
MEASURED_STATUSES = ("exact", "measured", "illustration")  # a cell shows each of these
EXPECTATIONS = ("expected", "between", "below", "above")
USUAL_BOUND = {"below": 1e-12}  # of an exact claim that says nothing else
# What decides about a printed line, and so about whether its cell must be executed anew.
DECISIVE = ("status", "tolerance", "each", "over", "rival", "margin", *EXPECTATIONS)


@dataclass(frozen=True)
class Measurement:
    """What one `claim` found: where (page, and the index of its code cell), and what it printed."""

    page: str
    cell: int
    passed: bool
    measured: str
    expected: str
    rivals: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        """What the page says of it: what was measured, what was expected, which rivals failed."""
        return "; ".join([self.measured, self.expected, *self.rivals])


# --- what is claimed ---


def load_claims(folder: Path, pages: dict[str, Page], references: dict) -> list[dict]:
    """Return the claims of all pages in the book's order, each with its `page`.

    Raises `PressError` with file and line for one that is malformed or stands twice, or for a file
    that belongs to no page with cells.
    """
    files = {path.stem: path for path in sorted((folder / CLAIMS).glob("*.yml"))}
    for name, path in files.items():
        if name not in pages or not pages[name].is_chapter:
            raise PressError(f"{CLAIMS}/{path.name}:1: the book has no page {name!r} with cells")
    entries, seen = [], {}
    for name in (name for name in pages if name in files):
        for index, entry in enumerate(load_file(files[name], references)):
            place = f"{CLAIMS}/{name}.yml:{line_of(files[name], index, 'id')}"
            if entry["id"] in seen:
                first = seen[entry["id"]]
                raise PressError(f"{place}: the id {entry['id']!r} stands already at {first}")
            seen[entry["id"]] = place
            bare = entry["status"] == "exact" and not entry.keys() & set(EXPECTATIONS)
            usual = USUAL_BOUND if bare else {}
            entries.append({**entry, **usual, "page": name, "place": place})
    return entries


def load_file(path: Path, references: dict) -> list[dict]:
    """Return the entries of one file. Raises `PressError` naming file, line and what is wrong."""
    name = f"{CLAIMS}/{path.name}"
    entries = load_yaml(path, name) or []
    error = best_match(validator().iter_errors(entries))
    if error is not None:
        raise PressError(f"{name}:{line_of(path, *error.absolute_path)}: {in_words(error)}")
    for index, entry in enumerate(entries):
        for key in sources(entry):
            if key not in references:
                place = f"{name}:{line_of(path, index, 'source')}"
                raise PressError(f"{place}: {entry['id']} cites unknown {key!r}")
    return entries


@cache
def validator() -> Draft202012Validator:
    """Return what checks a file of claims."""
    return Draft202012Validator(json.loads(SCHEMA.read_text(encoding="utf-8")))


def in_words(error: ValidationError) -> str:
    """Return what is wrong with an entry, and what was expected, in words."""
    node, wanted = validator().schema, ""
    for step in error.absolute_schema_path:  # the innermost description says it best
        node = node[step]
        wanted = node.get("description", wanted) if isinstance(node, dict) else wanted
    if wanted and error.validator in ("not", "anyOf"):
        return f"the entry {wanted}"  # the message would print the whole entry
    where = f"{error.absolute_path[-1]!r}: " if len(error.absolute_path) > 1 else ""
    return f"{where}{error.message}" + (f" ({wanted})" if wanted else "")


def line_of(path: Path, *steps: int | str) -> int:
    """Return the line, counted from 1, of what `steps` lead to, or of what would hold it."""
    node = yaml_nodes(path.read_text(encoding="utf-8"))
    for step in steps:
        if isinstance(node, yaml.SequenceNode) and isinstance(step, int):
            node = node.value[step]
        elif isinstance(node, yaml.MappingNode):
            node = next((value for key, value in node.value if key.value == step), node)
    return node.start_mark.line + 1 if node else 1


@cache
def yaml_nodes(text: str) -> yaml.Node | None:
    """Return the nodes of a YAML text, which know their lines."""
    return yaml.compose(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def sources(entry: dict) -> list[str]:
    """Return the bibliography keys an entry rests on."""
    source = entry.get("source", [])
    return [source] if isinstance(source, str) else source


def needs_cell(entry: dict) -> bool:
    """Whether a cell must show the entry: exact, measured, illustration, or unsourced corrected."""
    return entry["status"] in MEASURED_STATUSES or (
        entry["status"] == "corrected" and not sources(entry)
    )


def claims_hash(entries: list[dict]) -> str:
    """Return a digest of what the cells of a page compare with: no wording, no source."""
    decisive = [[e["id"], {key: e[key] for key in DECISIVE if key in e}] for e in entries]
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:16]


def write_json(entries: list[dict], path: Path) -> None:
    """Write the entries where `normbook.lab.claims` reads them."""
    shipped = [{key: e[key] for key in e if key != "place"} for e in entries]
    write_if_new(path, json.dumps(shipped, ensure_ascii=False, indent=1) + "\n")


# --- what was measured ---


def claims_of(cell: nbformat.NotebookNode) -> list[dict]:
    """Return what the claims of a recorded code cell say, as data, in order."""
    return [out.data[CLAIM_DATA] for out in cell.outputs if CLAIM_DATA in out.get("data", {})]


def measurements(page: Page) -> dict[str, Measurement]:
    """Return what a page's recorded notebook says of its claims, by id."""
    return {
        found["id"]: Measurement(
            page.name,
            index,
            found["passed"],
            found["measured"],
            found["expected"],
            tuple(f"{r['verdict']} {r['name']} ({r['shown']})" for r in found["rivals"]),
        )
        for index, cell in enumerate(page.recorded_cells)
        for found in claims_of(cell)
    }
