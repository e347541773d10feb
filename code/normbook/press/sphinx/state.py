"""The book that Sphinx builds: the extensions ask here for it, and for what its cells measured."""

from pathlib import Path

from sphinx.application import Sphinx

from normbook.press.book import Book
from normbook.press.evidence import Evidence


def evidence_of(app: Sphinx) -> Evidence:
    """Return the book that is built with its evidence: what `publish` set, else read now."""
    if not hasattr(app, "normbook_evidence"):
        app.normbook_evidence = Evidence(Book(Path(app.srcdir).parent))
    return app.normbook_evidence
