"""`make chapter`: a file each for text and claims, a line in the contents; all of it or nothing.

That the chapter is recorded, keeps the rules and is built: test_serve.py.
"""

import re

import pytest
from helpers import ROOT, lay_claims

from normbook.press import template
from normbook.press.book import Book
from normbook.press.files import PressError


def files(book: Book) -> dict:
    """All files of a book, and what they hold."""
    return {path: path.read_bytes() for path in book.root.rglob("*") if path.is_file()}


def test_a_new_chapter_is_in_the_book(small_book, monkeypatch, capsys):
    monkeypatch.setattr(template, "Book", lambda root=small_book.root: Book(root))
    for name in ("08-my-topic", "b-more"):
        monkeypatch.setattr("sys.argv", ["template", name])
        assert template.main() == 0
    book = Book(small_book.root)
    assert [page.title for page in book.chapters] == ["7 A small chapter", "8 My topic", "B More"]
    assert [entry["id"] for entry in book.claims] == ["my-topic-sum", "more-sum"]
    for name in re.findall(r"^  (\S+\.md|\S+\.yml)", capsys.readouterr().out, re.M):
        assert (ROOT / name).exists(), "what is left to do names a file that is not there"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        *(
            (name, "NAME must be a number")
            for name in ("", "8-x", "08-X", "08_x", "../08-x", "08-")
        ),
        ("07-small", "07-small.md is there"),
        ("07-other", "07-small.md is there"),
        ("08-small", "the label 'ch-small' is used twice"),
        ("08-claimed", "the id 'claimed-sum' stands already"),
    ],
)
def test_a_name_that_cannot_be_is_refused_and_nothing_is_written(small_book, name, said):
    lay_claims(small_book, {"id": "claimed-sum", "status": "exact", "claim": "x"})
    before = files(small_book)
    with pytest.raises(PressError, match=said):
        template.new_chapter(Book(small_book.root), name)
    assert files(small_book) == before


def test_a_new_line_of_the_contents_stands_after_the_number_before():
    contents = (ROOT / "_toc.yml").read_text("utf-8")
    assert template.with_line(contents, "10-x").index("10-x") > contents.index("10-norm-free")
    assert "07-residuals\n      - file: 07-x\n" in template.with_line(contents, "07-x")
