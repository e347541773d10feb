"""Execute every notebook once and compare: `python tests/one_pass.py [NOTEBOOK …]`.

All that is drawn is changed by a relative 1e-12, so that one pass shows both that the recorded
numbers are true and that they do not hang on rounding. A notebook that fails runs again, whole, in
a fresh kernel and unchanged, and so it is known which of the two it is.

With `--power` the change is 1e-3 and each page that trains must fail: else the change does not
reach what it trains.
"""

import argparse
import os
import re
import subprocess
import sys
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from normbook.press.book import Book

CHANGE, LARGE_CHANGE = "1e-12", "1e-3"
# One thread each: two notebooks run side by side, and small models run faster so.
SETTINGS = {"NORMBOOK_STRICT": "1", "OMP_NUM_THREADS": "1", "NORMBOOK_PICTURES": "none"}
NBVAL = ("-q", "-p", "no:cacheprovider", "--nbval", "--nbval-current-env")
# In the order given, which is the slowest first, and each notebook's cells in one place.
SIDE_BY_SIDE = ("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder")
TRAINS = re.compile(r"\btrain\w*\(|\bdescend\(|\.step\(\)")


class Failures:
    """A plugin of pytest that notes which cells fail, by notebook."""

    def __init__(self) -> None:
        self.cells: dict[str, list[str]] = defaultdict(list)

    def pytest_runtest_logreport(self, report) -> None:
        """Note a cell that failed, or a notebook that could not begin or end."""
        if report.failed:
            notebook, _, cell = report.nodeid.partition("::")
            self.cells[Path(notebook).name].append(cell or report.when)


def run(notebooks: list[Path], change: str) -> tuple[int, dict[str, list[str]]]:
    """Execute notebooks with all draws changed; return pytest's status and the failed cells."""
    os.environ.update(SETTINGS)
    os.environ["NORMBOOK_PERTURB"] = change
    failures = Failures()
    status = pytest.main([*NBVAL, *SIDE_BY_SIDE, *map(str, notebooks)], plugins=[failures])
    return int(status), dict(failures.cells)


def verdicts(changed: dict[str, list[str]], unchanged: dict[str, list[str]]) -> list[str]:
    """Return what is wrong with each notebook that failed in the pass with changed draws."""
    lines = []
    for name, cells in sorted(changed.items()):
        again = unchanged.get(name, [])
        drifted = [cell for cell in cells if cell in again]
        rounding = [cell for cell in cells if cell not in again]
        if drifted:
            lines.append(
                f"{name}: the number drifted ({', '.join(drifted)}): not what was recorded"
            )
        if rounding:
            lines.append(
                f"{name}: the number hangs on rounding ({', '.join(rounding)}): "
                f"it moves when what is drawn changes by {CHANGE}, and only then"
            )
    return lines


def one_pass(notebooks: list[Path]) -> int:
    """Execute the notebooks, those that fail once more, and say which of the two it is."""
    status, failed = run(notebooks, CHANGE)
    if status == 0:
        return 0
    again = [path for path in notebooks if path.name in failed]
    print(f"\nOnce more without the change of {CHANGE}:", *(path.name for path in again))
    _, unchanged = run(again, "") if again else (0, {})
    print("", *verdicts(failed, unchanged), sep="\n")
    return status


def turns_red(notebook: Path) -> bool:
    """Whether a notebook fails under the large change, up to its first cell that does."""
    command = [sys.executable, "-m", "pytest", *NBVAL, "-x", str(notebook)]
    environment = {**os.environ, **SETTINGS, "NORMBOOK_PERTURB": LARGE_CHANGE}
    answer = subprocess.run(command, env=environment, capture_output=True, text=True)
    if answer.returncode not in (0, 1):
        raise SystemExit(f"{notebook.name} could not be tested:\n{answer.stdout}{answer.stderr}")
    return answer.returncode == 1


def power(pages: list) -> int:
    """Say of each page that trains whether the large change turns it red; 1 if one stays green."""
    training = [p for p in pages if any(TRAINS.search(cell.source) for cell in p.code_cells)]
    with ThreadPoolExecutor(2) as pool:
        red = list(pool.map(turns_red, [page.sibling for page in training]))
    for page, turned in zip(training, red, strict=True):
        print(f"{page.name}: {'turns red' if turned else 'STAYS GREEN'} under {LARGE_CHANGE}")
    return int(not all(red))


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("notebooks", nargs="*", type=Path, help="these; all unless given")
    parser.add_argument("--power", action="store_true", help="a change of 1e-3 must be seen")
    options = parser.parse_args()
    book = Book()
    pages = book.slowest_first(book.chapters)
    if options.notebooks:
        names = {path.name for path in options.notebooks}
        pages = [page for page in pages if page.sibling.name in names]
        if len(pages) < len(names):  # pytest would run all tests for want of a file
            parser.error(f"notebooks must be those of chapters, got {sorted(names)}")
    return power(pages) if options.power else one_pass([page.sibling for page in pages])


if __name__ == "__main__":
    sys.exit(main())
