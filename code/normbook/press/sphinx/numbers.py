"""Numbers by chapter for figures, tables, equations and exercises: Fig. 5.1."""

import copy

from sphinx.application import Sphinx

from normbook.press.sphinx.state import evidence_of


def restore_numbers(app: Sphinx, env) -> list[str]:
    """Give Sphinx back its own numbers of the last build, to find out which have changed."""
    env.toc_fignumbers = getattr(env, "normbook_own_numbers", env.toc_fignumbers)
    return []


def number_by_chapter(app: Sphinx, env) -> list[str]:
    """Return the pages to write again: all when a number changed, as any may name it."""
    before = getattr(env, "normbook_numbers", None)
    pages = evidence_of(app).book.pages
    env.normbook_own_numbers = copy.deepcopy(env.toc_fignumbers)
    for docname, kinds in env.toc_fignumbers.items():
        head = pages[docname].number if docname in pages else ""
        for kind, numbers in kinds.items():
            ordered = sorted(numbers, key=numbers.get)
            env.toc_fignumbers[docname][kind] = {
                name: (head, count) if head else (count,) for count, name in enumerate(ordered, 1)
            }
    env.normbook_numbers = copy.deepcopy(env.toc_fignumbers)
    return [] if env.normbook_numbers == before else list(env.found_docs)
