"""Every page on a phone and on a desk, light and dark, and for those who do not see it."""

import os
import re
from importlib.resources import files

import pytest
from helpers import OPEN_ALL

from normbook.press.book import Book

EVERY = [*Book().pages, "genindex", "search"]
FEW = ["index", "05-pre-vs-post-norm", "engine", "search"]  # one of each kind, for `make test`
PAGES = EVERY if os.environ.get("NORMBOOK_WEB") == "all" else FEW
LOOKS = [(390, "light"), (390, "dark"), (1440, "dark"), (1440, "light")]
RAW_MARKUP = re.compile(r"\\[(\[]|\$\$|\\[A-Za-z]{2,}|\{(?:cite|ref|eq|numref|glue|doc)\b")
# What a reader sees as words: no formulas, no code, no output of a cell.
WORDS = """() => {
  const copy = document.querySelector("main").cloneNode(true);
  const others = copy.querySelectorAll("mjx-container, pre, code, script, style, .output");
  others.forEach(e => e.remove());
  return copy.textContent;
}"""
# One element for each look that text has: axe takes ten seconds to look at all of a chapter.
SAMPLES = """() => {
  document.querySelectorAll("[data-sample]").forEach(e => e.removeAttribute("data-sample"));
  const grounds = new Map();
  const ground = e => {
    if (!e) return "";
    if (!grounds.has(e)) {
      grounds.set(e, getComputedStyle(e).backgroundColor + ground(e.parentElement));
    }
    return grounds.get(e);
  };
  const seen = new Set(), walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const parent = walk.currentNode.parentElement;
    if (!walk.currentNode.data.trim() || parent.closest("mjx-container, script, style")) continue;
    if (!parent.checkVisibility()) continue;
    const look = getComputedStyle(parent);
    const key = [look.color, look.fontSize, look.fontWeight, ground(parent)].join();
    if (!seen.has(key)) { seen.add(key); parent.setAttribute("data-sample", ""); }
  }
  return seen.size;
}"""
# Thousands of elements that are the work of others, and that axe would look at one by one.
NO_FORMULAS = "document.querySelectorAll('mjx-container').forEach(e => e.remove())"
PLAIN_CODE = """() => document.querySelectorAll(".highlight pre").forEach(
  e => e.replaceChildren(e.textContent))"""


def look_at(page, width: int, scheme: str) -> None:
    """Give the window a width and the page a scheme."""
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme=scheme)
    page.wait_for_function(f"document.documentElement.dataset.theme == '{scheme}'")


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_right_for_everyone(visit, name):
    page = visit(name)
    page.evaluate(OPEN_ALL)
    found = fits(page) + shows(page) + page.troubles
    look_at(page, 390, "dark")
    page.evaluate("reachWideParts()")
    found += unreachable(page)
    page.evaluate(NO_FORMULAS)
    page.evaluate(files("axe_playwright_python").joinpath("axe.min.js").read_text("utf-8"))
    for scheme in ("light", "dark"):
        look_at(page, 1440, scheme)
        found += contrast(page, scheme)
    page.evaluate(PLAIN_CODE)
    found += structure(page)
    assert not found, f"{name}:\n" + "\n".join(found)


def fits(page) -> list[str]:
    """Return the looks in which the page itself scrolls sideways."""
    found = []
    for width, scheme in LOOKS:
        look_at(page, width, scheme)
        wide = page.evaluate("document.documentElement.scrollWidth")
        if wide > width:
            found.append(f"{wide} wide on a screen of {width}, {scheme}")
    return found


def shows(page) -> list[str]:
    """Return the pictures nobody can see or hear about, and the markup that was left raw."""
    blind = page.evaluate("[...document.images].filter(i => !i.alt.trim()).map(i => i.src)")
    missing = page.evaluate("[...document.images].filter(i => !i.naturalWidth).map(i => i.src)")
    raw = RAW_MARKUP.search(page.evaluate(WORDS))
    broken = page.locator("mjx-merror, [data-mjx-error]").count()
    return [
        *(f"no alt text: {source}" for source in blind),
        *(f"does not load: {source}" for source in missing),
        *([f"raw markup: {raw}"] if raw else []),
        *([f"{broken} broken formulas"] if broken else []),
    ]


def unreachable(page) -> list[str]:
    """Return what scrolls sideways on a phone and cannot be reached with the keyboard."""
    return page.evaluate("""() => [...document.querySelectorAll("main *")].filter(e =>
      e.clientWidth && e.scrollWidth > e.clientWidth + 1
      && getComputedStyle(e).overflowX === "auto" && e.tabIndex < 0 && !e.querySelector("a, button")
    ).map(e => "out of the keyboard's reach: " + e.outerHTML.slice(0, 150))""")


def structure(page) -> list[str]:
    """Return axe's serious violations, contrast aside."""
    return run_axe(page, "", "html", {"rules": {"color-contrast": {"enabled": False}}})


def contrast(page, where: str) -> list[str]:
    """Return the looks of text that are hard to read."""
    assert page.evaluate(SAMPLES) > 3
    rules = {"runOnly": {"type": "rule", "values": ["color-contrast"]}}
    return run_axe(page, where, {"include": [["[data-sample]"]]}, rules)


def run_axe(page, where: str, context: dict | str, options: dict) -> list[str]:
    result = page.evaluate("([c, o]) => axe.run(c, o)", [context, options])
    return [
        f"{where}: {violation['id']}: {node['html'][:150]} ({node['failureSummary'][-200:]})"
        for violation in result["violations"]
        if violation["impact"] in ("serious", "critical")
        for node in violation["nodes"]
    ]


BAD = """<html lang="en"><title>Bad</title><body style="background: #fff"><main>
<script>
const dark = matchMedia("(prefers-color-scheme: dark)");
const set = () => { document.documentElement.dataset.theme = dark.matches ? "dark" : "light"; };
set(); dark.onchange = set; console.error("something broke");
</script>
<script src="https://example.org/outside.js"></script>
<div style="width: 2000px">wide</div><img src="nothing.png">
<p style="color: #ccc">pale</p><p style="color: #000">dark</p><p style="color: #111">darker</p>
<p style="color: #222">Raw: \\frac{1}{2}</p><button></button>
<div style="width: 100px; overflow-x: auto"><div style="width: 300px">scrolls</div></div>
</main></body></html>"""


def test_each_check_sees_what_is_wrong(page, tmp_path):
    (tmp_path / "bad.html").write_text(BAD)
    page.goto((tmp_path / "bad.html").as_uri())
    troubles = "\n".join(page.troubles)
    assert "something broke" in troubles
    assert "asks outside for https://example.org/outside.js" in troubles
    assert len(fits(page)) == len(LOOKS)
    seen = " ".join(shows(page))
    assert "no alt text" in seen
    assert "does not load" in seen
    assert "raw markup" in seen
    assert len(unreachable(page)) == 1
    page.evaluate(files("axe_playwright_python").joinpath("axe.min.js").read_text("utf-8"))
    assert "color-contrast" in " ".join(contrast(page, "light"))
    assert "button-name" in " ".join(structure(page))
