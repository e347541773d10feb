"""The real book keeps its rules, and each rule can be broken."""

import json
import re

import pytest
from helpers import CHAPTER, ROOT, edit, lay_claims, print_instead

from normbook.press import record as recorder
from normbook.press.book import GLUE, Book
from normbook.press.files import PressError
from normbook.press.ledger import CLAIM_DATA
from normbook.press.rules import (
    failed_claims,
    figures_without_words,
    long_code_lines,
    more_than_claims,
    paths_in,
    problems_of_book,
    raw_markup,
    rivals_missing,
    too_many_illustrations,
    unmatched,
)

SIBLING = {"nbformat": 4, "nbformat_minor": 5, "metadata": {}}


def test_the_book_keeps_its_rules():
    assert problems_of_book(Book()) == []


def test_the_readmes_figure_is_the_covers():
    assert (ROOT / "book/_static/cover.png").read_bytes() == recorder.cover_picture(Book())


def write_sibling(page, *cells):
    page.sibling.write_text(json.dumps({**SIBLING, "cells": list(cells)}))


def markdown(text):
    name = f"m{len(text)}"
    return {"cell_type": "markdown", "id": name, "metadata": {}, "source": text}


RAW = (":::{note}\nx\n:::", "> **Tip**\n\n:::{note}\nraw\n:::", "see {ref}`there`")
RAW += ("```{exercise-start}\n```", "count {glue:text}`n`")
PLAIN = ("plain", "`{ref}` in code", "```python\n:::{x}\n{ref}`x`\n```")
PLAIN += ("a set {x} `code` and $\\{a\\}$",)


@pytest.mark.parametrize("text", RAW + PLAIN)
def test_raw_markup_is_found_and_plain_markdown_passes(small_book, text):
    page = small_book.pages["07-small"]
    write_sibling(page, markdown("fine"), markdown(text))
    said = [problem.partition(" raw markup")[0] for problem in raw_markup(page)]
    assert said == ["07-small.ipynb: cell 2 shows"] * (text in RAW)


PATHS = ("saved to /home/me/book.png", "/root/.venv/lib", "File /tmp/x.py", "C:\\\\Users")
PATHS += ("/usr/lib/python3",)
NO_PATHS = ("1/N and a/b", "https://arxiv.org/abs/1", "and/or", "code/normbook")


@pytest.mark.parametrize("text", PATHS + NO_PATHS)
def test_absolute_paths_are_found_and_other_slashes_pass(text):
    assert bool(paths_in("x.ipynb", json.dumps({"text": text}))) is (text in PATHS)


@pytest.mark.parametrize("missing", ["alt", "caption", "name"])
def test_a_figure_without_words_is_found(small_book, missing):
    shown = 'figures.frames(draw, [1, 2], "depth")' if missing == "name" else "show(figure)"
    path = small_book.folder / "07-small.md"
    old = re.search(rf"^    {missing}: (.+)$", path.read_text("utf-8"), re.M)[1]
    edit(path, f"    {missing}: {old}", f"    {missing}: ''")
    edit(path, 'print("mean 0.503")', shown)  # without any words
    found = figures_without_words(Book(small_book.root).pages["07-small"])
    without = [f"07-small: the figure of cell 2 has no {key}" for key in ("name", "caption", "alt")]
    assert found == [f"07-small: the figure of cell 1 has no {missing}", *without]


def test_a_line_that_would_be_cut_off_is_found(small_book):
    book = print_instead(small_book, f"print({'1' * 80})\n{'1' * 80}")
    (problem,) = long_code_lines(book.pages["07-small"])
    assert "has 87 characters, 80 fit" in problem


# --- claims ---


def entry(name="c", **changes):
    """A measured claim, with these keys changed, or taken off where they are None."""
    usual = {"status": "measured", "claim": "It holds.", "expected": 1, "tolerance": 0.1}
    changed = {"id": name, **usual, **changes}
    return {key: value for key, value in changed.items() if value is not None}


def measuring(book, *found):
    """The book, its chapter recorded as if a cell had found this (id, passed, rivals)."""
    outputs = [
        {"output_type": "display_data", "metadata": {}, "data": {CLAIM_DATA: said(*one)}}
        for one in found
    ]
    code = {"cell_type": "code", "id": "c", "metadata": {}, "source": "", "execution_count": 1}
    write_sibling(book.pages["07-small"], {**code, "outputs": outputs})
    return Book(book.root)


def said(name, passed=True, rivals=()):
    rivals = [{"name": rival, "shown": "2", "verdict": "not"} for rival in rivals]
    about = {"measured": "1.00", "expected": "expected 1 ± 0.1", "rivals": rivals}
    return {"id": name, "passed": passed, **about}


SOURCED = {"status": "corrected", "source": "xiong2020layer"}
ILLUSTRATION = {"status": "illustration", "because": "x"}


@pytest.mark.parametrize(
    ("changes", "needed"),
    [
        *(({}, True), ({"status": "corrected"}, True), (ILLUSTRATION, True), (SOURCED, False)),
        ({**SOURCED, "status": "cited"}, False),
    ],
)
def test_a_claim_without_a_cell_and_a_cell_without_a_claim_are_found(small_book, changes, needed):
    lay_claims(small_book, entry("other"), entry(**changes))
    missing = ["claims/07-small.yml:6: no cell measures c"] * needed
    assert unmatched(measuring(small_book, ["other"])) == missing
    stray = "07-small: claims 'unlisted', which is not listed"
    assert unmatched(measuring(small_book, ["other"], ["unlisted"])) == [*missing, stray]


@pytest.fixture
def two_chapters(small_book):
    """The small book with a second chapter, `08-next`."""
    (small_book.folder / "08-next.md").write_text(CHAPTER.replace("small", "next"))
    toc = "format: jb-book\nroot: 07-small\nchapters: [{file: 08-next}]\n"
    (small_book.root / "_toc.yml").write_text(toc)
    return Book(small_book.root)


def test_a_claim_in_another_chapters_file_is_found(two_chapters):
    lay_claims(two_chapters, entry("a"), entry("c"), page="08-next")
    wanted = "07-small measures c, so it belongs into claims/07-small.yml"
    assert f"claims/08-next.yml:6: {wanted}" in unmatched(measuring(two_chapters, ["c"]))


def test_an_id_that_stands_in_two_files_is_refused_with_both_places(two_chapters):
    lay_claims(two_chapters, entry("a"), entry("c"))
    lay_claims(two_chapters, entry("c"), page="08-next")
    wanted = r"claims/08-next\.yml:1: the id 'c' stands already at claims/07-small\.yml:6"
    with pytest.raises(PressError, match=wanted):
        _ = two_chapters.claims


def test_a_file_of_claims_that_belongs_to_no_page_is_refused(small_book):
    lay_claims(small_book, entry(), page="07-smal")
    with pytest.raises(PressError, match=r"claims/07-smal\.yml:1: the book has no page '07-smal'"):
        _ = small_book.claims


def test_a_failed_claim_is_found(small_book):
    lay_claims(small_book, entry())
    page = measuring(small_book, ["c", False]).pages["07-small"]
    assert failed_claims(page) == ["07-small.ipynb: ✗ c: 1.00; expected 1 ± 0.1"]


@pytest.mark.parametrize(
    ("changes", "rivals", "found"),
    [
        *(({}, [], True), ({}, ["none"], False), ({"status": "corrected"}, [], True)),
        *(({"status": "exact"}, [], False), (ILLUSTRATION, [], False), (SOURCED, [], True)),
    ],
)
def test_a_measured_claim_without_a_rival_is_found(small_book, changes, rivals, found):
    lay_claims(small_book, entry(**changes))
    problems = rivals_missing(measuring(small_book, ["c", True, rivals]))
    assert problems == ["claims/07-small.yml:1: c has no rival"] * found


def test_who_waits_for_a_rival_is_listed_and_nobody_else(small_book):
    lay_claims(small_book, entry("a"), entry("b"))
    book = measuring(small_book, ["a"], ["b", True, ["none"]])
    waiting = book.folder / "claims/without-rival.txt"
    waiting.write_text("# 07-small\na  # to be measured in the cell\n")
    assert rivals_missing(book) == []
    waiting.write_text("a\nb\nc\n")
    assert rivals_missing(book) == [
        "claims/without-rival.txt:2: b waits for no rival: take it off",
        "claims/without-rival.txt:3: no claim is 'c'",
    ]


@pytest.mark.parametrize(("count", "found"), [(1, False), (2, True)])
def test_more_than_one_illustration_in_ten_is_found(small_book, count, found):
    shown = [entry(f"i{n}", status="illustration", because="x") for n in range(count)]
    lay_claims(small_book, *shown, *(entry(f"m{n}") for n in range(10 - count)))
    wanted = "claims/07-small.yml: 2 of 10 claims are illustrations, one in ten at most"
    assert too_many_illustrations(small_book) == [wanted] * found


def test_a_folded_cell_that_shows_more_than_claims_is_found(small_book):
    data = ({CLAIM_DATA: said("c")}, {GLUE: "'1'"})
    outputs = [{"output_type": "display_data", "metadata": {}, "data": each} for each in data]
    printed = {"output_type": "stream", "name": "stdout", "text": "printed"}
    code = {"cell_type": "code", "id": "c", "source": "", "execution_count": 1}
    page, folded = small_book.pages["07-small"], {"tags": ["claims"]}
    for metadata, more, found in ((folded, [], 0), (folded, [printed], 1), ({}, [printed], 0)):
        write_sibling(page, {**code, "metadata": metadata, "outputs": outputs + more})
        assert len(more_than_claims(page)) == found


# What is wrong with an entry: its changed keys, the line (of the second entry), what is said.
MALFORMED = [
    ({"status": "proved"}, 7, "'status': 'proved' is not one of"),
    ({"colour": "red"}, 6, "'colour' was unexpected"),
    ({"claim": None}, 6, "'claim' is a required property"),
    ({"id": "Not so"}, 6, "'id': 'Not so' does not match"),
    ({"tolerance": None}, 6, "expects a number, so it needs a tolerance"),
    ({"tolerance": "0.1"}, 10, "'0.1' is not of type 'number'"),
    ({"tolerance": 0, "expected": 0.5}, 9, "a tolerance of 0 is for whole numbers"),
    ({"expected": None, "tolerance": None}, 6, "so it must say what is expected"),
    ({"below": 3}, 6, "must expect one thing"),
    ({"rival": {"none": "far"}}, 12, "'far' is not of type 'number'"),
    ({"rival": {"none": True}}, 12, "True is not of type 'number', 'string'"),
    ({"rival": 3}, 11, "3 is not of type 'object'"),
    ({"expected": "trains", "tolerance": None, "rival": {"none": 3}}, 11, "its rivals are classes"),
    ({"margin": 0}, 11, "0 is less than or equal to the minimum"),
    ({"status": "cited"}, 6, "is cited or contested, so it needs a source"),
    ({"status": "contested"}, 6, "is cited or contested, so it needs a source"),
    ({"status": "illustration"}, 6, "so it says because of what"),
    ({"because": "so"}, 6, "has a because, which is for illustrations"),
    ({"source": "nobody1999"}, 11, "c cites unknown 'nobody1999'"),
    ({"id": "first"}, 6, "'first' stands already at claims/07-small.yml:1"),
]


@pytest.mark.parametrize(("changes", "line", "message"), MALFORMED, ids=lambda v: str(v)[:40])
def test_malformed_claims_are_refused(small_book, changes, line, message):
    lay_claims(small_book, entry("first"), entry(**changes))
    with pytest.raises(PressError) as error:
        _ = small_book.claims
    assert str(error.value).startswith(f"claims/07-small.yml:{line}: "), error.value
    assert message in str(error.value)


def test_a_key_that_stands_twice_is_refused(small_book):
    path = lay_claims(small_book, entry())
    path.write_text(path.read_text() + "  status: exact\n")
    with pytest.raises(
        PressError, match=r"claims/07-small\.yml:6: .*the key 'status' stands twice"
    ):
        _ = small_book.claims


def test_an_exact_claim_has_its_usual_bound_and_may_have_another(small_book):
    lay_claims(
        small_book,
        entry("usual", status="exact", expected=None, tolerance=None),
        entry("other", status="exact", expected=None, tolerance=None, below=1e-9),
        entry("count", status="exact", expected=3, tolerance=0),
    )
    usual, other, count = small_book.claims
    assert (usual["below"], other["below"], "below" in count) == (1e-12, 1e-9, False)


# --- words ---


def test_no_link_shows_the_formula_of_a_heading():
    book = Book()  # Sphinx shows it raw; such a link needs words of its own
    for page in book.pages.values():
        for label in re.findall(r"\{ref\}`([\w-]+)`", page.text):
            assert "$" not in book.labels[label].text, f"{page.name}: {label}"
