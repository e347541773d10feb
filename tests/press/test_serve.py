"""A whole small book, built and served as `make book` and `make serve` do it.

It lies in a path with spaces, nobody's git repository, and is built from another folder.
"""

import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from helpers import CHAPTER, ROOT, edit

from normbook.press import publish, serve
from normbook.press.book import Book
from normbook.press.files import PressError
from normbook.press.rules import problems_of_book

NEW = "01-my-topic"
WORDS = "# Words\n\nThere are few of them.\n"
PATIENCE = 90  # seconds; a build of this book takes five on a quiet machine


@pytest.fixture(scope="module")
def book_root(tmp_path_factory):
    """The folder of a book: a recorded cover, a page of words, a new chapter; not built yet."""
    root = tmp_path_factory.mktemp("house") / "a path with spaces"
    shutil.copytree(ROOT / "code", root / "code", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("_static", "_templates"):
        shutil.copytree(ROOT / "book" / name, root / "book" / name)
    settings = ("_config.yml", "pyproject.toml", "requirements.txt", "LICENSE-text.md")
    (root / "book/claims").mkdir()
    for name in (*settings, "book/references.bib", "book/claims/schema.json"):
        shutil.copy(ROOT / name, root / name)
    (root / "_toc.yml").write_text("format: jb-book\nroot: index\nchapters:\n- file: words\n")
    (root / "book/index.md").write_text(CHAPTER.replace("fig-small", "fig-cover"), "utf-8")
    (root / "book/words.md").write_text(WORDS, "utf-8")
    for command in (["template", NEW], ["record"]):
        answer = press(root, *command)
        assert answer.returncode == 0, answer.stdout + answer.stderr
    return root


def environment_of(root) -> dict[str, str]:
    """What a press of this book finds: its code, and no git."""
    return {**os.environ, "PYTHONPATH": str(root / "code"), "PATH": "/nonexistent"}


def press(root, module: str, *words: str) -> subprocess.CompletedProcess:
    """Run a part of the press in another folder than the book's."""
    return subprocess.run(
        [sys.executable, "-m", f"normbook.press.{module}", *words],
        cwd=root.parent,
        env=environment_of(root),
        capture_output=True,
        text=True,
    )


def test_a_book_is_built_in_a_path_with_spaces_without_git_from_elsewhere(book_root):
    answer = press(book_root, "publish")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    page = (book_root / "_build/html/words.html").read_text("utf-8")
    assert "There are few of them" in page
    assert "all.min.css" in page
    assert "all.min.js" not in page
    assert "thebe" not in page
    assert (book_root / "_build/html/notebooks/index.ipynb").exists()
    assert answer.stderr == ""
    said = answer.stdout.splitlines()
    assert len(said) < 10, said  # a line a page
    assert "words" in answer.stdout
    assert re.fullmatch(r"built in \d+\.\d s", said[-2])
    assert said[-1] == f"The book is at {(book_root / '_build/html/index.html').as_uri()}"


def test_a_new_chapter_keeps_the_rules_and_is_built(book_root):
    assert problems_of_book(Book(book_root)) == []
    assert press(book_root, "publish").returncode == 0
    page = (book_root / f"_build/html/{NEW}.html").read_text("utf-8")
    for part in ("1 My topic", "Fig. 1.1", "✓ 1 claim checked", "not the same value each time"):
        assert part in page


def test_recording_again_and_a_cover_that_is_there_change_nothing(book_root):
    kept = [book_root / "book/index.ipynb", book_root / "book/_static/cover.png"]
    before = [path.read_bytes() for path in kept]
    assert press(book_root, "record").returncode == 0
    assert [path.read_bytes() for path in kept] == before


def test_what_a_build_refused_the_next_one_refuses_too(book_root):
    edit(book_root / "book/words.md", "few of them", "few {term}`no such word`")
    try:
        for _ in range(2):
            answer = press(book_root, "publish")
            assert answer.returncode == 1, answer.stdout + answer.stderr
            assert re.search(r"words\.md:3: WARNING: .*no such word", answer.stderr)
            assert "the build failed" in answer.stderr
    finally:
        (book_root / "book/words.md").write_text(WORDS, "utf-8")
    assert press(book_root, "publish").returncode == 0


def test_a_changed_caption_and_a_changed_style_are_on_the_site_and_nothing_is_executed(book_root):
    assert press(book_root, "publish").returncode == 0
    edit(book_root / "book/index.md", "caption: Three points.", "caption: Three points rise.")
    answer = press(book_root, "publish")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "Three points rise." in (book_root / "_build/html/index.html").read_text("utf-8")
    style = book_root / "book/_static/book.css"
    style.write_text(style.read_text("utf-8") + "/* new */\n", "utf-8")
    answer = press(book_root, "publish")
    assert "0 added, 0 changed" in answer.stdout, answer.stdout + answer.stderr
    assert (book_root / "_build/html/_static/book.css").read_text("utf-8").endswith("/* new */\n")


def test_an_interrupted_build_is_made_up_for(book_root):
    shutil.rmtree(book_root / "_build")
    command = [sys.executable, "-u", "-m", "normbook.press.publish"]
    with subprocess.Popen(
        command, cwd=book_root, env=environment_of(book_root), stdout=subprocess.PIPE, text=True
    ) as process:
        for line in process.stdout:
            if "reading sources" in line:
                process.kill()
                break
    assert process.wait() != 0
    answer = press(book_root, "publish")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "There are few of them" in (book_root / "_build/html/words.html").read_text("utf-8")


# --- serving ---


@pytest.fixture
def served(book_root):
    """The lines that `make serve` prints as they come, and the address it serves at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-u", "-m", "normbook.press.serve", "--port", str(port)]
    with subprocess.Popen(
        command,
        cwd=book_root.parent,
        env=environment_of(book_root),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        said = []
        threading.Thread(target=lambda: said.extend(process.stdout), daemon=True).start()
        yield said, f"http://127.0.0.1:{port}/words.html"
        process.terminate()


def wait_for(said: list[str], words: str, times: int) -> None:
    """Wait until the server has said something that often."""
    end = time.monotonic() + PATIENCE
    while sum(words in line for line in list(said)) < times:
        assert time.monotonic() < end, "".join(said)
        time.sleep(0.05)


def test_a_saved_word_is_on_the_served_page(book_root, served):
    said, address = served
    words = book_root / "book/words.md"
    wait_for(said, "The book is at", 1)
    with urllib.request.urlopen(address) as page:
        assert b"There are few of them" in page.read()
    try:
        edit(words, "few of them", "few {term}`no such word`")
        wait_for(said, "the build failed", 1)
        edit(words, "few {term}`no such word`", "many of them")
        wait_for(said, "up to date in", 2)
        with urllib.request.urlopen(address) as page:
            assert b"There are many of them" in page.read()
        edit(book_root / "book/index.md", "The answer is", "So the answer is")
        wait_for(said, "refreshed the words of index", 1)
        wait_for(said, "up to date in", 3)
        edit(book_root / "code/normbook/press/serve.py", "Build the book", "Make the book")
        wait_for(said, "starting anew", 1)
        wait_for(said, "The book is at", 5)
    finally:
        words.write_text(WORDS, "utf-8")
    assert sum("up to date in" in line for line in said) == 4  # none without a change


@pytest.fixture
def watched(tmp_path):
    """A folder with what `make serve` watches, and the saves that it sees from now on."""
    for name in ("book/claims/05.yml", "book/05.md", "book/05.ipynb", "code/normbook/a.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("a")
    for name in serve.SETTINGS:
        (tmp_path / name).write_text("a")
    saved = serve.watched_saves(tmp_path)
    assert next(saved) == set()
    yield tmp_path, saved
    saved.close()


def next_saves(watched, ours=None) -> set[str]:
    """The names of the files that were saved."""
    root, saved = watched
    end = time.monotonic() + 10

    def awaited():
        for paths in saved:
            yield paths
            assert time.monotonic() < end, "no save is seen"

    return {str(path.relative_to(root)) for path in serve.wait_for_change(awaited(), ours or {})}


def test_a_change_is_a_file_that_is_new_gone_or_written_even_before_one_asks(watched):
    root, _ = watched
    (root / "book/05.md").unlink()
    (root / "book/claims/05.yml").write_text("b")
    (root / "code/normbook/new.py").write_text("a")
    time.sleep(0.5)  # a build is going on
    wanted = {"book/05.md", "book/claims/05.yml", "code/normbook/new.py"}
    assert next_saves(watched) == wanted


@pytest.mark.parametrize("name", ["book/05.md", "_toc.yml", "_config.yml", "code/normbook/a.py"])
def test_an_editor_may_move_the_new_text_into_the_old_ones_place(watched, name):
    root, _ = watched
    half = (root / name).with_name(".half")
    half.write_text("b")
    half.replace(root / name)
    begin = time.monotonic()
    assert next_saves(watched) == {name}
    assert time.monotonic() - begin < 1


def test_what_the_press_writes_is_no_change(watched):
    root, _ = watched
    (root / "book/.05.ipynb.123").write_text("half")
    (root / "code/normbook/claims.json").write_text("{}")
    (root / "code/normbook/a.pyc").write_text("a")
    sibling = root / "book/05.ipynb"
    sibling.write_text("words")
    ours = {sibling: serve.modified_at(sibling)}
    threading.Timer(0.6, (root / "book/05.md").write_text, ["c"]).start()
    assert next_saves(watched, ours) == {"book/05.md"}
    sibling.write_text("recorded anew")
    os.utime(sibling, ns=(1, 1))
    assert next_saves(watched, ours) == {"book/05.ipynb"}


def test_a_changed_program_or_setting_starts_the_server_anew():
    words = {Path("/b/book/05.md"), Path("/b/book/claims/05.yml"), Path("/b/book/05.ipynb")}
    assert not serve.needs_restart(words)
    for name in ("_toc.yml", "_config.yml", "pyproject.toml", "code/a.py"):
        assert serve.needs_restart({*words, Path("/b") / name}), name


def test_files_are_served_to_this_machine_alone(tmp_path):
    (tmp_path / "a.html").write_text("here")
    server = serve.start_server(tmp_path, 0)
    address = f"http://127.0.0.1:{server.server_port}"
    with urllib.request.urlopen(f"{address}/a.html") as page:
        assert page.read() == b"here"
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(f"{address}/b.html")
    assert server.server_address[0] == "127.0.0.1"
    server.shutdown()
    server.server_close()


# --- what stops a build ---


class FakeSphinx:
    """Sphinx, as far as a build asks it: says `words`, and ends with `statuscode`."""

    words, code = "", 0

    def __init__(self, heard, doctreedir):
        self.heard, self.doctreedir = heard, doctreedir
        self.cache = doctreedir / "cache"

    def build(self):
        self.heard.write(self.words)
        self.normbook_made.add("05")
        self.statuscode = self.code


@pytest.fixture
def fake_sphinx(tmp_path):
    """Such a Sphinx, with the page 05 read and a notebook in the cache."""
    (tmp_path / "cache").mkdir()
    (tmp_path / "05.doctree").touch()
    return FakeSphinx(publish.Tee(), tmp_path)


def test_of_what_sphinx_says_all_is_kept_and_the_progress_is_shown(capsys):
    heard = publish.Tee()
    on_a_terminal = ("\x1b[2K", "reading sources... [ 40%] ", "05", "\r", "\x1b[2K")
    said = [*on_a_terminal, "pickling environment... ", "done\n", "writing output... [  4%] 05\n"]
    said += ["06: Executing notebook using local CWD\n", "writing output... [100%] 06\n"]
    for words in said:
        heard.write(words)
    assert heard.getvalue() == "".join(said)
    assert capsys.readouterr().out.splitlines() == [
        "reading sources... [ 40%] 05",
        "06: Executing notebook using local CWD",
        "writing output... [100%] 06",
    ]


def test_a_build_that_executes_fails_and_leaves_nothing_of_it(fake_sphinx):
    fake_sphinx.words = "05: Executing notebook using local CWD [mystnb]"
    with pytest.raises(PressError, match="the build executed a chapter"):
        publish.run_sphinx(fake_sphinx, fake_sphinx.heard, fake_sphinx.cache)
    assert not list(fake_sphinx.doctreedir.iterdir())
    fake_sphinx.words = ""
    publish.run_sphinx(
        fake_sphinx, fake_sphinx.heard, fake_sphinx.cache
    )  # the next one, which does not, does not fail


def test_a_build_that_fails_is_reported(fake_sphinx):
    fake_sphinx.code = 1
    with pytest.raises(PressError, match="the build failed"):
        publish.run_sphinx(fake_sphinx, fake_sphinx.heard, fake_sphinx.cache)
    assert [path.name for path in fake_sphinx.doctreedir.iterdir()] == ["cache"]
