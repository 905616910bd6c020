"""The previews that references show under the pointer: statements, equations and terms, cut out of the built pages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import copy
from pathlib import Path

from bs4 import BeautifulSoup, SoupStrainer
from sphinx.application import Sphinx

FILE = "_static/previews.js"
SHOWN = ".proof[id], div.math[id^=equation-], dt[id^=term-]"


def write(app: Sphinx, exception: Exception | None) -> None:
    """Write the previews as a script, loaded at first use, because a page opened from disk cannot read files."""
    if exception is None and app.builder.format == "html":
        pages = map(app.builder.get_target_uri, sorted(app.env.found_docs))
        shown = {f"{page}#{anchor}": html for page in pages for anchor, html in _previews(app, page)}
        text = json.dumps(shown, ensure_ascii=False, indent=0)
        Path(app.outdir, FILE).write_text(f"previews = {text};\n", encoding="utf-8")


def _previews(app: Sphinx, page: str) -> Iterator[tuple[str, str]]:
    text = Path(app.outdir, page).read_text("utf-8")
    soup = BeautifulSoup(text, "html.parser", parse_only=SoupStrainer("article"))
    for found in soup.select(SHOWN):
        element = copy(found)
        if element.name == "dt":
            element.append(copy(found.find_next_sibling("dd")))
        # A preview is only for reading, so it has no links; and an id may occur only once on a page.
        for away in element.select(".eqno, .headerlink, .marks"):
            away.decompose()
        for link in element.select("a"):
            link.unwrap()
        for named in element.select("[id]"):
            del named["id"]
        yield found["id"], element.decode_contents().strip()


def setup(app: Sphinx) -> None:
    app.connect("build-finished", write)
