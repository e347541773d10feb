"""What must turn red: a digit of an output, a point of a figure, a passing rival.

A small chapter is recorded, spoilt in one place, and run or read as `make test` does it.
"""

import os
import re
import subprocess
import sys

import pytest
from helpers import CHAPTER, ROOT, edit, lay_claims, lay_small_book, print_instead

from normbook.press import record as recorder
from normbook.press.ledger import write_json

FIGURE = """\
figure, axis = figures.subplots()
axis.plot([0, 1, 2], [1.0, 2.0, {last}], label="doubling")
show(figure)
"""
FRAMES = """\
def draw(last):
    figure, axis = figures.subplots()
    axis.plot([0, 1, 2], [1.0, 2.0, last], label="stream")
    return figure

figures.frames(draw, [4.0, {last}], "depth", chosen=4.0)
"""
# A cell each: its code, and what is spoilt in it: a string of the recorded notebook, and the new.
CELLS = {
    "as it is": ("from normbook.lab import figures, glue, show", None),
    "a digit of an output": ('print("mean 0.503")', ("mean 0.503\\n", "mean 0.504\\n")),
    "a point of a figure": (FIGURE.format(last=4.0), ("(1.00, 2.00)", "(1.00, 2.01)")),
    "a figure's checksum": (FIGURE.format(last=5.0), ("#", "#0")),
    "a glued value": ('glue("answer", 42.0)', ("\"'42.0'\"", "\"'42.1'\"")),
    "a figure's data": (FIGURE.format(last=6.0), ("2.0, 6.0]", "2.0, 6.1]")),
    "a point of a hidden frame": (FRAMES.format(last=7.0), ("7.0], ", "7.1], ")),
    "a digest of a hidden frame": (FRAMES.format(last=8.0), ("8.00)", "8.01)")),
    "another machine's frames": (FRAMES.format(last=9.0), ('"png": "', '"png": "A')),
    "as it is too": ("print(1 + 1)", None),
}
STAND = ("as it is", "as it is too", "another machine's frames")  # what nbval must not refuse


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory):
    """Which of the cells nbval fails, when all but three of them are spoilt."""
    book = lay_small_book(tmp_path_factory.mktemp("spoilt"))
    head = CHAPTER[: CHAPTER.index("(ch-small)=")]
    cells = "".join(f"```{{code-cell}} python\n{code}\n```\n\n" for code, _ in CELLS.values())
    (book.folder / "07-small.md").write_text(f"{head}# 7 Spoilt\n\n{cells}", encoding="utf-8")
    assert recorder.record(book.root, "07-small") == ""
    sibling = book.pages["07-small"].sibling
    before, *parts = sibling.read_text(encoding="utf-8").split('"cell_type": "code"')
    for index, (_, spoil) in enumerate(CELLS.values()):
        if spoil:
            start = parts[index].rindex(spoil[0])
            rest = parts[index][start + len(spoil[0]) :]
            parts[index] = parts[index][:start] + spoil[1] + rest
    sibling.write_text('"cell_type": "code"'.join([before, *parts]), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rf", "--nbval"]
    answer = subprocess.run(
        [*command, "--nbval-current-env", "-c", os.devnull, "--rootdir", book.folder, sibling],
        cwd=book.folder,
        env={**os.environ, "NORMBOOK_STRICT": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert answer.returncode == 1, answer.stdout + answer.stderr
    failed = re.findall(r"^FAILED .*::(Cell \d+)", answer.stdout, re.M)
    return {name: f"Cell {index}" in failed for index, name in enumerate(CELLS)}


@pytest.mark.parametrize("name", CELLS)
def test_a_spoilt_cell_fails_and_no_other(name, verdicts):
    assert verdicts[name] is (name not in STAND)


# --- claims ---

CLAIM = {"id": "c", "status": "measured", "claim": "It holds.", "expected": 1, "tolerance": 0.1}
CLAIMED = "from normbook.lab import claim\n\n"


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
    lay_claims(small_book, {**CLAIM, **changes})
    book = print_instead(small_book, CLAIMED + code)
    write_json(book.claims, book.claims_json)
    assert said in recorder.record(book.root, "07-small")


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
print("mean 0.503")
```

```{code-cell} python
""" + FRAMES.format(last=5.0)


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
