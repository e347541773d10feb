"""What a recording hangs on: a change that may move a picture is noticed, and no other."""

import argparse
import re
import shutil
from functools import partial

import pytest
from helpers import ROOT, edit, lay_small_book, print_instead

from normbook.press import record as recorder
from normbook.press.book import Book
from normbook.press.files import PressError
from normbook.press.publish import refresh_words
from normbook.press.reach import CODE, changed_modules, code_hash, reached
from normbook.press.rules import drift


@pytest.fixture
def code_copy(tmp_path):
    """A copy of the code and the pins, to be changed."""
    shutil.copytree(CODE, tmp_path / "code", ignore=shutil.ignore_patterns("__pycache__", "press"))
    shutil.copy(ROOT / "requirements.txt", tmp_path)
    return tmp_path / "code"


def touched_by(code_copy, change) -> dict[str, list[str]]:
    """The pages that a change of the code makes stale, each with the modules that moved."""
    pages = Book().chapters
    before = {page.name: reached(page, code_copy) for page in pages}
    change()
    after = {page.name: reached(page, code_copy) for page in pages}
    found = {name: changed_modules(before[name], after[name]) for name in before}
    return {name: modules for name, modules in found.items() if modules}


def test_a_line_touches_the_pages_that_reach_its_module(code_copy):
    everywhere = [page.name for page in Book().chapters]
    for module, old, new, names in (
        ("lab/figures", '"lines.linewidth": 2.2', '"lines.linewidth": 9', everywhere),
        ("studies/why_normalize", "self.now = {}", "self.now = dict()", ["01-why-normalize"]),
    ):
        path = code_copy / f"normbook/{module}.py"
        touched = touched_by(code_copy, partial(edit, path, old, new))
        assert touched == {name: [f"normbook.{module.replace('/', '.')}"] for name in names}


def test_a_line_of_the_engine_touches_the_pages_that_use_its_names(code_copy):
    path = code_copy / "normbook/engine/variances.py"
    names = re.findall(r"^def ([a-z]\w+)", path.read_text("utf-8"), re.M)
    assert names
    instruments = {p.stem: p.read_text("utf-8") for p in (code_copy / "normbook/lab").glob("*.py")}
    naming = re.compile(rf"\bnz\.({'|'.join(names)})\b")
    by_lab = [name for name, text in instruments.items() if naming.search(text)]
    wanted = set()
    for page in Book().chapters:
        source = "\n".join(cell.source for cell in page.code_cells)
        if naming.search(source) or any(re.search(rf"\b{name}\b", source) for name in by_lab):
            wanted.add(page.name)
    touched = touched_by(
        code_copy, lambda: path.write_text(path.read_text("utf-8") + "\nNEW = 1\n", "utf-8")
    )
    assert set(touched) == wanted
    assert 0 < len(touched) < len(Book().chapters)
    assert {tuple(modules) for modules in touched.values()} == {("normbook.engine.variances",)}


def test_words_touch_no_page(code_copy):
    def reword():
        edit(code_copy / "normbook/lab/figures.py", "# Okabe and Ito's colours", "# Their colours")
        edit(
            code_copy / "normbook/lab/figures.py", "One style for every figure", "One style for all"
        )
        edit(code_copy / "normbook/engine/layer_norms.py", "\nclass ", "\n\n# A layer.\nclass ")
        path = code_copy / "normbook/studies/why_normalize.py"
        edit(path, "Forget this step's means", "Forget the means of this step")
        edit(path, "self.now = {}\n", "self.now = {}  # none yet\n\n")

    assert touched_by(code_copy, reword) == {}


def test_a_pin_touches_every_page(code_copy):
    path = code_copy.parent / "requirements.txt"
    old = re.search(r"^torch==.*$", path.read_text(), re.M)[0]
    touched = touched_by(code_copy, lambda: edit(path, old, "torch==9.9"))
    assert touched == {page.name: ["torch"] for page in Book().chapters}
    assert touched_by(code_copy, lambda: edit(path, "ruff==", "ruff==9")) == {}


DOOR = "import normalization as nz\n"
LAYERS, VARIANCES = "normbook.engine.layer_norms", "normbook.engine.variances"
WHY = "normbook.studies.why_normalize"


@pytest.mark.parametrize(
    ("code", "module", "reaches"),
    [
        (f"{DOOR}nz.LayerNorm(3)", LAYERS, True),
        ("from normalization import LayerNorm", LAYERS, True),
        (f"{DOOR}nz.LayerNorm(3)", VARIANCES, False),
        (f"{DOOR}getattr(nz, 'LayerNorm')", VARIANCES, True),
        (f"{DOOR}%time nz", VARIANCES, True),
        ("from normbook.studies import why_normalize", WHY, True),
        ("from normbook.studies.why_normalize import Noise", WHY, True),
        ("import normbook.studies.why_normalize", WHY, True),
        ("def late():\n    from normbook.studies import why_normalize", WHY, True),
        ("from normbook.lab import claim", "normbook.lab.claims", True),
        ("from normbook.lab import claim", WHY, False),
        ("1", "normbook.lab.figures", True),
    ],
)
def test_a_cell_reaches_what_it_names(code, module, reaches, small_book):
    page = print_instead(small_book, code).pages["07-small"]
    assert (module in reached(page)) is reaches


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("x = 1", "x = 1  # one", True),
        ("x = 1", "x = 1\n\n\n", True),
        ("Say it.", "Say it again.", True),
        ("Of the module.", "Of this module.", True),
        ("x = 1", "x = 2", False),
        ("'# kept'", "'# not kept'", False),
        ("return x", "return x + 0", False),
    ],
)
def test_only_code_counts(old, new, same):
    text = (
        '"""Of the module."""\n\nx = 1\n\n\ndef f():\n    """Say it.\n\n    At length.\n    """\n'
    )
    text += "    y = '# kept'\n    return x\n"
    assert old in text
    assert (code_hash(text) == code_hash(text.replace(old, new))) is same


# --- the commands refuse ---


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """The small book, recorded."""
    book = lay_small_book(tmp_path_factory.mktemp("reach"))
    assert recorder.record(book.root, "07-small") == ""
    return Book(book.root)


def change_what_was_recorded(book: Book) -> None:
    """Let the recording be of another `figures`: what is there now has moved."""
    page = book.pages["07-small"]
    now = reached(page)["normbook.lab.figures"]
    edit(page.sibling, f'"normbook.lab.figures": "{now}"', '"normbook.lab.figures": "another"')


def test_an_old_picture_is_refused_by_name_and_recorded_anew(recorded):
    change_what_was_recorded(recorded)
    page = recorded.pages["07-small"]
    wanted = "chapter 07-small is stale, normbook.lab.figures changed since it was recorded"
    assert drift(recorded, page) == [f"{wanted}: make record"]
    with pytest.raises(PressError, match=wanted):
        refresh_words(recorded)
    assert recorder.record(recorded.root, "07-small") == ""
    refresh_words(Book(recorded.root))


class InThisProcess:
    """Runs in this process what `record` would run in two others."""

    def __init__(self, max_workers):
        self.map = map

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        pass


def test_exactly_the_pages_that_what_moved_reaches_are_executed(recorded, monkeypatch):
    executed = []
    monkeypatch.setattr(recorder, "ProcessPoolExecutor", InThisProcess)
    monkeypatch.setattr(recorder, "record", lambda root, name: executed.append(name) or "")
    monkeypatch.setattr(recorder, "write_cover", lambda book: None)
    options = argparse.Namespace(all=False, only=None)
    assert recorder.record_stale(Book(recorded.root), options) == 0
    assert executed == []
    before = recorded.pages["07-small"].sibling.read_text(encoding="utf-8")
    change_what_was_recorded(recorded)
    recorder.record_stale(Book(recorded.root), options)
    recorded.pages["07-small"].sibling.write_text(before, encoding="utf-8")
    assert executed == ["07-small"]


@pytest.mark.parametrize("name", recorder.FORBIDDEN)
def test_nothing_is_recorded_under_a_variable_of_the_tests(name, monkeypatch, capsys):
    monkeypatch.setenv(name, "1e-12")
    monkeypatch.setattr("sys.argv", ["record"])
    assert recorder.main() == 1
    assert f"{name} is for tests" in capsys.readouterr().err
