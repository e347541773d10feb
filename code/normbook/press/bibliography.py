"""The bibliography as a citation in a notebook needs it."""

from dataclasses import dataclass
from functools import cache

from pybtex.database import parse_string
from pybtex.exceptions import PybtexError

from normbook.press.files import PressError

BIBLIOGRAPHY = "references.bib"


@dataclass(frozen=True)
class Reference:
    """An entry of the bibliography: who, when, and where to read it."""

    authors: str
    year: str
    url: str


@cache
def parse_references(text: str) -> dict[str, Reference]:
    """Return the entries of a bibliography by key."""
    try:
        entries = parse_string(text, "bibtex").entries
    except PybtexError as error:
        raise PressError(f"{BIBLIOGRAPHY}: {error}") from error
    return {key: short_reference(key, entry) for key, entry in entries.items()}


def short_reference(key: str, entry) -> Reference:
    """Return "Xiong et al.", the year and the link of a BibTeX entry."""
    people = entry.persons.get("author", [])
    names = [" ".join(person.prelast_names + person.last_names).strip("{}") for person in people]
    if not names:
        raise PressError(f"{BIBLIOGRAPHY}: {key} has no author")
    short = names[0] if len(names) == 1 else f"{names[0]} and {names[1]}"
    short = f"{names[0]} et al." if len(names) > 2 else short
    fields = entry.fields
    if "doi" in fields:
        url = f"https://doi.org/{fields['doi']}"
    else:
        url = f"https://arxiv.org/abs/{fields['eprint']}" if "eprint" in fields else ""
    return Reference(short, fields["year"], url or fields.get("url", ""))
