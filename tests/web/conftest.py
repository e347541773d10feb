"""A headless browser on the built pages.

Debian's, Ubuntu's and most people's browser will do; nothing is downloaded. These tests run in a
process of their own (`make test-web`): playwright keeps an event loop running, and so do notebooks.
"""

import os
import shutil
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from helpers import FORMULAS, ROOT

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
QUIET = (
    *("--no-sandbox", "--disable-gpu", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--no-first-run"),
)


@pytest.fixture(scope="session")
def site() -> Path:
    """The folder of the built pages."""
    html = ROOT / "_build/html"
    if not (html / "index.html").exists():
        pytest.skip("no pages at _build/html: run `make book` first")
    return html


@pytest.fixture(scope="session")
def served(site) -> str:
    """The address of a server on this machine that serves the pages."""
    handler = partial(QuietHandler, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class QuietHandler(SimpleHTTPRequestHandler):
    """Serves files and says nothing."""

    def log_message(self, *unused):
        pass


@pytest.fixture(scope="session")
def browser():
    """One browser for all tests."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    named = os.environ.get("NORMBOOK_BROWSER")
    path = next(filter(None, [named, *map(shutil.which, BROWSERS)]), None)
    if path is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is on the path")
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=path, args=list(QUIET))
        yield opened
        opened.close()


@pytest.fixture
def page(browser):
    """A fresh page, 1440 wide, light. It collects in `page.troubles` what goes wrong."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    opened = context.new_page()
    watch(opened)
    yield opened
    context.close()


@pytest.fixture
def visit(page, site):
    """Open a page by its name, and wait until its formulas are drawn."""

    def go(name: str):
        page.goto((site / f"{name}.html").as_uri())
        page.evaluate(FORMULAS)
        page.add_style_tag(content="* { transition: none !important; }")
        return page

    return go


def watch(page) -> None:
    """Collect in `page.troubles` what goes wrong on a page, and let nothing out."""
    page.troubles = []

    def gate(route):
        if route.request.url.startswith(("file:", "data:", "blob:", "http://127.0.0.1")):
            route.continue_()
        else:
            page.troubles.append(f"{page.url} asks outside for {route.request.url}")
            route.abort()

    def hear(message):
        if message.type == "error":
            page.troubles.append(f"{page.url} says {message.text}")

    page.route("**/*", gate)
    page.on("console", hear)
    page.on("pageerror", lambda error: page.troubles.append(f"{page.url} raises {error}"))
    page.on("requestfailed", lambda r: page.troubles.append(f"{page.url} misses {r.url}"))
