"""Recording: the same bytes twice, words refreshed without running, and every edit noticed."""

import json

import pytest
from helpers import edit, lay_claims, lay_small_book

from normbook.press import record as recorder
from normbook.press.book import Book
from normbook.press.files import PressError
from normbook.press.publish import refresh_words
from normbook.press.rules import drift, problems_of_book
from normbook.press.siblings import dump, make_sibling, marks_of, sibling_state, stale_because

ENTRY = {"id": "c", "status": "measured", "claim": "x", "expected": 1, "tolerance": 0.1}


@pytest.fixture(scope="module")
def recorded_text(tmp_path_factory):
    """The sibling of the small chapter, executed once for this file."""
    book = lay_small_book(tmp_path_factory.mktemp("recorded"))
    assert recorder.record(book.root, "07-small") == ""
    return book.pages["07-small"].sibling.read_text(encoding="utf-8")


@pytest.fixture
def book(small_book, recorded_text):
    small_book.pages["07-small"].sibling.write_text(recorded_text, encoding="utf-8")
    return small_book


def reread(book):
    fresh = Book(book.root)
    return fresh, fresh.pages["07-small"]


def test_recording_twice_changes_not_one_byte(book, recorded_text):
    assert recorder.record(book.root, "07-small") == ""
    assert book.pages["07-small"].sibling.read_text(encoding="utf-8") == recorded_text


def test_the_recorded_notebook_is_plain_and_complete(book):
    notebook = book.pages["07-small"].recorded
    kinds = [cell.cell_type for cell in notebook.cells]
    assert kinds == ["markdown", "code", "code"]
    words = notebook.cells[0].source
    assert "The answer is 42.0, see [Fig. 7.1](#fig-small)." in words
    picture = notebook.cells[1].outputs[0]
    assert picture.data["text/plain"].startswith("panel 1")
    assert notebook.metadata.language_info == {"name": "python"}
    assert not [key for cell in notebook.cells for key in cell.metadata if key == "execution"]
    assert problems_of_book(book) == []


def test_fresh_after_recording_and_not_before(book):
    page = book.pages["07-small"]
    assert sibling_state(book, page)[0] == "fresh"
    assert stale_because(book, page) == ""
    page.sibling.unlink()
    with pytest.raises(PressError, match="07-small is stale, nothing is recorded: make record"):
        refresh_words(book)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("The answer is", "The whole answer is"),
        ("caption: Three points.", "caption: Three points on a line."),
        ("alt: A rising line.", "alt: A line that rises."),
    ],
)
def test_words_are_refreshed_without_running(book, old, new):
    edit(book.folder / "07-small.md", old, new)
    changed, page = reread(book)
    kind, sibling = sibling_state(changed, page)
    assert kind == "prose"
    assert new.split(": ")[-1] in json.dumps(sibling)
    assert [c.get("outputs") for c in sibling.cells] == [
        c.get("outputs") for c in page.recorded.cells
    ]
    assert "its words moved on" in drift(changed, page)[0]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('glue("answer", 42.0)', 'glue("answer", 43.0)'),
        ('print("mean 0.503")', 'print("mean 0.503")  # the same'),
        ("```{code-cell} python\nprint", "```{code-cell} python\n:tags: [hide-input]\n\nprint"),
        (
            'print("mean 0.503")\n```\n',
            'print("mean 0.503")\n```\n\n```{code-cell} python\n1\n```\n',
        ),
    ],
)
def test_changed_code_is_stale(book, old, new):
    edit(book.folder / "07-small.md", old, new)
    changed, page = reread(book)
    assert sibling_state(changed, page) == ("stale", None)
    assert "its code is not what was recorded" in drift(changed, page)[0]


def test_a_changed_claim_is_stale(book):
    lay_claims(book, ENTRY)
    changed, page = reread(book)
    assert sibling_state(changed, page) == ("stale", None)
    assert "claims/07-small.yml does not expect what it did" in drift(changed, page)[0]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"claim": "Said otherwise."}, ""),
        ({"source": "xiong2020layer"}, ""),
        ({"tolerance": 0.2}, "claims/07-small.yml does not expect what it did"),
        ({"rival": {"none": 2}}, "claims/07-small.yml does not expect what it did"),
        ({"over": "depths"}, "claims/07-small.yml does not expect what it did"),
    ],
)
def test_a_claim_asks_for_a_run_when_its_line_would_change(book, changes, reason):
    lay_claims(book, ENTRY)
    page = book.pages["07-small"]
    marks = marks_of(Book(book.root), page)
    outputs = [cell.outputs for cell in page.recorded_cells]
    page.sibling.write_text(dump(make_sibling(book, page, outputs, marks)), encoding="utf-8")
    lay_claims(book, {**ENTRY, **changes})
    assert stale_because(*reread(book)) == reason


def test_an_expected_error_keeps_type_and_message_only(book):
    edit(
        book.folder / "07-small.md",
        'print("mean 0.503")',
        "import torch\n\ntorch.nn.Linear(2, 2)(torch.ones(3))",
    )
    edit(
        book.folder / "07-small.md",
        "```{code-cell} python\nimport torch",
        "```{code-cell} python\n:tags: [raises-exception]\n\nimport torch",
    )
    assert recorder.record(book.root, "07-small") == ""
    changed, page = reread(book)
    output = page.recorded.cells[-1].outputs[0]
    assert output.ename == "RuntimeError"
    assert output.traceback == [f"RuntimeError: {output.evalue}"]
    assert problems_of_book(changed) == []


def test_links_lead_to_the_neighbours(book):
    (book.folder / "08-next.md").write_text("# 8 Next\n\n(sec-next)=\n## Part\n")
    (book.folder.parent / "_toc.yml").write_text(
        "format: jb-book\nroot: 07-small\nchapters: [{file: 08-next}]\n"
    )
    edit(book.folder / "07-small.md", "The answer is", "See {ref}`sec-next`. The answer is")
    changed, page = reread(book)
    assert "[Part](08-next.md#sec-next)" in sibling_state(changed, page)[1].cells[0].source


def test_a_raw_cell_is_refused(book):
    outputs = [cell.outputs for cell in book.pages["07-small"].recorded_cells]
    edit(book.folder / "07-small.md", "```{code-cell} python\nprint", "```{raw-cell}\nprint")
    changed, page = reread(book)
    with pytest.raises(PressError, match=r"07-small\.md:\d+: a raw cell is not known"):
        make_sibling(changed, page, outputs, {})
