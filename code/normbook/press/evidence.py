"""Where the book shows a claim: the section whose cell measures it, or whose text links to it."""

import json
from dataclasses import asdict, dataclass
from functools import cached_property

from normbook.press.book import Book
from normbook.press.files import write_if_new
from normbook.press.ledger import Measurement, measurements
from normbook.press.pages import HEADING, TARGET, Page, figures_of, reference


@dataclass
class Evidence:
    """A book, what its cells measured, and where: what the pages about the chapters are made of."""

    book: Book

    @cached_property
    def found(self) -> dict[str, Measurement]:
        """What the recorded cells measured, by claim."""
        pages = self.book.chapters
        return {name: seen for page in pages for name, seen in measurements(page).items()}

    @cached_property
    def places(self) -> dict[str, str]:
        """What `{ref}` needs to link to the section that shows a claim, by claim."""
        return places(self.book, self.found)

    def write(self) -> None:
        """Write all of it, if it is not what stands there.

        Sphinx makes the pages about the chapters again when this file changes: not at each change
        of a word.
        """
        everything = {
            "claims": self.book.claims,
            "measured": {name: asdict(seen) for name, seen in self.found.items()},
            "counts": {page.name: counts(page) for page in self.book.chapters},
            "places": self.places,
        }
        write_if_new(self.book.evidence, json.dumps(everything, ensure_ascii=False, indent=1))


def counts(page: Page) -> list[int]:
    """Return how many code cells, figures and exercises a chapter has."""
    exercises = page.text.count("{exercise-start}")
    return [len(page.code_cells), len(figures_of(page)), exercises]


def sections(page: Page) -> list[tuple[int, str]]:
    """Return the line, counted from 1, at which each labelled section begins, and its label."""
    found, label = [], ""
    for number, line in enumerate(page.text.splitlines(), 1):
        if match := TARGET.match(line):
            label = match[1]
        elif HEADING.match(line) and label:
            found.append((number, label))
        if line.strip() and not TARGET.match(line):
            label = ""
    return found


def section_at(found: list[tuple[int, str]], line: int) -> str:
    """Return the label of the section, one of `sections`, that a line belongs to, or ""."""
    before = [label for start, label in found if start <= line]
    return before[-1] if before else ""


def places(book: Book, found: dict[str, Measurement]) -> dict[str, str]:
    """Return, by claim, what `{ref}` needs to link to the section that measures or mentions it.

    A cell comes before a link, and the claim's own chapter before the others.
    """
    parts = {page.name: sections(page) for page in book.chapters}
    shown = {}
    for entry in book.claims:
        name, own = entry["id"], book.pages[entry["page"]]
        if name in found:
            seen = found[name]
            line = book.pages[seen.page].code_lines[seen.cell]
            label = section_at(parts[seen.page], line)
        else:
            label = link_to_claim(name, [own, *book.chapters], parts)
        label = label or next((label for _, label in parts[own.name]), "")
        if label:
            shown[name] = reference(label, book.labels)
    return shown


def link_to_claim(name: str, pages: list[Page], parts: dict) -> str:
    """Return the label of the first section that links to a claim's entry of the ledger, or ""."""
    for page in pages:
        at = page.text.find(f"<claim-{name}>")
        if at >= 0:
            return section_at(parts[page.name], page.text.count("\n", 0, at) + 1)
    return ""
