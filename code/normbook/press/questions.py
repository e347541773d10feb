"""The questions of §12: read from `questions.yml`, checked, and written as MyST for their pages."""

from dataclasses import dataclass, fields
from pathlib import Path

from normbook.press.files import PressError, load_yaml
from normbook.press.pages import Label, reference

QUESTIONS = "questions.yml"
PAGE = "12-interview-questions"
DECK = "normalization-questions.apkg"  # where the Anki deck lies on the site
LEVELS = {1: "Must know", 2: "Deeper", 3: "Research"}
TOPICS = {
    "why": "Why norms",
    "batchnorm": "BatchNorm",
    "layernorm": "LayerNorm, RMSNorm",
    "placement": "Placement and variants",
    "residuals": "Residuals",
    "initialization": "Initialization",
    "norm-free": "Without norms",
    "scaling": "Width and depth",
}
POINTS = (3, 5)  # how many an answer may have
ROLES = {"fig": "numref", "eq": "eq"}  # how a label is linked to; the others by their title


@dataclass(frozen=True)
class Question:
    """One question: the answer in points, the weak answer, and where the book proves it."""

    number: int
    level: int
    topic: str
    question: str
    answer: list[str]
    weak: str
    misses: str
    shown: list[str]
    claims: list[str]
    formula: str = ""

    @property
    def label(self) -> str:
        """What the book links to: `question-11`."""
        return f"question-{self.number}"


def load_questions(folder: Path) -> list[Question]:
    """Return the questions in their order: none where the book has no such file.

    Raises `PressError` for one that is not complete.
    """
    path = folder / QUESTIONS
    if not path.exists():
        return []
    entries = load_yaml(path)
    for place, entry in enumerate(entries, 1):
        for problem in problems_of(entry, place):
            raise PressError(
                f"{QUESTIONS}: question {entry.get('number', f'at {place}')}: {problem}"
            )
    return [Question(**entry) for entry in entries]


def problems_of(entry: dict, place: int) -> list[str]:
    """Return what is wrong with the entry that stands at `place`, counted from 1."""
    known = {field.name for field in fields(Question)}
    problems = [f"has an unknown key {key!r}" for key in entry if key not in known]
    needed = known - {"formula"}
    problems += [f"lacks {key!r}" for key in sorted(needed) if not entry.get(key)]
    if problems:
        return problems
    if entry["number"] != place:
        problems.append(f"stands at {place}")
    if entry["level"] not in LEVELS:
        problems.append(f"level must be one of {tuple(LEVELS)}, got {entry['level']!r}")
    if entry["topic"] not in TOPICS:
        problems.append(f"topic must be one of {tuple(TOPICS)}, got {entry['topic']!r}")
    fewest, most = POINTS
    if not fewest <= len(entry["answer"]) <= most:
        problems.append(f"has {len(entry['answer'])} points, {fewest} to {most} are wanted")
    for name in ("shown", "claims"):
        if len(set(entry[name])) < len(entry[name]):
            problems.append(f"names something twice in {name!r}")
    return problems


def dead_links(questions: list[Question], labels: dict[str, Label]) -> list[str]:
    """Return the links of the questions that lead nowhere."""
    return [
        f"{QUESTIONS}: question {question.number}: nothing has the label {target!r}"
        for question in questions
        for target in [*question.shown, *(f"claim-{name}" for name in question.claims)]
        if target not in labels
    ]


def question_labels(questions: list[Question], pages: dict) -> dict[str, Label]:
    """Return the labels that the page of the questions offers, if the book has that page."""
    if PAGE not in pages:
        return {}
    return {q.label: Label(PAGE, "question", f"Question {q.number}") for q in questions}


def one_line(text: str) -> str:
    """Return a text without its line breaks."""
    return " ".join(text.split())


def dropdown_lines(question: Question, labels: dict[str, Label]) -> list[str]:
    """Return a question as MyST: its answer opens on a click."""
    return [
        f"::::{{dropdown}} {question.number}. {one_line(question.question)}",
        f":name: {question.label}",
        f":class-container: question level-{question.level} topic-{question.topic}",
        "",
        *answer_lines(question, labels),
        "::::",
        "",
    ]


def answer_lines(question: Question, labels: dict[str, Label]) -> list[str]:
    """Return all that an answer has as MyST: formula, points, the weak answer, the evidence."""
    formula = ["$$", *question.formula.strip().split("\n"), "$$", ""] if question.formula else []
    points = [f"- {one_line(point)}" for point in question.answer]
    weak = f"**The weak answer:** {one_line(question.weak)}"
    misses = f"**What it misses:** {one_line(question.misses)}"
    shown = ", ".join(link_to(target, labels) for target in question.shown)
    claims = ", ".join(f"{{ref}}`{name} <claim-{name}>`" for name in question.claims)
    evidence = [f"**Shown in** {shown}.", "", f"**In the ledger:** {claims}.", ""]
    return [*formula, *points, "", weak, misses, "", *evidence]


def link_to(target: str, labels: dict[str, Label]) -> str:
    """Return a link by the label's kind."""
    role = ROLES.get(target.split("-")[0], "ref")
    inner = reference(target, labels) if role == "ref" and target in labels else target
    return f"{{{role}}}`{inner}`"
