"""The browser that sets formulas, draws what is alive and prints."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from press.book import Book
from press.edition.joined import joined

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
# Pages wait with what is out of sight; on paper all of it is seen.
SEEN = """globalThis.IntersectionObserver = class {
  constructor(then) { this.then = then; }
  observe(target) { queueMicrotask(() => this.then([{ target, isIntersecting: true }], this)); }
  unobserve() {}
  disconnect() {}
};"""
SETTLED = """async () => {
  await window.MathJax?.startup?.promise;
  await document.fonts.ready;
  await Promise.all([...document.images].filter((image) => image.checkVisibility()).map((image) => image.decode()));
  await new Promise((drawn) => requestAnimationFrame(() => setTimeout(drawn)));
}"""


def chromium() -> str:
    """The path of a Chromium.

    Raises:
        FileNotFoundError: there is none on PATH.
    """
    if path := next(filter(None, map(shutil.which, NAMES)), None):
        return path
    raise FileNotFoundError(f"an edition is made with Chromium, and PATH has none of {', '.join(NAMES)}")


@contextmanager
def opened(document: Path, width: int) -> Iterator[Page]:
    """The document as it looks on paper ``width`` pixels wide, with all formulas set and all pictures drawn."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
        page = browser.new_page(viewport={"width": width, "height": 1000})
        page.set_default_timeout(0)
        page.emulate_media(media="print", reduced_motion="reduce", color_scheme="light")
        page.add_init_script(SEEN)
        page.goto(document.absolute().as_uri())
        page.evaluate(SETTLED)
        yield page
        browser.close()


@contextmanager
def drawn(book: Book, folder: Path, width: int) -> Iterator[Page]:
    """The whole book, joined in ``folder`` of its root and opened there.

    Raises:
        FileNotFoundError: there is no Chromium.
    """
    chromium()
    document = book.root / folder / "book.html"
    document.parent.mkdir(parents=True, exist_ok=True)
    document.write_text(joined(book), "utf-8")
    with opened(document, width) as page:
        yield page
