"""Make the built pages small and right for everyone: icons, pictures, labels.

The theme brings a script of 1.5 MB that draws every icon there is, and the loader of a service
that runs code elsewhere. The pages ask for a dozen icons and run nothing.
"""

import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

from fontTools import subset
from PIL import Image

from normbook.press.pages import PressError

VENDOR = "_static/vendor/fontawesome"
ICON = re.compile(r'<(i|span) class="((?:theme-switch )?fa[\w-]* [^"]*)"([^>]*)></\1>')
STYLES = ("fa-solid", "fas", "fa-lg")  # how an icon is drawn, not which one it is
GLYPH = re.compile(r"[\uf000-\uf8ff]|\\f[0-9a-f]{3}")
CSS = """\
/* The icons that these pages use: Font Awesome Free (Fonticons, Inc.), CC BY 4.0, SIL OFL 1.1. */
:root { --fa-font-solid: normal 900 1em/1 "Font Awesome 6 Free"; }
@font-face {
  font-family: "Font Awesome 6 Free"; font-weight: 900; font-display: block; src: url(icons.woff);
}
.svg-inline--fa {
  display: inline-block; height: 1em; overflow: visible; vertical-align: -0.125em;
  box-sizing: content-box;
}
.fa-lg { font-size: 1.25em; line-height: 0.05em; vertical-align: -0.075em; }
"""
# What a page loads and nothing on it uses.
USELESS = re.compile(
    r"\s*<script>const THEBE_JS_URL.*?</script>"
    r'|\s*<script async="async" src="[^"]*sphinx-thebe\.js[^"]*"></script>'
    r'|\s*<script type="text/x-thebe-config">.*?</script>'
    r"|\s*<script>kernelName = .*?</script>"
    r'|\s*<link[^>]* href="[^"]*(?:sphinx-thebe\.css|fonts/fa-[^"]*)[^"]*"\s*/>'
    r'|\s*<link rel="preload" as="font"[^>]*/>'
    r'|\s*<script src="[^"]*fontawesome[^"]*"></script>',
    re.S,
)
ICONS_LINK = re.compile(rf'(href="[^"]*){VENDOR}[^"]*\.css[^"]*"')
# Fetched early; book.js runs it once the page answers.
MATHJAX = re.compile(r'<script defer="defer" src="([^"]*mathjax/[^"]*)"></script>')
PICTURE = re.compile(r'src="_images/([0-9a-f]{64})\.png"')


def trim(html: Path, kept: Path) -> None:
    """Rewrite the pages under `html`; `kept` holds the smaller pictures for the next build."""
    if not (html / VENDOR).exists():
        return  # nothing has changed since the last build, so Sphinx wrote no file anew
    (vendor,) = (html / VENDOR).iterdir()
    script = (vendor / "js/all.min.js").read_text(encoding="utf-8")
    pictures = shrink_pictures(html / "_images", kept)
    for path in html.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        if VENDOR not in text:
            continue  # an earlier build left it, and did this then
        text = ICON.sub(lambda match: draw_icon(script, match), text)
        text = ICONS_LINK.sub(r'\1_static/icons.css"', USELESS.sub("", text))
        text = PICTURE.sub(lambda match: f'src="{pictures[match[1]]}"', text)
        path.write_text(label_parts(text), encoding="utf-8")
    write_font(html / "_static", vendor / "webfonts/fa-solid-900.ttf")
    (html / "_static/icons.css").write_text(CSS, encoding="utf-8")
    write_options(html / "_static/documentation_options.js")
    for path in [*html.glob("_static/**/*.map"), *html.glob("_static/sphinx-thebe.*")]:
        path.unlink()
    shutil.rmtree(html / "_static/locales", ignore_errors=True)  # the theme's words, untranslated
    shutil.rmtree(html / "_static/vendor")


def draw_icon(script: str, match: re.Match) -> str:
    """Return an icon as the drawing that the theme's script would put there."""
    name = next(
        part.removeprefix("fa-")
        for part in match[2].split()
        if part.startswith("fa-") and part not in STYLES
    )
    width, height, path = find_icon(script, name)
    return (
        f'<svg class="svg-inline--fa {match[2]}"{match[3]} aria-hidden="true" focusable="false" '
        f'viewBox="0 0 {width} {height}"><path fill="currentColor" d="{path}"></path></svg>'
    )


@lru_cache(maxsize=64)
def find_icon(script: str, name: str) -> tuple[str, str, str]:
    """Return an icon's width, height and path from the theme's script."""
    found = re.search(rf'[,{{]"?{name}"?:\[(\d+),(\d+),\[[^\]]*\],"\w+","([^"]+)"\]', script)
    if not found:
        raise PressError(f"the theme has no icon named {name}")
    return found.groups()


def write_font(static: Path, font: Path) -> None:
    """Write the font's few characters that the theme's style sheets ask for."""
    styles = (static / "styles").glob("*.css")
    glyphs = {code for sheet in styles for code in GLYPH.findall(sheet.read_text("utf-8"))}
    options = subset.Options(flavor="woff", layout_features=[], notdef_outline=True)
    chosen = subset.Subsetter(options)
    with subset.load_font(str(font), options) as loaded:
        loaded.recalcTimestamp = False
        chosen.populate(unicodes=[int(g[1:], 16) if len(g) > 1 else ord(g) for g in glyphs])
        chosen.subset(loaded)
        subset.save_font(loaded, str(static / "icons.woff"), options)


def write_options(path: Path) -> None:
    """Let the search show lines of the pages it found only where it can fetch them."""
    wanted = 'SHOW_SEARCH_SUMMARY: location.protocol !== "file:"'
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("SHOW_SEARCH_SUMMARY: true", wanted), encoding="utf-8")


def shrink_pictures(images: Path, kept: Path) -> dict[str, str]:
    """Put a WebP without loss, half the size, beside each recorded picture. Returns their names.

    The pages show these; the pictures themselves stay, for who wants to have one. A picture's name
    is the digest of its bytes, so what an earlier build made is still right.
    """
    kept.mkdir(parents=True, exist_ok=True)

    def shrink(path: Path) -> tuple[str, str]:
        small = kept / f"{path.stem}.webp"
        if not small.exists():
            half = small.with_suffix(f".{os.getpid()}")
            Image.open(path).save(half, "WEBP", lossless=True, method=4, exact=True)
            half.replace(small)
        shutil.copy(small, images / small.name)
        return path.stem, f"_images/{small.name}"

    with ThreadPoolExecutor() as workers:
        return dict(workers.map(shrink, images.glob("*.png")))


def label_parts(text: str) -> str:
    """Return a page with what the theme leaves out: a role for the side, formulas after the rest.

    A list of references is none to a screen reader: targets of links stand between its entries.
    """
    side = '<div class="bd-sidebar-primary bd-sidebar'
    text = text.replace(side, f'<div role="navigation" aria-label="The book" {side[5:]}')
    text = text.replace('<div role="list" class="citation-list">', '<div class="citation-list">')
    return MATHJAX.sub(r'<link rel="preload" as="script" id="mathjax" href="\1" />', text)
