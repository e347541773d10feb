"""The questions are complete, their links hold in both directions, and the deck is theirs."""

import json
import re
import sqlite3
import zipfile
from contextlib import closing
from dataclasses import replace
from functools import cache

import pytest
import yaml
from helpers import ROOT, edit

from normbook.press import anki
from normbook.press.book import Book
from normbook.press.files import PressError
from normbook.press.portable import convert_prose
from normbook.press.questions import (
    QUESTIONS,
    TOPICS,
    dead_links,
    dropdown_lines,
    link_to,
    load_questions,
    one_line,
)
from normbook.press.rules import problems_of_book

LINES = [f"line-{number}" for number in range(1, 10)]


@cache
def book() -> Book:
    return Book()


def entries() -> list[dict]:
    return yaml.safe_load((ROOT / "book" / QUESTIONS).read_text(encoding="utf-8"))


# --- the questions ---


def test_there_are_twenty_five_in_three_levels():
    questions = book().questions
    assert [q.number for q in questions] == list(range(1, 26))
    assert [q.level for q in questions] == [1] * 10 + [2] * 10 + [3] * 5
    assert {q.topic for q in questions} == set(TOPICS)


def test_every_link_leads_somewhere():
    assert dead_links(book().questions, book().labels) == []


def test_every_text_is_whole():
    for q in book().questions:
        sentences = [*q.answer, q.misses, q.question]
        for text in [*sentences, q.weak, q.formula]:
            assert text.count("$") % 2 == 0, text
            assert text.count("{") == text.count("}"), text
            assert text.count("`") % 2 == 0, text
            assert not re.search(r"\{(?!cite[:}])[\w:]+\}`", text), text
        assert all(text.strip()[-1] in ".?" for text in sentences), q.number


def test_the_citations_exist_and_read_as_plain_markdown():
    page = book().pages["ledger"]
    context = book().context(page, [], lambda text, *to: text)
    for question in book().questions:
        for text in [*question.answer, question.weak, question.misses]:
            assert "{cite" not in convert_prose(text, context, 1)


def test_a_dead_link_is_a_problem_of_the_book(small_book):
    entry = {**entries()[0], "shown": ["sec-of-nowhere"], "claims": ["ch-small"]}
    (small_book.folder / QUESTIONS).write_text(json.dumps([entry]))
    fresh = Book(small_book.root)
    found = [problem for problem in problems_of_book(fresh) if problem.startswith(QUESTIONS)]
    assert found == [
        f"{QUESTIONS}: question 1: nothing has the label 'sec-of-nowhere'",
        f"{QUESTIONS}: question 1: nothing has the label 'claim-ch-small'",
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weak": ""}, "lacks 'weak'"),
        ({"claims": []}, "lacks 'claims'"),
        ({"hint": "x"}, "has an unknown key 'hint'"),
        ({"number": 3}, "question 3: stands at 1"),
        ({"level": 4}, "level must be one of"),
        ({"topic": "cooking"}, "topic must be one of"),
        ({"answer": ["One.", "Two."]}, "has 2 points"),
        ({"shown": ["ch-why", "ch-why"]}, "names something twice in 'shown'"),
    ],
)
def test_an_incomplete_question_is_refused(small_book, changes, message):
    (small_book.folder / QUESTIONS).write_text(json.dumps([{**entries()[0], **changes}]))
    with pytest.raises(PressError, match=message):
        load_questions(small_book.folder)


def test_a_book_without_questions_has_none(small_book):
    assert small_book.questions == []
    assert problems_of_book(small_book)[0].startswith("chapter 07-small")


# --- both directions ---


def named_by(text: str) -> dict[int, str]:
    """The questions that a chapter says it answers, and how it words them."""
    start = text.find("*Questions of §12 it answers")
    part = re.split(r"\n\*Papers", text[start:])[0] if start >= 0 else ""
    item = r"^- \{ref\}`(\d+) <question-\1>`: (.+(?:\n  .+)*)$"
    return {int(number): one_line(words) for number, words in re.findall(item, part, flags=re.M)}


def test_chapters_word_the_questions_as_their_page_does():
    words = {question.number: question.question for question in book().questions}
    named = [item for page in book().chapters for item in named_by(page.text).items()]
    assert {number for number, _ in named} == set(words)
    for number, found in named:
        assert found == one_line(words[number])


def test_a_question_leads_to_every_chapter_that_answers_it_and_to_one_at_least():
    labels, chapters = book().labels, book().chapters
    for q in book().questions:
        targets = {labels[target].page for target in q.shown}
        answering = {page.name for page in chapters if q.number in named_by(page.text)}
        assert answering, f"no chapter says that it answers question {q.number}"
        assert answering <= targets, f"question {q.number} leads to {targets}"


# --- the pages ---


def test_a_question_reads_as_a_dropdown():
    question = book().questions[13]
    lines = dropdown_lines(question, book().labels)
    assert lines[0].startswith("::::{dropdown} 14. Derive the variance")
    assert lines[1] == ":name: question-14"
    text = "\n".join(lines)
    assert text.count("$$") == 2
    assert all(f"<claim-{name}>" in text for name in question.claims)
    assert "{eq}`eq-init-linear`" in text
    assert "{numref}`fig-init-diagnosis`" in text
    assert "{ref}`sec-init-moment`" in text


def test_a_question_can_be_linked_to_and_a_title_with_a_formula_goes_by_its_number():
    label = book().labels["question-14"]
    assert (label.page, label.text) == ("12-interview-questions", "Question 14")
    assert link_to("sec-init-gpt2", book().labels) == "{ref}`§8.6 <sec-init-gpt2>`"
    assert link_to("ch-why", book().labels) == "{ref}`ch-why`"


# --- the deck ---


def opened(path, folder):
    """A deck as Anki's database."""
    with zipfile.ZipFile(path) as archive:
        archive.extract("collection.anki2", folder)
    return closing(sqlite3.connect(folder / "collection.anki2"))


@pytest.fixture(scope="module")
def deck(tmp_path_factory):
    """The deck as Anki's database, and the file's bytes."""
    folder = tmp_path_factory.mktemp("deck")
    anki.write_deck(book(), folder / "deck.apkg")
    with opened(folder / "deck.apkg", folder) as base:
        yield base, (folder / "deck.apkg").read_bytes()


def rows(base) -> dict[str, dict[str, str]]:
    """The notes by their key, field by field."""
    found = [flds.split("\x1f") for (flds,) in base.execute("select flds from notes")]
    return {fields[0]: dict(zip(anki.FIELDS, fields, strict=True)) for fields in found}


def test_the_deck_has_a_card_for_each_question_and_line(deck):
    base, _ = deck
    assert base.execute("select count(*) from notes").fetchone() == (34,)
    assert base.execute("select count(*) from cards").fetchone() == (34,)
    assert sum(key.startswith("Question") for key in rows(base)) == 25
    assert [key for key in rows(base) if key.startswith("Line")] == [
        f"Line {number} of nine" for number in range(1, 10)
    ]


def test_a_second_import_finds_the_notes_of_the_first(deck):
    base, _ = deck
    ids = {guid for (guid,) in base.execute("select guid from notes")}
    names = [*(q.label for q in book().questions), *LINES]
    assert ids == {anki.genanki.guid_for("normbook", name) for name in names}
    assert len(ids) == 34
    kinds = base.execute("select models, decks from col").fetchone()
    assert str(anki.MODEL_ID) in json.loads(kinds[0])
    assert str(anki.DECK_ID) in json.loads(kinds[1])


def test_the_same_words_give_the_same_bytes(deck, tmp_path):
    anki.write_deck(book(), tmp_path / "again.apkg")
    assert (tmp_path / "again.apkg").read_bytes() == deck[1]


def test_changed_words_keep_the_identity_and_are_newer(deck, tmp_path, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "2000000000")
    changed = Book()
    changed.questions[0] = replace(changed.questions[0], question="Other words?")
    anki.write_deck(changed, tmp_path / "deck.apkg")
    with opened(tmp_path / "deck.apkg", tmp_path) as later:
        asked = "select guid, mod, flds from notes order by id"
        before, after = deck[0].execute(asked).fetchall(), later.execute(asked).fetchall()
    assert [row[0] for row in before] == [row[0] for row in after]
    assert all(old[1] < new[1] == 2000000000 for old, new in zip(before, after, strict=True))
    changed = [old[2] != new[2] for old, new in zip(before, after, strict=True)]
    assert changed == [True] + 33 * [False]


def test_formulas_are_ankis_and_nothing_else_is_left(deck):
    base, _ = deck
    for key, note in rows(base).items():
        text = " ".join(note.values())
        assert [mark for mark in ("$", "`", "{cite", "**") if mark in text] == [], key
        assert text.count(r"\(") == text.count(r"\)"), key
        if note["Formula"]:
            assert re.fullmatch(r"\\\[.*\\\]", note["Formula"]), key
    kaiming = rows(base)["Question 14 · Deeper · Initialization"]
    assert r"\(2/n_{\text{in}}\)" in kaiming["Question"]
    assert r"\mathrm{Var}(W) = \frac{2}{n_{\text{in}}}" in kaiming["Formula"]
    assert kaiming["Evidence"] == "Shown in §8, §A of the book."


def test_running_text_becomes_html():
    to_html = lambda text: anki.to_html(text, book())  # noqa: E731
    assert to_html("a < b & $x<y$") == r"a &lt; b &amp; \(x&lt;y\)"
    assert to_html("*not* `x_i` **now**") == "<i>not</i> <code>x_i</code> <b>now</b>"
    assert to_html("{cite:t}`xiong2020layer` bound") == "Xiong et al., 2020 bound"
    assert to_html("so {cite}`xiong2020layer`") == "so (Xiong et al., 2020)"
    with pytest.raises(KeyError):
        to_html("{cite}`nobody1999`")


def test_a_cheat_sheet_of_eight_lines_is_refused(small_book):
    path = small_book.folder / "00-cheat-sheet.md"
    path.write_text((ROOT / "book/00-cheat-sheet.md").read_text("utf-8"), encoding="utf-8")
    edit(path, "**9. Width", "**Width")
    (small_book.folder.parent / "_toc.yml").write_text("format: jb-book\nroot: 00-cheat-sheet\n")
    with pytest.raises(PressError, match="do not read as nine lines"):
        anki.nine_lines(Book(small_book.root))
