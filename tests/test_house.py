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
# Beyond the standard library.
MAY_IMPORT = {
    "engine": {"torch", "normbook.engine"},
    "lab": {  # IPython comes with the kernel, PIL with matplotlib
        *("torch", "numpy", "matplotlib", "PIL", "sklearn", "IPython"),
        *("normalization", "normbook.lab"),
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
    shorten = lambda name: ".".join(name.split(".")[: 2 if name.startswith("normbook") else 1])  # noqa: E731
    return {shorten(name) for name in found} - set(sys.stdlib_module_names)


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_packages_import_only_what_they_may(package):
    files = sorted((CODE / "normbook" / package).rglob("*.py"))
    assert files
    for path in files:
        extra = {"triton"} if path.name in MAY_IMPORT_TRITON else set()
        assert imports(path) <= MAY_IMPORT[package] | extra, path.name


def test_the_door_imports_the_engine_alone():
    assert imports(CODE / "normalization.py") <= {"normbook.engine", "torch"}


def test_the_engines_page_lists_every_name_of_the_door_in_its_order():
    tree = ast.parse((CODE / "normalization.py").read_text(encoding="utf-8"))
    lists = [node.value for node in tree.body if isinstance(node, ast.Assign)]
    names = [name.value for name in lists[0].elts]
    text = (ROOT / "book/engine.md").read_text(encoding="utf-8")
    assert re.findall(r"^\.\. (?:auto\w+|py:data):: (\w+)$", text, re.M) == names


def test_chapters_import_only_what_colab_has():
    allowed = {"torch", "numpy", "matplotlib", "sklearn", "normalization", "normbook.lab"}
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
