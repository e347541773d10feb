"""Where the book's pages are, and what each of them offers to be linked to."""

import re
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from pathlib import Path

import nbformat
import yaml
from myst_nb.core.read import (
    MystMetadataParsingError,
    is_myst_markdown_notebook,
    read_myst_markdown_notebook,
)

from normbook.press.files import PressError, load_yaml

TARGET = re.compile(r"^\(([\w-]+)\)=\s*$")
HEADING = re.compile(r"^(#+)\s+(.*?)\s*$")
EQUATION_LABEL = re.compile(r"\$\$\s*\(([\w-]+)\)\s*$", re.M)
EXERCISE = re.compile(r"^[`:~]{3,}\{exercise(?:-start)?\}\s*(.*)$")
CODE_FENCE = re.compile(r"^(`{3,}|~{3,})(.*)$")
LABEL_OPTION = re.compile(r"^:label:\s*([\w-]+)\s*$")


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
    def code_cells(self) -> list[nbformat.NotebookNode]:
        """The page's code cells, in order."""
        return code_cells(self.notebook) if self.is_chapter else []

    @cached_property
    def code_lines(self) -> list[int]:
        """Where each code cell begins in the source, counted from 1."""
        lines = zip(self.notebook.cells, self.notebook.metadata["source_map"], strict=True)
        return [line + 1 for cell, line in lines if cell.cell_type == "code"]

    @property
    def recorded(self) -> nbformat.NotebookNode | None:
        """The recorded notebook as it lies beside the source now, parsed once; None without one."""
        if not self.sibling.exists():
            return None
        return parse_notebook(self.sibling.read_text(encoding="utf-8"))

    @property
    def recorded_cells(self) -> list[nbformat.NotebookNode]:
        """The code cells of the recorded notebook."""
        return code_cells(self.recorded) if self.sibling.exists() else []

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


@lru_cache(maxsize=64)
def parse_notebook(text: str) -> nbformat.NotebookNode:
    """Return the notebook that a file's text holds; nobody may change it."""
    return nbformat.reads(text, as_version=4)


def code_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    """Return a notebook's code cells."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def load_pages(root: Path) -> dict[str, Page]:
    """Return the book's pages by name, in the order of the table of contents."""
    toc = load_yaml(root / "_toc.yml")
    names = [toc["root"]]
    for part in toc.get("parts", [toc]):
        names += [entry["file"] for entry in part.get("chapters", [])]
    paths = [root / "book" / f"{name}.md" for name in names]
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
        for cell in page.code_cells
        if "figure" in cell.metadata.get("mystnb", {})
    ]
