"""The page of the engine, made from its door: a section a chapter, an entry a name."""

import ast
import re
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from docutils import nodes

from normbook.press.files import PressError
from normbook.press.reach import DOOR, path_of, text_of
from normbook.press.sphinx.directives import FromBook

SECTION = "# §"  # a comment of the door that begins a chapter
NOTE = "  # "  # what stands between a name and what it is
DOCUMENTED = {ast.ClassDef: "autoclass", ast.FunctionDef: "autofunction"}


class Entry(NamedTuple):
    """A public name: the chapter it stands under, what it is, and the module that it comes from."""

    section: str
    name: str
    note: str
    module: str


class Engine(FromBook):
    """Print each public name of the engine with its docstring, chapter by chapter: ``{engine}``."""

    def run(self) -> list[nodes.Node]:
        """Return a section a chapter."""
        code = self.book.root / "code"
        entries = door_entries(text_of(DOOR, code))
        self.watch(*{path_of(module, code) for module in (DOOR, *(e.module for e in entries))})
        sections = groupby(entries, lambda entry: entry.section)
        return [self.section(title, list(group), code) for title, group in sections]

    def section(self, title: str, entries: list[Entry], code: Path) -> nodes.section:
        """Return the entries of a chapter under its heading."""
        section = nodes.section("", nodes.title(title, title), ids=[nodes.make_id(title)])
        lines = [f".. currentmodule:: {DOOR}", ""]
        lines += [line for entry in entries for line in entry_lines(entry, code)]
        section += self.parsed("engine", ["```{eval-rst}", *lines, "```"]).children
        return section


def door_entries(source: str) -> list[Entry]:
    """Return the public names of the door in its order.

    Raises: PressError when a name stands under no chapter, or does not say what it is.
    """
    lines, found = source.splitlines(), []
    for node in ast.parse(source).body:
        if not isinstance(node, ast.ImportFrom):
            continue
        section = next((x[2:] for x in lines[: node.lineno][::-1] if x.startswith(SECTION)), "")
        for name in node.names:
            note = lines[name.lineno - 1].partition(NOTE)[2]
            if not section or not note:
                lacks = "note" if section else f"chapter ({SECTION}…) above it"
                raise PressError(f"code/{DOOR}.py:{name.lineno}: {name.name} has no {lacks}")
            found.append(Entry(section, name.asname or name.name, note, node.module))
    return found


def entry_lines(entry: Entry, code: Path) -> list[str]:
    """Return what autodoc is asked for; of a table its note, where `names` are links."""
    body = ast.parse(text_of(entry.module, code)).body
    kinds = {getattr(node, "name", ""): DOCUMENTED.get(type(node)) for node in body}
    if kind := kinds.get(entry.name):
        return [f".. {kind}:: {entry.name}", ""]
    note = re.sub(r"`(\w+)`", r":py:obj:`\1`", entry.note)
    return [f".. py:data:: {entry.name}", "", f"   {note[0].upper()}{note[1:]}.", ""]
