"""What must turn red: a digit of an output, a point of a figure, an old picture, a passing rival.

Each case records a small chapter, spoils one thing, and runs what `make test` runs.
"""

import os
import subprocess
import sys

import pytest
from conftest import ROOT, edit, lay_claims, lay_small_book, print_instead

from normbook.press import record as recorder
from normbook.press.book import Book
from normbook.press.files import PressError
from normbook.press.ledger import write_json
from normbook.press.publish import refresh
from normbook.press.reach import reached
from normbook.press.rules import problems_of_book

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


# --- claims and pictures ---

CLAIM = {"id": "c", "status": "measured", "claim": "It holds.", "expected": 1, "tolerance": 0.1}


def recorded_with(book: Book, code: str, *entries: dict, page: str = "07-small") -> tuple:
    """Let the small chapter claim something; return what recording it says, and its problems."""
    lay_claims(book, *entries, page=page)
    book = print_instead(book, f"from normbook.lab import claim\n\n{code}")
    write_json(book.claims, book.claims_json)
    said = recorder.record(book.root, "07-small")
    return said, problems_of_book(Book(book.root)) if not said else []


@pytest.mark.parametrize(
    ("code", "changes", "said"),
    [
        ('claim("c", 1.2)', {"rival": {"none": 0}}, "✗ c: 1.20; expected 1 ± 0.1"),
        (
            'claim("c", 1.0, rivals={"it": [1.0, 1.0, 1.0, 1.0, 5.0]})',
            {"each": True},
            "but so passes it (4 of 5)",
        ),
    ],
)
def test_a_claim_that_fails_or_whose_rival_passes_stops_the_recording(
    code, changes, said, small_book
):
    assert said in recorded_with(small_book, code, {**CLAIM, **changes})[0]


def test_a_claim_that_holds_and_refuses_its_rival_passes_and_may_be_made_in_a_loop(small_book):
    loop = 'for name in "ab":\n    claim(f"c-{name}", 1.0)'
    entries = [{**CLAIM, "id": f"c-{name}", "rival": {"none": 0}} for name in "ab"]
    (small_book.folder / "ledger.md").write_text("# The ledger\n")
    toc = "format: jb-book\nroot: 07-small\nchapters: [{file: ledger}]\n"
    (small_book.root / "_toc.yml").write_text(toc)
    assert recorded_with(Book(small_book.root), loop, *entries) == ("", [])


def test_a_measured_claim_without_a_rival_is_a_problem(small_book):
    said, problems = recorded_with(small_book, 'claim("c", 1.0)', CLAIM)
    assert (said, problems) == ("", ["claims/07-small.yml:1: c has no rival"])


def test_a_claim_of_another_chapters_file_is_a_problem(small_book):
    (small_book.folder / "08-next.md").write_text(
        (small_book.folder / "07-small.md").read_text("utf-8").replace("small", "next")
    )
    toc = "format: jb-book\nroot: 07-small\nchapters: [{file: 08-next}]\n"
    (small_book.root / "_toc.yml").write_text(toc)
    book, entry = Book(small_book.root), {**CLAIM, "rival": {"none": 0}}
    _, problems = recorded_with(book, 'claim("c", 1.0)', entry, page="08-next")
    wanted = "07-small measures c, so it belongs into claims/07-small.yml"
    assert f"claims/08-next.yml:1: {wanted}" in problems


def test_an_old_picture_is_a_problem(small_book):
    assert recorder.record(small_book.root, "07-small") == ""
    assert problems_of_book(Book(small_book.root)) == []
    page = small_book.pages["07-small"]
    now = reached(page)["normbook.lab.figures"]  # the picture was drawn with another line width
    edit(page.sibling, f'"normbook.lab.figures": "{now}"', '"normbook.lab.figures": "older"')
    (problem,) = problems_of_book(Book(small_book.root))
    assert "07-small is stale, normbook.lab.figures changed since it was recorded" in problem


# --- one pass tells drift from rounding ---

BOTH = """\
import torch

from normbook.lab import begin

begin()
x = torch.randn(1, generator=torch.Generator().manual_seed(0)).item()
for _ in range(60):
    x = 3.9 * abs(x) % 1 * (1 - abs(x) % 1)
print(f"{x:.3f}")
```

```{code-cell} python
print("mean 0.503")"""


def test_one_pass_says_which_of_the_two_it_is(small_book):
    book = print_instead(small_book, BOTH)
    assert recorder.record(book.root, "07-small") == ""
    sibling = book.pages["07-small"].sibling
    edit(sibling, "mean 0.503\\n", "mean 0.504\\n")
    program = "import sys, pathlib, one_pass; one_pass.one_pass([pathlib.Path(sys.argv[1])])"
    answer = subprocess.run(
        [sys.executable, "-c", program, sibling],
        cwd=ROOT / "tests",
        env={**os.environ, "PYTHONPATH": str(ROOT / "code")},
        capture_output=True,
        text=True,
    )
    verdicts = [line for line in answer.stdout.splitlines() if "the number" in line]
    assert [line.partition(")")[0] for line in verdicts] == [
        "07-small.ipynb: the number drifted (Cell 2",
        "07-small.ipynb: the number hangs on rounding (Cell 1",
    ], answer.stdout + answer.stderr
