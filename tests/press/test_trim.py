"""The pages made small: nothing loaded in vain, the same pictures to the last pixel."""

import hashlib

import pytest
from PIL import Image

from normbook.press import trim

ICONS = "_static/vendor/fontawesome/6.5.2"
PAGE = """<body><div class="bd-sidebar-primary bd-sidebar">
<span class="fa-solid fa-bars"></span></div><i class="fas fa-code"></i>
<i class="theme-switch fa-solid fa-sun fa-lg" data-mode="light"></i>
<div role="list" class="citation-list"></div><script>var kept = 1</script>
<script defer="defer" src="_static/mathjax/tex-chtml.js"></script>
<span class="fast car">fa</span><img src="_images/NAME.png"/></body>"""


@pytest.fixture
def site(tmp_path):
    """A page as the theme leaves it, with a picture of noise."""
    html = tmp_path / "html"
    files = ("css/all.min.css", "js/all.min.js", "LICENSE.txt")
    fonts = ("webfonts/fa-solid-900.woff2", "webfonts/fa-solid-900.ttf", "webfonts/fa-brands.woff2")
    for name in (*files, *fonts):
        (html / ICONS / name).parent.mkdir(parents=True, exist_ok=True)
        (html / ICONS / name).write_text("icons")
    (html / "_static/documentation_options.js").write_text("SHOW_SEARCH_SUMMARY: true,")
    (html / "_images").mkdir()
    picture = html / "_images/a.png"
    Image.effect_noise((40, 30), 50).convert("RGBA").save(picture)
    name = hashlib.sha256(picture.read_bytes()).hexdigest()
    picture.rename(picture.with_stem(name))
    (html / "a.html").write_text(PAGE.replace("NAME", name), encoding="utf-8")
    return html


def test_of_the_icons_only_the_style_and_the_font_of_the_pages_stay(site, tmp_path):
    trim.trim(site, tmp_path / "kept")
    left = {path.name for path in (site / ICONS).rglob("*") if path.is_file()}
    assert left == {"all.min.css", "fa-solid-900.woff2", "LICENSE.txt"}


def test_screen_readers_pass_over_icons_and_find_the_side(site, tmp_path):
    trim.trim(site, tmp_path / "kept")
    text = (site / "a.html").read_text(encoding="utf-8")
    assert '<span class="fa-solid fa-bars" aria-hidden="true"></span>' in text
    assert 'fa-sun fa-lg" aria-hidden="true" data-mode="light"></i>' in text
    assert '<i class="fas fa-code" aria-hidden="true"></i>' in text
    assert text.count("aria-hidden") == 3
    assert '<div role="navigation" aria-label="The book" class="bd-sidebar-primary' in text
    assert 'role="list"' not in text


def test_formulas_are_fetched_early_and_drawn_when_the_page_answers(site, tmp_path):
    trim.trim(site, tmp_path / "kept")
    text = (site / "a.html").read_text(encoding="utf-8")
    assert '<link rel="preload" as="script" id="mathjax" href="_static/mathjax/tex-' in text
    assert "defer" not in text
    assert "var kept = 1" in text


def test_a_picture_keeps_every_pixel(site, tmp_path):
    (old,) = (site / "_images").glob("*.png")
    before = Image.open(old).convert("RGBA").tobytes()
    trim.trim(site, tmp_path / "kept")
    (new,) = (site / "_images").glob("*.webp")
    assert Image.open(new).convert("RGBA").tobytes() == before
    assert f'src="_images/{new.name}"' in (site / "a.html").read_text(encoding="utf-8")
    assert old.exists(), "for who wants to have the picture"


def test_trimming_twice_changes_no_byte_and_no_time(site, tmp_path):
    def state():
        return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}

    trim.trim(site, tmp_path / "kept")
    files = [path for path in site.rglob("*") if path.is_file()]
    before = state()
    assert b'SHOW_SEARCH_SUMMARY: location.protocol !== "file:"' in {
        content.rstrip(b",") for content, _ in before.values()
    }
    trim.trim(site, tmp_path / "kept")
    assert state() == before
