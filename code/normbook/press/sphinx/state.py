"""The book that Sphinx builds: the extensions ask here for it, and for what its cells measured."""

from collections.abc import Iterator
from pathlib import Path

from docutils import nodes
from nbformat import NotebookNode
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

from normbook.press.book import Book
from normbook.press.evidence import Evidence


def evidence_of(app: Sphinx) -> Evidence:
    """Return the book that is built with its evidence: what `publish` set, else read now."""
    if not hasattr(app, "normbook_evidence"):
        app.normbook_evidence = Evidence(Book(Path(app.srcdir).parent))
    return app.normbook_evidence


def recorded_cells(transform: SphinxTransform) -> Iterator[tuple[nodes.container, NotebookNode]]:
    """Yield the code cells of the page that is read: each as a node, and as it was recorded."""
    page = evidence_of(transform.app).book.pages.get(transform.env.docname)
    if page is None or not page.is_chapter:
        return
    for node in list(transform.document.findall(nodes.container)):
        if node.get("nb_element") == "cell_code":
            before = page.notebook.cells[: node["cell_index"]]
            yield node, page.recorded_cells[sum(cell.cell_type == "code" for cell in before)]
