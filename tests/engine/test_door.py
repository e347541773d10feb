"""The door opens on every public name, and what lies behind it keeps the book's manners."""

import ast
import inspect

from engine_helpers import PUBLIC
from helpers import ROOT

import normalization as nz

CODE = ROOT / "code"
FILES = [CODE / "normalization.py", *sorted((CODE / "normbook" / "engine").glob("*.py"))]
TREES = {file.stem: ast.parse(file.read_text(encoding="utf-8")) for file in FILES}
INSIDE = ("__init__", "checks", "shared", "sanity")  # not all of these is for readers


def test_each_name_is_imported_once_and_nothing_else_strays_in():
    nodes = [node for node in TREES["normalization"].body if isinstance(node, ast.ImportFrom)]
    names = [alias.asname for node in nodes for alias in node.names]
    assert sorted(names) == sorted(PUBLIC)
    assert all(node.module.startswith("normbook.engine.") for node in nodes)


def test_no_public_formula_or_layer_is_left_outside():
    found = {
        node.name
        for name, tree in TREES.items()
        for node in tree.body
        if name not in INSIDE and isinstance(node, ast.FunctionDef | ast.ClassDef)
    }
    assert {name for name in found - set(PUBLIC) if name[0] != "_"} == {"Placement"}


def test_formulas_and_layers_tell_errors_and_source():
    silent = []
    for name in PUBLIC:
        home = getattr(getattr(nz, name), "__module__", "normbook.engine.sanity")
        text = inspect.getdoc(getattr(nz, name)) if not home.endswith("sanity") else "Raises Source"
        if not ("Raises" in text or "errors" in text) or "Source" not in text:
            silent.append(name)
    assert silent == ["center"]  # it is what the norms share, and has no paper


def test_functions_are_short_and_documented_and_assert_nothing():
    failures = []
    for tree in TREES.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Assert):
                failures.append(f"assert in line {node.lineno}")
            if not isinstance(node, ast.FunctionDef | ast.ClassDef):
                continue
            if node.name != "__init__" and not ast.get_docstring(node):
                failures.append(f"{node.name} has no docstring")
            if isinstance(node, ast.FunctionDef) and node.end_lineno - node.lineno >= 45:
                failures.append(f"{node.name} has more than 45 lines")
    assert failures == []
