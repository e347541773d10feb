"""Notation, glossary, symptoms, references: what they say of the chapters is true of them."""

import ast
import re

from helpers import ROOT

from normbook.press.book import Book
from normbook.press.ledger import sources
from normbook.press.reach import CODE, door
from normbook.press.reading import CELL, reading_minutes

BOOK = Book()
GREEK = (
    *("alpha", "beta", "gamma", "delta", "epsilon", "varepsilon", "zeta", "eta", "theta", "kappa"),
    *("lambda", "mu", "nu", "xi", "pi", "rho", "sigma", "tau", "phi", "varphi", "chi", "psi"),
    *("omega", "Gamma", "Delta", "Theta", "Lambda", "Sigma", "Phi", "Psi", "Omega"),
)
GREEK_LETTER = re.compile(rf"\\({'|'.join(GREEK)})(?![a-zA-Z])")


def prose(page) -> str:
    """A page's text without its cells."""
    return CELL.sub("", page.text)


def formulas(text: str) -> list[str]:
    """All that stands between dollars."""
    text = re.sub(r"\\(?:operatorname|mathrm)\{", r"\\mathrm{", text)
    text = re.sub(r"\\(mathrm|mathcal)\{(\w)\}", r"\\\1 \2", text)
    shown = re.findall(r"\$\$(.+?)\$\$", text, re.S)
    return shown + re.findall(r"\$([^$]+)\$", re.sub(r"\$\$.+?\$\$", "", text, flags=re.S))


def rows(name: str, heading: str) -> list[list[str]]:
    """The rows of the table under a heading of a page, without its head."""
    section = (ROOT / f"book/{name}.md").read_text("utf-8").split(f"## {heading}\n")[1]
    lines = [line for line in section.split("\n## ")[0].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def chapters_of(cell: str) -> list:
    """The pages whose labels a cell of a table links to."""
    labels = re.findall(r"\{ref\}`[^`]*<(ch-[\w-]+)>`", cell)
    return [BOOK.pages[BOOK.labels[label].page] for label in labels]


EVERYWHERE = rows("notation", "The same everywhere")
LOCAL = rows("notation", "Letters with another meaning in one chapter")


def occurs(symbol: str, page) -> bool:
    """Whether a symbol stands in a formula of a page."""
    end = r"(?![a-zA-Z])" if symbol[-1].isalpha() else ""
    start = r"(?<![a-zA-Z\\])" if symbol[0].isalpha() else ""
    pattern = start + re.escape(symbol) + end
    return any(re.search(pattern, formula) for formula in formulas(prose(page)))


def base(symbol: str) -> str:
    """A symbol without its power or index: what one looks for."""
    return re.sub(r"[\^_].*$", "", symbol) if not symbol.startswith("n_") else symbol


def test_a_symbol_stands_in_the_chapters_that_the_table_names():
    rows = EVERYWHERE + LOCAL
    assert [row for row in rows if not chapters_of(row[2])] == []
    found = [(s, page) for row in rows for s in formulas(row[0]) for page in chapters_of(row[2])]
    assert [(s, page.name) for s, page in found if not occurs(base(s), page)] == []


def test_no_symbol_stands_twice_among_those_that_are_the_same_everywhere():
    symbols = [symbol for row in EVERYWHERE for symbol in formulas(row[0])]
    assert len(symbols) == len(set(symbols))


def letters(rows: list) -> set[str]:
    """The Greek letters that rows of the tables define."""
    return {name for row in rows for name in GREEK_LETTER.findall(row[0])}


def test_every_greek_letter_of_a_chapter_is_in_the_tables():
    for page in BOOK.chapters:
        known = {"pi"} | letters(EVERYWHERE)
        known |= letters([row for row in LOCAL if page in chapters_of(row[2])])
        used = {name for formula in formulas(prose(page)) for name in GREEK_LETTER.findall(formula)}
        assert used <= known, f"notation.md does not know {sorted(used - known)} of {page.name}"


# --- glossary ---


def test_each_term_is_used_and_each_used_term_is_defined():
    body = BOOK.pages["glossary"].text.split("```{glossary}\n")[1].split("\n```")[0]
    terms = [line for line in body.splitlines() if line and not line.startswith(" ")]
    assert terms == sorted(terms, key=str.lower)
    assert set().union(*(linked_terms(page) for page in BOOK.chapters)) == set(terms)


def test_a_term_is_linked_once_a_chapter():
    for page in BOOK.chapters:
        assert len(linked_terms(page)) == len(set(linked_terms(page))), page.name


def linked_terms(page) -> list[str]:
    """The terms that a page links to."""
    return re.findall(r"\{term\}`(?:[^`<]*<)?([^`>]+)>?`", page.text)


# --- symptoms ---

SYMPTOMS = (ROOT / "book/symptoms.md").read_text("utf-8")


def test_each_symptom_has_causes_with_evidence_and_a_check():
    symptoms = re.split(r"^### ", SYMPTOMS, flags=re.M)[1:]
    assert len(symptoms) >= 12
    for symptom in symptoms:
        title, text = symptom.split("\n", 1)
        causes, check = text.split("*Check:*")
        assert re.search(r"\{(num)?ref\}`", causes), title
        assert check.strip(), title


def test_the_checks_name_functions_that_exist():
    tree = ast.parse((ROOT / "code/normbook/lab/probes.py").read_text("utf-8"))
    probes = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert set(re.findall(r"`nz\.(\w+)", SYMPTOMS)) <= door(CODE).keys()
    assert set(re.findall(r"probes\.(\w+)", SYMPTOMS)) <= probes
    assert len(re.findall(r"probes\.(\w+)", SYMPTOMS)) > 10


# --- references and the heads of chapters ---


def test_every_reference_is_cited():
    cited = {key for entry in BOOK.claims for key in sources(entry)}
    for page in BOOK.pages.values():
        for keys in re.findall(r"\{cite(?::\w)?\}`([^`]+)`", page.text):
            cited |= {key.strip() for key in keys.split(",")}
    assert set(BOOK.references) - cited == set()


def test_every_reference_says_where_to_read_it():
    assert [key for key, source in BOOK.references.items() if not source.url] == []


def test_a_chapter_begins_with_what_it_asks_of_its_reader():
    for page in (page for page in BOOK.chapters if page.number):
        assert "\n```{about}\n" in page.text, page.name
        assert "Reading time" not in page.text, f"{page.name}: the build counts it"
        assert 5 <= reading_minutes(page.text) <= 90, page.name
