"""Code is read without scrolling it sideways, wherever on a page it stands."""

import pytest
from helpers import OPEN_ALL

from normbook.press.rules import LONGEST_CODE

# Where code stands: in an open cell, in a folded one, in a solution.
PLACES = ("div.cell_input:not(details *, .solution *)", "details.hide", ".solution")
SCROLLS = """([place, longest]) => {
  const code = document.querySelector(`${place} pre`);
  code.textContent = "x".repeat(longest);
  return code.scrollWidth > code.clientWidth;
}"""
TYPE_SIZE = "place => parseFloat(getComputedStyle(document.querySelector(`${place} pre`)).fontSize)"


@pytest.mark.parametrize("width", [1200, 1399, 1400])
def test_the_longest_line_of_code_fits_beside_both_sidebars(visit, width):
    page = visit("05-pre-vs-post-norm")
    page.set_viewport_size({"width": width, "height": 900})
    page.evaluate(OPEN_ALL)
    for place in PLACES:
        assert not page.evaluate(SCROLLS, [place, LONGEST_CODE]), place
        assert page.evaluate(SCROLLS, [place, 2 * LONGEST_CODE]), (
            f"{place}: nothing is ever too long"
        )
        assert page.evaluate(TYPE_SIZE, place) >= 13, place
