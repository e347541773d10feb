"""What a reader does on a page works, mostly without a server, and a page is small."""

import gzip
import json
import os
from urllib.parse import unquote, urlparse

import pytest
from helpers import FORMULAS

CHAPTER = "05-pre-vs-post-norm"
ANSWER = 1000  # milliseconds
OWN, ALL = 700_000, 2_000_000  # bytes of a chapter's page, compressed


@pytest.mark.parametrize("where", ["file", "server"])
def test_search_finds_a_word_of_a_chapter(page, site, served, where):
    start = site.as_uri() if where == "file" else served
    page.goto(f"{start}/search.html?q=residual")
    page.wait_for_selector("#search-results li a", timeout=20_000)
    found = page.eval_on_selector_all("#search-results li a", "all => all.map(a => a.href)")
    assert any("07-residuals.html" in address for address in found), found
    if where == "server":  # with the line that has the word
        page.wait_for_selector("#search-results .context")
    assert not page.troubles, page.troubles


def test_the_search_box_opens_and_leads_to_the_search(visit):
    page = visit("index")
    page.keyboard.press("Control+k")
    page.keyboard.type("variance")
    page.keyboard.press("Enter")
    page.wait_for_selector("#search-results li a", timeout=20_000)
    assert "search.html?q=variance" in page.url


def test_a_solution_opens_on_a_click_and_by_key(visit):
    page = visit(CHAPTER)
    box = page.locator(".solution.dropdown, .admonition.solution").first
    button = box.locator(".toggle-button, summary").first
    inside = box.locator("p").nth(1)
    assert not inside.is_visible()
    button.click()
    inside.wait_for(state="visible")
    button.focus()
    page.keyboard.press("Enter")
    inside.wait_for(state="hidden")


def test_a_folded_cell_opens(visit):
    page = visit(CHAPTER)
    cell = page.locator("div.cell details.hide").first
    code = cell.locator("pre").first
    assert not code.is_visible()
    cell.locator("summary").click()
    code.wait_for(state="visible")


def test_copy_gives_the_code_of_the_cell(visit):
    page = visit(CHAPTER)
    cell = page.locator("div.cell_input div.highlight:visible").first
    code = cell.locator("pre").inner_text()
    cell.hover()
    cell.locator("button.copybtn").click()
    page.wait_for_function("document.querySelector('.copybtn.success') !== null")
    assert page.evaluate("navigator.clipboard.readText()").strip() == code.strip()


def test_download_gives_the_notebook_with_the_engine(page, served):
    page.goto(f"{served}/{CHAPTER}.html")
    page.locator(".dropdown-download-buttons > button").click()
    with page.expect_download() as download:
        page.locator(f"a.dropdown-item[href$='notebooks/{CHAPTER}.ipynb']").click()
    assert download.value.suggested_filename == f"{CHAPTER}.ipynb"
    notebook = json.loads(download.value.path().read_text(encoding="utf-8"))
    assert "normbook-engine" in "".join(notebook["cells"][0]["source"])


def test_the_theme_switch_goes_through_its_modes(visit):
    page = visit("index")
    modes = []
    for _ in range(3):
        page.locator("button.theme-switch-button:visible").first.click()
        modes.append(page.evaluate("document.documentElement.dataset.mode"))
        icon = f".theme-switch[data-mode={modes[-1]}]"
        assert page.locator(f"button.theme-switch-button:visible {icon}").first.is_visible()
    assert sorted(modes) == ["auto", "dark", "light"]


# The icons that are on the page, each with its letter, family and width; and the fonts fetched.
ICONS = """async () => {
  await document.fonts.ready;
  const icons = [...document.querySelectorAll(".fa-solid, .fas")].map((icon) => {
    const { content, fontFamily } = getComputedStyle(icon, "::before");
    return [icon.className, content, fontFamily, icon.getAttribute("aria-hidden")];
  });
  const fonts = [...document.fonts].filter((font) => font.status === "loaded");
  return [icons, fonts.map((font) => `${font.family} ${font.weight}`)];
}"""


@pytest.mark.parametrize("name", ["index", CHAPTER, "search"])
def test_icons_are_letters_of_one_font_and_no_script_draws_them(visit, name):
    page = visit(name)
    icons, fonts = page.evaluate(ICONS)
    assert len(icons) > 7
    for icon, letter, family, hidden in icons:
        assert len(letter) == 3, f"{icon} draws {letter}"  # in quotes
        assert family == '"Font Awesome 6 Free"', icon
        assert hidden == "true", icon
    drawn = [font for font in fonts if "Awesome" in font]
    assert drawn
    assert all(font.endswith(" 900") for font in drawn), drawn
    assert page.locator("script[src*=fontawesome], script[src*=thebe], svg.fa-bars").count() == 0
    assert not page.troubles, page.troubles


def test_what_one_types_into_the_search_is_not_under_the_glass(visit):
    page = visit("search")
    glass = page.locator("main .bd-search .fa-magnifying-glass").bounding_box()
    box = page.locator("main .bd-search input")
    pad = box.evaluate("box => parseFloat(getComputedStyle(box).paddingLeft)")
    assert box.bounding_box()["x"] + pad > glass["x"] + glass["width"]


def test_the_contents_open_on_a_phone(visit):
    page = visit(CHAPTER)
    page.set_viewport_size({"width": 390, "height": 844})
    link = page.locator(".bd-sidebar-primary a[href='index.html']").first
    page.locator("button.primary-toggle:visible").first.click()
    page.wait_for_function(
        "document.querySelector('.bd-sidebar-primary').getBoundingClientRect().left >= 0"
    )
    assert link.is_visible()


# Called when the page answers: what has been drawn by then, and what is clicked meanwhile.
ANSWERS = """addEventListener("DOMContentLoaded", () => {
  window.drawnAtFirst = document.querySelectorAll("mjx-container").length;
  window.libraryAtFirst = Boolean(window.MathJax?.version);
  const wait = setInterval(() => {
    const drawn = document.querySelectorAll("mjx-container").length;
    if (!drawn) return;
    clearInterval(wait);
    window.drawnAtClick = drawn;
    document.querySelector("div.cell details.hide summary").click();
    window.openAtClick = document.querySelector("div.cell details.hide").open;
  });
})"""


def test_a_page_answers_before_its_formulas_are_drawn(page, site):
    page.add_init_script(ANSWERS)
    page.goto((site / f"{CHAPTER}.html").as_uri())
    page.evaluate(FORMULAS)
    at_first, library, at_click, opened, drawn, asked = page.evaluate(
        "[drawnAtFirst, libraryAtFirst, drawnAtClick, openAtClick,"
        " document.querySelectorAll('mjx-container').length,"
        " document.querySelectorAll('.math').length]"
    )
    assert (at_first, library) == (0, False)
    assert 0 < at_click < drawn
    page.wait_for_selector("html.drawn")  # and in the end nothing is left out
    cells = "all => all.map(cell => getComputedStyle(cell).contentVisibility)"
    assert set(page.eval_on_selector_all("div.cell", cells)) == {"visible"}
    assert opened
    assert drawn >= asked > 20
    assert not page.troubles, page.troubles


@pytest.mark.skipif(
    os.environ.get("NORMBOOK_WEB") != "all",
    reason="a time in seconds: only make test-web takes it, with nothing beside it",
)
def test_a_chapter_answers_within_a_second(browser, site):
    slow = {}
    for path in sorted(site.glob("[0-9a]*-*.html")):
        times = [answer_time(browser, path) for _ in range(5)]
        if min(times) > ANSWER:
            slow[path.stem] = times
    assert not slow, slow


def answer_time(browser, path) -> float:
    """Milliseconds until a page's scripts listen, in a browser that has not seen it."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    page = context.new_page()
    page.goto(path.as_uri())
    found = page.evaluate("performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd")
    context.close()
    return found


def test_chapters_are_small(browser, site):
    every = os.environ.get("NORMBOOK_WEB") == "all"
    for path in sorted(site.glob("[0-9a]*-*.html" if every else f"{CHAPTER}.html")):
        context = browser.new_context(viewport={"width": 1440, "height": 900})
        page, asked = context.new_page(), set()
        page.on("request", lambda request, asked=asked: asked.add(urlparse(request.url).path))
        page.goto(path.as_uri())
        page.wait_for_load_state("networkidle")
        sizes = {name: weight(site, name) for name in map(unquote, asked)}
        context.close()
        own = sum(size for name, size in sizes.items() if "/_static/" not in name)
        assert own < OWN, f"{path.stem}: {own} bytes of its own"
        assert sum(sizes.values()) < ALL, f"{path.stem}: {sum(sizes.values())} bytes in all"


def weight(site, name: str) -> int:
    """The bytes of a file as a server sends it: text compressed, pictures and fonts as they are."""
    path = site / name if not name.startswith("/") else type(site)(name)
    data = path.read_bytes() if path.is_file() else b""
    packed = path.suffix in (".png", ".webp", ".woff", ".woff2")
    return len(data) if packed else len(gzip.compress(data))
