"""What surrounds the chapters: their heads, corrections, status, and each figure's download."""

import html
import re

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from normbook.press.evidence import EVIDENCE, built, counts, home
from normbook.press.ledger import STATUSES, measurements, sources
from normbook.press.pages import BOOK, ROOT, Page
from normbook.press.reading import about
from normbook.press.siblings import Book
from normbook.press.timings import FILE, load

FIGURE = re.compile(
    r'<figure class="[^"]*" id="(?P<id>[\w-]+)">\s*(?:<a [^>]*>)?<img [^>]*?src="(?P<src>[^"]+)".*?'
    r"(?P<end></figcaption>\s*)</figure>",
    re.S,
)


class Printed(SphinxDirective):
    """A directive whose content is MyST that the book's files are made into."""

    css = ""

    def lines(self) -> list[str]:
        """Return the MyST to print."""
        raise NotImplementedError

    def watch(self) -> None:
        """Rebuild the page when what it is made from changes."""
        for path in (BOOK / "claims.yml", BOOK / FILE, EVIDENCE):
            if path.exists():  # a file that is missing would count as changed, at every build
                self.env.note_dependency(str(path))

    def run(self) -> list[nodes.Node]:
        """Return the printed lines as nodes."""
        container = nodes.container(classes=[self.css])
        self.state.nested_parse(StringList(self.lines(), source=self.css), 0, container)
        return [container]


class About(Printed):
    """Print the head of a chapter: reading time, counted, and what one needs to know."""

    has_content = True
    css = "about"

    def lines(self) -> list[str]:
        """Return one line."""
        text = (BOOK / self.env.docname).with_suffix(".md").read_text(encoding="utf-8")
        return [about(text, " ".join(self.content))]


class OftenWrong(Printed):
    """Print the claims of one status, chapter by chapter: ``{often-wrong} corrected``."""

    required_arguments = 1
    css = "often-wrong"

    def lines(self) -> list[str]:
        """Return a line for each chapter, and its claims as a list, each with its evidence."""
        book, _, where = built()
        self.watch()
        lines = []
        for page, entries in by_page(book, self.arguments[0]):
            lines += [f"**{{doc}}`{page.name}`**" if page else "**Elsewhere**", ""]
            lines += [line for entry in entries for line in item(entry, where)]
        return lines


def by_page(book: Book, status: str) -> list[tuple[Page | None, list[dict]]]:
    """Return the claims of one status by chapter, in the book's order; None for those without."""
    wanted = [(home(book, entry), entry) for entry in book.claims if entry["status"] == status]
    found = []
    for page in [*book.chapters, None]:
        entries = [entry for own, entry in wanted if own is page]
        if entries:
            found.append((page, entries))
    return found


def item(entry: dict, where: dict[str, str]) -> list[str]:
    """Return one claim as an item of a list: wording, where it is shown, and its sources."""
    links = [f"{{ref}}`ledger <claim-{entry['id']}>`"]
    if entry["id"] in where:
        links.insert(0, f"shown in {{ref}}`{where[entry['id']]}`")
    if sources(entry):
        links.append(f"{{cite:t}}`{','.join(sources(entry))}`")
    return [f"- {' '.join(entry['claim'].split())}", f"  → {'; '.join(links)}", ""]


class Status(Printed):
    """Print one row a chapter: cells, figures, exercises, claims by status, time to run."""

    css = "status"

    def lines(self) -> list[str]:
        """Return a table and where its times come from."""
        book, *_ = built()
        self.watch()
        times = load()
        head = ["page", "seconds", "cells", "figures", "exercises", *STATUSES, "✓"]
        rows = [status_row(book, page, times) for page in book.chapters]
        totals = [sum(int(row[i]) for row in rows if row[i] != "–") for i in range(1, len(head))]
        rows.append(["all", *map(str, totals)])
        table = [f"| {' | '.join(row)} |" for row in (head, ["---", *["--:"] * 10], *rows)]
        return [*table, "", *taken(times)]


def status_row(book: Book, page, times: dict) -> list[str]:
    """Return a chapter's row of the status table."""
    mine = [entry["status"] for entry in book.claims if home(book, entry) is page]
    seconds = times.get("chapters", {}).get(page.name, {}).get("processor")
    return [
        f"{{doc}}`{page.name}`" if page.number else f"{{doc}}`Cover <{page.name}>`",
        "–" if seconds is None else f"{seconds:.0f}",
        *map(str, counts(page)),
        *(str(mine.count(status)) for status in STATUSES),
        str(sum(seen.passed for seen in measurements(page).values())),
    ]


def taken(times: dict) -> list[str]:
    """Return the sentence that says when and with what the times were taken."""
    if not times:
        return ["The times have not been taken yet: `make status` takes them."]
    versions = ", ".join(f"{name} {number}" for name, number in times["versions"].items())
    return [f"Taken on {times['date']}: {times['machine']}; {versions}."]


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

    return FIGURE.sub(offer, body)


def add_offers(app: Sphinx, pagename: str, templatename: str, context: dict, doctree) -> None:
    """Offer the figures of a page for download."""
    if doctree is not None and "body" in context:
        name, address = licence((ROOT / "LICENSE-text.md").read_text(encoding="utf-8"))
        context["body"] = offer_figures(context["body"], app.config.html_title, name, address)


def setup(app: Sphinx) -> dict:
    """Register all of it."""
    app.connect("html-page-context", add_offers, priority=900)
    app.add_directive("about", About)
    app.add_directive("often-wrong", OftenWrong)
    app.add_directive("status", Status)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
