"""Where the book's pages are, and what each of them offers to be linked to."""

import hashlib
import os
import re
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

import nbformat
import yaml
from myst_nb.core.read import (
    MystMetadataParsingError,
    is_myst_markdown_notebook,
    read_myst_markdown_notebook,
)
from pybtex.database import parse_string
from pybtex.exceptions import PybtexError

ROOT = Path(__file__).resolve().parents[3]
BOOK = ROOT / "book"

TARGET = re.compile(r"^\(([\w-]+)\)=\s*$")
HEADING = re.compile(r"^(#+)\s+(.*?)\s*$")
EQUATION_LABEL = re.compile(r"\$\$\s*\(([\w-]+)\)\s*$", re.M)
EXERCISE = re.compile(r"^[`:~]{3,}\{exercise(?:-start)?\}\s*(.*)$")
CODE_FENCE = re.compile(r"^(`{3,}|~{3,})(.*)$")
LABEL_OPTION = re.compile(r"^:label:\s*([\w-]+)\s*$")


class PressError(ValueError):
    """The book cannot be made as it stands; the message says which file and why."""


def write_whole(path: Path, text: str) -> None:
    """Write a file so that it holds the old text or the new, whenever one is interrupted."""
    half = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        half.write_text(text, encoding="utf-8")
        os.replace(half, path)
    except OSError as error:
        raise PressError(f"cannot write {path}: {error.strerror}") from error
    finally:
        half.unlink(missing_ok=True)


def load_yaml(path: Path):
    """Return what a YAML file holds, by the loader in C where PyYAML has it: ten times as fast."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader=loader)
    except yaml.YAMLError as error:
        place = f"{path.name}:{error.problem_mark.line + 1 if error.problem_mark else 1}"
        raise PressError(f"{place}: cannot be read as YAML ({error.problem})") from error


def press_hash() -> str:
    """Return a digest of the press and its settings: what another one made is made again."""
    sources = [*sorted(Path(__file__).parent.glob("*.py")), ROOT / "_config.yml"]
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()


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
        try:
            return read_myst_markdown_notebook(self.text, add_source_map=True, path=self.source)
        except MystMetadataParsingError as error:
            line = re.search(r"at line (\d+)", str(error))
            place = f"{self.source.name}:{line[1] if line else 1}"
            raise PressError(f"{place}: the cell's options cannot be read as YAML") from error

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
    toc = load_yaml(book.parent / "_toc.yml")
    names = [toc["root"]]
    for part in toc.get("parts", [toc]):
        names += [entry["file"] for entry in part.get("chapters", [])]
    paths = [book / f"{name}.md" for name in names]
    return {path.stem: load_page(path, path.read_text(encoding="utf-8")) for path in paths}


@cache
def load_page(path: Path, text: str) -> Page:
    """Return the page with this text: the same one each time, so that it is parsed once."""
    page = Page(path, text)
    check_head(page)
    check_fences(page)
    return page


def check_head(page: Page) -> None:
    """Raise `PressError` for a head that is no YAML: the page would pass as one without code."""
    lines = page.text.splitlines()
    if not lines or lines[0].strip() != "---":
        return
    end = next((at for at, line in enumerate(lines[1:], 1) if line.strip() == "---"), None)
    if end is None:
        raise PressError(f"{page.source.name}:1: the head's --- is never closed")
    try:
        yaml.safe_load("\n".join(lines[1:end]))
    except yaml.YAMLError as error:
        line = error.problem_mark.line + 2 if getattr(error, "problem_mark", None) else 1
        place = f"{page.source.name}:{line}"
        raise PressError(f"{place}: the head cannot be read as YAML") from error


def check_fences(page: Page) -> None:
    """Raise `PressError` for a cell or a block of code that is never closed."""
    fence, opened = "", 0
    for number, line in enumerate(page.text.splitlines(), 1):
        match = CODE_FENCE.match(line)
        if not match:
            continue
        marks, rest = match.groups()
        if not fence:
            fence, opened = marks, number
        elif not rest.strip() and marks.startswith(fence):
            fence = ""
        elif rest.startswith("{code-cell}") and marks == fence:
            break  # within an open fence as long: the one before lacks its end
    if fence:
        raise PressError(f"{page.source.name}:{opened}: the fence is never closed")


def reference(target: str, labels: dict[str, Label]) -> str:
    """Return what stands in `{ref}`: the label, or words and the label if a formula is in its text.

    Sphinx would show the formula raw.
    """
    number, _, rest = labels[target].text.partition(" ")
    return f"§{number} <{target}>" if "$" in rest else target


def collect_labels(pages: dict[str, Page]) -> dict[str, Label]:
    """Return all that can be referred to. Raises `PressError` for a label used twice."""
    labels: dict[str, Label] = {}
    for page in pages.values():
        for name, kind, text in labels_of(page):
            if name in labels:
                place = f"{page.source.name}:{last_line_of(page, name)}"
                raise PressError(f"{place}: the label {name!r} is used twice")
            labels[name] = Label(page.name, kind, text)
    return labels


def last_line_of(page: Page, label: str) -> int:
    """Return the last line that gives something this label."""
    name = re.escape(label)
    gives = re.compile(rf"\({name}\)(?:=|\s*$)|^:label:\s*{name}\s*$|^\s*name:\s*{name}\s*$")
    lines = [at for at, line in enumerate(page.text.splitlines(), 1) if gives.search(line)]
    return lines[-1] if lines else 1


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
    return parse_references((book / "references.bib").read_text(encoding="utf-8"))


@cache
def parse_references(text: str) -> dict[str, Reference]:
    """Return the entries of a bibliography by key."""
    try:
        entries = parse_string(text, "bibtex").entries
    except PybtexError as error:
        raise PressError(f"references.bib: {error}") from error
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
