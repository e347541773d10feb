"""What the book adds to Sphinx: numbers by chapter, its buttons, the ledger, the questions."""

import copy
import os
import re
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

from docutils import nodes
from docutils.statemachine import StringList
from pybtex.plugin import find_plugin, register_plugin
from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer
from sphinx.util.docutils import SphinxDirective

from normbook.press.evidence import EVIDENCE, built
from normbook.press.ledger import STATUSES, Measurement, sources
from normbook.press.pages import BOOK, ROOT, Label
from normbook.press.questions import (
    DECK,
    FILE,
    LEVELS,
    TOPICS,
    Question,
    answer_lines,
    dropdown_lines,
    one_line,
)

NOTEBOOKS = "notebooks"  # the folder of the site that holds the stand-alone notebooks
SITE_BRANCH = "gh-pages"
GITHUB = re.compile(r"github\.com[:/]([\w.-]+/[\w.-]+?)(?:\.git)?/?$")


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
    others = [
        button
        for button in context.get("header_buttons", [])
        if button.get("label") not in ("download-buttons", "launch-buttons", "source-buttons")
    ]
    chapter = pagename in app.env.normbook_chapters
    buttons = [colab_button(pagename)] if chapter and repository() else []
    downloads = [download_button(context["pathto"], pagename)] if chapter else []
    if doctree is not None:
        downloads.append(print_button())
        buttons.append(group("Download this page", "fas fa-download", downloads))
    context["header_buttons"] = [*buttons, *others]


def group(tooltip: str, icon: str, buttons: list[dict]) -> dict:
    """Return a menu of the page's header."""
    label = "download-buttons"
    return {"type": "group", "tooltip": tooltip, "icon": icon, "buttons": buttons, "label": label}


def download_button(pathto, pagename: str) -> dict:
    """Return the link to the stand-alone notebook."""
    return {
        "type": "link",
        "url": pathto(f"{NOTEBOOKS}/{pagename}.ipynb", 1),
        "text": ".ipynb",
        "icon": "fas fa-code",
        "tooltip": "Download the notebook, engine inside",
        "label": "download-notebook-button",
    }


def print_button() -> dict:
    """Return the entry that prints the page."""
    return {
        "type": "javascript",
        "javascript": "window.print()",
        "text": ".pdf",
        "icon": "fas fa-file-pdf",
        "tooltip": "Print to PDF",
        "label": "download-pdf-button",
    }


def colab_button(pagename: str) -> dict:
    """Return the link that opens the stand-alone notebook of the published site in Colab."""
    path = f"{repository()}/blob/{SITE_BRANCH}/{NOTEBOOKS}/{pagename}.ipynb"
    return {
        "type": "link",
        "url": f"https://colab.research.google.com/github/{path}",
        "text": "Colab",
        "icon": "fas fa-rocket",
        "tooltip": "Open in Colab",
        "label": "launch-colab-button",
    }


def restore_numbers(app: Sphinx, env) -> list[str]:
    """Give Sphinx back its own numbers of the last build, to find out which have changed."""
    env.toc_fignumbers = getattr(env, "normbook_own_numbers", env.toc_fignumbers)
    return []


def number_by_chapter(app: Sphinx, env) -> list[str]:
    """Give figures, tables, equations and exercises numbers by chapter: Fig. 5.1.

    Returns the pages to write again: all when a number changed, as any page may name it.
    """
    before, pages = getattr(env, "normbook_numbers", None), built()[0].pages
    env.normbook_own_numbers = copy.deepcopy(env.toc_fignumbers)
    for docname, kinds in env.toc_fignumbers.items():
        head = pages[docname].number if docname in pages else ""
        for kind, numbers in kinds.items():
            ordered = sorted(numbers, key=numbers.get)
            env.toc_fignumbers[docname][kind] = {
                name: (head, count) if head else (count,) for count, name in enumerate(ordered, 1)
            }
    env.normbook_numbers = copy.deepcopy(env.toc_fignumbers)
    return [] if env.normbook_numbers == before else list(env.found_docs)


def follow_sibling(app: Sphinx, docname: str, source: list[str]) -> None:
    """Rebuild a chapter's page when its recorded notebook changed, not only when its text did."""
    sibling = (BOOK / docname).with_suffix(".ipynb")
    if sibling.exists():
        app.env.note_dependency(str(sibling))


def remember(app: Sphinx, *about) -> None:
    """Note which pages this build reads or writes (the name comes first or last)."""
    app.normbook_made.add(next(word for word in about if isinstance(word, str)))


def find_chapters(app: Sphinx, *unused) -> None:
    """Remember which pages have a notebook."""
    app.env.normbook_chapters = {page.name for page in built()[0].chapters}


class Ledger(SphinxDirective):
    """Print the claims of one section: ``{ledger} 5``; without a section, the counts by status."""

    optional_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the ledger's entries as nodes."""
        book, found, where = built()
        self.env.note_dependency(str(BOOK / "claims.yml"))
        self.env.note_dependency(str(EVIDENCE))
        if not self.arguments:
            return [self.parsed("ledger-counts", summary_lines(book.claims, found))]
        chosen = [e for e in book.claims if str(e["section"]) == self.arguments[0]]
        container = nodes.container(classes=["ledger"])
        for entry in chosen:
            lines = entry_lines(entry, found, where)
            container += self.parsed(f"claim status-{entry['status']}", lines)
        return [container]

    def parsed(self, classes: str, lines: list[str]) -> nodes.container:
        """Return MyST lines as nodes, in a box that the page's style and script can find."""
        container = nodes.container(classes=classes.split())
        self.state.nested_parse(StringList(lines, source="claims.yml"), 0, container)
        return container


def entry_lines(entry: dict, found: dict[str, Measurement], where: dict[str, str]) -> list[str]:
    """Return one claim as MyST: a target, its id and status, the wording, what was measured."""
    name = entry["id"]
    lines = [f"(claim-{name})=", f"**{name}** · {entry['status']}", ""]
    lines.append(": " + " ".join(entry["claim"].split()))
    if name in found:
        seen = found[name]
        mark = "✓" if seen.passed else "✗"
        label = where.get(name)
        place = f"{{ref}}`{label}`" if label else f"{{doc}}`{seen.page}`"
        lines += ["", f"  {mark} {seen.measured}; {seen.expected} ({place})."]
    if sources(entry):
        lines += ["", f"  Source: {{cite:t}}`{','.join(sources(entry))}`."]
    return [*lines, ""]


def summary_lines(entries: list[dict], found: dict[str, Measurement]) -> list[str]:
    """Return a table: how many claims of each status the book has, and how many a cell checked."""
    rows = ["| status | claims | checked by a cell |", "|---|--:|--:|"]
    for status in (status for status in STATUSES if any(e["status"] == status for e in entries)):
        names = [entry["id"] for entry in entries if entry["status"] == status]
        rows.append(f"| {status} | {len(names)} | {sum(name in found for name in names)} |")
    checked = sum(entry["id"] in found for entry in entries)
    return [*rows, f"| all | {len(entries)} | {checked} |"]


class Questions(SphinxDirective):
    """Print the questions of one level with answers that open: ``{questions} 2``.

    ``{questions} drill`` prints all as cards, ``{questions} deck`` the link to the Anki deck.
    """

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the questions, the cards or the link as nodes."""
        self.env.note_dependency(str(BOOK / FILE))
        book, what = built()[0], self.arguments[0]
        questions, labels = book.questions, book.labels
        if what == "deck":
            words = f"Anki deck, {len(questions)} questions and the nine lines"
            return [nodes.paragraph("", "", nodes.reference("", words, refuri=DECK))]
        if what == "drill":
            return [
                nodes.container("", *(self.card(q, labels) for q in questions), classes=["drill"])
            ]
        chosen = [question for question in questions if str(question.level) == what]
        if not chosen:
            raise self.error(f"no question has the level {what!r}")
        lines = [line for question in chosen for line in dropdown_lines(question, labels)]
        return [self.parsed("questions", lines)]

    def card(self, question: Question, labels: dict[str, Label]) -> nodes.container:
        """Return one card of the drill: tags, question, answer."""
        about = f"{LEVELS[question.level]} · {TOPICS[question.topic]}"
        asked = f"**{question.number}. {one_line(question.question)}**"
        return nodes.container(
            "",
            nodes.paragraph("", about, classes=["drill-about"]),
            self.parsed("drill-question", [asked]),
            self.parsed("drill-answer", answer_lines(question, labels)),
            classes=["drill-card", f"level-{question.level}", f"topic-{question.topic}"],
            ids=[f"drill-{question.number}"],
        )

    def parsed(self, name: str, lines: list[str]) -> nodes.container:
        """Return lines of MyST as nodes, in a container of that class."""
        container = nodes.container(classes=[name])
        self.state.nested_parse(StringList(lines, source=FILE), 0, container)
        return container


# In running text the first match wins: a star inside a formula or in code is left alone.
INLINE = re.compile(r"(?P<math>\$[^$]+\$)|(?P<code>`[^`]+`)|(?P<emphasis>\*\w+\*)|(?P<star>\*+)")
# Formulas on their own lines, and blocks that are indented by hand.
BLOCK = re.compile(r"\$\$(?P<math>.+?)\$\$|(?P<table>(?<=\n\n)(?:    [^\n]*\n?)+)", re.S)


def to_rst(app: Sphinx, what: str, name: str, obj, options, lines: list[str]) -> None:
    """Rewrite a docstring of the engine for autodoc: formulas in dollars, code in backticks."""
    text, parts, start = "\n".join(lines), [], 0
    for match in BLOCK.finditer(text):
        parts.append(INLINE.sub(inline_rst, text[start : match.start()]))
        parts.append(block_rst(match))
        start = match.end()
    parts.append(INLINE.sub(inline_rst, text[start:]))
    lines[:] = "".join(parts).split("\n")


def block_rst(match: re.Match) -> str:
    """Return a displayed formula, or lines that keep their columns, as reStructuredText."""
    if match["table"]:
        return f"::\n\n{match['table']}\n"
    body = "\n".join("    " + row.strip() for row in match["math"].strip().split("\n"))
    return f"\n\n.. math::\n\n{body}\n\n"


def inline_rst(match: re.Match) -> str:
    """Return a formula, a piece of code or a star in running text as reStructuredText."""
    if match["math"]:
        return f":math:`{match['math'].strip('$')}`"
    if match["code"]:
        return f"`{match['code']}`\\ "  # the escaped blank ends it and shows nothing
    return match["emphasis"] or match["star"].replace("*", r"\*")


imported_source_of = ModuleAnalyzer.get_module_source


def source_of(module: str) -> tuple[str, str]:
    """Return where a module's source lies, and the source.

    Sphinx would import our modules to learn it, and PyTorch with them, at each build.
    """
    if module.partition(".")[0] not in ("normalization", "normbook"):
        return imported_source_of(module)
    found = find_spec(module)
    return found.origin, found.loader.get_source(module)


class Remembered(find_plugin("pybtex.style.formatting", "alpha")):
    """The style of the references; each is formatted once, and not twice at every build."""

    formatted: ClassVar[dict] = {}

    def format_entry(self, label: str, entry, bib_data=None):
        """Return a reference as it is printed."""
        key = label, repr(entry)
        if key not in self.formatted:
            self.formatted[key] = super().format_entry(label, entry, bib_data)
        return self.formatted[key]


def setup(app: Sphinx) -> dict:
    """Register all of it."""
    ModuleAnalyzer.get_module_source = staticmethod(source_of)
    # without this every citation looks through all installed packages for its backend
    backend = "pybtex.backends", "plaintext"
    register_plugin(*backend, find_plugin(*backend), force=True)
    register_plugin("pybtex.style.formatting", "normbook", Remembered, force=True)
    app.connect("autodoc-process-docstring", to_rst)
    app.connect("builder-inited", find_chapters)
    app.connect("env-before-read-docs", find_chapters)
    app.connect("source-read", follow_sibling)
    app.normbook_made = set()
    app.connect("source-read", remember)
    app.connect("doctree-resolved", remember)
    app.connect("env-get-updated", restore_numbers, priority=100)
    app.connect("env-get-updated", number_by_chapter, priority=900)
    app.connect("html-page-context", set_buttons, priority=900)
    app.add_directive("ledger", Ledger)
    app.add_directive("questions", Questions)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
