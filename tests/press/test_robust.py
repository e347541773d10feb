"""What goes wrong is said with file and line, and leaves nothing half done."""

import os
import threading
import time

import pytest
from helpers import edit

from normbook.press import publish
from normbook.press import record as recorder
from normbook.press.book import Book
from normbook.press.files import PressError, write_whole
from normbook.press.siblings import check_words
from normbook.press.sphinx import buttons

# What a hostile chapter has: old text, new text, the line of the error, what it says.
WORDS = "The answer"
HOSTILE = {
    "an unknown directive": (WORDS, f":::{{nonsense}}\nx\n:::\n\n{WORDS}", 15, "nonsense"),
    "an unknown role": (WORDS, f"{{nonsense}}`x` {WORDS}", 15, "nonsense"),
    "a fence never closed": (WORDS, f":::{{note}}\n\n{WORDS}", 15, "never closed"),
    "a cell never closed": ('0.503")\n```', '0.503")\n', 34, "never closed"),
    "broken YAML at the top": ("kernelspec:", "kernelspec: [", 8, "YAML"),
    "broken YAML of a cell": ("    name: fig-small", "    name: [fig-small", 17, "YAML"),
    "a missing citation key": (WORDS, f"{{cite}}`nobody1999no` {WORDS}", 15, "nobody1999no"),
    "a missing label": (WORDS, f"{{ref}}`nowhere` {WORDS}", 15, "nowhere"),
    "a label twice": (WORDS, f"(ch-small)=\n## Again\n\n{WORDS}", 15, "used twice"),
    "a cell not closed before the next": ("42.0)\n```", "42.0)\n", 17, "never closed"),
    "a head never closed": ("name: python3\n---", "name: python3", 12, "head"),
    "a cell of another kind": (WORDS, f"+++\n\n```{{raw-cell}}\nx\n```\n\n{WORDS}", 17, "raw"),
}


def check_first_chapter(book: Book) -> None:
    """Read it as the press does before it runs anything."""
    check_words(book, book.chapters[0])


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_chapter_is_refused_with_file_and_line(name, small_book):
    old, new, line, said = HOSTILE[name]
    edit(small_book.folder / "07-small.md", old, new)
    with pytest.raises(PressError) as error:
        check_first_chapter(Book(small_book.root))
    assert str(error.value).startswith(f"07-small.md:{line}: "), error.value
    assert said in str(error.value)


# The book's other files: which, what is written into it, how the error begins.
BROKEN = {
    "_toc.yml": ("root: }", "_toc.yml:1: cannot be read as YAML"),
    "book/claims/07-small.yml": (
        "- id: a\n- id: 'b",
        "claims/07-small.yml:2: cannot be read as YAML",
    ),
    "book/questions.yml": ("- number: 1\n  level: }", "questions.yml:2: cannot be read as YAML"),
    "book/references.bib": ("@article{a, title = {x}", "references.bib: syntax error in line 1"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_beside_the_chapters_is_refused(name, small_book):
    text, said = BROKEN[name]
    path = small_book.root / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    with pytest.raises(PressError) as error:
        publish.refresh_words(Book(small_book.root))
    assert str(error.value).startswith(said), error.value


# --- what fails while a chapter runs ---

PRINT = 'print("mean 0.503")'
FAILING = {
    "a kernel that dies": (PRINT, "import os\nos._exit(1)", "the kernel died"),
    "a cell without end": (PRINT, "while True:\n    pass", "longer than 4 s"),
    "a missing kernel": ("  name: python3", "  name: no-such", "no kernel named no-such"),
    "a cell that raises": (PRINT, "raise ValueError('no')", "ValueError"),
    "a cell that warns": (PRINT, "import warnings\n\nwarnings.warn('oh')", "writes to stderr"),
}


@pytest.mark.parametrize("name", FAILING)
def test_what_fails_is_reported_with_the_chapter_and_not_recorded(name, small_book, monkeypatch):
    old, new, said = FAILING[name]
    if "longer" in said:
        monkeypatch.setattr(recorder, "TIMEOUT", 4)
    edit(small_book.folder / "07-small.md", old, new)
    found = recorder.record(small_book.root, "07-small")
    assert found.startswith("07-small was not recorded:")
    assert said in found
    assert not small_book.pages["07-small"].sibling.exists()


def test_an_unforeseen_error_is_reported_with_the_chapter(small_book, monkeypatch):
    def fail(*unused):
        raise RuntimeError("out of luck")

    monkeypatch.setattr(recorder, "execute", fail)
    said = recorder.record(small_book.root, "07-small")
    assert said == "07-small was not recorded:\nRuntimeError: out of luck"


# --- nothing half done ---


def test_an_interrupted_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.ipynb"
    path.write_text("old")

    def stop(*unused):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", stop)
    with pytest.raises(KeyboardInterrupt):
        write_whole(path, "new" * 10)
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["a.ipynb"]


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(PressError, match=r"cannot write .*nowhere"):
        write_whole(tmp_path / "nowhere/a.ipynb", "text")


def test_read_only_notebooks_do_when_nothing_is_to_be_written(small_book, monkeypatch):
    assert recorder.record(small_book.root, "07-small") == ""

    def refuse(path, text):
        assert path.parent.name == "_build", f"writes {path}"

    monkeypatch.setattr("normbook.press.publish.write_whole", refuse)
    publish.refresh_words(Book(small_book.root))
    edit(small_book.folder / "07-small.md", "The answer is", "So the answer is")
    with pytest.raises(AssertionError, match=r"07-small\.ipynb"):
        publish.refresh_words(Book(small_book.root))


def test_no_git_means_no_address(monkeypatch):
    monkeypatch.delenv("GITHUB_REPOSITORY", raising=False)
    monkeypatch.setenv("PATH", "/nonexistent")
    assert buttons.repository() is None


def test_a_second_build_waits_for_the_first(tmp_path, capsys):
    book = Book(tmp_path)
    done = []

    def second():
        with publish.build_lock(book):
            done.append("second")

    with publish.build_lock(book):
        thread = threading.Thread(target=second)
        thread.start()
        while "waiting" not in capsys.readouterr().out:
            time.sleep(0.01)
        done.append("first")
    thread.join(timeout=10)
    assert done == ["first", "second"]
