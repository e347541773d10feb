"""Reading times, evidence, counts, times, and the figures offered for download."""

import shutil

import pytest
from helpers import ROOT, edit, lay_claims, lay_small_book

from normbook.press import record as recorder
from normbook.press import timings
from normbook.press.book import Book
from normbook.press.evidence import Evidence, section_at, sections
from normbook.press.ledger import Measurement, write_json
from normbook.press.portable import convert
from normbook.press.reading import about_line, reading_minutes
from normbook.press.siblings import link_beside
from normbook.press.sphinx.buttons import licence, offer_figures
from normbook.press.sphinx.directives import (
    correction_lines,
    entry_lines,
    status_row,
    summary_lines,
    timing_note,
)

# --- reading time ---


def test_words_formulas_figures_and_open_code_take_time_and_what_is_folded_does_not():
    words = "word " * 2000
    folded = "```{code-cell} python\n:tags: [hide-input]\n" + "x = 1\n" * 300 + "```\n"
    figure = "```{code-cell} python\n---\nmystnb:\n  figure:\n    name: f\n---\nx\n```\n"
    assert reading_minutes(words) == 10
    assert reading_minutes("---\n" + "key: word\n" * 3000 + "---\n" + words) == 10
    assert reading_minutes(folded + words) == 10
    assert reading_minutes(folded.replace(":tags: [hide-input]", "") + words) == 20
    assert reading_minutes(words + "\n$$\na = b\n$$\n" * 15) == 15
    assert reading_minutes(words + "\n" + figure * 10) == 15


def test_a_head_says_how_long_and_what_one_needs():
    line = about_line("word " * 2000, "a norm,\nand a skip.")
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
from normbook.lab import claim

for name in ("sho" + "wn",):
    claim(name, 1)
```
"""
CLAIMS = [
    {"id": "told", "status": "cited", "claim": "A.", "source": "he2015delving"},
    {"id": "shown", "status": "exact", "claim": "B.", "expected": 1, "tolerance": 0},
    {"id": "wrong", "status": "corrected", "claim": "D.", "source": "he2015delving"},
]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """The small book with three claims, one of them measured by a cell that makes its id."""
    book = lay_small_book(tmp_path_factory.mktemp("claimed"))
    path = book.folder / "07-small.md"
    path.write_text(path.read_text("utf-8") + SECTIONS, encoding="utf-8")
    (book.folder / "ledger.md").write_text("# The ledger\n\n```{ledger}\n```\n")
    toc = "format: jb-book\nroot: 07-small\nchapters: [{file: ledger}]\n"
    (book.root / "_toc.yml").write_text(toc)
    lay_claims(book, *CLAIMS)
    write_json(book.claims, book.claims_json)
    assert recorder.record(book.root, "07-small") == ""
    return book.root


@pytest.fixture
def claimed_book(recorded, tmp_path):
    """A copy of it, to be changed."""
    return Book(shutil.copytree(recorded, tmp_path / "claimed"))


def test_a_claim_is_shown_in_the_section_of_its_cell_or_of_its_link(claimed_book):
    found = Evidence(claimed_book).places
    assert found["shown"] == "sec-second"
    assert found["told"] == "sec-first"
    assert found["wrong"] == "ch-small"  # only the chapter is known


def test_a_cell_comes_before_a_link_and_a_heading_with_a_formula_gets_words(claimed_book):
    path = claimed_book.folder / "07-small.md"
    edit(path, "<claim-told>", "<claim-shown>")
    assert Evidence(Book(claimed_book.root)).places["shown"] == "sec-second"
    edit(path, "## Second", "## 7.2 The rule $1/n$")
    assert Evidence(Book(claimed_book.root)).places["shown"] == "§7.2 <sec-second>"


def test_a_heading_without_a_label_belongs_to_the_one_before(claimed_book):
    page = claimed_book.pages["07-small"]
    found, lines = sections(page), page.text.splitlines()
    assert section_at(found, lines.index("## Without a label") + 1) == "sec-first"
    assert section_at(found, 1) == ""


def test_a_measurement_is_read_as_data(claimed_book):
    seen = Evidence(claimed_book).found["shown"]
    assert seen == Measurement("07-small", 2, True, "1.00", "expected 1 ± 0")
    assert seen.line == "1.00; expected 1 ± 0"


def test_every_claim_of_the_book_has_a_place():
    book = Book()
    found = Evidence(book).places
    assert [e["id"] for e in book.claims if e["id"] not in found] == []


# --- pages that the build prints ---


def test_a_correction_names_its_evidence():
    line = " ".join(correction_lines(CLAIMS[0], {"told": "sec-first"}))
    for part in ("- A.", "{ref}`sec-first`", "<claim-told>", "{cite:t}`he2015delving`"):
        assert part in line


def test_an_entry_of_the_ledger_names_its_section_and_its_reason():
    rivals = ("not no growth (0)",)
    found = {"shown": Measurement("07-small", 2, True, "mean 1.00", "expected 1 ± 0", rivals)}
    text = "\n".join(entry_lines(CLAIMS[1], found, {"shown": "sec-second"}))
    assert "✓ mean 1.00; expected 1 ± 0; not no growth (0) ({ref}`sec-second`)." in text
    shown = {**CLAIMS[1], "status": "illustration", "because": "It is x − x."}
    assert "  True by construction: It is x − x." in entry_lines(shown, {}, {})


def test_counts_are_by_status_and_in_all():
    found = {
        name: Measurement("07-small", 2, True, "", "", rivals)
        for name, rivals in {"shown": (), "made": (), "grows": ("not no growth (0)",)}.items()
    }
    more = [{"id": "made", "status": "illustration"}, {"id": "grows", "status": "measured"}]
    assert summary_lines([*CLAIMS, *more], found)[2:] == [
        "| exact | 1 | 1 | 0 |",
        "| measured | 1 | 1 | 1 |",
        "| cited | 1 | 0 | 0 |",
        "| corrected | 1 | 0 | 0 |",
        "| all | 4 | 2 | 1 |",
        "| *illustration* | 1 | 1 | 0 |",
    ]


def test_a_row_of_the_status_page_counts_its_page(claimed_book):
    page = claimed_book.pages["07-small"]
    times = {"chapters": {"07-small": {"clock": 5.0, "processor": 4.4}}}
    row = status_row(claimed_book, page, times)
    assert row == ["{doc}`07-small`", "4", "3", "1", "0", "1", "0", "1", "1", "0", "0", "1"]
    assert status_row(claimed_book, page, {})[1] == "–"


def test_the_status_page_says_when_its_times_were_taken():
    assert "make status" in timing_note({})[0]
    times = {"date": "2030-01-02", "machine": "M, 2 cores", "versions": {"torch": "9"}}
    assert timing_note(times) == ["Taken on 2030-01-02: M, 2 cores; torch 9."]
    (line,) = timing_note({**times, "floor": {"processor": 2.34}})
    assert line.endswith("A kernel that only imports PyTorch and pyplot took 2.3 seconds.")


def test_times_are_taken_and_written(small_book, monkeypatch):
    monkeypatch.setattr(timings, "Book", lambda: small_book)
    monkeypatch.setattr(timings, "run_cells", lambda *unused: [])
    monkeypatch.setattr("sys.argv", ["timings"])
    assert timings.main() == 0
    written = Book(small_book.root).times
    assert set(written["chapters"]) == {"07-small"}
    assert set(written["floor"]) == {"clock", "processor"}
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
    assert offer_figures("<p><img src='a.png'></p>", "T", "N", "U") == "<p><img src='a.png'></p>"


def test_the_licence_comes_from_its_file():
    name, address = licence((ROOT / "LICENSE-text.md").read_text("utf-8"))
    assert name == "CC BY 4.0"
    assert address.startswith("https://creativecommons.org/licenses/by/4.0/")
