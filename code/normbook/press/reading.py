"""How long a chapter takes to read: counted, so that nobody types a number that ages.

What is folded takes no time: only the curious open it.
"""

import re

WORDS_A_MINUTE = 200
SECONDS_A_FIGURE = 30
SECONDS_A_FORMULA = 20
SECONDS_A_LINE_OF_CODE = 2

FRONT_MATTER = re.compile(r"\A---\n.*?\n---\n", re.S)
CELL = re.compile(r"^```\{code-cell\}[^\n]*\n(.*?)^```\s*$", re.M | re.S)
OPTIONS = re.compile(r"\A(?:---\n.*?\n---\n|(?::[\w-]+:[^\n]*\n)+)", re.S)
HIDING = ("hide-input", "hide-cell", "remove-input", "claims")  # tags that fold a cell's code
FOLDED = re.compile(rf"^:?tags:.*\b(?:{'|'.join(HIDING)})\b|source_hidden: true", re.M)
FOLDED_WHOLE = re.compile(r"^:?tags:.*\b(?:hide-cell|claims)\b", re.M)
FIGURE_OPTION = re.compile(r"^\s*figure:", re.M)
SOLUTION = re.compile(r"^```\{solution-start\}.*?^```\{solution-end\}.*?^```[ \t]*$", re.M | re.S)
DIRECTIVE = re.compile(
    r"^(?P<head>(?P<fence>:{3,}|`{3,})\{(?P<name>[\w-]+)\}(?P<title>[^\n]*)\n)"
    r"(?P<body>.*?)(?P<tail>^(?P=fence)[:`]*[ \t]*$)",
    re.M | re.S,
)
FOLDED_CLASS = re.compile(r"^:class:.*\bdropdown\b", re.M)
FORMULA = re.compile(r"\$\$.+?\$\$", re.S)
WORD = re.compile(r"[^\W\d_][\w'’-]*")


def reading_minutes(text: str) -> int:
    """Return a chapter's reading time in minutes, to five: words, formulas, figures, open code."""
    cells, prose = unfolded(text)
    seconds = (
        count_words(prose) * 60 / WORDS_A_MINUTE
        + len(FORMULA.findall(prose)) * SECONDS_A_FORMULA
        + sum(shows_figure(cell) for cell in cells) * SECONDS_A_FIGURE
        + sum(open_lines(cell) for cell in cells) * SECONDS_A_LINE_OF_CODE
    )
    return max(5, 5 * round(seconds / 300))


def unfolded(text: str) -> tuple[list[str], str]:
    """Return a chapter's cells and its prose, both without what stands in folded blocks."""
    text = SOLUTION.sub("", FRONT_MATTER.sub("", text))
    return CELL.findall(text), without_folded(CELL.sub("", text))


def without_folded(prose: str) -> str:
    """Return prose without the bodies of dropdowns and of boxes that are folded."""

    def body_if_open(block: re.Match) -> str:
        options = block["body"].split("\n\n")[0]
        if block["name"] in ("dropdown", "solution") or FOLDED_CLASS.search(options):
            return block["head"] + block["tail"]
        return block["head"] + without_folded(block["body"]) + block["tail"]

    return DIRECTIVE.sub(body_if_open, prose)


def count_words(prose: str) -> int:
    """Return how many words there are, displayed formulas left out."""
    return len(WORD.findall(FORMULA.sub("", prose)))


def options_of(cell: str) -> str:
    """Return the options at the head of a cell, which say what is folded and what it draws."""
    found = OPTIONS.match(cell)
    return found[0] if found else ""


def shows_figure(cell: str) -> bool:
    """Whether a cell draws a figure that the page shows at once."""
    options = options_of(cell)
    return bool(FIGURE_OPTION.search(options)) and not FOLDED_WHOLE.search(options)


def open_lines(cell: str) -> int:
    """Return how many lines of code a reader sees: none if folded, blank ones not counted."""
    options = options_of(cell)
    if FOLDED.search(options):
        return 0
    return sum(bool(line.strip()) for line in cell[len(options) :].splitlines())


def about_line(text: str, needs: str) -> str:
    """Return the line at the head of a chapter: how long it takes, and what one needs to know."""
    return f"*Reading time: {reading_minutes(text)} minutes. You need: {' '.join(needs.split())}*"
