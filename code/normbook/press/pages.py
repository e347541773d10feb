"""Where the book's pages are, and what each of them offers to be linked to."""

import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import nbformat
import yaml
from myst_nb.core.read import is_myst_markdown_notebook, read_myst_markdown_notebook
from pybtex.database import parse_file

ROOT = Path(__file__).resolve().parents[3]
BOOK = ROOT / "book"

TARGET = re.compile(r"^\(([\w-]+)\)=\s*$")
HEADING = re.compile(r"^(#+)\s+(.*?)\s*$")
EQUATION_LABEL = re.compile(r"\$\$\s*\(([\w-]+)\)\s*$", re.M)
EXERCISE = re.compile(r"^[`:~]{3,}\{exercise(?:-start)?\}\s*(.*)$")
LABEL_OPTION = re.compile(r"^:label:\s*([\w-]+)\s*$")


class PressError(ValueError):
    """The book cannot be made as it stands; the message says which file and why."""


@dataclass(frozen=True)
class Label:
    """Something that can be referred to: the page it is on, and what a link to it says."""

    page: str
    kind: str  # section, figure, equation, exercise
    text: str


@dataclass
class Page:
    """One source file of the book, and the notebook recorded from it if it has code."""

    source: Path
    text: str = field(repr=False)

    @property
    def name(self) -> str:
        """The page's name in links and addresses: `05-pre-vs-post-norm`."""
        return self.source.stem

    @property
    def sibling(self) -> Path:
        """The recorded notebook beside the source."""
        return self.source.with_suffix(".ipynb")

    @property
    def number(self) -> str:
        """The chapter's number as figures carry it: "5", "A", or "" for pages between chapters."""
        head = self.name.split("-")[0]
        return str(int(head)) if head.isdigit() else head.upper() if len(head) == 1 else ""

    @cached_property
    def is_chapter(self) -> bool:
        """Whether the page has code cells, that is, a notebook beside it."""
        return is_myst_markdown_notebook(self.text)

    @cached_property
    def notebook(self) -> nbformat.NotebookNode:
        """The page as MyST-NB reads it: the same cells that the build will look for."""
        return read_myst_markdown_notebook(self.text, add_source_map=True, path=self.source)

    @cached_property
    def title(self) -> str:
        """The text of the first heading."""
        for line in self.text.splitlines():
            if match := HEADING.match(line):
                return match[2]
        raise PressError(f"{self.source.name}: has no heading")

    def numbered(self, index: int) -> str:
        """Return the number of the page's figure or equation `index`, counted from 1."""
        return f"{self.number}.{index}" if self.number else str(index)


def load_pages(book: Path = BOOK) -> dict[str, Page]:
    """Return the book's pages by name, in the order of the table of contents."""
    toc = yaml.safe_load((book.parent / "_toc.yml").read_text(encoding="utf-8"))
    names = [toc["root"]]
    for part in toc.get("parts", [toc]):
        names += [entry["file"] for entry in part.get("chapters", [])]
    paths = [book / f"{name}.md" for name in names]
    return {path.stem: Page(path, path.read_text(encoding="utf-8")) for path in paths}


def collect_labels(pages: dict[str, Page]) -> dict[str, Label]:
    """Return all that can be referred to. Raises `PressError` for a label used twice."""
    labels: dict[str, Label] = {}
    for page in pages.values():
        for name, kind, text in labels_of(page):
            if name in labels:
                raise PressError(f"{page.source.name}: the label {name!r} is used twice")
            labels[name] = Label(page.name, kind, text)
    return labels


def labels_of(page: Page):
    """Yield `(label, kind, text)` of a page: sections, numbered figures, equations, exercises."""
    lines = page.text.splitlines()
    for index, line in enumerate(lines):
        if match := TARGET.match(line):
            below = next((text for text in lines[index + 1 :] if text.strip()), "")
            heading = HEADING.match(below)
            yield match[1], "section", heading[2] if heading else match[1]
    for index, name in enumerate(EQUATION_LABEL.findall(page.text), 1):
        yield name, "equation", f"({page.numbered(index)})"
    exercises = [index for index, line in enumerate(lines) if EXERCISE.match(line)]
    for number, index in enumerate(exercises, 1):
        for line in lines[index + 1 : index + 4]:
            if match := LABEL_OPTION.match(line):
                yield match[1], "exercise", f"Exercise {page.numbered(number)}"
    if page.is_chapter:
        for index, figure in enumerate(figures_of(page), 1):
            yield figure["name"], "figure", f"Fig. {page.numbered(index)}"


def figures_of(page: Page) -> list[dict]:
    """Return the figure options (name, caption) of a chapter's code cells, in order."""
    return [
        cell.metadata["mystnb"]["figure"]
        for cell in page.notebook.cells
        if cell.cell_type == "code" and "figure" in cell.metadata.get("mystnb", {})
    ]


@dataclass(frozen=True)
class Reference:
    """An entry of the bibliography as a citation needs it."""

    authors: str
    year: str
    url: str


def load_references(book: Path = BOOK) -> dict[str, Reference]:
    """Return the bibliography by key: authors in short, year, and where to read it."""
    entries = parse_file(str(book / "references.bib")).entries
    return {key: short_reference(key, entry) for key, entry in entries.items()}


def short_reference(key: str, entry) -> Reference:
    """Return "Xiong et al.", the year and the link of a BibTeX entry."""
    people = entry.persons.get("author", [])
    names = [" ".join(person.prelast_names + person.last_names).strip("{}") for person in people]
    if not names:
        raise PressError(f"references.bib: {key} has no author")
    short = names[0] if len(names) == 1 else f"{names[0]} and {names[1]}"
    short = f"{names[0]} et al." if len(names) > 2 else short
    fields = entry.fields
    if "doi" in fields:
        url = f"https://doi.org/{fields['doi']}"
    else:
        url = f"https://arxiv.org/abs/{fields['eprint']}" if "eprint" in fields else ""
    return Reference(short, fields["year"], url or fields.get("url", ""))
