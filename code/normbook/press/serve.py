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

from normbook.press.evidence import built
from normbook.press.pages import BOOK, ROOT, PressError
from normbook.press.publish import HTML, Heard, alone, forget_old_pages, publish, sphinx

PAUSE = 0.2  # seconds between two looks at the files


def watched() -> Iterator[Path]:
    """Yield the files that the pages are made from."""
    yield from (ROOT / "_toc.yml", ROOT / "_config.yml", ROOT / "pyproject.toml")
    yield from (path for path in BOOK.rglob("*") if path.is_file() and path.name[0] != ".")
    yield from (ROOT / "code").rglob("*.py")


def saved() -> dict[Path, int]:
    """Return when each file was last written, in nanoseconds."""
    times = {}
    for path in watched():
        try:
            times[path] = path.stat().st_mtime_ns
        except FileNotFoundError:  # an editor moves the new text into the old one's place
            continue
    return times


def wait_for_change(before: dict[Path, int]) -> set[Path]:
    """Return the files that are new, gone or written since `before`, once there are some."""
    while True:
        now = saved()
        if changed := {path for path, _ in before.items() ^ now.items()}:
            return changed
        time.sleep(PAUSE)


def build_again(app: Sphinx, heard: Heard) -> None:
    """Bring the pages up to date and say how long it took, or what is wrong."""
    begin = time.perf_counter()
    built.cache_clear()
    try:
        with alone():
            publish(app, heard, built()[0])
    except PressError as error:
        print(f"\n{error}", file=sys.stderr, flush=True)
    else:
        print(f"\nup to date in {time.perf_counter() - begin:.1f} s", flush=True)
    gc.collect()


def serve(folder: Path, port: int) -> http.server.ThreadingHTTPServer:
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
    heard = Heard()
    try:
        with alone():
            built()
            forget_old_pages()
        server = serve(HTML, port)
    except PressError as error:
        raise SystemExit(error) from error
    except OSError as error:
        raise SystemExit(f"port {port} cannot be had: {error.strerror}") from error
    with sphinx(heard) as app:
        changed: set[Path] = set()
        while not any(path.suffix in (".py", ".toml") or path.parent == ROOT for path in changed):
            before = saved()
            build_again(app, heard)
            written = {path: when for path, when in saved().items() if path.suffix == ".ipynb"}
            print(f"The book is at http://localhost:{port} (stop with Ctrl-C)", flush=True)
            changed = wait_for_change(before | written)
    server.server_close()
    print("the code or the settings changed: starting anew", flush=True)
    os.execv(sys.executable, [sys.executable, "-m", "normbook.press.serve", *sys.argv[1:]])


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print()
