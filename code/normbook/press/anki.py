"""The Anki deck: a card for each question of §12, and one for each of the nine lines of §0.

A second import updates the cards of the first: deck, note type and notes keep their ids, and the
time of change is that of the words. So the same words give the same file.
"""

import html
import os
import re
import subprocess
import tempfile
import zipfile
from pathlib import Path

import genanki

from normbook.press.bibliography import Reference
from normbook.press.book import Book
from normbook.press.files import PressError
from normbook.press.questions import LEVELS, QUESTIONS, TOPICS, Question, one_line

TITLE = "Normalization, Residuals and Initialization"
CHEAT_SHEET = "00-cheat-sheet"
# Drawn once. Anki knows a deck and a note type again by these.
DECK_ID = 1795989071
MODEL_ID = 1795989072
FIELDS = ("Key", "Question", "Formula", "Answer", "Weak", "Evidence")
FRONT = "<div class=key>{{Key}}</div><div class=question>{{Question}}</div>"
BACK = """\
{{FrontSide}}
<hr id=answer>
{{#Formula}}<div class=formula>{{Formula}}</div>{{/Formula}}
<div class=points>{{Answer}}</div>
{{#Weak}}<div class=weak>{{Weak}}</div>{{/Weak}}
{{#Evidence}}<div class=evidence>{{Evidence}}</div>{{/Evidence}}
"""
STYLE = """\
.card { font: 18px/1.45 sans-serif; max-width: 40em; margin: 0 auto; padding: 0.5em; }
.question { font-weight: 600; }
.formula { overflow-x: auto; }
.points li { margin-bottom: 0.5em; }
.weak { border-left: 3px solid currentColor; padding-left: 0.7em; }
.key, .evidence { font-size: 14px; opacity: 0.8; }
"""
MODEL = genanki.Model(
    MODEL_ID,
    "Normalization: question",
    fields=[{"name": name} for name in FIELDS],
    templates=[{"name": "Card", "qfmt": FRONT, "afmt": BACK}],
    css=STYLE,
)
INLINE = re.compile(
    r"\$(?P<math>[^$]+)\$|`(?P<code>[^`]+)`|\*\*(?P<strong>[^*]+)\*\*|\*(?P<emphasis>[^*]+)\*"
)
CITE = re.compile(r"\{cite(?P<kind>(?::[pt])?)\}`(?P<keys>[^`]+)`")
LINE = re.compile(
    r"^\*\*(?P<number>\d)\. (?P<title>[^*]+?)\.\*\* (?P<before>.+?)\n\n"
    r"\$\$\n(?P<formula>.+?)\n\$\$ \([\w-]+\)\n\n(?P<after>.+?)\s→\s",
    re.M | re.S,
)


def write_deck(book: Book, path: Path) -> None:
    """Write the deck of the book's questions and nine lines to `path`."""
    deck = genanki.Deck(DECK_ID, TITLE)
    for note in notes(book):
        deck.add_note(note)
    changed = time_of_change(book.folder)
    with tempfile.TemporaryDirectory() as folder:
        draft = Path(folder) / "draft.apkg"
        genanki.Package(deck).write_to_file(draft, timestamp=changed)
        without_dates(draft, path)


def without_dates(draft: Path, path: Path) -> None:
    """Write an archive anew, so that the time of writing is not in it."""
    with zipfile.ZipFile(draft) as old, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
        for name in sorted(old.namelist()):
            new.writestr(zipfile.ZipInfo(name), old.read(name), zipfile.ZIP_DEFLATED)


def time_of_change(folder: Path) -> int:
    """Return when the words of the cards last changed, in seconds: Anki updates what is newer.

    By git where it knows the files, else by the files themselves; SOURCE_DATE_EPOCH overrides.
    """
    if os.environ.get("SOURCE_DATE_EPOCH"):
        return int(os.environ["SOURCE_DATE_EPOCH"])
    paths = [folder / QUESTIONS, folder / f"{CHEAT_SHEET}.md"]
    git = ["git", "-C", str(folder), "log", "-1", "--format=%ct", "--"]
    answer = subprocess.run([*git, *map(str, paths)], capture_output=True, text=True)
    if answer.returncode == 0 and answer.stdout.strip():
        return int(answer.stdout)
    return int(max(path.stat().st_mtime for path in paths))


def notes(book: Book) -> list[genanki.Note]:
    """Return all notes: the questions, then the nine lines."""
    questions = [question_note(question, book) for question in book.questions]
    return questions + [line_note(match, book) for match in nine_lines(book)]


def question_note(question: Question, book: Book) -> genanki.Note:
    """Return the card of a question."""
    points = "".join(f"<li>{to_html(point, book)}</li>" for point in question.answer)
    weak, misses = to_html(question.weak, book), to_html(question.misses, book)
    chapters = {book.pages[book.labels[label].page].number for label in question.shown}
    places = ", ".join(f"§{number}" for number in sorted(chapters, key=lambda n: (len(n), n)))
    level, topic = LEVELS[question.level], TOPICS[question.topic]
    values = {
        "Key": f"Question {question.number} · {level} · {html.escape(topic)}",
        "Question": to_html(question.question, book),
        "Formula": displayed_formula(question.formula),
        "Answer": f"<ul>{points}</ul>",
        "Weak": f"<b>Weak:</b> {weak}<br><b>Misses:</b> {misses}",
        "Evidence": f"Shown in {places} of the book.",
    }
    return note(question.label, values, ["question", f"level-{question.level}", question.topic])


def nine_lines(book: Book) -> list[re.Match]:
    """Return the lines of the cheat sheet: number, title, words before and after the formula."""
    found = list(LINE.finditer(book.pages[CHEAT_SHEET].text))
    if [int(match["number"]) for match in found] != list(range(1, 10)):
        raise PressError(f"{CHEAT_SHEET}.md: the nine lines do not read as nine lines")
    return found


def line_note(match: re.Match, book: Book) -> genanki.Note:
    """Return the card of a line of the cheat sheet."""
    before, after = to_html(match["before"], book), to_html(match["after"], book)
    values = {
        "Key": f"Line {match['number']} of nine",
        "Question": f"{to_html(match['title'], book)}: say the line and its formula.",
        "Formula": displayed_formula(match["formula"]),
        "Answer": f"<p>{before}</p><p>{after}</p>",
        "Weak": "",
        "Evidence": "The cheat sheet of the book, §0.",
    }
    return note(f"line-{match['number']}", values, ["nine-lines"])


def note(name: str, values: dict[str, str], tags: list[str]) -> genanki.Note:
    """Return a note whose identity is its name, whatever its words are."""
    guid = genanki.guid_for("normbook", name)
    return genanki.Note(MODEL, [values[field] for field in FIELDS], guid=guid, tags=tags)


def displayed_formula(formula: str) -> str:
    r"""Return a formula on its own line as Anki's MathJax reads it: \[ … \]."""
    return rf"\[{html.escape(one_line(formula), quote=False)}\]" if formula else ""


def to_html(text: str, book: Book) -> str:
    r"""Return running text as a field of Anki: formulas as \( … \), the rest as HTML."""
    text = CITE.sub(lambda match: citation_in_words(match, book.references), one_line(text))
    parts, start = [], 0
    for match in INLINE.finditer(text):
        parts.append(html.escape(text[start : match.start()], quote=False))
        kind = match.lastgroup
        inner = html.escape(match[kind], quote=False)
        tag = {"code": "code", "strong": "b", "emphasis": "i"}.get(kind)
        parts.append(f"<{tag}>{inner}</{tag}>" if tag else rf"\({inner}\)")
        start = match.end()
    return "".join([*parts, html.escape(text[start:], quote=False)])


def citation_in_words(match: re.Match, references: dict[str, Reference]) -> str:
    """Return a citation as words: "Xiong et al., 2020"."""
    sources = [references[key.strip()] for key in match["keys"].split(",")]
    text = "; ".join(f"{source.authors}, {source.year}" for source in sources)
    return text if match["kind"] == ":t" else f"({text})"
