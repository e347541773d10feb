"""Execute the chapters and keep what they print: `python -m normbook.press.record [--all]`.

Stale chapters only, unless `--all`. Recording twice changes not one byte: fixed cell ids, no
timings, no time stamps, no paths, and pictures that are the same bytes for the same data.
"""

import argparse
import base64
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import nbformat
from jupyter_client.kernelspec import NoSuchKernel
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

from normbook.press.book import Book
from normbook.press.files import PressError, write_if_new, write_whole
from normbook.press.ledger import write_json
from normbook.press.pages import Page
from normbook.press.siblings import (
    check_words,
    dump,
    make_sibling,
    marks_of,
    sibling_state,
    stale_because,
)

# One thread, like the tests; the CPU, because what is recorded must not depend on a GPU.
ENVIRONMENT = {"NORMBOOK_STRICT": "1", "NORMBOOK_DEVICE": "cpu", "OMP_NUM_THREADS": "1"}
FORBIDDEN = ("NORMBOOK_PERTURB", "NORMBOOK_PICTURES")
TIMEOUT = 600  # seconds a cell may take
COVER = "index"


def execute(page: Page, book: Book) -> list[list]:
    """Run a chapter in a fresh kernel and return the cleaned outputs of its code cells.

    A cell that raises stops the recording unless it is tagged `raises-exception`.
    """
    kernel = page.notebook.metadata["kernelspec"]["name"]
    cells = run_cells(page.code_cells, kernel, book)
    return [[kept_output(output, page) for output in cell.outputs] for cell in cells]


def run_cells(cells: list, kernel: str, book: Book) -> list[nbformat.NotebookNode]:
    """Run code cells in a fresh kernel of the book and return copies with their outputs."""
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(cell.source, metadata=cell.metadata) for cell in cells],
        metadata={"kernelspec": {"name": kernel, "display_name": kernel}},
    )
    client = NotebookClient(
        notebook,
        timeout=TIMEOUT,
        record_timing=False,
        coalesce_streams=True,
        extra_arguments=["--IPKernelApp.log_level=40"],
        resources={"metadata": {"path": str(book.folder)}},
    )
    claims = {"NORMBOOK_CLAIMS": str(book.claims_json)}
    client.execute(env={**os.environ, **ENVIRONMENT, **claims})
    return notebook.cells


def kept_output(output: nbformat.NotebookNode, page: Page) -> nbformat.NotebookNode:
    """Return an output as it is kept: no traceback (it holds paths), no execution count."""
    if output.output_type == "stream" and output.name == "stderr":
        raise PressError(f"{page.source.name}: a cell writes to stderr:\n{output.text}")
    if output.output_type == "error":
        output.traceback = [f"{output.ename}: {output.evalue}"]
    if output.output_type == "execute_result":
        output.execution_count = None
    if "image/png" in output.get("data", {}):
        output.data["image/png"] = output.data["image/png"].replace("\n", "")
    return output


def record(root: Path, name: str) -> str:
    """Execute one chapter and write its sibling. Returns what went wrong, or nothing."""
    book = Book(root)
    page, begin = book.pages[name], time.perf_counter()
    try:
        check_words(book, page)
        sibling = make_sibling(book, page, execute(page, book), marks_of(book, page))
        write_whole(page.sibling, dump(sibling))
    except Exception as error:
        return f"{name} was not recorded:\n{explain(error)}"
    print(f"recorded {name} in {time.perf_counter() - begin:.0f} s", flush=True)
    return ""


def explain(error: Exception) -> str:
    """Return what went wrong with a chapter in words."""
    if isinstance(error, PressError | CellExecutionError):
        return str(error)
    if isinstance(error, DeadKernelError):
        return "the kernel died while a cell ran: is there enough memory?"
    if isinstance(error, CellTimeoutError):
        return f"a cell takes longer than {TIMEOUT} s:\n{error}"
    if isinstance(error, NoSuchKernel):
        return f"there is no kernel named {error.name}: see the chapter's head"
    return f"{type(error).__name__}: {error}"


def write_cover(book: Book) -> None:
    """Write the cover's figure as a picture, for the README."""
    write_if_new(book.folder / "_static/cover.png", cover_picture(book))


def cover_picture(book: Book) -> bytes:
    """Return the first picture in the cover's recorded notebook."""
    for cell in book.pages[COVER].recorded_cells:
        for output in cell.outputs:
            if "image/png" in output.get("data", {}):
                return base64.b64decode(output.data["image/png"])
    raise PressError(f"{COVER}: has no figure")


def main() -> int:
    """Record what is stale, refresh what only changed its words, and say what was done."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--all", action="store_true", help="execute every chapter")
    parser.add_argument("--only", nargs="*", help="execute these chapters if they are stale")
    options = parser.parse_args()
    try:
        check_environment()
        return record_stale(Book(), options)
    except PressError as error:
        print(error, file=sys.stderr)
    except KeyboardInterrupt:
        print("\ninterrupted: chapters not recorded yet stay as they were", file=sys.stderr)
    return 1


def check_environment() -> None:
    """Raise `PressError` for a variable of the tests under which nothing may be recorded."""
    for name in FORBIDDEN:
        if os.environ.get(name):
            raise PressError(f"{name} is for tests: nothing is recorded while it is set")


def record_stale(book: Book, options: argparse.Namespace) -> int:
    """Do what `main` was asked for. Returns 1 if a chapter could not be recorded."""
    write_json(book.claims, book.claims_json)
    chapters = [page for page in book.chapters if not options.only or page.name in options.only]
    due = [page for page in chapters if options.all or stale_because(book, page)]
    names = [page.name for page in book.slowest_first(due)]
    with ProcessPoolExecutor(max_workers=2) as pool:
        problems = [problem for problem in pool.map(partial(record, book.root), names) if problem]
    if problems:
        print("\n\n".join(problems), file=sys.stderr)
        return 1
    for page in chapters:
        kind, sibling = sibling_state(book, page)
        if kind == "prose":
            write_whole(page.sibling, dump(sibling))
            print(f"refreshed the words of {page.name}")
    write_cover(book)
    print(f"{len(due)} of {len(chapters)} chapters executed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
