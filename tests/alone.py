"""Run every stand-alone notebook where nothing of ours is installed: `python tests/alone.py`.

Makes an environment that has torch, matplotlib, scikit-learn and ipykernel and what they bring,
executes each download in an empty folder there, and compares its outputs with the recorded ones.

    python tests/alone.py [--versions pinned|newest|oldest] [--python python3.12] [CHAPTER …]
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

from normbook.press.book import Book
from normbook.press.ledger import write_json
from normbook.press.pages import code_cells
from normbook.press.standalone import make_standalone

ROOT = Path(__file__).resolve().parents[1]
NEEDED = ("torch", "numpy", "matplotlib", "scikit-learn", "ipython", "ipykernel")
KERNEL = "normbook-alone"


def requirements(versions: str) -> list[str]:
    """Return what to install: the pins, the lower bounds of pyproject.toml, or no bound."""
    if versions == "newest":
        return list(NEEDED)
    if versions == "pinned":
        lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
        return [line for line in lines if line.partition("==")[0] in NEEDED]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    bounds = [bound.replace(">=", "==") + ".*" for bound in project["dependencies"]]
    return [*bounds, "ipykernel"]


def make_environment(versions: str, python: str) -> Path:
    """Return the folder of an environment with just that; an earlier one is used again."""
    folder, wanted = ROOT / f"_build/alone-{versions}", requirements(versions)
    stamp = folder / "installed"
    if not stamp.exists() or stamp.read_text() != f"{python} {wanted}":
        subprocess.run([python, "-m", "venv", "--clear", folder], check=True)
        inside = [folder / "bin/python", "-m"]
        pip = ["pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*inside, *pip, *wanted], check=True)
        install = ["ipykernel", "install", "--prefix", folder, "--name", KERNEL]
        subprocess.run([*inside, *install], check=True, capture_output=True)
        stamp.write_text(f"{python} {wanted}")
    return folder


def run_alone(environment: Path, name: str) -> list[str]:
    """Execute a chapter's download in an empty folder. Returns where it differs."""
    os.environ["JUPYTER_PATH"] = str(environment / "share/jupyter")
    kept = ("PATH", "HOME", "LANG", "JUPYTER_PATH", "NORMBOOK_DEVICE")
    settings = {"NORMBOOK_STRICT": "1", "OMP_NUM_THREADS": "1", "PYTHONNOUSERSITE": "1"}
    clean = {key: os.environ[key] for key in kept if key in os.environ} | settings
    book = Book()
    notebook = make_standalone(book, book.pages[name])
    cells = code_cells(notebook)[1:]  # the first one unpacks the engine
    recorded = [texts(cell.outputs) for cell in cells]
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(
            notebook,
            timeout=600,
            kernel_name=KERNEL,
            coalesce_streams=True,
            extra_arguments=["--IPKernelApp.log_level=40"],
            resources={"metadata": {"path": folder}},
        )
        try:
            client.execute(env=clean)
        except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
            return [f"{name}: {type(error).__name__}: {error}"]
    return [
        f"{name}, cell {number}:\n  recorded {old}\n  here     {texts(cell.outputs)}"
        for number, (cell, old) in enumerate(zip(cells, recorded, strict=True), 1)
        if texts(cell.outputs) != old and "nbval-ignore-output" not in cell.metadata.get("tags", [])
    ]


def texts(outputs) -> list:
    """What is compared of outputs: text, data but for pictures, and an error's message."""
    return [
        output.get("text")
        or output.get("evalue")
        or {kind: data for kind, data in output.data.items() if kind != "image/png"}
        for output in outputs
    ]


def importable_of_ours(environment: Path) -> str:
    """Return what of ours, or of the press, the environment can import: nothing, one hopes."""
    code = (
        "import importlib.util as u; "
        "print(*[n for n in ('normbook', 'normalization', 'yaml', 'myst_nb', 'pytest')"
        " if u.find_spec(n)])"
    )
    command = [environment / "bin/python", "-I", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def versions_of(environment: Path) -> str:
    """Return "torch 2.13.0, numpy …" as installed."""
    command = [environment / "bin/python", "-m", "pip", "list", "--format=freeze"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.findall(rf"^({'|'.join(NEEDED)})==(\S+)", listed, re.M)
    return ", ".join(f"{name} {version}" for name, version in found)


def main() -> int:
    """Run them all, two at a time, and say which of them differ."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--versions", choices=("pinned", "newest", "oldest"), default="pinned")
    parser.add_argument("--python", default=sys.executable, help="the Python of the environment")
    parser.add_argument("chapters", nargs="*", help="these only")
    options = parser.parse_args()
    book = Book()
    write_json(book.claims, book.claims_json)
    environment = make_environment(options.versions, options.python)
    if found := importable_of_ours(environment):
        raise SystemExit(f"{environment} should not have {found}: remove it and start again")
    print(f"alone with {versions_of(environment)}", flush=True)
    names = options.chapters or [page.name for page in book.chapters]
    begin, failed = time.perf_counter(), 0
    with ProcessPoolExecutor(max_workers=2) as pool:
        answers = pool.map(partial(run_alone, environment), names)
        for name, found in zip(names, answers, strict=True):
            failed += bool(found)
            print(f"{name}: {'differs' if found else 'same outputs'}", *found, sep="\n", flush=True)
    print(f"{len(names) - failed} passed, {failed} failed")
    print(f"in {time.perf_counter() - begin:.0f} s")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
