"""Cells and lines are short enough to be read, and what is folded takes no reading time."""

import json
from pathlib import Path

import pytest
from helpers import CHAPTER, ROOT

from normbook.press.book import Book
from normbook.press.limits import (
    headline,
    headline_table,
    limits_of,
    long_cells,
    long_prose_lines,
    pieces,
    slow_chapters,
)
from normbook.press.pages import Page
from normbook.press.reading import reading_minutes

PAGES = Book().pages
WORDS = "word " * 2000  # ten minutes
LONG = ("some words " * 11).strip()  # 120 characters
LINK = "https://" + "x" * 110


def test_the_book_and_the_projects_own_pages_keep_their_limits():
    own = [Page(path, path.read_text(encoding="utf-8")) for path in ROOT.glob("*.md")]
    assert len(own) > 4
    assert [problem for page in own for problem in long_prose_lines(page)] == []
    assert [problem for page in PAGES.values() for problem in limits_of(page)] == []


def with_cell(code: str, options: str = "") -> Page:
    """The small chapter with one cell more."""
    cell = f"\n```{{code-cell}} python\n{options}{code}\n```\n"
    return Page(Path("07-small.md"), CHAPTER + cell)


def with_prose(text: str) -> Page:
    """The small chapter with a paragraph more, which begins at its line 38."""
    return Page(Path("07-small.md"), f"{CHAPTER}\n{text}\n")


# --- cells ---


def test_a_visible_cell_that_is_too_long_is_found():
    assert long_cells(with_cell("x = 1\n" * 24 + "x = 1")) == []
    line = CHAPTER.count("\n") + 3  # within the fence
    problem = f"07-small.md:{line}: a visible cell of 26 lines, 25 at most"
    assert long_cells(with_cell("x = 1\n" * 25 + "x = 1")) == [problem]
    ignored = with_cell("x = 1\n" * 25 + "x = 1", ":tags: [nbval-ignore-output]\n\n")
    assert long_cells(ignored) == [problem]
    assert limits_of(ignored) == [problem]


FOLDING = [":tags: [hide-input]\n\n", ":tags: [hide-cell]\n\n"]
FOLDING += [f"---\n{at}\n---\n" for at in ("tags: [remove-input]", "tags: [claims]")]
FOLDING += ["---\njupyter:\n  source_hidden: true\n---\n"]


@pytest.mark.parametrize("options", FOLDING)
def test_a_folded_cell_may_be_long(options):
    assert long_cells(with_cell("x = 1\n" * 40 + "x = 1", options)) == []


def test_options_are_no_lines_of_code():
    options = "---\n" + "".join(f"key{i}: 1\n" for i in range(20)) + "---\n"
    assert long_cells(with_cell("x = 1\n" * 24 + "x = 1", options)) == []


# --- lines ---


@pytest.mark.parametrize(
    ("text", "below"),
    [
        (LONG, 0),
        (f"short\n{LONG}", 1),
        (f"- {LONG}", 0),
        (f"1. short\n   {LONG}", 1),
        (f"> {LONG}", 0),
        (f":::{{admonition}} Title\n:class: tip\n{LONG}\n:::", 2),
        (f"::::{{note}}\n:::{{dropdown}} Title\n{LONG}\n:::\n::::", 2),
        (f"```{{about}}\n{LONG}\n```", 1),
        (f"````{{note}}\n```\n{LONG}\n```\n{LONG}\n````", 4),
        (f"```{{glossary}}\nword\n  {LONG}\n```", 2),
        (f"```{{exercise-start}}\n:label: ex\n```\n{LONG}\n```{{exercise-end}}\n```", 3),
        (f"$$\nx\n$$ (eq-x)\n{LONG}", 3),
        (f"[a link]({LINK}) and more", 0),
    ],
)
def test_a_long_line_of_prose_is_found(text, below):
    page = with_prose(text)
    number = CHAPTER.count("\n") + 2 + below
    length = len(page.text.splitlines()[number - 1])
    assert long_prose_lines(page) == [f"07-small.md:{number}: {length} characters, 110 at most"]


@pytest.mark.parametrize(
    "options",
    [
        f"---\nmystnb:\n  figure:\n    caption: {LONG}\n---\n",
        f'---\nmystnb:\n  image:\n    alt: "short\n      {LONG}"\n---\n',
        f"---\nmystnb:\n  image:\n    alt: >-\n      {LONG}\n---\n",
    ],
)
def test_a_long_line_of_a_caption_or_an_alt_text_is_found(options):
    page = with_cell("x = 1", options)
    number = page.text.splitlines().index(next(s for s in page.text.splitlines() if LONG in s)) + 1
    assert [problem.split(":")[1] for problem in long_prose_lines(page)] == [str(number)]


UNBROKEN = ["a" * 110, f"| {LONG} | {LONG} |", f"## {LONG}", f"% {LONG}", f"<p>{LONG}</p>"]
UNBROKEN += [f"$$\n{LONG}\n$$ (eq-x)", f"$$ {LONG} $$", f"${LONG}$,", f"`{LONG}`"]
UNBROKEN += [f"```python\n{LONG}\n```", f"~~~\n{LONG}\n~~~", f"```{{eval-rst}}\n{LONG}\n```"]
UNBROKEN += [f":::{{admonition}} {LONG}\nshort\n:::", f"{{ref}}`{LONG} <sec-x>`"]
UNBROKEN += [f"```{{exercise-start}} {LONG}\n:label: ex\n```", f"[there]: {LINK} 'a title'"]
UNBROKEN += [f"[{LONG}]({LINK})", f"- {LINK}", f"- [there]({LINK})."]


@pytest.mark.parametrize("text", UNBROKEN)
def test_what_cannot_be_wrapped_passes(text):
    assert long_prose_lines(with_prose(text)) == []


def test_code_and_the_head_are_no_prose():
    assert long_prose_lines(with_cell(f"# {LONG}", "---\ntags: [hide-input]\n---\n")) == []
    assert long_prose_lines(Page(Path("x.md"), f"---\nkey: {LONG}\n---\n# Title\n")) == []


def test_a_line_is_broken_only_where_nothing_is_cut_and_nothing_begins():
    line = "see {ref}`the words <sec-x>`, `a + b`, $a + b$ and [a link](to there)."
    assert pieces(line) == [
        *("see", "{ref}`the words <sec-x>`,", "`a + b`,", "$a + b$", "and"),
        "[a link](to there).",
    ]
    assert pieces("it grew by 5 % in 2019. Then - or so - a = b") == [
        *("it", "grew", "by", "5 %", "in 2019.", "Then -", "or", "so -", "a =", "b"),
    ]
    assert pieces("- item") == pieces("> item") == pieces("2. item") == ["item"]


# --- reading time ---


SOLUTION = """
```{solution-start} ex-x
:class: dropdown
```
%s

```{code-cell} python
%s
```

```{solution-end}
```
"""
CODE = "x = 1\n" * 300
FOLDED = [f":::{{dropdown}} Deeper\n{WORDS}\n:::", f"```{{dropdown}} Deeper\n{WORDS}\n```"]
FOLDED += [f":::{{admonition}} You may have read\n:class: warning dropdown\n{WORDS}\n:::"]
FOLDED += [f":::{{note}}\n:class: dropdown\n\n{WORDS}\n:::"]
FOLDED += [f"::::{{note}}\nshort\n\n:::{{dropdown}} Deeper\n{WORDS}\n:::\n::::"]
FOLDED += [":::{dropdown} Deeper\n" + "$$\na\n$$\n" * 30 + ":::"]
FOLDED += [SOLUTION % (WORDS, "x = 1"), SOLUTION % ("short", CODE)]
FOLDED += [f"```{{code-cell}} python\n{options}{CODE}```" for options in FOLDING]
OPEN = [f":::{{admonition}} In one minute\n:class: tip\n{WORDS}\n:::"]
OPEN += [f":::{{note}}\nA dropdown is not this: {WORDS}\n:::"]
OPEN += [f"```{{exercise-start}}\n:label: ex-x\n```\n{WORDS}\n```{{exercise-end}}\n```"]
OPEN += [f"{SOLUTION % ('short', 'x = 1')}\n{WORDS}\n{SOLUTION % ('short', 'x = 1')}"]
OPEN += [f"```{{code-cell}} python\n# hide-input, claims, source_hidden: true\n{CODE}```"]


@pytest.mark.parametrize("text", FOLDED + OPEN)
def test_what_is_folded_takes_no_time_and_what_is_open_does(text):
    wanted = 10 if text in FOLDED else 20
    assert reading_minutes(f"{WORDS}\n\n{text}\n\nand more\n") == wanted


def test_a_figure_in_a_folded_cell_takes_no_time_and_one_over_folded_code_does():
    cell = "```{code-cell} python\n---\nmystnb:\n  figure:\n    name: f\ntags: [%s]\n---\nx\n```\n"
    assert reading_minutes(WORDS + "\n" + cell % "hide-cell" * 10) == 10
    assert reading_minutes(WORDS + "\n" + cell % "hide-input" * 10) == 15


# --- the first figure ---


def test_words_and_open_lines_before_the_first_figure_are_counted():
    # A small chapter; The answer is glue:text answer, see numref fig-small.
    words, lines = headline(Page(Path("07-small.md"), CHAPTER))
    assert (words, lines) == (13, 5)  # the label has two words, and the figure's own code is open
    early = "\n```{code-cell} python\nx = 1\n\ny = 2\n```\n\n"
    folded = early.replace("python\n", "python\n:tags: [hide-input]\n\n")
    box = ":::{dropdown} Deeper\nmany words\n:::\n\n"
    more = f"Two words, `some code` and $a + b$.\n{early}{folded}{box}"
    text = CHAPTER.replace("The answer is", f"{more}The answer is")
    found = headline(Page(Path("07-small.md"), text))
    assert found == (words + 5, lines + 2)  # dropdown, Deeper


def test_a_page_without_a_figure_has_no_headline():
    assert headline(Page(Path("x.md"), "# Title\n\nwords\n")) is None
    text = headline_table({"x": PAGES["00-cheat-sheet"], "y": PAGES["05-pre-vs-post-norm"]})
    rows = [line.split() for line in text.splitlines()]
    assert rows[1] == ["00-cheat-sheet", "–", "–", "0"]
    assert rows[2][0] == "05-pre-vs-post-norm"
    assert int(rows[2][1]) > 50


# --- seconds ---


def test_a_chapter_that_runs_too_long_is_found(small_book):
    rows = {"07-small": {"processor": 30.0}, "08-long": {"processor": 52.1}}
    small_book.timings.write_text(json.dumps({"floor": {"processor": 2.0}, "chapters": rows}))
    problem = "08-long: 26 times the floor, 25 at most"
    assert slow_chapters(Book(small_book.root)) == [problem]
