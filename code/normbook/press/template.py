"""A new chapter that builds as it stands: `python -m normbook.press.template 13-my-topic`.

Its text is `template.md` beside this file, and what it claims is `template.yml`.
"""

import argparse
import re
import sys
from pathlib import Path

from normbook.press.book import Book
from normbook.press.files import PressError, write_whole
from normbook.press.ledger import CLAIMS
from normbook.press.pages import Page

NAME = re.compile(r"(?P<number>\d\d|[a-z])-(?P<short>[a-z0-9]+(?:-[a-z0-9]+)*)")
ENTRY = re.compile(r"^( *)- file: ([\w-]+)[ \t]*\n", re.M)
LEFT = """\
{name} is laid out: book/{name}.md, book/{folder}/{name}.yml and its line in _toc.yml.
Now replace its experiment by yours. Then, by hand:

  book/index.md       a row of the table: the question that it answers; the count above it
  README.md           a row of the table; the count above it
  book/notation.md    its symbols: the tests name a Greek letter that is missing
  book/glossary.md    words that need a definition; {{term}} links to them at their first use
  book/questions.yml  a question that it answers, if one is worth asking (§12)
  book/references.bib the papers that it cites
  lab/figures.py      a colour in METHODS_BY_COLOUR, if it brings a method of its own
  CHANGELOG.md        a line

and `make record`, `make book`, `make test`; `make status` for its time on the status page."""


def new_chapter(book: Book, name: str) -> None:
    """Write the chapter `name`, what it claims, and its line in the contents: all, or nothing.

    Raises `PressError` for a name that is malformed, or of which something stands already.
    """
    texts = chapter_files(book, name)
    contents = book.root / "_toc.yml"
    before = contents.read_text(encoding="utf-8")
    try:
        for path, text in texts.items():
            path.parent.mkdir(exist_ok=True)
            write_whole(path, text)
        write_whole(contents, with_line(before, name))
        _ = Book(book.root).labels  # refuses what stands twice: a label, a claim's id
    except BaseException:
        for path in texts:
            path.unlink(missing_ok=True)
        if contents.read_text(encoding="utf-8") != before:
            write_whole(contents, before)
        raise


def chapter_files(book: Book, name: str) -> dict[Path, str]:
    """Return the files of a new chapter and their texts. Raises `PressError` for a bad name."""
    form = "a number of two digits or a letter, and a short name in small letters: 13-my-topic"
    parts = NAME.fullmatch(name)
    if parts is None:
        raise PressError(f"NAME must be {form}, got {name!r}")
    number, short = Page(Path(f"{name}.md"), "").number, parts["short"]
    paths = [book.folder / f"{name}.md", book.folder / CLAIMS / f"{name}.yml"]
    taken = [page.source for page in book.pages.values() if page.number == number]
    for path in [*paths, *taken]:
        if path.exists():
            raise PressError(
                f"NAME must be new, got {name!r}, but {path.name} is there: choose another"
            )
    words = {"SHORT": short, "NUMBER": number, "TITLE": short.replace("-", " ").capitalize()}
    texts = [Path(__file__).with_suffix(path.suffix).read_text(encoding="utf-8") for path in paths]
    fill = re.compile("|".join(words))
    return {
        path: fill.sub(lambda word: words[word[0]], text)
        for path, text in zip(paths, texts, strict=True)
    }


def with_line(contents: str, name: str) -> str:
    """Return the table of contents with a page more, after the chapter of the number before."""
    entries = list(ENTRY.finditer(contents))
    if not entries:
        return f"{contents}chapters:\n- file: {name}\n"
    before = [entry for entry in entries if NAME.fullmatch(entry[2]) and entry[2] < name]
    place = before[-1] if before else entries[0]
    return f"{contents[: place.end()]}{place[1]}- file: {name}\n{contents[place.end() :]}"


def main() -> int:
    """Make the chapter that the command line names, and say what is left to do by hand."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", help="number and short name, as in 13-my-topic")
    name = parser.parse_args().name
    try:
        new_chapter(Book(), name)
    except PressError as error:
        print(error, file=sys.stderr)
        return 1
    print(LEFT.format(name=name, folder=CLAIMS))
    return 0


if __name__ == "__main__":
    sys.exit(main())
