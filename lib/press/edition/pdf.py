"""The book as a PDF: printed twice, for the contents say on which page a chapter begins."""

from __future__ import annotations

import io
from pathlib import Path

from playwright.sync_api import Page
from pypdf import PdfReader, PdfWriter
from pypdf.generic import BooleanObject, DictionaryObject, NameObject

from press.book import Book
from press.edition.browser import chromium, opened
from press.edition.front import About, about
from press.edition.joined import joined

FOLDER, NAME = Path("_build/pdf"), "the-geometry-of-layer-normalization.pdf"
COLUMN = round((210 - 2 * 25) * 96 / 25.4)  # A4 less the margins of edition.css, in pixels of CSS
FILL = """(pages) => {
  for (const entry of document.querySelectorAll(".contents a")) {
    entry.lastElementChild.textContent = pages[decodeURIComponent(entry.hash.slice(1))];
  }
}"""


def pdf(book: Book) -> Path:
    """Write the PDF and say where it is.

    Raises:
        FileNotFoundError: there is no Chromium.
    """
    chromium()
    folder = book.root / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    document = folder / "book.html"
    document.write_text(joined(book), "utf-8")
    with opened(document, COLUMN) as page:
        pages = pages_of(printed(page))
        page.evaluate(FILL, pages)
        made = printed(page)
    if pages_of(made) != pages:
        raise RuntimeError("the contents moved the chapters when their pages were filled in")
    target = folder / NAME
    write(made, about(book), target)
    return target


def printed(page: Page) -> PdfReader:
    return PdfReader(io.BytesIO(page.pdf(tagged=True, outline=True, prefer_css_page_size=True)))


def pages_of(made: PdfReader) -> dict[str, int]:
    """Name → page of each destination in the file, the first page 1."""
    places = made.named_destinations
    return {name.lstrip("/"): made.get_destination_page_number(place) + 1 for name, place in places.items()}


def write(made: PdfReader, said: About, target: Path) -> None:
    """Add to the file what the browser does not know of it."""
    writer = PdfWriter(clone_from=made)
    writer.add_metadata({"/Title": said.title, "/Author": said.authors, "/Subject": said.abstract})
    writer.write(target)
