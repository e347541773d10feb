"""What every chapter must keep to, as functions that return the problems they find."""

import re

from normbook.press.ledger import unmatched
from normbook.press.pages import Page
from normbook.press.portable import LEFTOVER, ROLE_OR_CODE
from normbook.press.questions import dead_links
from normbook.press.siblings import Book, code_cells, read, state

LONGEST = 80  # characters of code that fit the column
SHOWS = re.compile(r"\bshow\(")
# A place on somebody's disk: never in a notebook that others open.
PATH = re.compile(r"(?<![\w.:/~])/(?:home|root|Users|tmp|usr|opt|var|mnt|work|private)/\S+")
WINDOWS_PATH = re.compile(r"\b[A-Z]:\\+\w+")
FENCED = re.compile(r"^(`{3,}|~{3,})[^\n]*\n.*?^\1[`~]*\s*$", re.M | re.S)


def problems_of_book(book: Book) -> list[str]:
    """Return every broken rule of the book: empty when all is well."""
    problems = unmatched(book.claims, book.pages) + dead_links(book.questions, book.labels)
    for page in book.chapters:
        problems += drift(book, page) + figures_without_words(page) + long_lines(page)
        if page.sibling.exists():
            text = page.sibling.read_text(encoding="utf-8")
            problems += raw_markup(page) + paths_in(page.sibling.name, text) + failed_claims(page)
    return problems


def drift(book: Book, page: Page) -> list[str]:
    """Return a problem when the recorded notebook is not what its chapter would give."""
    kind, _ = state(book, page)
    if kind == "fresh":
        return []
    reason = {"stale": "its code is not what was recorded", "prose": "its words moved on"}[kind]
    return [f"chapter {page.name} is stale, {reason}: make record"]


def figures_without_words(page: Page) -> list[str]:
    """Return the cells that show a figure without a name, a caption or an alt text."""
    problems = []
    for index, cell in enumerate(code_cells(page.notebook), 1):
        if not SHOWS.search(cell.source):
            continue
        options = cell.metadata.get("mystnb", {})
        have = {**options.get("figure", {}), **options.get("image", {})}
        missing = [key for key in ("name", "caption", "alt") if not str(have.get(key, "")).strip()]
        problems += [f"{page.name}: the figure of cell {index} has no {key}" for key in missing]
    return problems


def long_lines(page: Page) -> list[str]:
    """Return the code lines that a page would cut off at its right edge."""
    return [
        f"{page.name}: a line of code has {len(line)} characters, {LONGEST} fit: {line.strip()}"
        for cell in code_cells(page.notebook)
        for line in cell.source.split("\n")
        if len(line) > LONGEST
    ]


def raw_markup(page: Page) -> list[str]:
    """Return the Markdown cells of the recorded notebook in which MyST is left."""
    problems = []
    for index, cell in enumerate(read(page.sibling).cells, 1):
        text = cell.source if cell.cell_type == "markdown" else ""
        prose = FENCED.sub("", text)
        bare = ROLE_OR_CODE.sub(lambda match: match[0] if match["role"] else "", prose)
        found = LEFTOVER.search(bare) or re.search(r"^```\{", text, re.M)
        if found:
            problems.append(f"{page.sibling.name}: cell {index} shows raw markup {found[0]!r}")
    return problems


def paths_in(name: str, text: str) -> list[str]:
    """Return the absolute paths in the text of a recorded notebook."""
    hits = [*PATH.findall(text), *WINDOWS_PATH.findall(text)]
    return [f"{name}: holds an absolute path: {hit}" for hit in hits]


def failed_claims(page: Page) -> list[str]:
    """Return the claims that a recorded notebook shows as failed."""
    return [
        f"{page.sibling.name}: {line}"
        for cell in code_cells(read(page.sibling))
        for output in cell.outputs
        for line in output.get("text", "").splitlines()
        if line.startswith("✗ ")
    ]
