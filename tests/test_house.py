"""Who may import whom, and what the project must not say."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import ROOT

from normbook.press.book import Book

CODE = ROOT / "code"
CHECKS = "normbook.engine.checks"  # of arguments, whose errors read alike everywhere
# Beyond the standard library.
MAY_IMPORT = {
    "engine": {"torch", "normbook.engine", CHECKS},
    "lab": {  # IPython comes with the kernel, PIL with matplotlib
        *("torch", "numpy", "matplotlib", "PIL", "sklearn", "IPython"),
        *("normalization", "normbook.lab", CHECKS),
    },
    "studies": {
        *("torch", "numpy", "matplotlib", "normalization", "normbook.lab", "normbook.studies"),
        CHECKS,
    },
    "press": {
        *("docutils", "sphinx", "myst_nb", "nbformat", "nbclient", "jupyter_cache", "pybtex"),
        *("jupyter_book", "jupyter_client", "PIL"),
        *("yaml", "jsonschema", "filelock", "watchfiles", "genanki", "normbook.press"),
    },
}
# An optional extra: `kernels` imports it, and the kernels, only inside functions.
MAY_IMPORT_TRITON = ("kernels.py", "kernels_triton.py")


def imports(path: Path) -> set[str]:
    """The modules a file imports, ours with two parts, others by their first."""
    return imports_of(path.read_text(encoding="utf-8"), path.name)


def imports_of(source: str, name: str) -> set[str]:
    """The modules a source imports, ours with two parts, others by their first."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: relative import"
            found.add(node.module)
    return {shorten(name) for name in found} - set(sys.stdlib_module_names)


def shorten(name: str) -> str:
    """A module of ours by its package, the checks by name, any other by its first part."""
    return name if name == CHECKS else ".".join(name.split(".")[: 1 + name.startswith("normbook")])


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_packages_import_only_what_they_may(package):
    files = sorted((CODE / "normbook" / package).rglob("*.py"))
    assert files
    for path in files:
        extra = {"triton"} if path.name in MAY_IMPORT_TRITON else set()
        assert imports(path) <= MAY_IMPORT[package] | extra, path.name


def rooms_of_studies(source: str) -> set[str]:
    """The studies that a source imports, a package of several files as one."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("normbook.studies"):
            parts = node.module.split(".")[2:]
            found |= {parts[0]} if parts else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
            found |= {parts[2] for parts in names if parts[:2] == ["normbook", "studies"]}
    return found


def test_no_study_imports_another():
    folder = CODE / "normbook/studies"
    for path in folder.rglob("*.py"):
        own = path.relative_to(folder).parts[0].removesuffix(".py")
        assert rooms_of_studies(path.read_text(encoding="utf-8")) <= {own}, path.name


def test_a_study_serves_one_chapter_and_a_chapter_has_one():
    served = {}
    for page in Book().chapters:
        rooms = rooms_of_studies("\n".join(cell.source for cell in page.code_cells))
        assert len(rooms) <= 1, f"{page.name} uses {rooms}"
        for room in rooms:
            assert served.setdefault(room, page.name) == page.name, f"{room}: move it to lab"
    folder = CODE / "normbook/studies"
    there = {path.stem for path in folder.iterdir() if path.stem[0] not in "_."}
    assert served.keys() == there


def test_a_chapter_imports_from_lab_in_one_statement():
    for page in Book().chapters:
        source = "\n".join(cell.source for cell in page.code_cells)
        found = re.findall(r"^from normbook\.(lab|studies)\b", source, re.M)
        assert len(found) == len(set(found)), f"{page.name}: {found}"


def test_the_door_imports_the_engine_alone():
    assert imports(CODE / "normalization.py") <= {"normbook.engine", "torch"}


def test_chapters_import_only_what_colab_has():
    allowed = {"torch", "numpy", "matplotlib", "sklearn", "normalization"}
    allowed |= {"normbook.lab", "normbook.studies"}
    for page in Book().chapters:
        for cell in page.code_cells:
            assert imports_of(cell.source, page.name) <= allowed, page.name


def test_code_does_not_shadow_the_standard_library():
    assert not (CODE / "__init__.py").exists()
    answer = subprocess.run(
        [sys.executable, "-c", "import code, pdb; print(code.InteractiveConsole.__name__)"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert answer.stdout.strip() == "InteractiveConsole", answer.stderr


def test_the_press_works_without_torch():
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "from normbook.press import publish, record, rules, sphinx, standalone"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True
    )
    assert answer.returncode == 0, answer.stderr


def tracked_text() -> dict[str, str]:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    ).stdout.split()
    if not listed:
        pytest.skip("no git repository: nothing tells the project's files from others")
    texts = {}
    for name in listed:
        path = ROOT / name
        if path.suffix in (".png", ".svg") or not path.is_file():
            continue
        texts[name] = path.read_text(encoding="utf-8")
    return texts


def test_the_project_names_no_registry_and_no_unknown_address():
    hosts = ["pypi" + ".org", "python" + "hosted.org", "npm" + "js.", "docker" + ".io"]
    hosts += ["download.py" + "torch.org", "anaconda" + ".org"]
    for name, text in tracked_text().items():
        for host in hosts:
            assert host not in text, f"{name} names {host}"


def test_no_file_is_longer_than_a_sitting():
    for path in CODE.rglob("*.py"):
        lines = path.read_text(encoding="utf-8").count("\n")
        assert lines <= 400, f"{path.name} has {lines} lines"
