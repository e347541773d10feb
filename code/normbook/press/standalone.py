"""The notebook offered for download: a chapter with the engine inside.

It runs where torch, matplotlib and scikit-learn are, with no clone and no address: its first cell
writes the engine, the instruments and the claims into a folder and puts that on the path.
"""

import base64
import io
import textwrap
import tomllib
import zipfile
from functools import cache
from pathlib import Path

import nbformat

from normbook.press.book import Book
from normbook.press.files import ROOT
from normbook.press.pages import Page
from normbook.press.siblings import make_sibling

FIRST_CELL = '''\
# @title The book's engine (run this first)
# Normalization, Residuals and Initialization, version {version}.
# Code: MIT licence. Text: CC BY 4.0.
import base64
import io
import sys
import zipfile
from functools import cache
from pathlib import Path

FOLDER = Path("normbook-engine")  # engine, instruments and claims, as files that you may edit
ARCHIVE = """
{archive}
"""
if not FOLDER.exists():
    zipfile.ZipFile(io.BytesIO(base64.b64decode(ARCHIVE))).extractall(FOLDER)
sys.path.insert(0, str(FOLDER.resolve()))'''


def shipped_files() -> list[Path]:
    """Return what a chapter needs to run, without the press: engine, lab, studies, claims."""
    code = ROOT / "code"
    rooms = ("engine", "lab", "studies")
    packages = [path for room in rooms for path in code.glob(f"normbook/{room}/**/*.py")]
    claims = Book().claims_json
    return sorted([code / "normalization.py", code / "normbook/__init__.py", *packages, claims])


@cache
def archive() -> str:
    """Return the shipped files as a zip in base64: the same files, the same text."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as bundle:
        for path in shipped_files():
            name = path.relative_to(ROOT / "code").as_posix()
            bundle.writestr(zipfile.ZipInfo(name), path.read_bytes(), zipfile.ZIP_DEFLATED, 9)
    return "\n".join(textwrap.wrap(base64.b64encode(buffer.getvalue()).decode("ascii"), 100))


def version() -> str:
    """Return the version that pyproject.toml states."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]


def make_standalone(book: Book, page: Page) -> nbformat.NotebookNode:
    """Return a chapter's recorded notebook with the engine inside and no link to a neighbour."""
    outputs = [cell.outputs for cell in page.recorded_cells]

    def link(text: str, target: str, label: str) -> str:
        return f"[{text}](#{label})" if label and target == page.name else text

    notebook = make_sibling(book, page, outputs, {"version": version()}, link)
    first = nbformat.v4.new_code_cell(
        FIRST_CELL.format(version=version(), archive=archive()),
        id=f"{page.name}-engine",
        metadata={"jupyter": {"source_hidden": True}, "cellView": "form"},
    )
    notebook.cells.insert(0, first)
    return notebook
