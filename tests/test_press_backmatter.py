"""Reading times, evidence, counts, times, and the figures offered for download."""

import json

import pytest
from conftest import ROOT, edit

from normbook.press import timings
from normbook.press.backmatter import by_page, item, licence, offer_figures, status_row, taken
from normbook.press.evidence import home, places, section_at, sections
from normbook.press.extension import entry_lines, summary_lines
from normbook.press.ledger import Measurement
from normbook.press.portable import convert
from normbook.press.reading import about, minutes
from normbook.press.siblings import Book, link_beside

# --- reading time ---


def test_two_thousand_words_take_ten_minutes():
    assert minutes("word " * 2000) == 10


def test_front_matter_and_folded_code_take_no_time_and_open_code_does():
    words = "word " * 2000
    folded = "```{code-cell} python\n:tags: [hide-input]\n" + "x = 1\n" * 300 + "```\n"
    assert minutes("---\n" + "key: word\n" * 3000 + "---\n" + words) == 10
    assert minutes(f"{folded}\n{words}") == 10
    assert minutes(f"{folded.replace(':tags: [hide-input]', '')}\n{words}") == 20


def test_formulas_and_figures_take_time():
    words = "word " * 2000
    cell = "```{code-cell} python\n---\nmystnb:\n  figure:\n    name: f\n---\nshow(f)\n```\n"
    assert minutes(words + "\n$$\na = b\n$$\n" * 15) == 15
    assert minutes(words + "\n" + cell * 10) == 15


def test_a_head_says_how_long_and_what_one_needs():
    line = about("word " * 2000, "a norm,\nand a skip.")
    assert line == "*Reading time: 10 minutes. You need: a norm, and a skip.*"


def test_the_notebook_has_the_same_head(small_book):
    page = small_book.pages["07-small"]
    context = small_book.context(page, [], lambda *to: link_beside(small_book, page, *to))
    plain = convert("```{about}\n{ref}`norms <ch-small>`.\n```", context)
    assert plain == "*Reading time: 5 minutes. You need: [norms](#ch-small).*"


def test_the_notebook_links_to_glossary_and_ledger(tmp_path):
    book = Book()
    page = book.pages["05-pre-vs-post-norm"]
    context = book.context(page, [], lambda *to: link_beside(book, page, *to))
    assert convert("{term}`writes <write>`", context) == "[writes](glossary.md)"
    assert convert("```{ledger}\n```", context) == "[The ledger of claims](ledger.md)"


# --- where a claim is shown ---

SECTIONS = """\
(sec-first)=
## First

Told of {ref}`ledger <claim-told>`.

## Without a label

(sec-second)=
## Second

```{code-cell} python
claim(
    "shown", 1
)
```
"""
CLAIMS = [
    {"id": "told", "section": 7, "status": "cited", "claim": "A.", "source": "he2015delving"},
    {"id": "shown", "section": 7, "status": "exact", "claim": "B.", "expected": 1, "tolerance": 0},
    {"id": "else", "section": 9, "status": "cited", "claim": "C.", "source": "he2015delving"},
    {"id": "wrong", "section": 7, "status": "corrected", "claim": "D.", "source": "he2015delving"},
]


@pytest.fixture
def claimed_book(small_book):
    path = small_book.folder / "07-small.md"
    path.write_text(path.read_text("utf-8") + SECTIONS, encoding="utf-8")
    (small_book.folder / "claims.yml").write_text(json.dumps(CLAIMS))
    return Book(small_book.folder)


def test_a_claim_is_shown_in_the_section_of_its_cell_or_of_its_link(claimed_book):
    found = places(claimed_book)
    assert found["shown"] == "sec-second"
    assert found["told"] == "sec-first"
    assert found["wrong"] == "ch-small"  # only the chapter is known
    assert "else" not in found


def test_a_cell_comes_before_a_link(claimed_book):
    edit(claimed_book.folder / "07-small.md", "<claim-told>", "<claim-shown>")
    assert places(Book(claimed_book.folder))["shown"] == "sec-second"


def test_a_link_to_a_heading_with_a_formula_has_words_of_its_own(claimed_book):
    edit(claimed_book.folder / "07-small.md", "## Second", "## 7.2 The rule $1/n$")
    assert places(Book(claimed_book.folder))["shown"] == "§7.2 <sec-second>"


def test_a_heading_without_a_label_belongs_to_the_one_before(claimed_book):
    page = claimed_book.pages["07-small"]
    found = sections(page)
    assert section_at(found, page.text.index("Without a label")) == "sec-first"
    assert section_at(found, 0) == ""


def test_every_claim_of_the_book_has_a_place():
    book = Book()
    found = places(book)
    assert [e["id"] for e in book.claims if e["id"] not in found] == []
    assert [e["id"] for e in book.claims if home(book, e) is None] == []


# --- pages that the build prints ---


def test_corrections_are_sorted_by_chapter(claimed_book):
    [(page, entries)] = by_page(claimed_book, "corrected")
    assert page.name == "07-small"
    assert [entry["id"] for entry in entries] == ["wrong"]
    assert [page for page, _ in by_page(claimed_book, "cited")][-1] is None


def test_a_correction_names_its_evidence():
    line = " ".join(item(CLAIMS[0], {"told": "sec-first"}))
    for part in ("- A.", "{ref}`sec-first`", "<claim-told>", "{cite:t}`he2015delving`"):
        assert part in line


def test_an_entry_of_the_ledger_links_to_the_section_that_measured_it():
    found = {"shown": Measurement("07-small", True, "mean 1.00", "expected 1 ± 0")}
    text = "\n".join(entry_lines(CLAIMS[1], found, {"shown": "sec-second"}))
    assert "✓ mean 1.00; expected 1 ± 0 ({ref}`sec-second`)." in text


def test_counts_are_by_status_and_in_all():
    found = {"shown": Measurement("07-small", True, "", "")}
    rows = summary_lines(CLAIMS, found)
    assert rows[2:] == [
        "| exact | 1 | 1 |",
        "| cited | 2 | 0 |",
        "| corrected | 1 | 0 |",
        "| all | 4 | 1 |",
    ]


def test_a_row_of_the_status_page_counts_its_page(claimed_book):
    page = claimed_book.pages["07-small"]
    times = {"chapters": {"07-small": {"clock": 5.0, "processor": 4.4}}}
    row = status_row(claimed_book, page, times)
    assert row == ["{doc}`07-small`", "4", "3", "1", "0", "1", "0", "1", "1", "0", "0"]
    assert status_row(claimed_book, page, {})[1] == "–"


def test_the_status_page_says_when_its_times_were_taken():
    assert "make status" in taken({})[0]
    times = {"date": "2030-01-02", "machine": "M, 2 cores", "versions": {"torch": "9"}}
    assert taken(times) == ["Taken on 2030-01-02: M, 2 cores; torch 9."]


def test_times_are_taken_and_written(small_book, monkeypatch):
    monkeypatch.setattr(timings, "Book", lambda: small_book)
    monkeypatch.setattr(timings, "execute", lambda page: [])
    monkeypatch.setattr("sys.argv", ["timings"])
    assert timings.main() == 0
    written = timings.load(small_book.folder)
    assert set(written["chapters"]) == {"07-small"}
    assert set(written["versions"]) == {"Python", *timings.PACKAGES}
    assert "cores" in written["machine"]


# --- figures to download ---

FIGURE = """<figure class="align-default" id="fig-x">
<img alt="A line." src="_images/ab.png" />
<figcaption>
<p>Caption.</p>
</figcaption>
</figure>"""


def test_a_figure_is_offered_with_its_licence():
    page = offer_figures(
        f"{FIGURE}<p>Text</p>{FIGURE.replace('fig-x', 'fig-y')}", "A & B", "N", "U"
    )
    assert page.count('class="figure-offer"') == 2
    assert '<a href="_images/ab.png" download="fig-x.png">PNG</a>' in page
    assert '<a href="U">N</a>, from “A &amp; B”' in page
    assert page.index("figure-offer") < page.index("</figure>")
    assert page.count("</figure>") == 2


def test_what_is_no_figure_is_left_alone():
    assert offer_figures("<p><img src='a.png'></p>", "T", "N", "U") == "<p><img src='a.png'></p>"


def test_the_licence_comes_from_its_file():
    name, address = licence((ROOT / "LICENSE-text.md").read_text("utf-8"))
    assert name == "CC BY 4.0"
    assert address.startswith("https://creativecommons.org/licenses/by/4.0/")
