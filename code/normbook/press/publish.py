"""Build the pages from the recorded results: `python -m normbook.press.publish`.

Nothing is executed. A chapter whose code moved on without being recorded stops the build.
"""

import gc
import hashlib
import io
import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jupyter_book.config import get_final_config
from jupyter_cache import get_cache
from sphinx.application import Sphinx
from sphinx.errors import SphinxError
from sphinx.util.console import color_terminal, nocolor
from sphinx.util.docutils import docutils_namespace, patch_docutils

from normbook.press.anki import write_deck
from normbook.press.evidence import built, write_evidence
from normbook.press.extension import NOTEBOOKS
from normbook.press.ledger import write_json
from normbook.press.pages import BOOK, ROOT, PressError, press_hash, write_whole
from normbook.press.questions import DECK
from normbook.press.siblings import Book, dump, fingerprint, state
from normbook.press.standalone import make_standalone, shipped_files
from normbook.press.trim import trim

BUILD = ROOT / "_build"
HTML = BUILD / "html"
DOCTREES = BUILD / ".doctrees"
CACHE = BUILD / ".jupyter_cache"
SETTINGS = ROOT / "_config.yml"
SPHINX_PAGES = ("genindex", "search")
EXECUTED = "Executing notebook"  # what MyST-NB logs when it finds no recorded output
# Formulas are drawn by tex-chtml.js and its fonts; the package brings every other way as well.
MATHJAX_KEPT = ("tex-chtml.js", "output", "input", "ui", "loader.js", "core.js", "startup.js")


def refresh(book: Book) -> None:
    """Bring every sibling's words up to date. Raises `PressError` where code must be recorded.

    What was found up to date stands in `_build/fresh.json`, with a digest of all it depends on.
    """
    path = book.folder.parent / "_build/fresh.json"
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    marks = {page.name: fingerprint(book, page) for page in book.chapters}
    due = [page for page in book.chapters if before.get(page.name) != marks[page.name]]
    states = {page.name: state(book, page) for page in due}
    stale = [name for name, (kind, _) in states.items() if kind == "stale"]
    if stale:
        raise PressError("\n".join(f"chapter {name} is stale: make record" for name in stale))
    for page in due:
        kind, sibling = states[page.name]
        if kind == "prose":
            write_whole(page.sibling, dump(sibling))
            print(f"refreshed the words of {page.name}")
            marks[page.name] = fingerprint(book, page)
    if due:
        path.parent.mkdir(exist_ok=True)
        write_whole(path, json.dumps(marks, indent=1))


def prime(book: Book) -> None:
    """Lay the recorded notebooks where the build looks for executed ones, if they are not there.

    The build takes their outputs, and finds them by their code and its metadata, captions included.
    """
    notebooks = [json.loads(page.sibling.read_text(encoding="utf-8")) for page in book.chapters]
    cells = [
        [(c["source"], c["metadata"], c["outputs"]) for c in notebook["cells"] if "outputs" in c]
        for notebook in notebooks
    ]
    digest = hashlib.sha256(json.dumps(cells).encode()).hexdigest()
    stamp = CACHE / "primed"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == digest:
        return
    shutil.rmtree(CACHE, ignore_errors=True)
    cache = get_cache(CACHE)
    for page in book.chapters:
        cache.cache_notebook_file(
            page.sibling, uri=str(page.source), check_validity=False, overwrite=True
        )
    stamp.write_text(digest, encoding="utf-8")


def forget_old_pages() -> None:
    """Remove what another press made: it would stand beside the pages of this one."""
    digest, stamp = press_hash(), HTML / ".press"
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != digest:
        shutil.rmtree(HTML, ignore_errors=True)
        shutil.rmtree(DOCTREES, ignore_errors=True)
        HTML.mkdir(parents=True)
        stamp.write_text(digest, encoding="utf-8")


@contextmanager
def alone():
    """Wait until no other build writes to the same folder."""
    import fcntl

    BUILD.mkdir(exist_ok=True)
    with (BUILD / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("another build is running here: waiting for it", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class Heard(io.StringIO):
    """What Sphinx says: shown, and kept."""

    def write(self, text: str) -> int:
        """Show a text and keep it."""
        print(text, end="", flush=True)
        return super().write(text)


@contextmanager
def sphinx(heard: Heard) -> Iterator[Sphinx]:
    """Yield Sphinx as Jupyter Book configures it; any warning makes a build fail.

    One that is kept builds again in a fraction of the time.
    """
    options = {
        "external_toc_path": str(ROOT / "_toc.yml"),
        "latex_individualpages": False,
        "nitpicky": True,
    }
    settings, _ = get_final_config(
        user_yaml=SETTINGS, cli_config=options, sourcedir=BOOK, use_external_toc=True
    )
    if not color_terminal():
        nocolor()
    with patch_docutils(), docutils_namespace():
        yield Sphinx(
            srcdir=BOOK,
            confdir=None,
            outdir=HTML,
            doctreedir=DOCTREES,
            buildername="html",
            confoverrides=settings,
            status=heard,
            warningiserror=True,
            keep_going=True,
        )


def build(app: Sphinx, heard: Heard) -> None:
    """Run Sphinx. Raises `PressError` on any warning, or when it executed a chapter.

    Sphinx warns of a page when it makes it: after a failure all that were made are made again.
    """
    heard.seek(0)
    heard.truncate()
    app.normbook_made, app.statuscode, app._warncount = set(), 0, 0  # of an earlier build
    fine = executed = False
    try:
        app.build()
        executed = EXECUTED in heard.getvalue()
        fine = app.statuscode == 0 and not executed
    except SphinxError as error:
        raise PressError(f"the build failed: {error}") from error
    finally:
        if not fine:
            for name in app.normbook_made:
                (DOCTREES / f"{name}.doctree").unlink(missing_ok=True)
    if executed:
        shutil.rmtree(CACHE)  # which now holds what was executed
        raise PressError("the build executed a chapter instead of showing what was recorded")
    if not fine:
        raise PressError("the build failed: see above")


def finish(book: Book) -> None:
    """Put the stand-alone notebooks and the deck on the site; take off what no page asks for.

    An earlier build may have left pages that the book no longer has.
    """
    shutil.rmtree(HTML / "_sources", ignore_errors=True)
    for path in HTML.glob("*.html"):
        if path.stem not in {*book.pages, *SPHINX_PAGES}:
            path.unlink()
    # Sphinx copies them only when it also makes a page.
    shutil.copytree(BOOK / "_static", HTML / "_static", dirs_exist_ok=True)
    write_notebooks(book, HTML / NOTEBOOKS)
    if book.questions:
        write_deck(book, HTML / DECK)
    (HTML / ".nojekyll").touch()
    for path in (HTML / "_static/mathjax").iterdir():
        if path.name not in MATHJAX_KEPT:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    trim(HTML, BUILD / "pictures")


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


def publish(app: Sphinx, heard: Heard, book: Book) -> None:
    """Bring the pages up to date. Raises `PressError` where that cannot be done."""
    write_json(book.claims)
    refresh(book)
    write_evidence()
    prime(book)
    build(app, heard)
    finish(book)


def main() -> int:
    """Build the book and say where it is."""
    gc.disable()  # a third of the time otherwise; what a build leaves behind is a gigabyte
    heard = Heard()
    try:
        with alone():
            book, *_ = built()
            forget_old_pages()
            with sphinx(heard) as app:
                publish(app, heard, book)
    except PressError as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    print(f"\nThe book is at {(HTML / 'index.html').as_uri()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
