"""What a reference shows under the pointer: statements, equations and terms, cut out of the built pages."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from sphinx.application import Sphinx

FILE = "_static/previews.js"
PARTS = (
    re.compile(r'<div class="proof [\w-]+ admonition" id="(?P<id>[\w-]+)">(?P<shown>.*?</section>)', re.S),
    re.compile(r'<div class="math notranslate nohighlight" id="(?P<id>equation-[\w-]+)">(?P<shown>.*?)</div>', re.S),
    re.compile(r'<dt id="(?P<id>term-[\w-]+)">(?P<shown>.*?</dd>)', re.S),
)
# A preview is read, not followed; and an id stands once on a page.
TAKEN_OUT = re.compile(r'</?a\b[^>]*>|<span class="eqno">.*?</span>| id="[^"]*"', re.S)


def write(app: Sphinx, exception: Exception | None) -> None:
    """Write a script that pages load when the first reference is pointed at: from disk, no page can read a file."""
    if exception is None and app.builder.format == "html":
        shown = {f"{page}#{anchor}": html for page in _pages(app) for anchor, html in _previews(app, page)}
        text = json.dumps(shown, ensure_ascii=False, indent=0)
        Path(app.outdir, FILE).write_text(f"previews = {text};\n", encoding="utf-8")


def _pages(app: Sphinx) -> Iterator[str]:
    return (app.builder.get_target_uri(doc) for doc in sorted(app.env.found_docs))


def _previews(app: Sphinx, page: str) -> Iterator[tuple[str, str]]:
    text = Path(app.outdir, page).read_text("utf-8")
    for part in PARTS:
        for match in part.finditer(text):
            yield match["id"], TAKEN_OUT.sub("", match["shown"]).strip()


def setup(app: Sphinx) -> None:
    app.connect("build-finished", write)
