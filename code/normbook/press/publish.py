"""Build the pages from the recorded results: `python -m normbook.press.publish`.

Nothing is executed. A chapter whose code moved on without being recorded stops the build.
"""

import gc
import hashlib
import io
import json
import re
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nbformat
from filelock import FileLock, Timeout
from jupyter_book.config import get_final_config
from jupyter_cache import get_cache
from jupyter_cache.base import CacheBundleIn
from sphinx.application import Sphinx
from sphinx.errors import SphinxError
from sphinx.util.console import color_terminal, nocolor, strip_escape_sequences
from sphinx.util.docutils import docutils_namespace, patch_docutils

from normbook.press.anki import write_deck
from normbook.press.book import Book
from normbook.press.evidence import Evidence
from normbook.press.files import ROOT, PressError, press_hash, write_whole
from normbook.press.ledger import write_json
from normbook.press.pages import Page
from normbook.press.questions import DECK
from normbook.press.siblings import dump, fingerprint, sibling_state, stale_because, stale_message
from normbook.press.sphinx.buttons import NOTEBOOKS
from normbook.press.standalone import make_standalone, shipped_files
from normbook.press.trim import trim

SPHINX_PAGES = ("genindex", "search")
EXECUTED = "Executing notebook"  # what MyST-NB logs when it finds no recorded output
# One line for each page that is read, and for some that are written: that is quick.
PROGRESS = re.compile(
    rf"^updating environment: |^reading sources.*\[|^writing output.*\[ *\d+0%\]|{EXECUTED}"
)
# Formulas are drawn by tex-chtml.js and its fonts; the package brings every other way as well.
MATHJAX_KEPT = ("tex-chtml.js", "output", "input", "ui", "loader.js", "core.js", "startup.js")


def refresh_words(book: Book) -> None:
    """Bring every sibling's words up to date. Raises `PressError` where code must be recorded.

    What was found up to date stands in `_build/fresh.json`, with a digest of all it depends on.
    """
    path = book.build / "fresh.json"
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    marks = {page.name: fingerprint(book, page) for page in book.chapters}
    due = [page for page in book.chapters if before.get(page.name) != marks[page.name]]
    states = {page.name: sibling_state(book, page) for page in due}
    stale = [page for page in due if states[page.name][0] == "stale"]
    if stale:
        reasons = [stale_message(page, stale_because(book, page)) for page in stale]
        raise PressError("\n".join(reasons))
    for page in due:
        kind, sibling = states[page.name]
        if kind == "prose":
            write_whole(page.sibling, dump(sibling))
            print(f"refreshed the words of {page.name}")
            marks[page.name] = fingerprint(book, page)
    if due:
        path.parent.mkdir(exist_ok=True)
        write_whole(path, json.dumps(marks, indent=1))


def fill_cache(book: Book) -> None:
    """Lay the recorded notebooks where the build looks for executed ones, if they are not there.

    The build takes their outputs, and finds them by their code and its metadata, captions included.
    """
    notebooks = [notebook_for_cache(page) for page in book.chapters]
    cells = [[(c.source, c.metadata, c.outputs) for c in n.cells] for n in notebooks]
    digest = hashlib.sha256(json.dumps(cells).encode()).hexdigest()
    stamp = book.cache / "primed"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == digest:
        return
    shutil.rmtree(book.cache, ignore_errors=True)
    cache = get_cache(book.cache)
    for page, notebook in zip(book.chapters, notebooks, strict=True):
        bundle = CacheBundleIn(notebook, str(page.source))
        cache.cache_notebook_bundle(bundle, check_validity=False, overwrite=True)
    stamp.write_text(digest, encoding="utf-8")


def notebook_for_cache(page: Page) -> nbformat.NotebookNode:
    """Return the cells of a chapter as the build reads them, with the recorded outputs."""
    cells = [
        nbformat.from_dict({**recorded, "metadata": cell.metadata})
        for cell, recorded in zip(page.code_cells, page.recorded_cells, strict=True)
    ]
    return nbformat.from_dict({**page.recorded, "cells": cells})


def forget_old_pages(book: Book) -> None:
    """Remove what another press made: it would stand beside the pages of this one."""
    digest, stamp = press_hash(book.root), book.html / ".press"
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != digest:
        shutil.rmtree(book.html, ignore_errors=True)
        shutil.rmtree(book.doctrees, ignore_errors=True)
        book.html.mkdir(parents=True)
        stamp.write_text(digest, encoding="utf-8")


@contextmanager
def build_lock(book: Book):
    """Wait until no other build writes to the same folder."""
    book.build.mkdir(exist_ok=True)
    lock = FileLock(book.build / ".lock")
    try:
        lock.acquire(blocking=False)
    except Timeout:
        print("another build is running here: waiting for it", flush=True)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


class Tee(io.StringIO):
    """What Sphinx says: kept, and shown where it says how far it is. Warnings go another way."""

    line = ""

    def write(self, text: str) -> int:
        """Keep a text; print the lines of use that it ends."""
        *lines, self.line = re.split(r"[\r\n]", self.line + text)
        for line in map(strip_escape_sequences, lines):
            if PROGRESS.search(line):
                print(line, flush=True)
        return super().write(text)


@contextmanager
def make_sphinx(book: Book, log: Tee) -> Iterator[Sphinx]:
    """Yield Sphinx as Jupyter Book configures it; any warning makes a build fail.

    One that is kept builds again in a fraction of the time.
    """
    options = {
        "external_toc_path": str(book.root / "_toc.yml"),
        "latex_individualpages": False,
        "nitpicky": True,
    }
    settings, _ = get_final_config(
        user_yaml=book.root / "_config.yml",
        cli_config=options,
        sourcedir=book.folder,
        use_external_toc=True,
    )
    settings["extensions"].remove("sphinx_thebe")  # runs code elsewhere, which no page asks for
    if not color_terminal():
        nocolor()
    with patch_docutils(), docutils_namespace():
        yield Sphinx(
            srcdir=book.folder,
            confdir=None,
            outdir=book.html,
            doctreedir=book.doctrees,
            buildername="html",
            confoverrides=settings,
            status=log,
            warningiserror=True,
            keep_going=True,
        )


def run_sphinx(app: Sphinx, log: Tee, cache: Path) -> None:
    """Run Sphinx. Raises `PressError` on any warning, or when it executed a chapter.

    Sphinx warns of a page when it makes it: after a failure all that were made are made again.
    """
    log.seek(0)
    log.truncate()
    app.normbook_made, app.statuscode, app._warncount = set(), 0, 0  # of an earlier build
    fine = executed = False
    try:
        app.build()
        executed = EXECUTED in log.getvalue()
        fine = app.statuscode == 0 and not executed
    except SphinxError as error:
        raise PressError(f"the build failed: {error}") from error
    finally:
        if not fine:
            for name in app.normbook_made:
                (Path(app.doctreedir) / f"{name}.doctree").unlink(missing_ok=True)
    if executed:
        shutil.rmtree(cache)  # which now holds what was executed
        raise PressError("the build executed a chapter instead of showing what was recorded")
    if not fine:
        raise PressError("the build failed: see above")


def finish_site(book: Book) -> None:
    """Put the stand-alone notebooks and the deck on the site; take off what no page asks for.

    An earlier build may have left pages that the book no longer has.
    """
    html = book.html
    shutil.rmtree(html / "_sources", ignore_errors=True)
    for path in html.glob("*.html"):
        if path.stem not in {*book.pages, *SPHINX_PAGES}:
            path.unlink()
    # Sphinx copies them only when it also makes a page.
    shutil.copytree(book.folder / "_static", html / "_static", dirs_exist_ok=True)
    write_notebooks(book, html / NOTEBOOKS)
    if book.questions:
        write_deck(book, html / DECK)
    (html / ".nojekyll").touch()
    for path in (html / "_static/mathjax").iterdir():
        if path.name not in MATHJAX_KEPT:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    trim(html, book.build / "pictures")


def write_notebooks(book: Book, folder: Path) -> None:
    """Write the stand-alone notebooks that are older than what they are made from."""
    folder.mkdir(exist_ok=True)
    targets = {folder / page.sibling.name: page for page in book.chapters}
    for path in set(folder.iterdir()) - set(targets):
        path.unlink()
    shared = [*shipped_files(), ROOT / "pyproject.toml"]
    for path, page in targets.items():
        sources = [page.sibling, *shared]
        if not path.exists() or path.stat().st_mtime <= max(s.stat().st_mtime for s in sources):
            write_whole(path, dump(make_standalone(book, page)))


def publish(app: Sphinx, log: Tee, book: Book) -> None:
    """Bring the pages up to date. Raises `PressError` where that cannot be done."""
    write_json(book.claims, book.claims_json)
    refresh_words(book)
    evidence = Evidence(book)
    evidence.write()
    app.normbook_evidence = evidence  # the next build shows this state of the book
    fill_cache(book)
    run_sphinx(app, log, book.cache)
    finish_site(book)


def main() -> int:
    """Build the book; say how long it took and where it is."""
    begin = time.perf_counter()
    gc.disable()  # a third of the time otherwise; what a build leaves behind is a gigabyte
    book, log = Book(), Tee()
    try:
        with build_lock(book):
            forget_old_pages(book)
            with make_sphinx(book, log) as app:
                publish(app, log, book)
    except PressError as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    print(f"\nbuilt in {time.perf_counter() - begin:.1f} s")
    print(f"The book is at {(book.html / 'index.html').as_uri()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
