"""An explorable figure in a browser: a small book is recorded, built, and its slider moved."""

import shutil
import subprocess
import sys
from importlib.resources import files

import pytest
from helpers import CHAPTER, ROOT, lay_small_book

FRAMES = '''\
from normbook.lab import begin, figures, glue

begin()


def draw(depth):
    """A line up to (2, depth)."""
    figure, axis = figures.subplots()
    axis.plot([0, 1, 2], [1.0, 2.0, depth], label="stream")
    figures.label_lines(axis)
    return figure


figures.frames(draw, [4, 16, 64], "depth L", chosen=16)
'''
BOX = "(name => document.querySelector(name).getBoundingClientRect().toJSON())"
# In a process of its own: the browser's driver holds the event loop of this one.
MAKE = """
import sys
from pathlib import Path
from normbook.press import publish, record
from normbook.press.book import Book

root, log = Path(sys.argv[1]), publish.Tee()
if problem := record.record(root, "07-small"):
    sys.exit(problem)
with publish.make_sphinx(Book(root), log) as app:
    publish.publish(app, log, Book(root))
"""


@pytest.fixture(scope="session")
def figure_page(tmp_path_factory):
    """The page of a small book with an explorable figure."""
    book = lay_small_book(tmp_path_factory.mktemp("frames"))
    for name in ("_config.yml", "LICENSE-text.md"):
        shutil.copy(ROOT / name, book.root)
    for name in ("_static", "_templates"):
        shutil.copytree(ROOT / "book" / name, book.folder / name)
    book.claims_json.parent.mkdir(parents=True)
    before, rest = CHAPTER.split("from normbook.lab import claim, figures, glue, show\n")
    text = before + FRAMES + rest[rest.index('glue("answer"') :]
    (book.folder / "07-small.md").write_text(text, encoding="utf-8")
    command = [sys.executable, "-c", MAKE, str(book.root)]
    answer = subprocess.run(command, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return book.html / "07-small.html"


@pytest.fixture
def asked(page, figure_page):
    """Open the page; the pictures that it asks for from then on."""
    pictures = []
    page.on("request", lambda r: pictures.append(r.url) if "/_images/" in r.url else None)
    page.goto(figure_page.as_uri())
    page.add_style_tag(
        content="* { transition: none !important; scroll-behavior: auto !important; }"
    )
    return pictures


def test_the_keyboard_moves_the_frames_and_only_then_are_they_fetched(page, asked):
    slider, shown = page.get_by_role("slider", name="depth L"), page.locator("figure > img")
    offered = page.locator("a[download]")
    place = f"[{BOX}('figure > img'), document.body.scrollHeight]"
    before = page.evaluate(place)
    assert (len(set(asked)), slider.get_attribute("aria-valuetext")) == (1, "16")
    assert shown.get_attribute("alt") == "A rising line."
    seen = {shown.get_attribute("src")}
    for key, label, last in (("End", "64", "64.0"), ("Home", "4", "4.00")):
        slider.press(key)
        assert slider.get_attribute("aria-valuetext") == label
        assert page.locator(".frames span").text_content() == label
        words = f"depth L = {label}: stream from 1.00 to {last}"
        assert shown.get_attribute("alt") == words
        page.wait_for_function("document.querySelector('figure > img').complete")
        seen.add(shown.get_attribute("src"))
        page.evaluate("scrollTo(0, 0)")
        assert page.evaluate(place) == before
        picture = offered.get_attribute("href").rpartition("/")[2]
        assert picture == shown.get_attribute("src").rpartition("/")[2].replace("webp", "png")
    assert len({url.rpartition("/")[2] for url in asked}) == len(seen) == 3
    slider.press("ArrowRight")
    assert shown.get_attribute("alt") == "A rising line."
    assert not page.troubles, page.troubles


def test_the_slider_fits_on_a_phone_and_a_desk_in_the_light_and_in_the_dark(page, asked):
    page.evaluate(files("axe_playwright_python").joinpath("axe.min.js").read_text("utf-8"))
    for width, scheme in ((390, "light"), (390, "dark"), (1440, "light"), (1440, "dark")):
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)
        page.wait_for_function(f"document.documentElement.dataset.theme == '{scheme}'")
        slider, picture = page.evaluate(f"[{BOX}('.frames label'), {BOX}('figure > img')]")
        assert slider["height"] >= 40
        assert slider["top"] >= picture["bottom"]
        assert 0 <= slider["left"] < slider["right"] <= width
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        found = page.evaluate("axe.run('figure').then(found => found.violations)")
        assert found == [], (width, scheme)


def test_paper_and_a_page_without_scripts_show_the_chosen_frame_alone(browser, page, figure_page):
    page.goto(figure_page.as_uri())
    page.emulate_media(media="print")
    assert not page.locator(".frames").is_visible()
    context = browser.new_context(java_script_enabled=False)
    still = context.new_page()
    still.goto(figure_page.as_uri())
    assert still.locator("figure > img").get_attribute("alt") == "A rising line."
    assert still.locator("figure img:visible").count() == 1
    assert not still.locator(".frames label").is_visible()
    assert still.locator(".frames").bounding_box()["height"] == 0
    context.close()
