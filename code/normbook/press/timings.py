"""How long each chapter takes to run: `python -m normbook.press.timings [--only NAME …]`.

Writes `book/timings.json`, by hand now and then. Times differ from run to run, so they are no part
of the recorded notebooks: recording twice changes not one byte.
"""

import argparse
import datetime
import json
import os
import platform
import re
import resource
import sys
import time
from importlib.metadata import version
from pathlib import Path

from normbook.press.pages import BOOK, Page, write_whole
from normbook.press.record import ENVIRONMENT, execute
from normbook.press.siblings import Book

FILE = "timings.json"
PACKAGES = ("torch", "numpy", "matplotlib", "scikit-learn")
CPUINFO = Path("/proc/cpuinfo")


def machine() -> str:
    """Return the processor's name and how many cores the system has."""
    text = CPUINFO.read_text(encoding="utf-8") if CPUINFO.exists() else ""
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.M)
    name = match[1].strip() if match else platform.machine()
    return f"{name}, {os.cpu_count()} cores"


def surroundings() -> dict:
    """Return when and with what the times were taken."""
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": machine(),
        "versions": {"Python": platform.python_version(), **{p: version(p) for p in PACKAGES}},
    }


def run_time(page: Page) -> dict:
    """Execute a chapter in a fresh kernel; return its seconds on the clock and on the processor."""
    begin, used = time.perf_counter(), processor_seconds()
    execute(page)
    return {
        "clock": round(time.perf_counter() - begin, 1),
        "processor": round(processor_seconds() - used, 1),
    }


def processor_seconds() -> float:
    """Return the processor seconds of all kernels that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def load(folder: Path = BOOK) -> dict:
    """Return what was written last, or nothing."""
    path = folder / FILE
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def main() -> int:
    """Execute the chapters one after the other, and write their times."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", help="these chapters; the others keep their times")
    options = parser.parse_args()
    os.environ.update(ENVIRONMENT)
    book = Book()
    chapters = load(book.folder).get("chapters", {}) if options.only else {}
    for page in book.chapters:
        if not options.only or page.name in options.only:
            chapters[page.name] = run_time(page)
            print(f"{page.name}: {chapters[page.name]['processor']} s", flush=True)
    ordered = {page.name: chapters[page.name] for page in book.chapters if page.name in chapters}
    text = json.dumps({**surroundings(), "chapters": ordered}, indent=1, ensure_ascii=False)
    write_whole(book.folder / FILE, text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
