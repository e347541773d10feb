"""How long a page's lines and cells may be, and how far down its first figure stands.

`python -m normbook.press.limits` prints for each chapter what its reader meets before that.
"""

import re

from normbook.press.book import Book
from normbook.press.pages import Page
from normbook.press.portable import ADMONITIONS
from normbook.press.reading import (
    CELL,
    FIGURE_OPTION,
    HIDING,
    count_words,
    open_lines,
    options_of,
    unfolded,
)

MOST_LINES = 25  # of code in a cell that is not folded
LONGEST_PROSE = 110  # characters of prose
MOST_FLOORS = 25  # a chapter's processor seconds, in those of a kernel that only imports

# Fences of backticks that hold prose. All others hold code, or what a directive reads in its way.
NAMES = "|".join([*ADMONITIONS, "dropdown", "exercise", "solution", "about", "glossary"])
HEAD = r"\A---\n.*?\n---$"
CODE_CELL = r"^```\{code-cell\}[^\n]*\n(?P<options>(?:---\n.*?\n---\n)?).*?^```[ \t]*$"
PROSE = rf"^(?P<mark>`{{3,}})\{{(?:{NAMES})\}}[^\n]*\n(?P<prose>.*?)^(?P=mark)`*[ \t]*$"
CODE_BLOCK = r"^(?P<fence>`{3,}|~{3,}).*?^(?P=fence)[`~]*[ \t]*$"
DISPLAYED_FORMULA = r"^[ \t]*\$\$.*?\$\$[^\n]*$"
NOT_PROSE = re.compile(
    "|".join([HEAD, CODE_CELL, PROSE, CODE_BLOCK, DISPLAYED_FORMULA]), re.M | re.S
)
# Rows of tables, headings, fences, options, comments, labels, HTML, addresses of links.
WHOLE = re.compile(
    r"\s*(?:\||#{1,6}\s|`{3}|~{3}|:{3}|:[\w-]+:(?:\s|$)|%\s|\([\w-]+\)=|<|\[[^\]]+\]:\s)"
)
LINE_START = re.compile(r"\s*(?:(?:>|[-*+]|\d+[.)]|(?:caption|alt):)\s+)*")
# A word with the role, the code, the formula or the link that it is, or is part of.
PIECE = re.compile(
    r"(?:\\.|\{[\w:+.-]+\}`[^`]+`|(`+)[^`].*?(?<!`)\1(?!`)|\$[^$]+\$|\[[^\]]*\]\([^)]*\)|\S)+"
)
# What Markdown would take for the beginning of something else.
NEVER_FIRST = re.compile(r"\d+[.)]|[-+*:~=]+|#+|[>|%<].*|(?:`{3}|~{3}|:{3}|\$\$).*|\([\w-]+\)=")
CODE_OR_MATH = re.compile(
    r"(?P<role>\{[\w:+.-]+\}`[^`]+`)|(?<!`)(?P<ticks>`{1,2})(?!`).+?(?<!`)(?P=ticks)(?!`)"
    r"|\$\$.+?\$\$|\$[^$]+\$",
    re.S,
)


def limits_of(page: Page) -> list[str]:
    """Return the cells and the lines of a page that are too long."""
    return long_cells(page) + long_prose_lines(page)


def long_cells(page: Page) -> list[str]:
    """Return the cells whose code a reader sees, and that are too long to be read in one go."""
    cells = zip(page.code_lines, page.code_cells, strict=True) if page.is_chapter else ()
    return [
        f"{page.source.name}:{line}: a visible cell of {count} lines, {MOST_LINES} at most"
        for line, cell in cells
        if (count := visible_lines(cell)) > MOST_LINES
    ]


def visible_lines(cell) -> int:
    """Return how many lines of code a cell shows: none if it is folded."""
    tags, jupyter = cell.metadata.get("tags", []), cell.metadata.get("jupyter", {})
    hidden = set(HIDING) & set(tags) or jupyter.get("source_hidden")
    return 0 if hidden else cell.source.count("\n") + 1


def long_prose_lines(page: Page) -> list[str]:
    """Return the lines of prose, captions and alt texts that are too long and could be wrapped.

    What can not: the head, code, displayed formulas, rows of tables, headings, fences, options,
    comments, labels, HTML, addresses, and what is one piece, such as a link.
    """
    lines = NOT_PROSE.sub(without_block, page.text).split("\n")
    return [
        f"{page.source.name}:{number}: {len(line)} characters, {LONGEST_PROSE} at most"
        for number, line in enumerate(lines, 1)
        if len(line) > LONGEST_PROSE and not WHOLE.match(line) and len(pieces(line)) > 1
    ]


def without_block(block: re.Match) -> str:
    """Return as many empty lines as a block has, but for its prose and a cell's captions."""
    name = next((name for name in ("options", "prose") if block[name]), None)
    if name is None:
        return "\n" * block[0].count("\n")
    begin, end = block.span(name)
    before = block.string.count("\n", block.start(), begin)
    after = block.string.count("\n", end, block.end())
    kept = block[name] if name == "options" else NOT_PROSE.sub(without_block, block[name])
    return "\n" * before + kept + "\n" * after


def pieces(line: str) -> list[str]:
    """Return the parts of a line between which it may be broken.

    No role, code, formula or link is cut, and no part begins like a list, a heading or a block.
    """
    found = []
    for match in PIECE.finditer(line, LINE_START.match(line).end()):
        if found and NEVER_FIRST.fullmatch(match[0]):
            found[-1] += f" {match[0]}"
        else:
            found.append(match[0])
    return found


def slow_chapters(book: Book) -> list[str]:
    """Return the chapters that run too long, as `make status` took the times last.

    In floors, the seconds of a kernel that only imports: they compare between machines.
    """
    floor = book.times.get("floor", {}).get("processor")
    rows = book.times.get("chapters", {}).items() if floor else ()
    return [
        f"{name}: {row['processor'] / floor:.0f} times the floor, {MOST_FLOORS} at most"
        for name, row in rows
        if row["processor"] > MOST_FLOORS * floor
    ]


def headline(page: Page) -> tuple[int, int] | None:
    """Return the words and the open lines of code before the first figure that a cell draws.

    Formulas, code and what is folded do not count. None for a page without such a figure.
    """
    for cell in CELL.finditer(page.text):
        if FIGURE_OPTION.search(options_of(cell[1])):
            cells, prose = unfolded(page.text[: cell.start()])
            bare = CODE_OR_MATH.sub(lambda match: match["role"] or "", prose)
            return count_words(bare), sum(open_lines(code) for code in [*cells, cell[1]])
    return None


def headline_table(pages: dict[str, Page]) -> str:
    """Return the chapters with their words and open lines before the figure, and longest cell."""
    rows = [f"{'page':24} {'words':>6} {'lines':>6} {'longest cell':>13}"]
    for page in pages.values():
        if page.is_chapter:
            before = headline(page) or ("–", "–")
            longest = max(map(visible_lines, page.code_cells), default=0)
            rows.append(f"{page.name:24} {before[0]:>6} {before[1]:>6} {longest:>13}")
    return "\n".join(rows)


if __name__ == "__main__":
    print(headline_table(Book().pages))
