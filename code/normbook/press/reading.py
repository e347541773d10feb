"""How long a chapter takes to read: counted, so that nobody types a number that ages."""

import re

WORDS_A_MINUTE = 200
SECONDS_A_FIGURE = 30
SECONDS_A_FORMULA = 20
SECONDS_A_LINE_OF_CODE = 2

FRONT_MATTER = re.compile(r"\A---\n.*?\n---\n", re.S)
CELL = re.compile(r"^```\{code-cell\}[^\n]*\n(.*?)^```\s*$", re.M | re.S)
FORMULA = re.compile(r"\$\$.+?\$\$", re.S)
FOLDED = re.compile(r"hide-input|hide-cell|remove-input|source_hidden")
OPTIONS = re.compile(r"\A(?:---\n.*?\n---\n|(?::[\w-]+:[^\n]*\n)+)", re.S)
WORD = re.compile(r"[^\W\d_][\w'’-]*")


def minutes(text: str) -> int:
    """Return a chapter's reading time in minutes, to five: words, formulas, figures, open code."""
    text = FRONT_MATTER.sub("", text)
    cells = CELL.findall(text)
    prose = CELL.sub("", text)
    formulas = len(FORMULA.findall(prose))
    words = len(WORD.findall(FORMULA.sub("", prose)))
    figures = sum("figure:" in cell for cell in cells)
    lines = sum(code_lines(cell) for cell in cells if not FOLDED.search(cell))
    seconds = (
        words * 60 / WORDS_A_MINUTE
        + figures * SECONDS_A_FIGURE
        + formulas * SECONDS_A_FORMULA
        + lines * SECONDS_A_LINE_OF_CODE
    )
    return max(5, 5 * round(seconds / 300))


def code_lines(cell: str) -> int:
    """Return how many lines of code a cell has, without its options and blank lines."""
    return sum(bool(line.strip()) for line in OPTIONS.sub("", cell).splitlines())


def about(text: str, needs: str) -> str:
    """Return the line at the head of a chapter: how long it takes, and what one needs to know."""
    return f"*Reading time: {minutes(text)} minutes. You need: {' '.join(needs.split())}*"
