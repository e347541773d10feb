"""What several test files share: the project's root, and a small book to break."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

from normbook.press.book import Book

ROOT = Path(__file__).resolve().parents[1]

CHAPTER = """\
---
jupytext:
  text_representation:
    extension: .md
    format_name: myst
kernelspec:
  display_name: Python 3
  language: python
  name: python3
---

(ch-small)=
# 7 A small chapter

The answer is {glue:text}`answer`, see {numref}`fig-small`.

```{code-cell} python
---
mystnb:
  figure:
    name: fig-small
    caption: Three points.
  image:
    alt: A rising line.
---
from normbook.lab import claim, figures, glue, show

figure, axis = figures.subplots()
axis.plot([0, 1, 2], [1.0, 2.0, 4.0], label="doubling")
show(figure)
glue("answer", 42.0)
```

```{code-cell} python
print("mean 0.503")
```
"""


def lay_small_book(root: Path) -> Book:
    """Write a book of one chapter, `07-small`, under `root`, and return it."""
    folder = root / "book"
    folder.mkdir()
    (root / "_toc.yml").write_text("format: jb-book\nroot: 07-small\n")
    (root / "_config.yml").write_text("title: A small book\n")
    shutil.copy(ROOT / "book/references.bib", folder)
    (folder / "07-small.md").write_text(CHAPTER, encoding="utf-8")
    return Book(root)


def lay_claims(book: Book, *entries: dict, page: str = "07-small") -> Path:
    """Write what a page claims, for the press and for the cells, and return the file."""
    path = book.folder / "claims" / f"{page}.yml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(yaml.safe_dump(list(entries), sort_keys=False), encoding="utf-8")
    return path


def print_instead(book: Book, code: str) -> Book:
    """Put `code` into the last cell of the small chapter, and return the book as it then is."""
    edit(book.folder / "07-small.md", 'print("mean 0.503")', code)
    return Book(book.root)


def edit(path: Path, old: str, new: str) -> None:
    """Replace `old` by `new` in a file, and make sure that it was there."""
    text = path.read_text(encoding="utf-8")
    assert old in text, f"{old!r} is not in {path}"
    path.write_text(text.replace(old, new), encoding="utf-8")


def output_of(program: str, **environment: str | None) -> str:
    """Run a program on the book's code in a process of its own; a variable of None is unset."""
    found = os.environ | {"PYTHONPATH": str(ROOT / "code")} | environment
    answer = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={name: value for name, value in found.items() if value is not None},
        capture_output=True,
        text=True,
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


# In a browser: open all that is folded; wait until the formulas are drawn.
OPEN_ALL = """() => {
  document.querySelectorAll("details").forEach(e => e.open = true);
  document.querySelectorAll(".toggle-hidden").forEach(e => e.classList.remove("toggle-hidden"));
}"""
FORMULAS = """async () => {
  if (!document.querySelector("script[src*=mathjax]")) return;
  while (!window.MathJax?.startup?.promise) await new Promise(done => setTimeout(done, 20));
  await MathJax.startup.promise;
}"""
