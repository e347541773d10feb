"""The built pages ask nobody and execute nothing; the stand-alone notebook needs nobody."""

import itertools
import json
import os
import re
import subprocess
import sys
from functools import cache

import nbformat
import pytest
from alone import texts
from bs4 import BeautifulSoup
from helpers import ROOT
from nbclient import NotebookClient

from normbook.press.book import Book
from normbook.press.pages import code_cells, figures_of
from normbook.press.reach import CODE, DOOR, text_of
from normbook.press.rules import paths_in
from normbook.press.siblings import count_of_claims, is_folded
from normbook.press.sphinx import buttons
from normbook.press.sphinx.engine import door_entries
from normbook.press.standalone import make_standalone

HTML = ROOT / "_build/html"


def publish() -> str:
    """Build the real book as `make book` does, and return what is said."""
    command = [sys.executable, "-m", "normbook.press.publish"]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout


@pytest.fixture(scope="module")
def pages():
    """The pages of the real book."""
    HTML.mkdir(parents=True, exist_ok=True)
    (HTML / "99-a-page-of-long-ago.html").write_text("<p>old</p>")
    assert "Executing notebook" not in publish()
    return {
        path: BeautifulSoup(path.read_text("utf-8"), "html.parser") for path in HTML.glob("*.html")
    }


def test_a_build_with_nothing_to_do_leaves_the_pages_as_they_are(pages):
    before = {path: path.read_bytes() for path in pages}
    assert "0 added, 0 changed" in publish()
    changed = {path.name for path, old in before.items() if path.read_bytes() != old}
    assert not changed - {"index.html"}


def test_what_a_figure_offers_as_png_is_one_and_what_it_shows_is_smaller(pages):
    found = [link for page in pages.values() for link in page.select(".figure-offer a[download]")]
    figures = [figure["name"] for page in Book().chapters for figure in figures_of(page)]
    assert {link["download"] for link in found} == {f"{name}.png" for name in figures}
    assert len(found) == len(figures)
    for link in found:
        offered = HTML / link["href"]
        assert offered.read_bytes().startswith(b"\x89PNG")
        shown = HTML / link.find_parent("figure").find("img")["src"]
        assert shown.suffix == ".webp"
        assert shown.stat().st_size < offered.stat().st_size


def test_no_page_asks_another_host_and_every_picture_has_a_description(pages):
    assert len(pages) >= 5
    for path, page in pages.items():
        for tag in page.find_all(["script", "img", "link", "iframe", "source"]):
            address = tag.get("src") or tag.get("href") or ""
            assert not re.match(r"(https?:)?//", address), f"{path.name}: {address}"
            assert tag.name != "img" or tag.get("alt"), f"{path.name}: {address}"


def test_every_local_link_leads_somewhere(pages):
    for path, page in pages.items():
        for link in page.find_all("a", href=True):
            target, _, anchor = link["href"].partition("#")
            if ":" in target or link["href"] == "#":
                continue
            file = (path.parent / target).resolve() if target else path
            assert file.exists(), f"{path.name}: {link['href']}"
            if anchor and file.suffix == ".html":
                assert anchor in anchors(file), f"{path.name}: {link['href']}"


@cache
def anchors(path):
    """What a link to a page can lead to; under `_modules` the engine's source stands."""
    page = BeautifulSoup(path.read_text("utf-8"), "html.parser")
    return {part["id"] for part in page.find_all(id=True)}


def test_the_page_of_the_engine_has_every_name_of_the_door(pages):
    names = {f"normalization.{entry.name}" for entry in door_entries(text_of(DOOR, CODE))}
    assert names <= anchors(HTML / "engine.html")


def test_each_chapter_offers_its_notebook_and_no_raw_source(pages):
    for chapter in Book().chapters:
        page = pages[HTML / f"{chapter.name}.html"]
        offered = [a["href"] for a in page.find_all("a", class_="dropdown-item", href=True)]
        assert offered == [f"notebooks/{chapter.name}.ipynb"]
        assert not [link for link in page.find_all("a", href=True) if ".md" in link["href"]]
    assert not (HTML / "_sources").exists()


def test_pages_that_the_book_no_longer_has_are_gone(pages):
    assert {path.stem for path in pages} == {*Book().pages, "genindex", "search"}


def test_figures_are_numbered_by_chapter(pages):
    captions = pages[HTML / "05-pre-vs-post-norm.html"].select("figcaption .caption-number")
    numbers = [caption.text.strip() for caption in captions]
    assert numbers == [f"Fig. 5.{count}" for count in range(1, len(numbers) + 1)]


def test_the_cover_counts_the_claims(pages):
    rows = pages[HTML / "index.html"].select(".ledger-counts tr")
    counted = dict(row.get_text(" ", strip=True).split()[:2] for row in rows[1:])
    illustrations = int(counted.get("illustration", 0))
    assert int(counted["all"]) + illustrations == len(Book().claims)


def test_the_ledger_needs_no_script(pages):
    claims = pages[HTML / "ledger.html"].select(".ledger .claim")
    assert len(claims) == len(Book().claims)
    assert not [claim for claim in claims if claim.has_attr("hidden")]
    assert all(re.search(r"\bstatus-\w+", " ".join(claim["class"])) for claim in claims)


# --- claims on the page ---


def test_cells_of_claims_are_folded_under_a_line_that_counts_them(pages):
    folded = 0
    for chapter in Book().chapters:
        page = pages[HTML / f"{chapter.name}.html"]
        wanted = [
            count_of_claims(cell.outputs) for cell in chapter.recorded_cells if is_folded(cell)
        ]
        cells = page.select(".cell.tag_claims")
        assert [cell.select_one("summary .collapsed").get_text() for cell in cells] == wanted
        assert all(re.fullmatch(r"✓ \d+ claims? checked|Values for the text", w) for w in wanted)
        lines = [cell.get_text().count("✓ ") - 2 for cell in cells]  # folded and opened summary
        assert lines == [int(re.sub(r"\D", "", line) or -2) for line in wanted]
        folded += len(cells)
    assert folded > 10


def test_the_notebook_says_the_same_and_hides_the_code_alone(pages):
    for chapter in Book().chapters:
        cells = chapter.recorded.cells
        for above, cell in itertools.pairwise(cells):
            if cell.cell_type == "code" and is_folded(cell):
                assert above.source == count_of_claims(cell.outputs)
                assert cell.metadata.jupyter == {"source_hidden": True}


def test_the_lines_of_a_cell_are_one_block(pages):
    for path, page in pages.items():
        plain = ".cell_output > .output.text_plain, .cell_output > .output.stream"
        for block in page.select(plain):
            after = block.find_next_sibling()
            again = after is not None and {"text_plain", "stream"} & set(after.get("class", []))
            assert not again, f"{path.name}: {block.get_text()[:80]}"


# --- Colab ---


ADDRESSES = {
    "https://github.com/someone/the-book.git": "someone/the-book",
    "git@github.com:someone/the.book.git": "someone/the.book",
    "https://github.com/someone/book/": "someone/book",
    "https://example.org/someone/book.git": None,
    None: None,
}


@pytest.mark.parametrize("address", ADDRESSES)
def test_the_repository_comes_from_git(address, tmp_path, monkeypatch):
    monkeypatch.delenv("GITHUB_REPOSITORY", raising=False)
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    if address:
        subprocess.run(["git", "-C", tmp_path, "remote", "add", "origin", address], check=True)
    assert buttons.repository(tmp_path) == ADDRESSES[address]


def test_the_colab_button_opens_the_stand_alone_notebook(monkeypatch):
    monkeypatch.setenv("GITHUB_REPOSITORY", "someone/book")
    address = buttons.colab_button("05-pre-vs-post-norm")["url"]
    assert address.endswith(
        "/github/someone/book/blob/gh-pages/notebooks/05-pre-vs-post-norm.ipynb"
    )


# --- the stand-alone notebook ---


def test_a_stand_alone_notebook_has_no_path_and_no_broken_link():
    book = Book()
    for page in book.chapters:
        notebook = make_standalone(book, page)
        words = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
        for target in re.findall(r"\]\(([^)]+)\)", "\n".join(words)):
            assert target.startswith(("https://", "#")), f"{page.name}: {target}"
        assert paths_in(page.name, json.dumps(notebook.cells[1:])) == []
        assert "MIT" in notebook.cells[0].source
        assert "CC BY 4.0" in notebook.cells[0].source


# What a reader who has torch, matplotlib, scikit-learn and ipykernel does not have.
BLOCK = """
import importlib.abc, sys

class Block(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.split(".")[0] in OURS or name == "normbook.press":
            raise ImportError(f"{name} is not here")

OURS = {OURS}
sys.meta_path.insert(0, Block())
sys.path[:] = [entry for entry in sys.path if entry != CODE]
"""
OURS = {
    *("yaml", "myst_nb", "myst_parser", "jupytext", "sphinx", "jupyter_book", "jupyter_cache"),
    *("nbformat", "nbclient", "nbval", "pybtex", "playwright", "bs4"),
}


@pytest.mark.parametrize("name", ["a-sanity-check", "03-layer-norm"])
def test_a_stand_alone_notebook_runs_in_an_empty_folder(name, tmp_path):
    book = Book()
    notebook = make_standalone(book, book.pages[name])
    recorded = [cell.outputs for cell in code_cells(notebook)[1:]]
    block = BLOCK.replace("{OURS}", repr(OURS)).replace("CODE", repr(str(ROOT / "code")))
    notebook.cells.insert(0, nbformat.v4.new_code_cell(block, id="block"))
    where = "import normalization, normbook; print(normalization.__file__, normbook.__file__)"
    notebook.cells.append(nbformat.v4.new_code_cell(where, id="where"))
    environment = {**os.environ, "NORMBOOK_STRICT": "1", "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONPATH", None)
    client = NotebookClient(
        notebook,
        timeout=300,
        resources={"metadata": {"path": str(tmp_path)}},
        extra_arguments=["--IPKernelApp.log_level=40"],
        coalesce_streams=True,
    )
    client.execute(env=environment)
    cells = code_cells(notebook)
    assert cells[-1].outputs[0].text.count("normbook-engine") == 2
    for cell, outputs in zip(cells[2:-1], recorded, strict=True):
        if "nbval-ignore-output" not in cell.metadata.get("tags", []):
            assert texts(cell.outputs) == texts(outputs)
