"""The real book keeps its rules, and each rule can be broken."""

import json
import re

import pytest
from conftest import ROOT, edit

from normbook.press import record as recorder
from normbook.press.ledger import load_claims, unmatched
from normbook.press.pages import PressError
from normbook.press.rules import (
    failed_claims,
    figures_without_words,
    long_lines,
    paths_in,
    problems_of_book,
    raw_markup,
)
from normbook.press.siblings import Book

SIBLING = {
    "nbformat": 4,
    "nbformat_minor": 5,
    "metadata": {},
    "cells": [],
}


def test_the_book_keeps_its_rules():
    assert problems_of_book(Book()) == []


def test_the_readmes_figure_is_the_covers():
    assert (ROOT / "book/_static/cover.png").read_bytes() == recorder.cover_picture(Book())


def test_the_ledger_page_prints_every_section():
    sections = {str(entry["section"]) for entry in Book().claims}
    text = (ROOT / "book/ledger.md").read_text(encoding="utf-8")
    printed = {line.split("} ")[1] for line in text.splitlines() if line.startswith("```{ledger} ")}
    assert printed == sections


def write_sibling(page, *cells):
    page.sibling.write_text(json.dumps({**SIBLING, "cells": list(cells)}))


def markdown(text):
    name = f"m{len(text)}"
    return {"cell_type": "markdown", "id": name, "metadata": {}, "source": text}


@pytest.mark.parametrize(
    "text",
    [
        "> **Tip**\n\n:::{note}\nraw\n:::",
        "see {ref}`there`",
        "```{exercise-start}\n```",
        "count {glue:text}`n`",
    ],
)
def test_raw_markup_is_found(small_book, text):
    page = small_book.pages["07-small"]
    write_sibling(page, markdown("fine"), markdown(text))
    assert len(raw_markup(page)) == 1
    assert "cell 2 shows raw markup" in raw_markup(page)[0]


@pytest.mark.parametrize(
    "text",
    [
        "plain",
        "`{ref}` in code",
        "```python\n:::{x}\n{ref}`x`\n```",
        "a set {x} `code` and $\\{a\\}$",
    ],
)
def test_plain_markdown_passes(small_book, text):
    page = small_book.pages["07-small"]
    write_sibling(page, markdown(text))
    assert raw_markup(page) == []


@pytest.mark.parametrize(
    "text",
    [
        "saved to /home/me/book.png",
        "/root/.venv/lib",
        "File /tmp/x.py",
        "C:\\\\Users",
        "/usr/lib/python3",
    ],
)
def test_absolute_paths_are_found(text):
    assert paths_in("x.ipynb", json.dumps({"text": text})) != []


@pytest.mark.parametrize(
    "text", ["1/N and a/b", "https://arxiv.org/abs/1", "and/or", "code/normbook"]
)
def test_other_slashes_pass(text):
    assert paths_in("x.ipynb", json.dumps({"text": text})) == []


@pytest.mark.parametrize(
    ("old", "missing"),
    [
        ("    alt: A rising line.", "alt"),
        ("    caption: Three points.", "caption"),
    ],
)
def test_a_figure_without_words_is_found(small_book, old, missing):
    edit(small_book.folder / "07-small.md", old, old.split(":")[0] + ": ''")
    page = Book(small_book.folder).pages["07-small"]
    assert figures_without_words(page) == [f"07-small: the figure of cell 1 has no {missing}"]


def test_a_figure_without_any_metadata_is_found(small_book):
    edit(small_book.folder / "07-small.md", 'print("mean 0.503")', "show(figure)")
    page = Book(small_book.folder).pages["07-small"]
    assert len(figures_without_words(page)) == 3


def test_a_line_that_would_be_cut_off_is_found(small_book):
    edit(small_book.folder / "07-small.md", 'print("mean 0.503")', f"print({'1' * 80})")
    problems = long_lines(Book(small_book.folder).pages["07-small"])
    assert len(problems) == 1
    assert "has 87 characters, 80 fit" in problems[0]


def entry(name="c", **changes):
    return {
        "id": name,
        "section": 7,
        "status": "measured",
        "claim": "It holds.",
        "expected": 1,
        "tolerance": 0.1,
        **changes,
    }


def test_a_claim_without_a_cell_is_found(small_book):
    assert unmatched([entry()], small_book.pages) == ["claims.yml: c: no cell measures it"]
    corrected = entry(status="corrected")
    assert unmatched([corrected], small_book.pages) == ["claims.yml: c: no cell measures it"]
    sourced = entry(status="corrected", source="xiong2020layer")
    assert unmatched([sourced], small_book.pages) == []


def test_a_cell_with_an_unlisted_claim_is_found(small_book):
    edit(small_book.folder / "07-small.md", 'print("mean 0.503")', 'claim("unlisted", 1.0)')
    pages = Book(small_book.folder).pages
    assert unmatched([], pages) == ["07-small: claims 'unlisted', which claims.yml does not list"]


def test_a_failed_claim_is_found(small_book):
    page = small_book.pages["07-small"]
    output = {"output_type": "stream", "name": "stdout", "text": "✗ c: 2.00; expected 1 ± 0.1\n"}
    code = {"cell_type": "code", "id": "c", "metadata": {}, "source": "", "execution_count": 1}
    write_sibling(page, {**code, "outputs": [output]})
    assert failed_claims(page) == ["07-small.ipynb: ✗ c: 2.00; expected 1 ± 0.1"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"status": "proved"}, "status must be one of"),
        ({"source": "nobody1999"}, "cites unknown 'nobody1999'"),
        ({"expected": 1, "tolerance": None}, None),
        ({"colour": "red"}, "has an unknown key 'colour'"),
        ({"status": "cited"}, "is cited, so it needs a source"),
        ({"status": "contested"}, "is contested, so it needs a source"),
    ],
)
def test_malformed_claims_are_refused(small_book, changes, message):
    bad = entry(**changes)
    if message is None:
        del bad["tolerance"]
        message = "so it needs a tolerance"
    (small_book.folder / "claims.yml").write_text(json.dumps([bad]))
    with pytest.raises(PressError, match=message):
        load_claims(small_book.folder)


def test_a_claim_that_stands_twice_is_refused(small_book):
    (small_book.folder / "claims.yml").write_text(json.dumps([entry(), entry()]))
    with pytest.raises(PressError, match="c: stands twice"):
        load_claims(small_book.folder)


def test_no_link_shows_the_formula_of_a_heading():
    book = Book()  # Sphinx shows it raw; such a link needs words of its own
    for page in book.pages.values():
        for label in re.findall(r"\{ref\}`([\w-]+)`", page.text):
            assert "$" not in book.labels[label].text, f"{page.name}: {label}"
