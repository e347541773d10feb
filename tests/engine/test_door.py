"""The door opens on every public name, and what lies behind it keeps the book's manners."""

import ast
import inspect

import pytest
from helpers import ROOT

import normalization as nz

CODE = ROOT / "code"
FILES = [CODE / "normalization.py", *sorted((CODE / "normbook" / "engine").glob("*.py"))]


def imported_names(tree):
    return [
        alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names
    ]


def test_all_names_what_the_door_imports():
    tree = ast.parse((CODE / "normalization.py").read_text(encoding="utf-8"))
    assert sorted(imported_names(tree)) == sorted(nz.__all__)
    assert len(set(nz.__all__)) == len(nz.__all__)


def test_no_public_formula_or_layer_is_left_outside():
    for file in FILES[1:]:
        if file.stem in ("__init__", "checks", "sanity", "shared"):
            continue
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                assert node.name in nz.__all__ or node.name == "Placement", node.name


FORMULAS_AND_LAYERS = [
    name
    for name in nz.__all__
    if getattr(getattr(nz, name), "__module__", "normbook.engine.sanity")
    != "normbook.engine.sanity"
]


@pytest.mark.parametrize("name", FORMULAS_AND_LAYERS)
def test_formulas_and_layers_tell_errors_and_source(name):
    text = inspect.getdoc(getattr(nz, name))
    assert "Raises" in text or "errors" in text
    assert "Source" in text or name == "center"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_files_and_functions_are_short_and_documented(file):
    source = file.read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 400
    for node in ast.walk(ast.parse(source)):
        assert not isinstance(node, ast.Assert)
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name != "__init__":
            assert ast.get_docstring(node), node.name
        if isinstance(node, ast.FunctionDef):
            docstring = ast.get_docstring(node) or ""
            length = node.end_lineno - node.lineno + 1 - len(docstring.splitlines())
            assert length <= 45, (node.name, length)


def test_the_engine_imports_torch_and_nothing_of_ours_but_itself():
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module.startswith("normbook"):
                assert node.module.startswith("normbook.engine")
            if isinstance(node, ast.Import):
                assert all(
                    alias.name.split(".")[0] not in ("normbook", "numpy") for alias in node.names
                )
