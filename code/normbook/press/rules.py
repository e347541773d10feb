"""What every chapter must keep to, as functions that return the problems they find."""

import re

from normbook.press.book import GLUE, Book
from normbook.press.evidence import Evidence
from normbook.press.ledger import CLAIM_DATA, CLAIMS, WITHOUT_RIVAL, measurements, needs_cell
from normbook.press.limits import limits_of, slow_chapters
from normbook.press.pages import Page
from normbook.press.portable import LEFTOVER, ROLE_OR_CODE
from normbook.press.questions import dead_links
from normbook.press.siblings import is_folded, sibling_state, stale_because, stale_message

LONGEST_CODE = 80  # characters of code that fit the column
SHOWS_FIGURE = re.compile(r"\bshow\(|\bfigures\.frames\(")
# A place on somebody's disk: never in a notebook that others open.
PATH = re.compile(r"(?<![\w.:/~])/(?:home|root|Users|tmp|usr|opt|var|mnt|work|private)/\S+")
WINDOWS_PATH = re.compile(r"\b[A-Z]:\\+\w+")
FENCED_CODE = re.compile(r"^(`{3,}|~{3,})[^\n]*\n.*?^\1[`~]*\s*$", re.M | re.S)


def problems_of_book(book: Book) -> list[str]:
    """Return every broken rule of the book: empty when all is well."""
    problems = unmatched(book) + rivals_missing(book) + too_many_illustrations(book)
    problems += dead_links(book.questions, book.labels) + slow_chapters(book)
    problems += [problem for page in book.pages.values() for problem in limits_of(page)]
    for page in book.chapters:
        problems += drift(book, page) + figures_without_words(page) + long_code_lines(page)
        if page.sibling.exists():
            text = page.sibling.read_text(encoding="utf-8")
            problems += raw_markup(page) + paths_in(page.sibling.name, text)
            problems += failed_claims(page) + more_than_claims(page)
    return problems


def drift(book: Book, page: Page) -> list[str]:
    """Return a problem when the recorded notebook is not what its chapter would give."""
    kind, _ = sibling_state(book, page)
    if kind == "fresh":
        return []
    return [stale_message(page, stale_because(book, page) or "its words moved on")]


# --- claims ---


def unmatched(book: Book) -> list[str]:
    """Return the claims that no cell measures, and those that a cell of another page measures."""
    problems = []
    seen = {name: measured.page for name, measured in Evidence(book).found.items()}
    for entry in book.claims:
        name, place = entry["id"], entry["place"]
        if needs_cell(entry) and name not in seen:
            problems.append(f"{place}: no cell measures {name}")
        if seen.get(name, entry["page"]) != entry["page"]:
            wanted = f"{CLAIMS}/{seen[name]}.yml"
            problems.append(f"{place}: {seen[name]} measures {name}, so it belongs into {wanted}")
    listed = {entry["id"] for entry in book.claims}
    strays = (name for name in seen if name not in listed)
    return problems + [f"{seen[name]}: claims {name!r}, which is not listed" for name in strays]


def rivals_missing(book: Book) -> list[str]:
    """Return the measured claims that refuse no rival and do not wait for one, and false waits."""
    waiting = waiting_for_rivals(book)
    found, problems = Evidence(book).found, []
    for entry in book.claims:
        name = entry["id"]
        line = waiting.pop(name, None)
        needs = entry["status"] in ("measured", "corrected") and name in found
        lacks = needs and not found[name].rivals
        if lacks and line is None:
            problems.append(f"{entry['place']}: {name} has no rival")
        if line is not None and not lacks:
            problems.append(
                f"{CLAIMS}/{WITHOUT_RIVAL}:{line}: {name} waits for no rival: take it off"
            )
    strays = [
        f"{CLAIMS}/{WITHOUT_RIVAL}:{line}: no claim is {name!r}" for name, line in waiting.items()
    ]
    return problems + strays


def waiting_for_rivals(book: Book) -> dict[str, int]:
    """Return the claims whose rival is still to be found, and the lines that say so."""
    path = book.folder / CLAIMS / WITHOUT_RIVAL
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    words = {at: line.split("#")[0].strip() for at, line in enumerate(lines, 1)}
    return {name: at for at, name in words.items() if name}


def too_many_illustrations(book: Book) -> list[str]:
    """Return the pages of whose claims more than one in ten is true by construction."""
    problems, most = [], "one in ten at most"
    for page in book.chapters:
        statuses = [entry["status"] for entry in book.claims_of(page)]
        count = statuses.count("illustration")
        if count > len(statuses) / 10:
            counts = f"{count} of {len(statuses)} claims are illustrations"
            problems.append(f"{CLAIMS}/{page.name}.yml: {counts}, {most}")
    return problems


def failed_claims(page: Page) -> list[str]:
    """Return the claims that a recorded notebook shows as failed."""
    failed = [(name, m.line) for name, m in measurements(page).items() if not m.passed]
    return [f"{page.sibling.name}: ✗ {name}: {line}" for name, line in failed]


def more_than_claims(page: Page) -> list[str]:
    """Return the cells that are folded as claims and show something else as well."""
    return [
        f"{page.name}: cell {index} is tagged claims, and shows more than claims and glued values"
        for index, cell in enumerate(page.recorded_cells, 1)
        if is_folded(cell)
        for output in cell.outputs
        if CLAIM_DATA not in output.get("data", {}) and GLUE not in output.get("data", {})
    ]


# --- figures, code, markup ---


def figures_without_words(page: Page) -> list[str]:
    """Return the cells that show a figure without a name, a caption or an alt text."""
    problems = []
    for index, cell in enumerate(page.code_cells, 1):
        if not SHOWS_FIGURE.search(cell.source):
            continue
        options = cell.metadata.get("mystnb", {})
        have = {**options.get("figure", {}), **options.get("image", {})}
        missing = [key for key in ("name", "caption", "alt") if not str(have.get(key, "")).strip()]
        problems += [f"{page.name}: the figure of cell {index} has no {key}" for key in missing]
    return problems


def long_code_lines(page: Page) -> list[str]:
    """Return the code lines that a page would cut off at its right edge."""
    return [
        f"{page.name}: a line of code has {count} characters, {LONGEST_CODE} fit: {line.strip()}"
        for cell in page.code_cells
        for line in cell.source.split("\n")
        if (count := len(line)) > LONGEST_CODE
    ]


def raw_markup(page: Page) -> list[str]:
    """Return the Markdown cells of the recorded notebook in which MyST is left."""
    problems = []
    for index, cell in enumerate(page.recorded.cells, 1):
        text = cell.source if cell.cell_type == "markdown" else ""
        prose = FENCED_CODE.sub("", text)
        bare = ROLE_OR_CODE.sub(lambda match: match[0] if match["role"] else "", prose)
        found = LEFTOVER.search(bare) or re.search(r"^```\{", text, re.M)
        if found:
            problems.append(f"{page.sibling.name}: cell {index} shows raw markup {found[0]!r}")
    return problems


def paths_in(name: str, text: str) -> list[str]:
    """Return the absolute paths in the text of a recorded notebook."""
    hits = [*PATH.findall(text), *WINDOWS_PATH.findall(text)]
    return [f"{name}: holds an absolute path: {hit}" for hit in hits]
