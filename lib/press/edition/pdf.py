"""The book as a PDF: printed twice, for the contents say on which page a chapter begins."""

from __future__ import annotations

import io
from pathlib import Path

from playwright.sync_api import Page
from pypdf import PdfReader, PdfWriter
from pypdf.generic import Destination, Fit

from press.book import Book
from press.edition.browser import drawn
from press.edition.front import About, about

FOLDER, NAME = Path("_build/pdf"), "the-geometry-of-layer-normalization.pdf"
COLUMN = round((210 - 2 * 25) * 96 / 25.4)  # A4 less the margins of edition.css, in pixels of CSS
ENTRIES = """[...document.querySelectorAll(".book-contents a")].map((entry) => (
  { depth: Number(entry.dataset.depth), title: entry.firstElementChild.textContent, goal: entry.hash.slice(1) }))"""
FILL = """(pages) => {
  for (const number of document.querySelectorAll(".book-contents .number")) {
    number.textContent = pages[number.parentElement.hash.slice(1)];
  }
}"""


def pdf(book: Book) -> Path:
    """Write the PDF and say where it is.

    Raises:
        FileNotFoundError: there is no Chromium.
    """
    with drawn(book, FOLDER, COLUMN) as page:
        entries, pages = page.evaluate(ENTRIES), pages_of(printed(page, tagged=False))
        page.evaluate(FILL, pages)
        made = printed(page, tagged=True)
    if pages_of(made) != pages:
        raise RuntimeError("the contents moved the chapters when their pages were filled in")
    target = book.root / FOLDER / NAME
    write(made, entries, about(book), target)
    return target


def printed(page: Page, tagged: bool) -> PdfReader:
    """The document on paper; with tags, which say what is a heading or a table, it takes longer."""
    return PdfReader(io.BytesIO(page.pdf(tagged=tagged, prefer_css_page_size=True)))


def places_of(made: PdfReader) -> dict[str, Destination]:
    """Where each id of the document is that a link leads to."""
    return {name.removeprefix("/"): place for name, place in made.named_destinations.items()}


def pages_of(made: PdfReader) -> dict[str, int]:
    """On which page each of them is, the first page 1."""
    return {name: made.get_destination_page_number(place) + 1 for name, place in places_of(made).items()}


def write(made: PdfReader, entries: list[dict], said: About, target: Path) -> None:
    """Add what the browser does not know of the file, and an outline: its own has the titles atop a page twice."""
    writer, above = PdfWriter(clone_from=made), {}
    writer.add_metadata({"/Title": said.title, "/Author": said.authors, "/Subject": said.abstract})
    writer.pdf_header = "%PDF-1.7"
    writer.page_mode = "/UseOutlines"
    writer.create_viewer_preferences().display_doctitle = True
    pages, places = pages_of(made), places_of(made)
    for entry in entries:
        depth, goal = entry["depth"], entry["goal"]
        top = Fit.xyz(left=0, top=places[goal].top)
        above[depth] = writer.add_outline_item(entry["title"], pages[goal] - 1, above.get(depth - 1), fit=top)
    writer.write(target)
