"""What a page reaches: the modules whose code its recorded outputs and pictures depend on.

Instruments are reached by import, the engine by the names that are used through its door. Comments
and docstrings do not count.
"""

import ast
import hashlib
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from normbook.press.files import ROOT
from normbook.press.pages import Page

CODE = ROOT / "code"
DOOR = "normalization"
OURS = (DOOR, "normbook")
ALWAYS = "normbook.lab.figures"  # a page without figures today may get one
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef)
PINS = ("torch", "numpy", "matplotlib", "scikit-learn")  # what may move a digit or a picture


def reached(page: Page, code: Path = CODE) -> dict[str, str]:
    """Return the modules that a page reaches and the pins, each with a digest of what it is now."""
    source = "\n".join(cell.source for cell in page.code_cells)
    todo, found = {ALWAYS, *asks_for(source, code)}, set()
    while todo:
        module = todo.pop()
        if module not in found:
            found.add(module)
            todo |= imports(module, code) - found
    return {module: code_hash(text_of(module, code)) for module in sorted(found)} | pins(code)


def imports(module: str, code: Path) -> set[str]:
    """Return the modules of ours that a module imports, and the packages it lies in."""
    parents = {module.rsplit(".", 1)[0]} if "." in module else set()
    text = text_of(module, code)
    return (asks_for(text, code) if module != DOOR else set(door(code).values())) | parents


def asks_for(source: str, code: Path) -> set[str]:
    """Return the modules of ours that a source asks for, through the door by the names it uses."""
    tree = parsed(source)
    found, aliases = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in (name for name in node.names if name.name.split(".")[0] in OURS):
                if name.name == DOOR:
                    aliases.add(name.asname or DOOR)
                else:
                    found.add(name.name)
        elif isinstance(node, ast.ImportFrom) and node.module.split(".")[0] in OURS:
            for name in node.names:
                found.add(origin(node.module, name.name, code))
    return found | {origin(DOOR, name, code) for name in used_through(tree, aliases)}


def used_through(tree: ast.AST, aliases: set[str]) -> Iterator[str]:
    """Yield the names taken from a module of these aliases; "*" where it is used as a whole."""
    attributes = {n.value: n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in aliases:
            yield attributes.get(node, "*")


def origin(module: str, name: str, code: Path) -> str:
    """Return the module that holds what `from module import name` gives."""
    if module == DOOR:
        return door(code).get(name, DOOR)
    inner = f"{module}.{name}"
    return inner if path_of(inner, code).exists() else module


def door(code: Path) -> dict[str, str]:
    """Return the names of the door, and the module of the engine that each comes from."""
    return names_of(text_of(DOOR, code))


@cache
def names_of(text: str) -> dict[str, str]:
    """Return the names that a source imports from modules of ours, and these modules."""
    return {
        name.asname or name.name: node.module
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] in OURS
        for name in node.names
    }


def path_of(module: str, code: Path) -> Path:
    """Return the file of a module or a package."""
    place = code / module.replace(".", "/")
    return place / "__init__.py" if place.is_dir() else place.with_suffix(".py")


def text_of(module: str, code: Path) -> str:
    """Return a module's source, or nothing where there is none: importing it will tell."""
    path = path_of(module, code)
    return path.read_text(encoding="utf-8") if path.exists() else ""


def parsed(source: str) -> ast.AST:
    """Return a source's tree; one that is no Python counts as using the whole door."""
    try:
        return tree_of(source)
    except SyntaxError:
        return tree_of(f"import {DOOR}\n{DOOR}")


@cache
def tree_of(source: str) -> ast.AST:
    """Return a source's tree."""
    return ast.parse(source)


@cache
def code_hash(source: str) -> str:
    """Return a digest of a source without its comments, docstrings and empty lines.

    It is made from the text, as the tree's form changes from one Python to the next.
    """
    lines = source.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node):
            text = node.body[0]
            for row in range(text.lineno, text.end_lineno + 1):
                lines[row - 1] = ""
    kept = "\n".join(line.rstrip() for line in lines if line.strip())
    return hashlib.sha256(kept.encode()).hexdigest()[:12]


def pins(code: Path) -> dict[str, str]:
    """Return the pinned versions that decide about digits and pictures."""
    path = code.parent / "requirements.txt"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return dict(sorted((k, v) for k, v in re.findall(r"^([\w-]+)==(\S+)", text, re.M) if k in PINS))


def moved(before: dict[str, str], now: dict[str, str]) -> list[str]:
    """Return what is not as it was: modules and packages by name."""
    return sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))


def sources_hash(code: Path = CODE) -> str:
    """Return a digest of all that `reached` reads, comments included: quick to compare."""
    paths = [*sorted(code.rglob("*.py")), code.parent / "requirements.txt"]
    kept = (path for path in paths if path.exists() and "press" not in path.parts)
    return hashlib.sha256(b"".join(path.read_bytes() for path in kept)).hexdigest()
