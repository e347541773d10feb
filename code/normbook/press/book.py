"""The whole book as the press sees it: its folders, pages, labels, bibliography and claims.

`python -m normbook.press.book` writes `claims.json` for the chapters, which know no YAML.
"""

import ast
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from normbook.press.bibliography import BIBLIOGRAPHY, Reference, parse_references
from normbook.press.files import ROOT, press_hash
from normbook.press.ledger import load_claims, write_json
from normbook.press.pages import Label, Page, collect_labels, load_pages
from normbook.press.portable import Context
from normbook.press.questions import Question, load_questions, question_labels
from normbook.press.reach import sources_hash

GLUE = "application/papermill.record/text/plain"


@dataclass
class Book:
    """A book in a folder of its own. What it reads is read once; what it makes lies in `build`."""

    root: Path = ROOT

    def __post_init__(self) -> None:
        """Say where everything lies."""
        self.folder = self.root / "book"  # chapters, notebooks, claims, questions
        self.timings = self.folder / "timings.json"  # as `make status` wrote it last
        self.claims_json = self.root / "code/normbook/lab/claims.json"  # for `normbook.lab.claims`
        self.build = self.root / "_build"  # all that is made
        self.html = self.build / "html"
        self.doctrees = self.build / ".doctrees"  # the pages as Sphinx read them
        self.cache = self.build / ".jupyter_cache"  # where the build looks for executed notebooks
        self.evidence = self.build / "evidence.json"  # what the ledger and its like are made from

    @cached_property
    def times(self) -> dict:
        """What stands in `timings`, or nothing."""
        return json.loads(self.timings.read_text("utf-8")) if self.timings.exists() else {}

    def slowest_first(self, pages: list[Page]) -> list[Page]:
        """Return pages by how long they ran, the longest first: the last to end decides."""
        chapters = self.times.get("chapters", {})
        seconds = {name: row["processor"] for name, row in chapters.items()}
        return sorted(pages, key=lambda page: -seconds.get(page.name, float("inf")))

    @cached_property
    def pages(self) -> dict[str, Page]:
        """All pages by name, in the order of the table of contents."""
        return load_pages(self.root)

    @property
    def chapters(self) -> list[Page]:
        """The pages that have code."""
        return [page for page in self.pages.values() if page.is_chapter]

    @cached_property
    def labels(self) -> dict[str, Label]:
        """All that can be referred to, claims (`claim-id`) and questions among it."""
        claims = {f"claim-{e['id']}": Label("ledger", "claim", e["id"]) for e in self.claims}
        return collect_labels(self.pages) | claims | question_labels(self.questions, self.pages)

    @cached_property
    def references(self) -> dict[str, Reference]:
        """The bibliography by key."""
        return parse_references((self.folder / BIBLIOGRAPHY).read_text("utf-8"))

    @cached_property
    def claims(self) -> list[dict]:
        """The entries of the ledger, page by page."""
        return load_claims(self.folder, self.pages, self.references)

    def claims_of(self, page: Page) -> list[dict]:
        """Return the entries of one page."""
        return [entry for entry in self.claims if entry["page"] == page.name]

    @cached_property
    def questions(self) -> list[Question]:
        """The questions of §12, in their order."""
        return load_questions(self.folder)

    @cached_property
    def context_hash(self) -> str:
        """A digest of what a sibling depends on outside of its chapter, press and code included."""
        others = [(name, other.title, other.is_chapter) for name, other in self.pages.items()]
        read = (self.labels, self.references, self.claims, others)
        made = (press_hash(self.root), sources_hash())
        return hashlib.sha256(repr((read, made)).encode()).hexdigest()

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


if __name__ == "__main__":
    write_json(Book().claims, Book().claims_json)
