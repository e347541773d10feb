"""MyST to plain Markdown: what is known comes out plain, what is not stops with file and line."""

import pytest

from normbook.press.bibliography import Reference
from normbook.press.files import PressError
from normbook.press.pages import Label, Page
from normbook.press.portable import LEFTOVER, Context, convert

LABELS = {
    "sec-one": Label("05-page", "section", "The question"),
    "fig-one": Label("05-page", "figure", "Fig. 5.1"),
    "eq-one": Label("05-page", "equation", "(5.1)"),
    "ex-one": Label("05-page", "exercise", "Exercise 5.1"),
}
REFERENCES = {
    "xiong2020layer": Reference("Xiong et al.", "2020", "https://arxiv.org/abs/2002.04745"),
    "radford2019language": Reference("Radford et al.", "2019", ""),
}


@pytest.fixture
def context(tmp_path):
    return Context(
        page=Page(tmp_path / "05-page.md", ""),
        labels=LABELS,
        references=REFERENCES,
        glued={"slope": "0.503"},
        titles={"05-page": "A page"},
        link=lambda text, page, label: f"[{text}]({page}#{label})",
    )


@pytest.mark.parametrize(
    ("myst", "plain"),
    [
        ("Plain *text* with `code` and $x_l$.", "Plain *text* with `code` and $x_l$."),
        ("See {ref}`sec-one`.", "See [The question](05-page#sec-one)."),
        ("See {ref}`here <sec-one>`.", "See [here](05-page#sec-one)."),
        (
            "{numref}`fig-one` and {eq}`eq-one`",
            "[Fig. 5.1](05-page#fig-one) and [(5.1)](05-page#eq-one)",
        ),
        ("{doc}`05-page`", "[A page](05-page#)"),
        ("{doc}`that page </05-page>`", "[that page](05-page#)"),
        ("{term}`residual stream`s grow", "*residual stream*s grow"),
        ("slope {glue:text}`slope`", "slope 0.503"),
        ("{cite}`xiong2020layer`", "([Xiong et al., 2020](https://arxiv.org/abs/2002.04745))"),
        ("{cite:t}`radford2019language`", "Radford et al., 2019"),
        (
            "{cite:p}`xiong2020layer,radford2019language`",
            "([Xiong et al., 2020](https://arxiv.org/abs/2002.04745); Radford et al., 2019)",
        ),
        ("a ``{ref}`sec-one` `` shown as code", "a ``{ref}`sec-one` `` shown as code"),
        ("% a comment\nText", "Text"),
        ("(sec-one)=\n## The question", '<a id="sec-one"></a>\n\n## The question'),
        ("$$\na = b\n$$", "$$\na = b\n$$"),
        ("$$\na = b\n$$ (eq-one)", '<a id="eq-one"></a>\n\n$$\na = b\n\\tag{5.1}\n$$'),
        (":::{note}\nRead {term}`this`.\n:::", "> **Note**\n>\n> Read *this*."),
        (
            ":::{admonition} In one {term}`minute`\n:class: tip\nFirst.\n\nSecond.\n:::",
            "> **In one *minute***\n>\n> First.\n>\n> Second.",
        ),
        (
            ":::{admonition} Why\n:class: dropdown\nBecause.\n:::",
            "<details><summary>Why</summary>\n\nBecause.\n\n</details>",
        ),
        (
            ":::{dropdown} Why\nBecause.\n:::",
            "<details><summary>Why</summary>\n\nBecause.\n\n</details>",
        ),
        (
            "::::{tip}\n:::{note}\nInner.\n:::\n::::",
            "> **Tip**\n>\n> > **Note**\n> >\n> > Inner.",
        ),
        ("```python\nx = {ref}`no`\n:::\n```", "```python\nx = {ref}`no`\n:::\n```"),
        ("```{code-block} bash\nmake test\n```", "```bash\nmake test\n```"),
        (
            "```{exercise-start} Change\n:label: ex-one\n```\nWhat if?\n```{exercise-end}\n```",
            "**Exercise 5.1** (Change)\n\n\nWhat if?\n",
        ),
        ("```{solution-start} ex-one\n:class: dropdown\n```", "**Solution to Exercise 5.1**"),
        ("```{exercise}\n:label: ex-one\nWhat if?\n```", "**Exercise 5.1**\n\nWhat if?"),
        (":::{tip}\n---\nclass: x\n---\nText.\n:::", "> **Tip**\n>\n> Text."),
        ("| a | b |\n|---|---|\n| {term}`x` | 1 |", "| a | b |\n|---|---|\n| *x* | 1 |"),
    ],
)
def test_known_markup_comes_out_plain(myst, plain, context):
    converted = convert(myst, context)
    squeeze = lambda text: "\n".join(line for line in text.split("\n") if line.strip())  # noqa: E731
    assert squeeze(converted) == squeeze(plain)


@pytest.mark.parametrize(
    ("myst", "line", "message"),
    [
        ("Text\n\n:::{card} Title\nx\n:::", 3, "the directive {card} has no plain form"),
        ("Text {sub}`2`", 1, "the role {sub} has no plain form"),
        ("A\n\nB {ref}`nowhere`", 3, "the label 'nowhere' does not exist"),
        ("{cite}`nobody2020`", 1, "references.bib has no 'nobody2020'"),
        ("{glue:text}`unglued`", 1, "no cell glues 'unglued'"),
        ("{doc}`99-none`", 1, "the page '99-none' does not exist"),
        (":::{note}\nnever closed", 1, "is never closed"),
        (":::{note}\nA\nB {sub}`2`\n:::", 3, "the role {sub} has no plain form"),
        ("```{solution-start} nothing\n```", 1, "the label 'nothing' does not exist"),
        ("- item\n  :::{note}\n  in a list\n  :::", 2, "cannot be read as plain Markdown"),
        (":::\nx\n:::", 1, "needs a directive's name"),
        ("a\n\n```{math}\nx\n```", 3, "the directive {math} has no plain form"),
    ],
)
def test_unknown_markup_is_refused_with_file_and_line(myst, line, message, context):
    with pytest.raises(PressError) as error:
        convert(myst, context, line=1)
    assert str(error.value).startswith(f"05-page.md:{line}: ")
    assert message in str(error.value)


@pytest.mark.parametrize("raw", [":::{note}", "```{code-cell}", "see {ref}`x`", "~~~{tip}"])
def test_leftover_finds_raw_markup(raw):
    assert LEFTOVER.search(raw)
