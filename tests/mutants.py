"""Mutation testing of the engine: `make mutants`.

One small change at a time is made in a function of the engine (a plus for a minus, a 2 for a 1, a
< for a <=), and the tests that cover its line are run. A change that no test notices is a survivor:
either a hole in the tests, or an equivalent program. All happens in one process: a function's code
object is exchanged, so nothing is imported anew.

The changes that are tried stand in `mutants.txt`, a seeded sample of all, by function, source text
and change, so that code may move to another file and the same ones are tried again. `--draw 300`
draws another list.
"""

import argparse
import ast
import contextlib
import copy
import io
import json
import random
import signal
import sys
import time
from collections import defaultdict
from pathlib import Path
from types import CodeType, FunctionType
from typing import NamedTuple

import coverage
import pytest

ROOT = Path(__file__).resolve().parents[1]
ENGINE = ROOT / "code/normbook/engine"
LIST, RESULT = ROOT / "tests/mutants.txt", ROOT / "_build/mutants.json"
# Not the file that runs the engine in processes of its own: there an exchange is not seen.
TESTS = [p for p in sorted(ROOT.glob("tests/engine/test_*.py")) if "mutations" not in p.name]
LIMIT = 60  # seconds for the tests of one mutant; a mutant that hangs is noticed

OPERATORS = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.Pow: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.USub: ast.UAdd,
}


class Site(NamedTuple):
    """One change that can be made: its name, the line, the node, and what of it becomes what."""

    name: str
    line: int
    node: ast.AST
    field: str
    new: object


def sites(source: str) -> list[Site]:
    """List every change inside a function's body, in the order of the text."""
    return list(sites_in(ast.parse(source), "", inside=False))


def sites_in(node: ast.AST, place: str, inside: bool):
    """Yield the sites under a node that stands in the function or class `place`."""
    for child in ast.iter_child_nodes(node):
        named = isinstance(child, ast.FunctionDef | ast.ClassDef)
        within = f"{place}.{child.name}".lstrip(".") if named else place
        if isinstance(child, ast.FunctionDef):
            for statement in child.body:
                yield from sites_of(statement, within)
                yield from sites_in(statement, within, inside=True)
            continue
        if inside:
            yield from sites_of(child, within)
        yield from sites_in(child, within, inside)


def sites_of(node: ast.AST, place: str):
    """Yield the changes of one node itself."""
    for change, field, new in changes(node):
        yield Site(f"{place}: {ast.unparse(node)}: {change}", node.lineno, node, field, new)


def changes(node: ast.AST):
    """Yield `(description, field, new value)` of what may be changed in a node."""
    if isinstance(node, ast.BinOp | ast.UnaryOp | ast.BoolOp | ast.AugAssign):
        new = OPERATORS.get(type(node.op))
        if new:
            yield f"{type(node.op).__name__} → {new.__name__}", "op", new
    elif isinstance(node, ast.Compare):
        new = OPERATORS.get(type(node.ops[0]))
        if new:
            yield f"{type(node.ops[0]).__name__} → {new.__name__}", "ops", new
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield f"{node.value} → {not node.value}", "value", not node.value
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield f"{node.value} → {node.value + 1}", "value", node.value + 1


def named_sites(sources: dict[str, str]) -> dict[str, tuple[str, int]]:
    """Return the module and the index of every change by its name; like names are numbered."""
    found = {}
    for module, source in sources.items():
        for index, site in enumerate(sites(source)):
            name, again = site.name, 1
            while name in found:
                again += 1
                name = f"{site.name} ({again})"
            found[name] = module, index
    return found


def mutated(source: str, index: int) -> tuple[CodeType, int]:
    """Return the module's code with change `index` made, and its line."""
    tree = ast.parse(source)
    _, line, node, field, new = list(sites_in(tree, "", inside=False))[index]
    if field == "value":
        node.value = new
    elif field == "ops":
        node.ops = [new(), *node.ops[1:]]
    else:
        node.op = new()
    return compile(ast.fix_missing_locations(tree), "<mutant>", "exec"), line


def code_objects(code: CodeType) -> dict[str, CodeType]:
    """Return the code objects of a module's functions and methods by qualified name."""
    found = {}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found[constant.co_qualname] = constant
            found |= code_objects(constant)
    return found


def functions_of(module) -> dict[str, FunctionType]:
    """Return a module's own functions and methods by qualified name."""
    found = {}
    for value in vars(module).values():
        members = vars(value).values() if isinstance(value, type) else [value]
        for member in members:
            member = getattr(member, "__func__", member)
            if isinstance(member, FunctionType) and member.__module__ == module.__name__:
                found[member.__qualname__] = member
    return found


@contextlib.contextmanager
def exchanged(module, code: CodeType):
    """Give a module's functions the code of a mutant inside a `with`."""
    functions, replacements = functions_of(module), code_objects(code)
    originals = {name: function.__code__ for name, function in functions.items()}
    try:
        for name, function in functions.items():
            new = replacements.get(name)
            if new is not None and new.co_freevars == function.__code__.co_freevars:
                function.__code__ = new
        yield
    finally:
        for name, function in functions.items():
            function.__code__ = originals[name]


class Contexts:
    """Tells coverage which test is running, and how long each took."""

    def __init__(self, recorder: coverage.Coverage) -> None:
        self.recorder, self.seconds = recorder, {}

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_setup(self, item):
        """What a fixture runs belongs to the whole file: any of its tests may look at it."""
        self.recorder.switch_context(item.nodeid.split("::")[0])
        yield

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_call(self, item):
        """Name the context after the test."""
        self.recorder.switch_context(item.nodeid)
        begin = time.perf_counter()
        yield
        self.seconds[item.nodeid] = time.perf_counter() - begin


def tests_by_line(files: list[str]) -> tuple[dict, dict[str, float]]:
    """Run all tests once: which tests reach each line of each engine file, and their seconds."""
    recorder = coverage.Coverage(data_file=None, include=[str(ENGINE / "*.py")])
    plugin = Contexts(recorder)
    recorder.start()
    status = quiet_pytest(files, plugin)
    recorder.stop()
    if status:
        raise SystemExit("the tests fail before anything is changed")
    data, reached = recorder.get_data(), defaultdict(lambda: defaultdict(set))
    for file in data.measured_files():
        for line, contexts in data.contexts_by_lineno(file).items():
            reached[Path(file).name][line] |= {name for name in contexts if name}
    return reached, plugin.seconds


def quiet_pytest(arguments: list[str], *plugins) -> int:
    """Run pytest in this process, without its output."""
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly"]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return int(pytest.main([*options, *arguments], plugins=list(plugins)))


def is_killed(tests: list[str]) -> bool:
    """Whether one of the tests fails, or hangs, with the mutant in place."""

    def stop(*_):
        raise TimeoutError

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(LIMIT)
    try:
        status = quiet_pytest(tests)
    except TimeoutError:
        return True
    finally:
        signal.alarm(0)
    if status not in (0, 1):
        raise RuntimeError(f"pytest ended with status {status} on {tests[:3]} …")
    return status == 1


def main() -> int:
    """Try the mutants of the list, write what became of each to `_build`, and sum up."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draw", type=int, metavar="N", help="write another list, of N mutants")
    options = parser.parse_args()
    sources = {path.stem: path.read_text("utf-8") for path in sorted(ENGINE.glob("*.py"))}
    every = named_sites(sources)
    if options.draw:
        chosen = random.Random(0).sample(sorted(every), options.draw)
        LIST.write_text("\n".join(sorted(chosen)) + "\n", encoding="utf-8")
        return 0
    sample = LIST.read_text("utf-8").splitlines()
    verdicts = {name: "gone" for name in sample if name not in every}
    reached, seconds = tests_by_line(list(map(str, TESTS)))
    for name in (name for name in sample if name in every):
        module, index = every[name]
        code, line = mutated(sources[module], index)
        tests = sorted(reached[f"{module}.py"][line], key=lambda test: seconds.get(test, LIMIT))
        with exchanged(sys.modules[f"normbook.engine.{module}"], copy.copy(code)):
            killed = bool(tests) and is_killed(tests)
        verdicts[name] = "killed" if killed else "survived"
    for name, verdict in verdicts.items():
        if verdict != "killed":
            print(f"{verdict}: {name}", flush=True)
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(verdicts, ensure_ascii=False, indent=1), encoding="utf-8")
    tried = [verdict for verdict in verdicts.values() if verdict != "gone"]
    share = tried.count("killed") / len(tried)
    print(f"{len(tried)} of {len(every)} mutants tried, {share:.1%} killed")
    return 0 if share >= 0.95 and len(tried) >= 0.9 * len(sample) else 1


if __name__ == "__main__":
    sys.exit(main())
