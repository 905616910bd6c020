"""The picture that a link to the book shows where links are shared: its title, its question, its first figure."""

from __future__ import annotations

import re
from html import escape
from pathlib import Path

from press.book import Book
from press.edition.browser import opened
from press.imprint import imprint
from press.site.scripts import FACES

SIZE = {"width": 1200, "height": 630}  # what those who show it ask for
FIGURE = "figures/fig-triangle.svg"
CARD = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>{title}</title>
<style>
@font-face {{ font-family: Book; src: url("{regular}"); }}
@font-face {{ font-family: Book; font-weight: 600; src: url("{semibold}"); }}
body {{ margin: 0; padding: 56px 64px; width: 1072px; height: 518px; display: flex; flex-direction: column;
  font-family: Book, serif; background: #fff; color: #14181f; }}
h1 {{ margin: 0; font-size: 60px; font-weight: 600; line-height: 1.1; }}
p {{ margin: 18px 0 0; font-size: 30px; line-height: 1.35; color: #48566b; }}
img {{ flex: 1; min-height: 0; margin-top: 28px; object-fit: contain; object-position: center; }}
</style>
<h1>{title}</h1>
<p>{question}</p>
<img src="{figure}" alt="">
</html>
"""


def social(book: Book, target: Path) -> Path:
    """Write the picture.

    Raises:
        FileNotFoundError: there is no Chromium.
    """
    regular, _, semibold = (Path("_build/html/_static/vendor", face) for face in FACES)
    files = {"regular": regular, "semibold": semibold, "figure": Path(FIGURE)}
    words = {"title": imprint(book)["title"], "question": _question(book)}
    links = {name: (book.root / file).absolute().as_uri() for name, file in files.items()}
    card = target.with_suffix(".html")
    card.write_text(CARD.format(**{name: escape(said) for name, said in words.items()}, **links), "utf-8")
    try:
        with opened(card, SIZE["width"]) as page:
            page.set_viewport_size(SIZE)
            page.screenshot(path=target)
    finally:
        card.unlink()
    return target


def _question(book: Book) -> str:
    """What the first page asks, in bold."""
    first = next(page for page in book.pages if page.name == "index")
    return re.search(r"^\*\*(.+?)\*\*$", first.cells[0].source, re.M)[1]
