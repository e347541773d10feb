"""Build the pages from the recorded results: `python -m normbook.press.publish`.

Nothing is executed. A chapter whose code moved on without being recorded stops the build.
"""

import hashlib
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

from jupyter_cache import get_cache

from normbook.press.anki import write_deck
from normbook.press.evidence import write_evidence
from normbook.press.extension import NOTEBOOKS
from normbook.press.ledger import write_json
from normbook.press.pages import ROOT, PressError, write_whole
from normbook.press.questions import DECK
from normbook.press.siblings import Book, dump, state
from normbook.press.standalone import make_standalone
from normbook.press.trim import trim

BUILD = ROOT / "_build"
HTML = BUILD / "html"
CACHE = BUILD / ".jupyter_cache"
COMMAND = [
    *(str(Path(sys.executable).with_name("jupyter-book")), "build", "book"),
    *("--config", str(ROOT / "_config.yml"), "--toc", str(ROOT / "_toc.yml")),
    *("--path-output", str(ROOT)),
    *("-W", "-n", "--keep-going"),
]
SPHINX_PAGES = ("genindex", "search")
EXECUTED = "Executing notebook"  # what MyST-NB logs when it finds no recorded output
# Formulas are drawn by tex-chtml.js and its fonts; the package brings every other way as well.
MATHJAX_KEPT = ("tex-chtml.js", "output", "input", "ui", "loader.js", "core.js", "startup.js")


def refresh(book: Book) -> None:
    """Bring every sibling's words up to date. Raises `PressError` where code must be recorded."""
    states = {page.name: state(book, page) for page in book.chapters}
    stale = [name for name, (kind, _) in states.items() if kind == "stale"]
    if stale:
        raise PressError("\n".join(f"chapter {name} is stale: make record" for name in stale))
    for name, (kind, sibling) in states.items():
        if kind == "prose":
            write_whole(book.pages[name].sibling, dump(sibling))
            print(f"refreshed the words of {name}")


def prime(book: Book) -> None:
    """Lay the recorded notebooks where the build looks for executed ones."""
    shutil.rmtree(CACHE, ignore_errors=True)
    cache = get_cache(CACHE)
    for page in book.chapters:
        cache.cache_notebook_file(
            page.sibling, uri=str(page.source), check_validity=False, overwrite=True
        )


def forget_old_pages() -> None:
    """Remove the pages that another press made: they would stand beside those of this one."""
    sources = [*Path(__file__).parent.glob("*.py"), ROOT / "_config.yml"]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(sources))).hexdigest()
    stamp = HTML / ".press"
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != digest:
        shutil.rmtree(HTML, ignore_errors=True)
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


def build() -> None:
    """Run Jupyter Book. Raises `PressError` on any warning, or when it executed a chapter."""
    executed = False
    with subprocess.Popen(
        COMMAND, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        for line in process.stdout:
            print(line, end="")
            executed |= EXECUTED in line
    if process.returncode:
        raise PressError("the build failed: see above")
    if executed:
        raise PressError("the build executed a chapter instead of showing what was recorded")


def finish(book: Book) -> None:
    """Put the stand-alone notebooks and the deck on the site; take off what no page asks for.

    An earlier build may have left pages that the book no longer has.
    """
    shutil.rmtree(HTML / "_sources", ignore_errors=True)
    for path in HTML.glob("*.html"):
        if path.stem not in {*book.pages, *SPHINX_PAGES}:
            path.unlink()
    folder = HTML / NOTEBOOKS
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for page in book.chapters:
        text = dump(make_standalone(book, page))
        (folder / page.sibling.name).write_text(text, encoding="utf-8")
    write_deck(book, HTML / DECK)
    (HTML / ".nojekyll").touch()
    for path in (HTML / "_static/mathjax").iterdir():
        if path.name not in MATHJAX_KEPT:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    trim(HTML, BUILD / "pictures")


def main() -> int:
    """Build the book and say where it is."""
    book = Book()
    try:
        with alone():
            write_json(book.claims)
            refresh(book)
            write_evidence(book)
            prime(book)
            forget_old_pages()
            build()
            finish(book)
    except PressError as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    print(f"\nThe book is at {(HTML / 'index.html').as_uri()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
