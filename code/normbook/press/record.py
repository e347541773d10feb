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

from normbook.press.ledger import write_json
from normbook.press.pages import Page, PressError, write_whole
from normbook.press.siblings import (
    Book,
    check_words,
    code_cells,
    dump,
    make_sibling,
    marks_of,
    read,
    state,
)

# One thread, like the tests; the CPU, because what is recorded must not depend on a GPU.
ENVIRONMENT = {"NORMBOOK_STRICT": "1", "NORMBOOK_DEVICE": "cpu", "OMP_NUM_THREADS": "1"}
TIMEOUT = 600  # seconds a cell may take
COVER = "index"


def execute(page: Page) -> list[list]:
    """Run a chapter in a fresh kernel and return the cleaned outputs of its code cells.

    A cell that raises stops the recording unless it is tagged `raises-exception`.
    """
    notebook = nbformat.v4.new_notebook(
        cells=[
            nbformat.v4.new_code_cell(cell.source, metadata=cell.metadata)
            for cell in code_cells(page.notebook)
        ],
        metadata={"kernelspec": dict(page.notebook.metadata["kernelspec"])},
    )
    client = NotebookClient(
        notebook,
        timeout=TIMEOUT,
        record_timing=False,
        coalesce_streams=True,
        extra_arguments=["--IPKernelApp.log_level=40"],
        resources={"metadata": {"path": str(page.source.parent)}},
    )
    client.execute()
    return [[clean(output, page) for output in cell.outputs] for cell in notebook.cells]


def clean(output: nbformat.NotebookNode, page: Page) -> nbformat.NotebookNode:
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


def outdated(book: Book, page: Page) -> bool:
    """Whether a chapter must be executed: its code, its claims, the engine or the lab changed."""
    if state(book, page)[0] == "stale":
        return True
    return read(page.sibling).metadata["normbook"] != marks_of(book, page)


def record(folder: Path, name: str) -> str:
    """Execute one chapter and write its sibling. Returns what went wrong, or nothing."""
    book = Book(folder)
    page, begin = book.pages[name], time.perf_counter()
    try:
        check_words(book, page)
        sibling = make_sibling(book, page, execute(page), marks_of(book, page))
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
    picture = book.folder / "_static/cover.png"
    data = cover_picture(book)
    if not picture.exists() or picture.read_bytes() != data:
        picture.parent.mkdir(exist_ok=True)
        picture.write_bytes(data)


def cover_picture(book: Book) -> bytes:
    """Return the first picture in the cover's recorded notebook."""
    for cell in code_cells(read(book.pages[COVER].sibling)):
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
    os.environ.update(ENVIRONMENT)
    try:
        return run(Book(), options)
    except PressError as error:
        print(error, file=sys.stderr)
    except KeyboardInterrupt:
        print("\ninterrupted: chapters not recorded yet stay as they were", file=sys.stderr)
    return 1


def run(book: Book, options: argparse.Namespace) -> int:
    """Do what `main` was asked for. Returns 1 if a chapter could not be recorded."""
    write_json(book.claims)
    chapters = [page for page in book.chapters if not options.only or page.name in options.only]
    due = [page.name for page in chapters if options.all or outdated(book, page)]
    with ProcessPoolExecutor(max_workers=2) as pool:
        problems = [problem for problem in pool.map(partial(record, book.folder), due) if problem]
    if problems:
        print("\n\n".join(problems), file=sys.stderr)
        return 1
    for page in chapters:
        kind, sibling = state(book, page)
        if kind == "prose":
            write_whole(page.sibling, dump(sibling))
            print(f"refreshed the words of {page.name}")
    write_cover(book)
    print(f"{len(due)} of {len(chapters)} chapters executed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
