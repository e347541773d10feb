"""The pages made small: the same icons, the same pictures to the last pixel, twice the same."""

import hashlib

import pytest
from conftest import ROOT
from PIL import Image

from normbook.press import trim
from normbook.press.files import PressError

SCRIPT = 'x={bars:[448,512,["navicon"],"f0c9","M0 96z"],"angle-left":[320,512,[],"f104","M9z"]}'
PAGE = """<head>
<link href="../_static/vendor/fontawesome/6.5.2/css/all.min.css?digest=d" rel="stylesheet" />
<link rel="preload" as="font" type="font/woff2" href="_static/vendor/fontawesome/a.woff2" />
<script src="_static/vendor/fontawesome/6.5.2/js/all.min.js?digest=d"></script>
<script>const THEBE_JS_URL = "x"; const thebe_selector = "y"</script>
<script>var kept = 1</script>
<script async="async" src="_static/sphinx-thebe.js?v=c"></script></head>
<body><div class="bd-sidebar-primary bd-sidebar"><span class="fa-solid fa-bars"></span></div>
<i class="theme-switch fa-solid fa-angle-left fa-lg" data-mode="auto"></i>
<span class="n">fa</span><img src="_images/NAME.png"/></body>"""


@pytest.fixture
def site(tmp_path):
    """A page as the theme leaves it, with a picture of noise."""
    html = tmp_path / "html"
    vendor = html / "_static/vendor/fontawesome/6.5.2"
    for folder in (vendor / "js", vendor / "webfonts", html / "_static/styles", html / "_images"):
        folder.mkdir(parents=True)
    (vendor / "js/all.min.js").write_text(SCRIPT)
    installed = next((ROOT / ".venv").glob("lib/python*/site-packages/pydata_sphinx_theme"))
    font = next(installed.rglob("fa-solid-900.ttf"))
    (vendor / "webfonts/fa-solid-900.ttf").write_bytes(font.read_bytes())
    (html / "_static/styles/a.css").write_text('a:after{content:"\\f107"}', encoding="utf-8")
    (html / "_static/documentation_options.js").write_text("SHOW_SEARCH_SUMMARY: true,")
    picture = html / "_images/a.png"
    Image.effect_noise((40, 30), 50).convert("RGBA").save(picture)
    name = hashlib.sha256(picture.read_bytes()).hexdigest()
    picture.rename(picture.with_stem(name))
    (html / "a.html").write_text(PAGE.replace("NAME", name), encoding="utf-8")
    return html


def test_a_page_loses_what_it_does_not_use(site, tmp_path):
    trim.trim(site, tmp_path / "kept")
    text = (site / "a.html").read_text(encoding="utf-8")
    assert "thebe" not in text
    assert "fontawesome" not in text
    assert "var kept = 1" in text
    assert '<link href="../_static/icons.css" rel="stylesheet" />' in text
    assert text.count("<svg") == 2
    assert 'data-mode="auto" aria-hidden="true"' in text
    assert '<path fill="currentColor" d="M9z">' in text
    assert (site / "_static/icons.woff").stat().st_size < 5000
    assert not (site / "_static/vendor").exists()


def test_a_picture_keeps_every_pixel(site, tmp_path):
    (old,) = (site / "_images").glob("*.png")
    before = Image.open(old).convert("RGBA").tobytes()
    trim.trim(site, tmp_path / "kept")
    (new,) = (site / "_images").glob("*.webp")
    assert Image.open(new).convert("RGBA").tobytes() == before
    assert f'src="_images/{new.name}"' in (site / "a.html").read_text(encoding="utf-8")
    assert old.exists(), "for who wants to have the picture"


def test_an_icon_that_the_theme_lacks_stops_the_build(site, tmp_path):
    page = site / "a.html"
    page.write_text(page.read_text("utf-8").replace("fa-bars", "fa-unicorn"), encoding="utf-8")
    with pytest.raises(PressError, match="no icon named unicorn"):
        trim.trim(site, tmp_path / "kept")
