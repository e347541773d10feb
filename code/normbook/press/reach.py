"""What a page reaches: the modules whose code its recorded outputs and pictures depend on.

Instruments are reached by import, the engine by the names that are used through its door. Comments
and docstrings do not count.
"""

import ast
import hashlib
import io
import re
import tokenize
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
    todo, found = {ALWAYS, *modules_used(source, code)}, set()
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
    return (modules_used(text, code) if module != DOOR else set(door(code).values())) | parents


def modules_used(source: str, code: Path) -> set[str]:
    """Return the modules of ours that a source asks for, through the door by the names it uses."""
    return {module_of(module, name, code) for module, name in names_used(source)}


@cache
def names_used(source: str) -> frozenset[tuple[str, str]]:
    """Return what a source takes from modules of ours: the module and the name, or "" for it all.

    A source that is no Python counts as using the whole door.
    """
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except SyntaxError:
        return frozenset({(DOOR, "")})
    found, aliases = set(), set()
    for node in nodes:
        if isinstance(node, ast.Import):
            ours = [name for name in node.names if is_ours(name.name)]
            aliases |= {name.asname or DOOR for name in ours if name.name == DOOR}
            found |= {(name.name, "") for name in ours if name.name != DOOR}
        elif isinstance(node, ast.ImportFrom) and is_ours(node.module):
            found |= {(node.module, name.name) for name in node.names}
    attributes = {node.value: node.attr for node in nodes if isinstance(node, ast.Attribute)}
    used = [node for node in nodes if isinstance(node, ast.Name) and node.id in aliases]
    return frozenset(found | {(DOOR, attributes.get(node, "")) for node in used})


def is_ours(module: str) -> bool:
    """Whether a module is the door, or one behind it."""
    return module.split(".")[0] in OURS


def module_of(module: str, name: str, code: Path) -> str:
    """Return the module that holds what `from module import name` gives."""
    if module == DOOR:
        return door(code).get(name, DOOR)
    inner = f"{module}.{name}"
    return inner if name and path_of(inner, code).exists() else module


def door(code: Path) -> dict[str, str]:
    """Return the names of the door, and the module of the engine that each comes from."""
    asked = names_used(text_of(DOOR, code))
    return {name: module for module, name in asked if name}


def path_of(module: str, code: Path) -> Path:
    """Return the file of a module or a package."""
    place = code / module.replace(".", "/")
    return place / "__init__.py" if place.is_dir() else place.with_suffix(".py")


def text_of(module: str, code: Path) -> str:
    """Return a module's source, or nothing where there is none: importing it will tell."""
    path = path_of(module, code)
    return path.read_text(encoding="utf-8") if path.exists() else ""


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


def changed_modules(before: dict[str, str], now: dict[str, str]) -> list[str]:
    """Return what is not as it was: modules and packages by name."""
    return sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))


def sources_hash(code: Path = CODE) -> str:
    """Return a digest of all that `reached` reads, comments included: quick to compare."""
    paths = [*sorted(code.rglob("*.py")), code.parent / "requirements.txt"]
    kept = (path for path in paths if path.exists() and "press" not in path.parts)
    return hashlib.sha256(b"".join(path.read_bytes() for path in kept)).hexdigest()
