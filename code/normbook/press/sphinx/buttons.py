"""What a page offers: its notebook, Colab, printing, and each figure's picture."""

import html
import os
import re
import subprocess
from pathlib import Path

from sphinx.application import Sphinx

from normbook.press.files import ROOT
from normbook.press.sphinx.state import evidence_of

NOTEBOOKS = "notebooks"  # the folder of the site that holds the stand-alone notebooks
SITE_BRANCH = "gh-pages"
GITHUB = re.compile(r"github\.com[:/]([\w.-]+/[\w.-]+?)(?:\.git)?/?$")
FIGURE_HTML = re.compile(
    r'<figure class="[^"]*" id="(?P<id>[\w-]+)">\s*(?:<a [^>]*>)?<img [^>]*?src="(?P<src>[^"]+)".*?'
    r"(?P<end></figcaption>\s*)</figure>",
    re.S,
)


def repository(root: Path = ROOT) -> str | None:
    """Return "owner/name" of the book on GitHub, from the hosting CI or git's `origin`, or None."""
    if os.environ.get("GITHUB_REPOSITORY"):
        return os.environ["GITHUB_REPOSITORY"]
    command = ["git", "-C", str(root), "remote", "get-url", "origin"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True)
    except OSError:  # no git here: a downloaded copy
        return None
    match = GITHUB.search(answer.stdout.strip())
    return match[1] if match else None


def set_buttons(app: Sphinx, pagename: str, templatename: str, context: dict, doctree) -> None:
    """Offer the stand-alone notebook, Colab where the book has an address, and printing.

    The theme would offer the raw source and a notebook that misses the engine.
    """
    replaced = ("download-buttons", "launch-buttons", "source-buttons")
    others = [b for b in context.get("header_buttons", []) if b.get("label") not in replaced]
    pages = evidence_of(app).book.pages
    chapter = pagename in pages and pages[pagename].is_chapter
    buttons = [colab_button(pagename)] if chapter and repository() else []
    downloads = [download_button(context["pathto"], pagename)] if chapter else []
    if doctree is not None:
        downloads.append(print_button())
        words = "fas fa-download", "Download this page", "download-buttons"
        buttons.append(button("group", *words, buttons=downloads))
    context["header_buttons"] = [*buttons, *others]


def download_button(pathto, pagename: str) -> dict:
    """Return the link to the stand-alone notebook."""
    words = "fas fa-code", "Download the notebook, engine inside", "download-notebook-button"
    return button("link", *words, text=".ipynb", url=pathto(f"{NOTEBOOKS}/{pagename}.ipynb", 1))


def print_button() -> dict:
    """Return the entry that prints the page."""
    words = "fas fa-file-pdf", "Print to PDF", "download-pdf-button"
    return button("javascript", *words, text=".pdf", javascript="window.print()")


def colab_button(pagename: str) -> dict:
    """Return the link that opens the stand-alone notebook of the published site in Colab."""
    path = f"{repository()}/blob/{SITE_BRANCH}/{NOTEBOOKS}/{pagename}.ipynb"
    address = f"https://colab.research.google.com/github/{path}"
    words = "fas fa-rocket", "Open in Colab", "launch-colab-button"
    return button("link", *words, text="Colab", url=address)


def button(kind: str, icon: str, tooltip: str, label: str, **what) -> dict:
    """Return a button of the page's header; `what` its kind has: a text, an address, a menu."""
    return {"type": kind, "icon": icon, "tooltip": tooltip, "label": label, **what}


def licence(text: str) -> tuple[str, str]:
    """Return the short name and the address of the licence that LICENSE-text.md names."""
    return re.search(r"\((CC [^,)]+),", text)[1], re.search(r"<(https://[^>]+)>", text)[1]


def offer_figures(body: str, title: str, name: str, address: str) -> str:
    """Put a link to the picture, and how to credit it, under every figure of a page's HTML."""

    def offer(match: re.Match) -> str:
        line = (
            f'<p class="figure-offer"><a href="{match["src"]}" download="{match["id"]}.png">PNG</a>'
            f' · <a href="{address}">{name}</a>, from “{html.escape(title)}”</p>\n'
        )
        return match[0].removesuffix("</figure>") + line + "</figure>"

    return FIGURE_HTML.sub(offer, body)


def add_offers(app: Sphinx, pagename: str, templatename: str, context: dict, doctree) -> None:
    """Offer the figures of a page for download."""
    if doctree is not None and "body" in context:
        path = evidence_of(app).book.root / "LICENSE-text.md"
        name, address = licence(path.read_text(encoding="utf-8"))
        context["body"] = offer_figures(context["body"], app.config.html_title, name, address)
