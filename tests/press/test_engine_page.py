"""The engine's page is made from the door: every name once, under its chapter, as what it is."""

import ast
import re

import pytest
from helpers import ROOT

from normbook.press.book import Book
from normbook.press.files import PressError
from normbook.press.reach import CODE, DOOR, door, text_of
from normbook.press.sphinx.engine import Entry, door_entries, entry_lines

ENTRIES = door_entries(text_of(DOOR, CODE))
PROGRAM = {"main": "normbook.engine.sanity"}  # what the door runs, and does not show


def test_every_name_of_the_door_stands_on_the_page_once():
    lines = [line for entry in ENTRIES for line in entry_lines(entry, CODE)]
    names = re.findall(r"^\.\. (?:autoclass|autofunction|py:data):: (\w+)$", "\n".join(lines), re.M)
    assert len(names) == len(set(names)) > 70
    assert names == [entry.name for entry in ENTRIES]
    assert door(CODE) == {entry.name: entry.module for entry in ENTRIES} | PROGRAM


def test_the_sections_are_the_chapters_in_their_order():
    titles = {f"§{page.title}" for page in Book().chapters}
    sections = list(dict.fromkeys(entry.section for entry in ENTRIES))
    assert set(sections) <= titles
    assert sections == [
        f"§{page.title}" for page in Book().chapters if f"§{page.title}" in sections
    ]
    assert [e.section for e in ENTRIES] == sorted((e.section for e in ENTRIES), key=sections.index)


def test_the_page_is_an_introduction_and_one_directive():
    text = (ROOT / "book/engine.md").read_text("utf-8")
    assert re.findall(r"^```.*$", text, re.M) == ["```{engine}", "```"]


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("layer_norm", [".. autofunction:: layer_norm"]),
        ("LayerNorm", [".. autoclass:: LayerNorm"]),
        ("TABLE", [".. py:data:: TABLE", "", "   By :py:obj:`LayerNorm`, each."]),
    ],
)
def test_a_class_a_function_and_a_table_are_told_apart(name, lines, tmp_path):
    module = tmp_path / "norms.py"
    module.write_text("TABLE = {}\n\ndef layer_norm(): pass\n\nclass LayerNorm: pass\n")
    entry = Entry("§3 LayerNorm", name, "by `LayerNorm`, each", "norms")
    assert entry_lines(entry, tmp_path) == [*lines, ""]


@pytest.mark.parametrize(
    ("source", "lacks"),
    [
        ("from m import (\n    A as A,  # an A\n)\n", r"normalization.py:2: A has no chapter"),
        ("# §2 BatchNorm\nfrom m import (\n    A as A,\n)\n", r"normalization.py:3: A has no note"),
    ],
)
def test_a_name_without_a_chapter_or_a_note_is_refused(source, lacks):
    with pytest.raises(PressError, match=lacks):
        door_entries(source)


def test_the_door_says_each_name_as_itself():
    nodes = [n for n in ast.parse(text_of(DOOR, CODE)).body if isinstance(n, ast.ImportFrom)]
    assert all(alias.name == alias.asname for node in nodes for alias in node.names)
