"""Make the built pages small and right for everyone: pictures, labels, no files in vain.

The icons are the theme's; `book/_templates` leaves out the script that would draw them again.
"""

import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from PIL import Image

from normbook.press.files import write_if_new

ICONS = "_static/vendor/fontawesome"
ICONS_KEPT = ("all.min.css", "fa-solid-900.woff2", "LICENSE.txt")
ICON = re.compile(r'<(?:i|span) class="(?:theme-switch )?fa(?:s|-solid) [^"]*"(?! aria-hidden)')
# Fetched early; book.js runs it once the page answers.
MATHJAX = re.compile(r'<script defer="defer" src="([^"]*mathjax/[^"]*)"></script>')
PICTURE = re.compile(r'src="_images/([0-9a-f]{64})\.png"')


def trim(html: Path, kept: Path) -> None:
    """Rewrite the pages under `html`; `kept` holds the smaller pictures for the next build."""
    pictures = shrink_pictures(html / "_images", kept)
    for path in html.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        text = PICTURE.sub(lambda match: f'src="{pictures[match[1]]}"', text)
        write_if_new(path, label_parts(text))
    write_options(html / "_static/documentation_options.js")
    remove_files(html)


def remove_files(html: Path) -> None:
    """Take off what no page asks for: other icons, the theme's words in other languages, maps."""
    icons = (path for path in html.glob(f"{ICONS}/**/*.*") if path.is_file())
    unused = [path for path in icons if path.name not in ICONS_KEPT]
    for path in [*unused, *html.glob("_static/**/*.map")]:
        path.unlink()
    shutil.rmtree(html / "_static/locales", ignore_errors=True)


def write_options(path: Path) -> None:
    """Let the search show lines of the pages it found only where it can fetch them."""
    wanted = 'SHOW_SEARCH_SUMMARY: location.protocol !== "file:"'
    text = path.read_text(encoding="utf-8")
    write_if_new(path, text.replace("SHOW_SEARCH_SUMMARY: true", wanted))


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
        if not (images / small.name).exists():
            shutil.copy(small, images / small.name)
        return path.stem, f"_images/{small.name}"

    with ThreadPoolExecutor() as workers:
        return dict(workers.map(shrink, images.glob("*.png")))


def label_parts(text: str) -> str:
    """Return a page with what the theme leaves out: a role for the side, formulas after the rest.

    Screen readers pass over its icons. A list of references is none to them: targets of links
    stand between its entries.
    """
    side = '<div class="bd-sidebar-primary bd-sidebar'
    text = text.replace(side, f'<div role="navigation" aria-label="The book" {side[5:]}')
    text = text.replace('<div role="list" class="citation-list">', '<div class="citation-list">')
    text = ICON.sub(r'\g<0> aria-hidden="true"', text)
    return MATHJAX.sub(r'<link rel="preload" as="script" id="mathjax" href="\1" />', text)
