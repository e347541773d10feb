"""Where the book shows a claim: the section whose cell measures it, or whose text links to it."""

from normbook.press.ledger import CALL
from normbook.press.pages import HEADING, TARGET, Page
from normbook.press.siblings import Book


def sections(page: Page) -> list[tuple[int, str]]:
    """Return where each labelled heading of a page begins (an index into its text) and its label."""
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


def section_at(page: Page, position: int) -> str:
    """Return the label of the section that a position in a page's text belongs to, or ""."""
    before = [label for start, label in sections(page) if start <= position]
    return before[-1] if before else ""


def home(book: Book, entry: dict) -> Page | None:
    """Return the chapter of a claim's section, if the book has it."""
    number = str(entry["section"])
    pages = [page for page in book.chapters if page.number == number or page.name == number]
    cover = [page for page in book.chapters if number == "cover" and page.name == "index"]
    return (pages + cover + [None])[0]


def places(book: Book) -> dict[str, str]:
    """Return, for each claim that a chapter measures or links to, the label of that section.

    A cell comes before a link, and the claim's own chapter before the others.
    """
    cells, links = {}, {}
    for page in book.chapters:
        for match in CALL.finditer(page.text):
            cells.setdefault(match[1], section_at(page, match.start()))
    for entry in book.claims:
        own = home(book, entry)
        for page in ([own] if own else []) + book.chapters:
            at = page.text.find(f"<claim-{entry['id']}>")
            if at >= 0:
                links.setdefault(entry["id"], section_at(page, at))
        if own:
            links.setdefault(entry["id"], section_at(own, len(own.text.split("\n## ")[0])))
    return {name: label for name, label in {**links, **cells}.items() if label}
