"""Turn the book's MyST into the plain Markdown that Jupyter and Colab draw.

Only the subset that the book uses is known. Anything else stops the press with the file and the
line: a reader of a notebook never sees `:::{note}` or a bare role.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

import yaml

from normbook.press.bibliography import BIBLIOGRAPHY, Reference
from normbook.press.files import PressError
from normbook.press.pages import TARGET, Label, Page
from normbook.press.reading import about_line

FENCE = re.compile(r"^(?P<fence>:{3,}|`{3,}|~{3,})\s*(?:\{(?P<name>[^}]*)\})?[ \t]*(?P<rest>.*)$")
ROLE_OR_CODE = re.compile(
    r"(?:\{(?P<role>[^{}\s`]+)\})?(?P<ticks>`+)(?P<body>.+?)(?<!`)(?P=ticks)(?!`)", re.S
)
EQUATION = re.compile(r"\$\$(?P<body>.+?)\$\$[ \t]*(?:\((?P<label>[\w-]+)\))?", re.S)
EXPLICIT = re.compile(r"^(?P<text>.*?)\s*<(?P<target>[^<>]+)>$", re.S)
LEFTOVER = re.compile(r"^\s*(?::{3,}|[`~]{3,}\{)|\{[\w:+.-]+\}`", re.M)

BOXES = ("note", "tip", "hint", "important", "warning", "caution", "danger", "attention", "error")
ADMONITIONS = {name: name.capitalize() for name in BOXES}
ADMONITIONS |= {"admonition": "", "seealso": "See also"}


@dataclass(frozen=True)
class Context:
    """What the conversion of one page needs to know about the rest of the book."""

    page: Page
    labels: dict[str, Label]
    references: dict[str, Reference]
    glued: dict[str, str]
    titles: dict[str, str]
    link: Callable[[str, str, str], str]  # (text, page name, label or "") -> Markdown

    def refuse(self, line: int, what: str):
        """Stop, naming the file and the line (counted from 1)."""
        raise PressError(f"{self.page.source.name}:{line}: {what}")


def convert(text: str, context: Context, line: int = 1) -> str:
    """Return `text` as plain Markdown; `line` is where it begins in its file."""
    rows, output, plain = text.split("\n"), [], []
    start = index = 0

    def flush():
        if plain:
            output.append(convert_prose("\n".join(plain), context, line + start))
            plain.clear()

    while index < len(rows):
        match = FENCE.match(rows[index])
        if match is None:
            if not plain:
                start = index
            plain.append(rows[index])
            index += 1
            continue
        flush()
        end = closing(rows, index, match["fence"], context, line)
        body = rows[index + 1 : end]
        output.append(convert_fence(match, body, context, line + index))
        index = end + 1
    flush()
    result = "\n".join(part for part in output if part is not None)
    return re.sub(r"\n{3,}", "\n\n", result).strip("\n")


def closing(rows: list[str], index: int, fence: str, context: Context, line: int) -> int:
    """Return the row that closes the fence opened at `index`."""
    for end in range(index + 1, len(rows)):
        row = rows[end].strip()
        if len(row) >= len(fence) and set(row) == {fence[0]}:
            return end
    return context.refuse(line + index, f"the fence {rows[index]!r} is never closed")


def convert_fence(match: re.Match, body: list[str], context: Context, line: int) -> str | None:
    """Return a fenced block as Markdown: code as it is, a directive by its kind."""
    name, rest = match["name"], match["rest"].strip()
    if name is None:
        if match["fence"][0] == ":":
            context.refuse(line, "a ::: fence needs a directive's name")
        return "\n".join([match[0], *body, match["fence"]])
    if name == "code-block":
        return "\n".join([f"```{rest}", *body, "```"])
    options, inner, offset = read_options(body, context, line)
    inside = convert("\n".join(inner), context, line + 1 + offset)
    title = convert_prose(rest, context, line)
    if name in ADMONITIONS:
        heading = title if name == "admonition" else ADMONITIONS[name]
        if "dropdown" in options.get("class", "").split():
            return details(heading, inside)
        return quote(f"**{heading}**\n\n{inside}")
    if name == "dropdown":
        return details(title, inside)
    if name == "about":
        return convert_prose(about_line(context.page.text, "\n".join(inner)), context, line)
    if name == "ledger":
        return convert_prose("{doc}`ledger`", context, line)
    if name in ("exercise", "exercise-start"):
        number = label_of(options.get("label", ""), context, line).text
        heading = f"**{number}**" + (f" ({title})" if title else "")
        return f"{heading}\n\n{inside}"
    if name in ("solution", "solution-start"):
        return f"**Solution to {label_of(rest, context, line).text}**\n\n{inside}"
    if name in ("exercise-end", "solution-end"):
        return ""
    return context.refuse(line, f"the directive {{{name}}} has no plain form")


def read_options(body: list[str], context: Context, line: int) -> tuple[dict, list[str], int]:
    """Split a directive's `:key: value` lines (or its YAML block) from its body."""
    if body and body[0].strip() == "---":
        end = next((i for i, row in enumerate(body[1:], 1) if row.strip() == "---"), None)
        if end is None:
            context.refuse(line + 1, "the options' --- block is never closed")
        return yaml.safe_load("\n".join(body[1:end])) or {}, body[end + 1 :], end + 1
    options, index = {}, 0
    while index < len(body) and (found := re.match(r"^:([\w-]+):\s*(.*)$", body[index])):
        options[found[1]] = found[2].strip()
        index += 1
    return options, body[index:], index


def quote(text: str) -> str:
    """Return `text` as a quoted block."""
    return "\n" + "\n".join(f"> {row}".rstrip() for row in text.strip().split("\n")) + "\n"


def details(title: str, text: str) -> str:
    """Return a block that opens on a click; its body stays Markdown thanks to the blank lines."""
    return f"\n<details><summary>{title}</summary>\n\n{text.strip()}\n\n</details>\n"


def convert_prose(text: str, context: Context, line: int) -> str:
    """Convert targets, comments, numbered equations and roles of running text."""
    rows, given = [], text
    for row in text.split("\n"):
        if target := TARGET.match(row):
            rows.append(f'<a id="{target[1]}"></a>\n')
        elif not row.startswith("% "):
            rows.append(row)
    text = EQUATION.sub(lambda match: numbered_equation(match, context), "\n".join(rows))

    def role(match: re.Match) -> str:
        if match["role"] is None:
            return match[0]
        at = line + given[: max(given.find(match[0]), 0)].count("\n")
        return convert_role(match["role"], match["body"], context, at)

    converted = ROLE_OR_CODE.sub(role, text)
    bare = ROLE_OR_CODE.sub("", converted)
    if leftover := LEFTOVER.search(bare):
        at = line + given[: max(given.find(leftover[0].strip()), 0)].count("\n")
        context.refuse(at, f"cannot be read as plain Markdown: {leftover[0]!r}")
    return converted


def numbered_equation(match: re.Match, context: Context) -> str:
    r"""Give a labelled equation its number as a \tag, which MathJax draws beside it."""
    if match["label"] is None:
        return match[0]
    number = context.labels[match["label"]].text.strip("()")
    body = match["body"].rstrip()
    return f'<a id="{match["label"]}"></a>\n\n$${body}\n\\tag{{{number}}}\n$$'


def convert_role(role: str, body: str, context: Context, line: int) -> str:
    """Return a role as plain Markdown: a link, a value, or the words themselves."""
    explicit = EXPLICIT.match(body)
    words, target = (explicit["text"], explicit["target"]) if explicit else ("", body)
    if role in ("cite", "cite:p", "cite:t"):
        return citation(role, body, context, line)
    if role in ("ref", "numref", "eq"):
        label = label_of(target, context, line)
        return context.link(words or label.text, label.page, target)
    if role == "doc":
        name = target.strip("/").removesuffix(".md")
        if name not in context.titles:
            context.refuse(line, f"the page {target!r} does not exist")
        return context.link(words or context.titles[name], name, "")
    if role == "term":
        known = "glossary" in context.titles
        return context.link(words or target, "glossary", "") if known else f"*{words or target}*"
    if role == "glue:text":
        key = body.rsplit(":", 1)[0] if ":" in body else body
        if key not in context.glued:
            context.refuse(line, f"no cell glues {key!r}")
        return context.glued[key]
    return context.refuse(line, f"the role {{{role}}} has no plain form")


def label_of(name: str, context: Context, line: int) -> Label:
    """Return what a label stands for."""
    if name not in context.labels:
        context.refuse(line, f"the label {name!r} does not exist")
    return context.labels[name]


def citation(role: str, keys: str, context: Context, line: int) -> str:
    """Return "[Xiong et al., 2020](address)"; in parentheses unless it is part of the sentence."""
    links = []
    for key in (key.strip() for key in keys.split(",")):
        if key not in context.references:
            context.refuse(line, f"{BIBLIOGRAPHY} has no {key!r}")
        source = context.references[key]
        name = f"{source.authors}, {source.year}"
        links.append(f"[{name}]({source.url})" if source.url else name)
    text = "; ".join(links)
    return text if role == "cite:t" else f"({text})"
