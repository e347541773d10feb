"""Where the book shows a claim: the section whose cell measures it, or whose text links to it."""

import json
from dataclasses import astuple
from functools import cache

from normbook.press.ledger import CALL, Measurement, measurements
from normbook.press.pages import HEADING, ROOT, TARGET, Page, figures_of, reference, write_whole
from normbook.press.siblings import Book, code_cells

EVIDENCE = ROOT / "_build/evidence.json"  # what the ledger and its like are made from


@cache
def built() -> tuple[Book, dict[str, Measurement], dict[str, str]]:
    """Return the book as a build finds it, what its cells measured, and `places`: read once."""
    book = Book()
    found = {name: seen for page in book.chapters for name, seen in measurements(page).items()}
    return book, found, places(book)


def write_evidence() -> None:
    """Write what the chapters hold for the pages about them, if it is not what stands there.

    Sphinx makes those pages again when this file changes: not at each change of a word.
    """
    book, found, where = built()
    measured = {name: astuple(seen) for name, seen in found.items()}
    counted = {page.name: counts(page) for page in book.chapters}
    everything = {"measured": measured, "counts": counted, "places": where}
    text = json.dumps(everything, ensure_ascii=False, indent=1)
    if not EVIDENCE.exists() or EVIDENCE.read_text(encoding="utf-8") != text:
        write_whole(EVIDENCE, text)


def counts(page: Page) -> list[int]:
    """Return how many code cells, figures and exercises a chapter has."""
    exercises = page.text.count("{exercise-start}")
    return [len(code_cells(page.notebook)), len(figures_of(page)), exercises]


def sections(page: Page) -> list[tuple[int, str]]:
    """Return where each labelled heading begins (an index into the page's text), and its label."""
    found, position, label = [], 0, ""
    for line in page.text.splitlines(keepends=True):
        if match := TARGET.match(line.rstrip("\n")):
            label = match[1]
        elif HEADING.match(line) and label:
            found.append((position, label))
        if line.strip() and not TARGET.match(line.rstrip("\n")):
            label = ""
        position += len(line)
    return found


def section_at(found: list[tuple[int, str]], position: int) -> str:
    """Return the label of the section, one of `sections`, that a position belongs to, or ""."""
    before = [label for start, label in found if start <= position]
    return before[-1] if before else ""


def home(book: Book, entry: dict) -> Page | None:
    """Return the chapter of a claim's section, if the book has it."""
    number = str(entry["section"])
    pages = [page for page in book.chapters if page.number == number or page.name == number]
    cover = [page for page in book.chapters if number == "cover" and page.name == "index"]
    return (pages + cover + [None])[0]


def places(book: Book) -> dict[str, str]:
    """Return, by claim, what `{ref}` needs to link to the section that measures or mentions it.

    A cell comes before a link, and the claim's own chapter before the others.
    """
    cells, links = {}, {}
    parts = {page.name: sections(page) for page in book.chapters}
    for page in book.chapters:
        for match in CALL.finditer(page.text):
            cells.setdefault(match[1], section_at(parts[page.name], match.start()))
    for entry in book.claims:
        own = home(book, entry)
        for page in ([own] if own else []) + book.chapters:
            at = page.text.find(f"<claim-{entry['id']}>")
            if at >= 0:
                links.setdefault(entry["id"], section_at(parts[page.name], at))
        if own:
            links.setdefault(entry["id"], parts[own.name][0][1] if parts[own.name] else "")
    both = {name: label for name, label in {**links, **cells}.items() if label}
    return {name: reference(label, book.labels) for name, label in both.items()}
