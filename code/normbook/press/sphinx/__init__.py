"""What the book adds to Sphinx."""

from sphinx.application import Sphinx

from normbook.press.sphinx import buttons, directives, docstrings, engine, numbers, speed, state
from normbook.press.sphinx.claims import FoldClaims, JoinLines
from normbook.press.sphinx.frames import Frames, OfferFrames, close_slider, open_slider


def setup(app: Sphinx) -> dict:
    """Register all of it."""
    speed.speed_up()
    app.connect("autodoc-process-docstring", docstrings.to_rst)
    app.connect("source-read", follow_sibling)
    app.normbook_made = set()
    app.connect("source-read", note_page)
    app.connect("doctree-resolved", note_page)
    app.connect("env-get-updated", numbers.restore_numbers, priority=100)
    app.connect("env-get-updated", numbers.number_by_chapter, priority=900)
    app.connect("html-page-context", buttons.set_buttons, priority=900)
    app.connect("html-page-context", buttons.add_offers, priority=900)
    app.add_transform(FoldClaims)
    app.add_transform(JoinLines)
    app.add_node(Frames, html=(open_slider, close_slider))
    app.add_transform(OfferFrames)
    app.add_directive("ledger", directives.Ledger)
    app.add_directive("engine", engine.Engine)
    app.add_directive("questions", directives.Questions)
    app.add_directive("about", directives.About)
    app.add_directive("often-wrong", directives.OftenWrong)
    app.add_directive("status", directives.Status)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}


def follow_sibling(app: Sphinx, docname: str, source: list[str]) -> None:
    """Make a chapter's page again when its recorded notebook changed, not only its text."""
    page = state.evidence_of(app).book.pages.get(docname)
    if page is not None and page.sibling.exists():
        app.env.note_dependency(str(page.sibling))


def note_page(app: Sphinx, *about) -> None:
    """Note which pages this build reads or writes (the name comes first or last)."""
    app.normbook_made.add(next(word for word in about if isinstance(word, str)))
