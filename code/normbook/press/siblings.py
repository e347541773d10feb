"""The recorded notebook beside a chapter: how it is made, and whether it still matches."""

import hashlib
import itertools
import re
from collections.abc import Callable

import nbformat

from normbook.press.book import GLUE, Book
from normbook.press.files import PressError
from normbook.press.ledger import CLAIMS, claims_hash, claims_of
from normbook.press.pages import Page
from normbook.press.portable import convert
from normbook.press.reach import changed_modules, reached

CLAIMS_TAG = "claims"  # a cell of claims and glued values: folded under a line that counts them
HIDE_CODE = {"jupyter": {"source_hidden": True}}  # whoever changes a number must see the ✗


def make_sibling(
    book: Book, page: Page, outputs: list[list], marks: dict, link: Callable | None = None
) -> nbformat.NotebookNode:
    """Return the notebook of a chapter: its prose as plain Markdown, its code, and `outputs`.

    `marks` goes into the notebook's metadata; `link` writes links to other pages (by default to
    the notebooks and pages beside it).
    """
    context = book.context(page, outputs, link or (lambda *to: link_beside(book, page, *to)))
    source, cells, code = page.notebook, [], iter(outputs)
    for cell, line in zip(source.cells, source.metadata["source_map"], strict=True):
        if cell.cell_type == "markdown":
            cells += text_cell(convert(cell.source, context, first_line_of_words(page, line)))
        elif cell.cell_type == "code":
            cells += code_as_kept(cell, next(code))
        else:
            place = f"{page.source.name}:{line}"
            raise PressError(f"{place}: a {cell.cell_type} cell is not known")
    count = itertools.count(1)
    for index, cell in enumerate(cells):
        cell["id"] = f"{page.name}-{index}"
        if cell["cell_type"] == "code":
            cell["execution_count"] = next(count)
    metadata = {
        "kernelspec": dict(source.metadata["kernelspec"]),
        "language_info": {"name": "python"},
        "normbook": marks,
    }
    form = {"nbformat": 4, "nbformat_minor": 5}
    # checked as a whole by `dump`: nbformat would check each cell by itself, which takes seconds
    return nbformat.from_dict({"cells": cells, "metadata": metadata, **form})


def text_cell(text: str) -> list[dict]:
    """Return the cell of a text: none where there is no text."""
    return [{"cell_type": "markdown", "metadata": {}, "source": text}] if text else []


def code_as_kept(cell: nbformat.NotebookNode, outputs: list) -> list[dict]:
    """Return the cell of a source's code; one of claims is folded under a line that counts them."""
    kept = {"cell_type": "code", "metadata": cell.metadata, "source": cell.source}
    if not is_folded(cell):
        return [{**kept, "outputs": outputs}]
    return [
        *text_cell(count_of_claims(outputs)),
        {**kept, "metadata": cell.metadata | HIDE_CODE, "outputs": outputs},
    ]


def is_folded(cell: nbformat.NotebookNode) -> bool:
    """Whether a cell holds claims and glued values only, and is folded."""
    return CLAIMS_TAG in cell.metadata.get("tags", [])


def count_of_claims(outputs: list) -> str:
    """Return the line under which a cell of claims is folded: "✓ 4 claims checked"."""
    found = claims_of(nbformat.from_dict({"outputs": outputs}))
    failed = sum(not claim["passed"] for claim in found)
    words = "claim" if len(found) == 1 else "claims"
    if failed:
        return f"✗ {failed} of {len(found)} {words} failed"
    return f"✓ {len(found)} {words} checked" if found else "Values for the text"


def first_line_of_words(page: Page, line: int) -> int:
    """Return where a cell's words begin, counted from 1: the reader leaves out empty lines."""
    rows = page.text.splitlines()
    while line < len(rows) - 1 and not rows[line].strip():
        line += 1
    return line + 1


def check_words(book: Book, page: Page) -> None:
    """Convert a chapter's prose without results, so that a typo stops before minutes of running."""
    names = re.findall(r"\{glue:text\}`([^`:]+)", page.text)
    stand_in = nbformat.v4.new_output("display_data", data={GLUE: "'0'"})
    glued = [{**stand_in, "metadata": {"scrapbook": {"name": name}}} for name in names]
    make_sibling(book, page, [glued, *([] for _ in page.code_cells)], {})


def link_beside(book: Book, page: Page, text: str, target: str, label: str) -> str:
    """Link to a page's recorded notebook (or its source where it has none), or within the page."""
    if target == page.name:
        return f"[{text}](#{label})" if label else f"[{text}](#)"
    other = book.pages[target]
    file = other.sibling.name if other.is_chapter else other.source.name
    return f"[{text}]({file}#{label})" if label else f"[{text}]({file})"


def dump(notebook: nbformat.NotebookNode) -> str:
    """Return a notebook as the text of its file: the same notebook, the same bytes."""
    nbformat.validate(notebook)
    return nbformat.writes(notebook) + "\n"


def code_and_tags(cells: list[nbformat.NotebookNode]) -> list[tuple]:
    """Return what the outputs depend on: source and tags, but not captions and alt texts."""
    return [(cell.source, tuple(cell.metadata.get("tags", []))) for cell in cells]


def marks_of(book: Book, page: Page) -> dict:
    """Return what the recorded outputs depend on outside of the page: claims, modules, packages."""
    return {"claims": claims_hash(book.claims_of(page)), "reaches": reached(page)}


def fingerprint(book: Book, page: Page) -> str:
    """Return a digest of all that decides whether a sibling is up to date."""
    recorded = page.sibling.read_text(encoding="utf-8") if page.sibling.exists() else ""
    everything = "\0".join([page.text, recorded, book.context_hash])
    return hashlib.sha256(everything.encode()).hexdigest()


def stale_because(book: Book, page: Page) -> str:
    """Return why a chapter must be executed, or nothing: its code, its claims, what it reaches."""
    if not page.sibling.exists():
        return "nothing is recorded"
    marks, wanted = page.recorded.metadata.get("normbook", {}), marks_of(book, page)
    if code_and_tags(page.recorded_cells) != code_and_tags(page.code_cells):
        return "its code is not what was recorded"
    if marks.get("claims") != wanted["claims"]:
        return f"{CLAIMS}/{page.name}.yml does not expect what it did"
    if changed := changed_modules(marks.get("reaches", {}), wanted["reaches"]):
        return f"{', '.join(changed)} changed since it was recorded"
    return ""


def stale_message(page: Page, reason: str) -> str:
    """Return what the reader of a log is told of a chapter that must be recorded."""
    return f"chapter {page.name} is stale, {reason}: make record"


def sibling_state(book: Book, page: Page) -> tuple[str, nbformat.NotebookNode | None]:
    """Return how a sibling stands to its chapter, and the sibling as it should be.

    "fresh"; "prose" when only words, captions or metadata moved (the second value is what to
    write); "stale" when it must be executed: `stale_because` says why.
    """
    if stale_because(book, page):
        return "stale", None
    marks = page.recorded.metadata["normbook"]
    expected = make_sibling(book, page, [cell.outputs for cell in page.recorded_cells], marks)
    if dump(expected) == page.sibling.read_text(encoding="utf-8"):
        return "fresh", expected
    return "prose", expected
