"""Mutation testing of the engine: `make mutants`.

One small change at a time is made in a function of the engine (a plus for a minus, a 2 for a 1, a
< for a <=), and the tests that cover its line are run. A change that no test notices is a survivor:
either a hole in the tests, or an equivalent program. A seeded sample of all is tried, in one
process: a function's code object is exchanged, so nothing is imported anew.
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

import coverage
import pytest

ROOT = Path(__file__).resolve().parents[1]
ENGINE = ROOT / "code/normbook/engine"
# These run the engine in processes of their own, where an exchanged code object is not seen.
ELSEWHERE = ("test_engine_mutations.py",)
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


def sites(tree: ast.Module):
    """Yield `(path to the node, line, description)` of every change inside a function's body."""
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    seen = set()
    for function in functions:
        for statement in function.body:
            for node in ast.walk(statement):
                if id(node) not in seen:
                    seen.add(id(node))
                    yield from changes(node)


def changes(node: ast.AST):
    """Yield `(node, line, description, function that makes the change in place)`."""
    line = getattr(node, "lineno", None)
    if isinstance(node, ast.BinOp | ast.UnaryOp | ast.BoolOp | ast.AugAssign):
        new = OPERATORS.get(type(node.op))
        if new:
            yield line, f"{type(node.op).__name__} → {new.__name__}", node, ("op", new)
    elif isinstance(node, ast.Compare):
        new = OPERATORS.get(type(node.ops[0]))
        if new:
            yield line, f"{type(node.ops[0]).__name__} → {new.__name__}", node, ("ops", new)
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield line, f"{node.value} → {not node.value}", node, ("value", not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield line, f"{node.value} → {node.value + 1}", node, ("value", node.value + 1)


def mutated(source: str, index: int) -> tuple[CodeType, int, str]:
    """Return the module's code with change `index` made, its line, and what was changed."""
    tree = ast.parse(source)
    line, description, node, (field, new) = list(sites(tree))[index]
    if field == "value":
        node.value = new
    elif field == "ops":
        node.ops = [new(), *node.ops[1:]]
    else:
        node.op = new()
    return compile(ast.fix_missing_locations(tree), "<mutant>", "exec"), line, description


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
    """Try a sample of mutants, write the survivors to `_build/mutants.json`, and sum up."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=300, help="mutants to try")
    parser.add_argument("--minutes", type=float, default=30, help="stop after that long")
    options = parser.parse_args()
    files = [str(p) for p in sorted(ROOT.glob("tests/test_engine_*.py")) if p.name not in ELSEWHERE]
    reached, seconds = tests_by_line([*files, str(ROOT / "tests/test_sanity.py")])
    sources = {path.stem: path.read_text("utf-8") for path in sorted(ENGINE.glob("*.py"))}
    every = [(n, i) for n, s in sources.items() for i in range(len(list(sites(ast.parse(s)))))]
    sample = random.Random(0).sample(every, min(options.count, len(every)))
    deadline, tried, survivors = time.monotonic() + 60 * options.minutes, 0, []
    for name, index in sample:
        if time.monotonic() > deadline:
            break
        code, line, description = mutated(sources[name], index)
        tests = sorted(reached[f"{name}.py"][line], key=lambda test: seconds.get(test, LIMIT))
        with exchanged(sys.modules[f"normbook.engine.{name}"], copy.copy(code)):
            killed = bool(tests) and is_killed(tests)
        tried += 1
        if not killed:
            text = sources[name].split("\n")[line - 1].strip()
            survivors.append({"file": name, "line": line, "change": description, "code": text})
            print(f"survived: {name}.py:{line} {description}: {text}", flush=True)
    share = 1 - len(survivors) / tried
    (ROOT / "_build").mkdir(exist_ok=True)
    (ROOT / "_build/mutants.json").write_text(json.dumps(survivors, ensure_ascii=False, indent=1))
    print(f"{tried} of {len(every)} mutants tried, {share:.1%} killed")
    return 0 if share >= 0.95 else 1


if __name__ == "__main__":
    sys.exit(main())
