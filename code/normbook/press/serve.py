"""Build the book, serve it on this machine, and build anew at each save: `make serve`.

Sphinx and all it has read stay in memory, so that a changed word is on the page in seconds.
"""

import argparse
import functools
import gc
import http.server
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from sphinx.application import Sphinx
from watchfiles import Change, watch

from normbook.press.book import Book
from normbook.press.files import PressError
from normbook.press.publish import Tee, build_lock, forget_old_pages, make_sphinx, publish

SETTINGS = ("_toc.yml", "_config.yml", "pyproject.toml")


def watched_saves(root: Path) -> Iterator[set[Path]]:
    """Yield which files that the pages are made from were saved, or nothing in the meantime.

    It listens from the first step on, also while a build keeps the one who asks from asking.
    """

    def wanted(change: Change, name: str) -> bool:
        """Tell whether the pages are made from a file: editors and the press write others."""
        inside = Path(name).relative_to(root)
        hidden = any(part[0] == "." for part in inside.parts)
        return not hidden and (inside.parts[0] != "code" or inside.suffix == ".py")

    places = [root / name for name in ("book", "code", *SETTINGS)]
    for changes in watch(*places, watch_filter=wanted, rust_timeout=200, yield_on_timeout=True):
        yield {Path(name) for _, name in changes}


def wait_for_change(saved: Iterator[set[Path]], ours: dict[Path, int | None]) -> set[Path]:
    """Return the files that others than the press have saved, once there are some."""
    for paths in saved:
        if changed := {path for path in paths if ours.get(path, 0) != modified_at(path)}:
            return changed
    return set()


def needs_restart(changed: set[Path]) -> bool:
    """Tell whether the press, the engine or the settings changed: what is in memory is old."""
    return any(path.suffix == ".py" or path.name in SETTINGS for path in changed)


def modified_at(path: Path) -> int | None:
    """Return when a file was last written, in nanoseconds; None for one that is gone."""
    return path.stat().st_mtime_ns if path.exists() else None


def build_again(app: Sphinx, log: Tee, root: Path) -> dict[Path, int | None]:
    """Bring the pages up to date and say how long it took, or what is wrong.

    Returns when the recorded notebooks were written, by the press or before.
    """
    begin, book = time.perf_counter(), Book(root)
    try:
        with build_lock(book):
            publish(app, log, book)
    except PressError as error:
        print(f"\n{error}", file=sys.stderr, flush=True)
    else:
        print(f"\nup to date in {time.perf_counter() - begin:.1f} s", flush=True)
    gc.collect()
    return {path: modified_at(path) for path in book.folder.glob("*.ipynb")}


def start_server(folder: Path, port: int) -> http.server.ThreadingHTTPServer:
    """Serve a folder on this machine alone, in the background."""
    handler = functools.partial(Quiet, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files, and does not write a line for each."""

    def log_request(self, *unused) -> None:
        """Say nothing of what was served; errors are still logged."""


def main() -> None:
    """Serve until Ctrl-C. A change of the press, the engine or the settings starts it anew."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, default=8000)
    port = parser.parse_args().port
    gc.disable()  # see publish.main
    book, log = Book(), Tee()
    try:
        with build_lock(book):
            forget_old_pages(book)
        server = start_server(book.html, port)
    except PressError as error:
        raise SystemExit(error) from error
    except OSError as error:
        raise SystemExit(f"port {port} cannot be had: {error.strerror}") from error
    saved, changed = watched_saves(book.root), set()
    next(saved)
    with make_sphinx(book, log) as app:
        while not needs_restart(changed):
            ours = build_again(app, log, book.root)
            print(f"The book is at http://localhost:{port} (stop with Ctrl-C)", flush=True)
            changed = wait_for_change(saved, ours)
    server.server_close()
    print("the code or the settings changed: starting anew", flush=True)
    os.execv(sys.executable, [sys.executable, "-m", "normbook.press.serve", *sys.argv[1:]])


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print()
