"""What nbval must catch: one digit of an output, one point of a figure, one edit of a cell.

Each case records a small chapter, spoils one thing, and runs the command that `make test` runs.
"""

import os
import subprocess
import sys

import pytest
from conftest import lay_small_book

from normbook.press import record as recorder
from normbook.press.book import Book
from normbook.press.files import PressError
from normbook.press.publish import refresh

# What is spoilt: a string of the recorded notebook, and what stands there afterwards.
SPOILT = {
    "a digit of an output": ("mean 0.503\\n", "mean 0.504\\n"),
    "a point of a figure": ("(1.00, 2.00)", "(1.00, 2.01)"),
    "a figure's checksum": ("#", "#0"),
    "a glued value": ('text/plain": "\'42.0\'"', 'text/plain": "\'42.1\'"'),
    "a figure's data": ("[1.0, 2.0, 4.0]", "[1.0, 2.0, 4.1]"),
}


@pytest.fixture(scope="module")
def spoilt(tmp_path_factory):
    """A folder with the recorded chapter as it is, and one spoilt copy a case."""
    book = lay_small_book(tmp_path_factory.mktemp("spoilt"))
    assert recorder.record(book.root, "07-small") == ""
    text = book.pages["07-small"].sibling.read_text(encoding="utf-8")
    folder = book.root / "copies"
    folder.mkdir()
    (folder / "as-it-is.ipynb").write_text(text, encoding="utf-8")
    for name, (old, new) in SPOILT.items():
        start = text.rindex("#") if old == "#" else text.index(old)
        changed = text[:start] + new + text[start + len(old) :]
        (folder / f"{name.replace(' ', '-')}.ipynb").write_text(changed, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def verdicts(spoilt):
    """Which of the notebooks nbval fails."""
    environment = {**os.environ, "NORMBOOK_STRICT": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rf", "--nbval"]
    answer = subprocess.run(
        [*command, "--nbval-current-env", "-c", os.devnull, "--rootdir", spoilt, spoilt],
        cwd=spoilt,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert answer.returncode == 1, answer.stdout + answer.stderr
    failed = [line for line in answer.stdout.splitlines() if line.startswith("FAILED")]
    return {path.stem: any(path.stem in line for line in failed) for path in spoilt.iterdir()}


def test_a_notebook_as_recorded_passes(verdicts):
    assert verdicts["as-it-is"] is False


@pytest.mark.parametrize("name", SPOILT)
def test_a_spoilt_notebook_fails(name, verdicts):
    assert verdicts[name.replace(" ", "-")] is True


def test_make_book_stops_at_a_stale_chapter(small_book):
    with pytest.raises(PressError, match="07-small is stale, nothing is recorded: make record"):
        refresh(Book(small_book.root))
