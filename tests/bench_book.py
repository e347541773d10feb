"""How long the book takes to test and to build: `python tests/bench_book.py [--times 3]`.

Seconds, and beside them ratios to the floor: as many kernels as there are notebooks, two at a time,
that only import torch and pyplot. Ratios compare between machines; run it on an idle one.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat

from normbook.press.book import Book
from normbook.press.record import run_cells
from normbook.press.timings import FLOOR, machine

ROOT = Path(__file__).resolve().parents[1]
PASS = [sys.executable, "tests/one_pass.py"]
BUILD = [sys.executable, "-m", "normbook.press.publish"]


def seconds(run: Callable[[], None]) -> float:
    """Return how long a call takes on the clock."""
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def command(words: list[str], folder: Path = ROOT) -> None:
    """Run a command in a checkout of the book, with that checkout's code."""
    environment = {**os.environ, "PYTHONPATH": str(folder / "code")}
    answer = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True)
    if answer.returncode:
        raise SystemExit(f"{' '.join(words)} failed:\n{answer.stdout}{answer.stderr}")


def floor() -> None:
    """Start as many kernels as there are notebooks, two at a time."""
    book = Book()
    cells = [[nbformat.v4.new_code_cell(FLOOR)] for _ in book.chapters]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda cell: run_cells(cell, "python3", book), cells))


def builds(times: int) -> dict[str, list[float]]:
    """Return the seconds of a build from nothing, after one changed word, and after no change.

    They are made in a clone of what is committed, so that this checkout stays as it is.
    """
    found = {"build from nothing": [], "after one changed word": [], "after no change": []}
    for turn in range(times):
        with tempfile.TemporaryDirectory() as folder:
            clone = Path(folder) / "book"
            command(["git", "clone", "--quiet", str(ROOT), str(clone)])
            page = clone / "book/05-pre-vs-post-norm.md"
            for name in found:
                if name == "after one changed word":
                    words = page.read_text(encoding="utf-8")
                    page.write_text(f"{words}\nTurn {turn}.\n", encoding="utf-8")
                found[name].append(seconds(lambda: command(BUILD, clone)))  # noqa: B023
    return found


def main() -> None:
    """Measure all of it several times, and print the middle of each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--whole", action="store_true", help="time `make test` as well")
    options = parser.parse_args()
    found = {"floor": [seconds(floor) for _ in range(options.times)]}
    found["one pass"] = [seconds(lambda: command(PASS)) for _ in range(options.times)]
    found |= builds(options.times)
    if options.whole:
        found["make test"] = [
            seconds(lambda: command(["make", "test"])) for _ in range(options.times)
        ]
    least = statistics.median(found["floor"])
    print(f"{machine()}; middle of {options.times}")
    for name, times in found.items():
        middle = statistics.median(times)
        print(f"{name:24} {middle:6.1f} s   {middle / least:5.1f} × the floor")


if __name__ == "__main__":
    main()
