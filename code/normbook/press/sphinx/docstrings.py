"""The engine's docstrings as autodoc reads them: formulas in dollars, code in backticks."""

import re

from sphinx.application import Sphinx

# In running text the first match wins: a star inside a formula or in code is left alone.
INLINE = re.compile(r"(?P<math>\$[^$]+\$)|(?P<code>`[^`]+`)|(?P<emphasis>\*\w+\*)|(?P<star>\*+)")
# Formulas on their own lines, and blocks that are indented by hand.
BLOCK = re.compile(r"\$\$(?P<math>.+?)\$\$|(?P<table>(?<=\n\n)(?:    [^\n]*\n?)+)", re.S)


def to_rst(app: Sphinx, what: str, name: str, obj, options, lines: list[str]) -> None:
    """Rewrite a docstring of the engine for autodoc: formulas in dollars, code in backticks."""
    text, parts, start = "\n".join(lines), [], 0
    for match in BLOCK.finditer(text):
        parts.append(INLINE.sub(inline_rst, text[start : match.start()]))
        parts.append(block_rst(match))
        start = match.end()
    parts.append(INLINE.sub(inline_rst, text[start:]))
    lines[:] = "".join(parts).split("\n")


def block_rst(match: re.Match) -> str:
    """Return a displayed formula, or lines that keep their columns, as reStructuredText."""
    if match["table"]:
        return f"::\n\n{match['table']}\n"
    body = "\n".join("    " + row.strip() for row in match["math"].strip().split("\n"))
    return f"\n\n.. math::\n\n{body}\n\n"


def inline_rst(match: re.Match) -> str:
    """Return a formula, a piece of code or a star in running text as reStructuredText."""
    if match["math"]:
        return f":math:`{match['math'].strip('$')}`"
    if match["code"]:
        return f"`{match['code']}`\\ "  # the escaped blank ends it and shows nothing
    return match["emphasis"] or match["star"].replace("*", r"\*")
