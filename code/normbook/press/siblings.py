"""The recorded notebook beside a chapter: how it is made, and whether it still matches."""

import ast
import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import nbformat

from normbook.press.ledger import claims_hash, load_claims
from normbook.press.pages import (
    BOOK,
    ROOT,
    Label,
    Page,
    PressError,
    Reference,
    collect_labels,
    load_pages,
    load_references,
    press_hash,
)
from normbook.press.portable import Context, convert
from normbook.press.questions import Question, load_questions, question_labels

GLUE = "application/papermill.record/text/plain"


@dataclass
class Book:
    """The whole book as the press sees it: pages, labels, bibliography, claims."""

    folder: Path = BOOK

    @cached_property
    def pages(self) -> dict[str, Page]:
        """All pages by name, in the order of the table of contents."""
        return load_pages(self.folder)

    @cached_property
    def labels(self) -> dict[str, Label]:
        """All that can be referred to, claims (`claim-id`) and questions among it."""
        claims = {f"claim-{e['id']}": Label("ledger", "claim", e["id"]) for e in self.claims}
        return collect_labels(self.pages) | claims | question_labels(self.questions, self.pages)

    @cached_property
    def references(self) -> dict[str, Reference]:
        """The bibliography by key."""
        return load_references(self.folder)

    @cached_property
    def claims(self) -> list[dict]:
        """The entries of the ledger."""
        return load_claims(self.folder)

    @cached_property
    def questions(self) -> list[Question]:
        """The questions of §12, in their order."""
        return load_questions(self.folder)

    @property
    def chapters(self) -> list[Page]:
        """The pages that have code."""
        return [page for page in self.pages.values() if page.is_chapter]

    @cached_property
    def surroundings(self) -> str:
        """A digest of what a chapter's words depend on outside of the chapter, press included."""
        others = [(name, other.title, other.is_chapter) for name, other in self.pages.items()]
        everything = (self.labels, self.references, self.claims, others, press_hash())
        return hashlib.sha256(repr(everything).encode()).hexdigest()

    def context(self, page: Page, outputs: list[list], link: Callable) -> Context:
        """Return what the conversion of one page needs."""
        titles = {name: other.title for name, other in self.pages.items()}
        return Context(page, self.labels, self.references, glued(outputs), titles, link)


def glued(outputs: list[list]) -> dict[str, str]:
    """Return the values that the cells stored for the prose."""
    return {
        output["metadata"]["scrapbook"]["name"]: ast.literal_eval(output["data"][GLUE])
        for cell in outputs
        for output in cell
        if GLUE in output.get("data", {})
    }


def code_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    """Return a notebook's code cells."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def make_sibling(
    book: Book, page: Page, outputs: list[list], marks: dict, link: Callable | None = None
) -> nbformat.NotebookNode:
    """Return the notebook of a chapter: its prose as plain Markdown, its code, and `outputs`.

    `marks` goes into the notebook's metadata; `link` writes links to other pages (by default to
    the notebooks and pages beside it).
    """
    context = book.context(page, outputs, link or (lambda *to: link_beside(book, page, *to)))
    source, code, cells = page.notebook, 0, []
    for cell, line in zip(source.cells, source.metadata["source_map"], strict=True):
        name = f"{page.name}-{len(cells)}"
        if cell.cell_type == "markdown":
            text = convert(cell.source, context, first_line(page, line))
            if text:
                prose = {"cell_type": "markdown", "id": name, "metadata": {}, "source": text}
                cells.append(prose)
            continue
        check_kind(cell, page, line)
        cells.append(
            {
                "cell_type": "code",
                "id": name,
                "metadata": cell.metadata,
                "source": cell.source,
                "outputs": outputs[code],
                "execution_count": code + 1,
            }
        )
        code += 1
    metadata = {
        "kernelspec": dict(source.metadata["kernelspec"]),
        "language_info": {"name": "python"},
        "normbook": marks,
    }
    form = {"nbformat": 4, "nbformat_minor": 5}
    # checked as a whole by `dump`: nbformat would check each cell by itself, which takes seconds
    return nbformat.from_dict({"cells": cells, "metadata": metadata, **form})


def first_line(page: Page, line: int) -> int:
    """Return where a cell's words begin, counted from 1: the reader leaves out empty lines."""
    rows = page.text.splitlines()
    while line < len(rows) - 1 and not rows[line].strip():
        line += 1
    return line + 1


def check_kind(cell: nbformat.NotebookNode, page: Page, line: int) -> None:
    """Raise `PressError` for a cell that is neither words nor code."""
    if cell.cell_type not in ("markdown", "code"):
        raise PressError(f"{page.source.name}:{line}: a {cell.cell_type} cell is not known")


def check_words(book: Book, page: Page) -> None:
    """Convert a chapter's prose without results, so that a typo stops before minutes of running."""
    names = re.findall(r"\{glue:text\}`([^`:]+)", page.text)
    stand_in = nbformat.v4.new_output("display_data", data={GLUE: "'0'"})
    outputs = [{**stand_in, "metadata": {"scrapbook": {"name": name}}} for name in names]
    context = book.context(page, [outputs], lambda *to: link_beside(book, page, *to))
    lines = page.notebook.metadata["source_map"]
    for cell, line in zip(page.notebook.cells, lines, strict=True):
        check_kind(cell, page, line)
        if cell.cell_type == "markdown":
            convert(cell.source, context, first_line(page, line))


def link_beside(book: Book, page: Page, text: str, target: str, label: str) -> str:
    """Link to a page's recorded notebook (or its source where it has none), or within the page."""
    if target == page.name:
        return f"[{text}](#{label})" if label else f"[{text}](#)"
    other = book.pages[target]
    file = other.sibling.name if other.is_chapter else other.source.name
    return f"[{text}]({file}#{label})" if label else f"[{text}]({file})"


def read(path: Path) -> nbformat.NotebookNode:
    """Read a notebook file."""
    return nbformat.reads(path.read_text(encoding="utf-8"), as_version=4)


def dump(notebook: nbformat.NotebookNode) -> str:
    """Return a notebook as the text of its file: the same notebook, the same bytes."""
    nbformat.validate(notebook)
    return nbformat.writes(notebook) + "\n"


def identity(cells: list[nbformat.NotebookNode]) -> list[tuple]:
    """Return what the outputs depend on: source and tags, but not captions and alt texts."""
    return [(cell.source, tuple(cell.metadata.get("tags", []))) for cell in cells]


def marks_of(book: Book, page: Page) -> dict:
    """Return what the recorded outputs also depend on: engine and instruments, and the claims."""
    return {"claims": claims_hash(page, book.claims), "code": code_hash()}


def code_hash(root: Path = ROOT) -> str:
    """Return a digest of the engine's and the instruments' sources."""
    code = root / "code"
    paths = [code / "normalization.py", *sorted(code.glob("normbook/engine/*.py"))]
    digest = hashlib.sha256()
    for path in [*paths, *sorted(code.glob("normbook/lab/*.py"))]:
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def fingerprint(book: Book, page: Page) -> str:
    """Return a digest of all that decides whether a sibling is up to date."""
    recorded = page.sibling.read_text(encoding="utf-8") if page.sibling.exists() else ""
    everything = "\0".join([page.text, recorded, book.surroundings])
    return hashlib.sha256(everything.encode()).hexdigest()


def state(book: Book, page: Page) -> tuple[str, nbformat.NotebookNode | None]:
    """Return how a sibling stands to its chapter, and the sibling as it should be.

    "fresh"; "prose" when only words, captions or metadata moved (the second value is what to
    write); "stale" when code, tags or the claims it compares with moved, or nothing is recorded.
    """
    if not page.sibling.exists():
        return "stale", None
    recorded = read(page.sibling)
    cells = code_cells(recorded)
    marks = recorded.metadata.get("normbook", {})
    same_claims = marks.get("claims") == claims_hash(page, book.claims)
    if identity(cells) != identity(code_cells(page.notebook)) or not same_claims:
        return "stale", None
    expected = make_sibling(book, page, [cell.outputs for cell in cells], marks)
    if dump(expected) == page.sibling.read_text(encoding="utf-8"):
        return "fresh", expected
    return "prose", expected
