"""The slides of the course, cut out of the pages once these are written."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from bs4 import BeautifulSoup
from sphinx.application import Sphinx

from press.book import Book
from press.course import lectures
from press.site.labels import anchors, labels
from press.slides import Place, deck


def write(app: Sphinx, exception: Exception | None) -> None:
    """One file a lecture."""
    if exception is not None or app.builder.format != "html":
        return
    read, where = labels(app.env), anchors(app.env)
    places = {
        label: Place(app.builder.get_target_uri(doc), anchor, read[label].get("numref") or read[label]["ref"])
        for label, (doc, anchor) in where.items()
        if label in read
    }
    parsed = cache(lambda page: BeautifulSoup(Path(app.outdir, page).read_text("utf-8"), "html.parser"))
    for lecture in lectures(Book(Path(app.srcdir))):
        file = Path(app.outdir, lecture.file)
        file.parent.mkdir(exist_ok=True)
        file.write_text(deck(lecture, places, parsed), "utf-8")


def setup(app: Sphinx) -> None:
    app.connect("build-finished", write)
