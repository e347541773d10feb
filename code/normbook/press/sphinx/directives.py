"""The pages that the book's files are made into: ledger, questions, heads, corrections, status."""

from collections.abc import Iterable
from pathlib import Path

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective

from normbook.press.book import Book
from normbook.press.evidence import Evidence, counts
from normbook.press.ledger import STATUSES, Measurement, measurements, sources
from normbook.press.pages import Label, Page
from normbook.press.questions import (
    DECK,
    LEVELS,
    QUESTIONS,
    TOPICS,
    Question,
    answer_lines,
    dropdown_lines,
    one_line,
)
from normbook.press.reading import about_line
from normbook.press.sphinx.state import evidence_of

COUNTS = "counts"  # the argument that prints the counts by status


class FromBook(SphinxDirective):
    """A directive that prints MyST which the book's files are made into."""

    @property
    def evidence(self) -> Evidence:
        """The book and what its cells measured."""
        return evidence_of(self.env.app)

    @property
    def book(self) -> Book:
        """The book that is built."""
        return self.evidence.book

    def watch(self, *paths: Path) -> None:
        """Make the page again when what it is made from changes."""
        for path in paths:
            if path.exists():  # a file that is missing would count as changed, at every build
                self.env.note_dependency(str(path))

    def parsed(self, classes: str, lines: Iterable[str]) -> nodes.container:
        """Return MyST lines as nodes, in a box that the page's style and script can find."""
        container = nodes.container(classes=classes.split())
        source = f"{self.name} of {self.env.docname}"
        self.state.nested_parse(StringList(list(lines), source=source), 0, container)
        return container


class Ledger(FromBook):
    """Print every claim, page by page: ``{ledger}``; ``{ledger} counts``: how many there are."""

    optional_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return a section a page, or one table."""
        self.watch(self.book.evidence)
        if not self.arguments:
            return [self.section(page) for page in self.book.chapters if self.book.claims_of(page)]
        if self.arguments != [COUNTS]:
            raise self.error(
                f"{self.arguments[0]!r} is not known: {{ledger}}, or {{ledger}} counts"
            )
        lines = summary_lines(self.book.claims, self.evidence.found)
        return [self.parsed("ledger-counts", lines)]

    def section(self, page: Page) -> nodes.section:
        """Return the entries of a page under a heading."""
        title = f"§{page.title}" if page.number else "The cover"
        section = nodes.section("", nodes.title(title, title), ids=[nodes.make_id(title)])
        entries = nodes.container(classes=["ledger"])
        for entry in self.book.claims_of(page):
            lines = entry_lines(entry, self.evidence.found, self.evidence.places)
            entries += self.parsed(f"claim status-{entry['status']}", lines)
        section += entries
        return section


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
        lines += ["", f"  {mark} {seen.line} ({place})."]
    if "because" in entry:
        lines += ["", f"  True by construction: {' '.join(entry['because'].split())}"]
    if sources(entry):
        lines += ["", f"  Source: {{cite:t}}`{','.join(sources(entry))}`."]
    return [*lines, ""]


def summary_lines(entries: list[dict], found: dict[str, Measurement]) -> list[str]:
    """Return a table: the claims of each status, how many a cell checked, how many with a rival.

    An illustration is no evidence, so the sum leaves it out.
    """
    head = ["status", "claims", "checked by a cell", "with a rival that failed"]
    rows = [f"| {' | '.join(head)} |", "|---|--:|--:|--:|"]
    statuses = [s for s in STATUSES if any(entry["status"] == s for entry in entries)]
    apart = [status for status in statuses if status == "illustration"]
    evidence = [status for status in statuses if status not in apart]
    rows += [summary_row(status, [status], entries, found) for status in evidence]
    rows.append(summary_row("all", evidence, entries, found))
    return rows + [summary_row(f"*{status}*", [status], entries, found) for status in apart]


def summary_row(name: str, statuses: list[str], entries: list[dict], found: dict) -> str:
    """Return a row of the table: the counts over some statuses."""
    names = [entry["id"] for entry in entries if entry["status"] in statuses]
    checked = [found[name] for name in names if name in found]
    rivals = sum(seen.passed and bool(seen.rivals) for seen in checked)
    return f"| {name} | {len(names)} | {len(checked)} | {rivals} |"


class Questions(FromBook):
    """Print the questions of one level with answers that open: ``{questions} 2``.

    ``{questions} drill`` prints all as cards, ``{questions} deck`` the link to the Anki deck.
    """

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the questions, the cards or the link as nodes."""
        self.watch(self.book.folder / QUESTIONS)
        what, questions, labels = self.arguments[0], self.book.questions, self.book.labels
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


class About(FromBook):
    """Print the head of a chapter: reading time, counted, and what one needs to know."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Return one line."""
        text = self.book.pages[self.env.docname].text
        return [self.parsed("about", [about_line(text, " ".join(self.content))])]


class OftenWrong(FromBook):
    """Print the claims of one status, chapter by chapter: ``{often-wrong} corrected``."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return a line for each chapter, and its claims as a list, each with its evidence."""
        self.watch(self.book.evidence)
        lines = []
        for page in self.book.chapters:
            entries = [e for e in self.book.claims_of(page) if e["status"] == self.arguments[0]]
            lines += [f"**{{doc}}`{page.name}`**", ""] if entries else []
            lines += [line for e in entries for line in correction_lines(e, self.evidence.places)]
        return [self.parsed("often-wrong", lines)]


def correction_lines(entry: dict, where: dict[str, str]) -> list[str]:
    """Return one claim as an item of a list: wording, where it is shown, and its sources."""
    links = [f"{{ref}}`ledger <claim-{entry['id']}>`"]
    if entry["id"] in where:
        links.insert(0, f"shown in {{ref}}`{where[entry['id']]}`")
    if sources(entry):
        links.append(f"{{cite:t}}`{','.join(sources(entry))}`")
    return [f"- {' '.join(entry['claim'].split())}", f"  → {'; '.join(links)}", ""]


class Status(FromBook):
    """Print one row a chapter: cells, figures, exercises, claims by status, time to run."""

    def run(self) -> list[nodes.Node]:
        """Return a table and where its times come from."""
        self.watch(self.book.evidence, self.book.timings)
        times = self.book.times
        head = ["page", "seconds", "cells", "figures", "exercises", *STATUSES, "✓"]
        rows = [status_row(self.book, page, times) for page in self.book.chapters]
        totals = [sum(int(row[i]) for row in rows if row[i] != "–") for i in range(1, len(head))]
        rows.append(["all", *map(str, totals)])
        line = ["---", *["--:"] * (len(head) - 1)]
        table = [f"| {' | '.join(row)} |" for row in (head, line, *rows)]
        return [self.parsed("status", [*table, "", *timing_note(times)])]


def status_row(book: Book, page: Page, times: dict) -> list[str]:
    """Return a chapter's row of the status table."""
    mine = [entry["status"] for entry in book.claims_of(page)]
    seconds = times.get("chapters", {}).get(page.name, {}).get("processor")
    return [
        f"{{doc}}`{page.name}`" if page.number else f"{{doc}}`Cover <{page.name}>`",
        "–" if seconds is None else f"{seconds:.0f}",
        *map(str, counts(page)),
        *(str(mine.count(status)) for status in STATUSES),
        str(sum(seen.passed for seen in measurements(page).values())),
    ]


def timing_note(times: dict) -> list[str]:
    """Return the sentence that says when and with what the times were taken."""
    if not times:
        return ["The times have not been taken yet: `make status` takes them."]
    versions = ", ".join(f"{name} {number}" for name, number in times["versions"].items())
    line = f"Taken on {times['date']}: {times['machine']}; {versions}."
    if floor := times.get("floor", {}).get("processor"):
        line += f" A kernel that only imports PyTorch and pyplot took {floor:.1f} seconds."
    return [line]
