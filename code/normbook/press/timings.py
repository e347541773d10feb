"""How long each chapter takes to run: `python -m normbook.press.timings [--only NAME …]`.

Writes `book/timings.json`, by hand now and then. Times differ from run to run, so they are no part
of the recorded notebooks: recording twice changes not one byte. Beside the chapters stands the
floor, the time of a kernel that does nothing but import what every chapter imports: seconds divided
by the floor's compare between machines.
"""

import argparse
import datetime
import json
import os
import platform
import re
import resource
import statistics
import sys
import time
from importlib.metadata import version
from pathlib import Path

import nbformat

from normbook.press.book import Book
from normbook.press.files import write_whole
from normbook.press.record import run_cells

PACKAGES = ("torch", "numpy", "matplotlib", "scikit-learn")
CPUINFO = Path("/proc/cpuinfo")
FLOOR = "import torch\nimport matplotlib.pyplot"
FLOOR_RUNS = 5  # of which the middle one counts


def machine() -> str:
    """Return the processor's name and how many cores the system has."""
    text = CPUINFO.read_text(encoding="utf-8") if CPUINFO.exists() else ""
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.M)
    name = match[1].strip() if match else platform.machine()
    return f"{name}, {os.cpu_count()} cores"


def when_and_where() -> dict:
    """Return when and with what the times were taken."""
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": machine(),
        "versions": {"Python": platform.python_version(), **{p: version(p) for p in PACKAGES}},
    }


def run_time(cells: list, book: Book) -> dict:
    """Execute cells in a fresh kernel; return its seconds on the clock and on the processor."""
    begin, used = time.perf_counter(), processor_seconds()
    run_cells(cells, "python3", book)
    return {
        "clock": round(time.perf_counter() - begin, 1),
        "processor": round(processor_seconds() - used, 1),
    }


def floor(book: Book) -> dict:
    """Return the middle time of a kernel that only imports."""
    cell = nbformat.v4.new_code_cell(FLOOR)
    runs = [run_time([cell.copy()], book) for _ in range(FLOOR_RUNS)]
    return {key: statistics.median(run[key] for run in runs) for key in runs[0]}


def processor_seconds() -> float:
    """Return the processor seconds of all kernels that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> int:
    """Execute the chapters one after the other, and write their times."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", help="these chapters; the others keep their times")
    options = parser.parse_args()
    book = Book()
    chapters = dict(book.times.get("chapters", {})) if options.only else {}
    least = floor(book)
    print(f"the floor: {least['processor']} s", flush=True)
    for page in book.chapters:
        if not options.only or page.name in options.only:
            chapters[page.name] = run_time(page.code_cells, book)
            print(f"{page.name}: {chapters[page.name]['processor']} s", flush=True)
    ordered = {page.name: chapters[page.name] for page in book.chapters if page.name in chapters}
    taken = {**when_and_where(), "floor": least, "chapters": ordered}
    write_whole(book.timings, json.dumps(taken, indent=1, ensure_ascii=False) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
