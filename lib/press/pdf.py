"""The book as a PDF: a title page with the contents, followed by the built pages in order."""

from __future__ import annotations

import io
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from jinja2 import Environment
from playwright.sync_api import Page, sync_playwright
from pypdf import PdfReader, PdfWriter
from pypdf.generic import ArrayObject, DictionaryObject, Fit, FloatObject, IndirectObject, NameObject, NullObject

from press.book import CHAPTERS, HTML, Book
from press.imprint import imprint

FILE = Path("_build/pdf/the-geometry-of-layer-normalization.pdf")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
# Pages delay work on parts that are out of view; for printing, every part counts as in view.
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
# The browser records only the places of ids that a link on the same page points to, so link to all ids.
LINKED = """() => {
  const link = (e) => Object.assign(document.createElement("a"), { href: `#${e.id}` });
  const all = Object.assign(document.createElement("nav"), { hidden: true });
  all.append(...[...document.querySelectorAll("[id]")].map(link));
  document.body.append(all);
}"""
HEADINGS = """() => [...document.querySelectorAll("article :is(h1, h2, h3)")].map((h) => {
  h.querySelector(".headerlink")?.remove();
  return [Number(h.localName[1]), h.textContent.trim(), h.closest("section").id];
})"""
HEAD = """@page {{ @top-left {{ content: {title}; font: italic 9pt serif; }} }}
:root {{ counter-reset: page {before}; }}
.imprint {{ display: none }}"""
FRONT = Path(__file__).with_name("front.html")


@dataclass(frozen=True)
class Part:
    """A printed page of the book: its file, the number of sheets before it, and its headings as (level, title, id)."""

    file: str
    before: int
    headings: list[tuple[int, str, str]]
    printed: PdfReader


def pdf(book: Book) -> Path:
    """Write the PDF and return its path.

    Raises:
        FileNotFoundError: Chromium is not on PATH.
    """
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise FileNotFoundError(f"the PDF needs Chromium, but PATH has none of {', '.join(BROWSERS)}")
    target, html = book.root / FILE, (book.root / HTML).absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    said = imprint(book)
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=browser, args=FLAGS)
        page = running.new_page()
        page.set_default_timeout(0)
        page.emulate_media(media="print", reduced_motion="reduce", color_scheme="light")
        page.add_init_script(SEEN)
        begins, first = {}, len(_front(page, html, book, said, dict.fromkeys(book.names, 0)).pages)
        parts: list[Part] = []
        at = first
        for name in book.names:
            parts.append(_chapter(page, html / CHAPTERS / f"{name}.html", at))
            begins[name], at = at, at + len(parts[-1].printed.pages)
        writer = _joined(_front(page, html, book, said, begins), parts)
        running.close()
    writer.add_metadata({"/Title": said["title"], "/Author": ", ".join(said["authors"]), "/Subject": said["abstract"]})
    writer.compress_identical_objects()
    writer.write(target)
    return target


def _front(page: Page, html: Path, book: Book, said: dict, begins: dict[str, int]) -> PdfReader:
    """Print the title page and the contents, which give the sheet on which each chapter begins."""
    entries = [
        {"address": (html / CHAPTERS / f"{p.name}.html").as_uri(), "title": p.title, "sheet": begins[p.name] + 1}
        for p in book.pages
    ]
    template = Environment(autoescape=True).from_string(FRONT.read_text("utf-8"))
    page.set_content(template.render(**said, entries=entries))
    return PdfReader(io.BytesIO(page.pdf(tagged=True, prefer_css_page_size=True)))


def _chapter(page: Page, file: Path, before: int) -> Part:
    """Print a built page with all its ids as destinations, its sheets numbered after the ``before`` earlier ones."""
    page.goto(file.as_uri())
    page.evaluate(SETTLED)
    page.evaluate(LINKED)
    headings = page.evaluate(HEADINGS)
    page.add_style_tag(content=HEAD.format(title=json.dumps(headings[0][1], ensure_ascii=False), before=before))
    printed = PdfReader(io.BytesIO(page.pdf(format="A4", tagged=True, prefer_css_page_size=True)))
    return Part(file.as_posix(), before, headings, printed)


def _joined(front: PdfReader, parts: list[Part]) -> PdfWriter:
    """Join the parts into one file with an outline, in which links between pages lead to places in the file."""
    writer, places = PdfWriter(), {}
    writer.append(front)
    files = ["" for _ in front.pages]
    for part in parts:
        writer.append(part.printed, import_outline=False)
        files += [part.file for _ in part.printed.pages]
        places[part.file] = (part.before, None)
        for anchor, place in part.printed.named_destinations.items():
            where = part.before + part.printed.get_destination_page_number(place)
            places[f"{part.file}#{anchor.removeprefix('/')}"] = (where, float(place.top))
    above: dict[int, IndirectObject] = {}
    for part in parts:
        for level, title, anchor in part.headings:
            number, top = places.get(f"{part.file}#{anchor}", places[part.file])
            above[level] = writer.add_outline_item(title, number, above.get(level - 1), fit=Fit.xyz(left=0, top=top))
    for sheet, file in zip(writer.pages, files, strict=True):
        for note in sheet.get("/Annots", []):
            _led(writer, note.get_object(), file, places)
    return writer


def _led(writer: PdfWriter, note: DictionaryObject, file: str, places: dict[str, tuple[int, float | None]]) -> None:
    """Point a link of a page to its place in the PDF; a link to any other local file loses its target."""
    address = str(note.get("/A", {}).get("/URI", ""))
    if "/Dest" in note:
        goal = f"{file}#{str(note['/Dest']).removeprefix('/')}"
    elif address.startswith("file:"):
        parts = urlsplit(address)
        goal = unquote(parts.path) + (f"#{unquote(parts.fragment)}" if parts.fragment else "")
    else:
        return
    note.pop("/A", None)
    note.pop("/Dest", None)
    if goal in places or (goal := goal.partition("#")[0]) in places:
        number, top = places[goal]
        fit = [NameObject("/XYZ"), NullObject(), NullObject() if top is None else FloatObject(top), NullObject()]
        note[NameObject("/Dest")] = ArrayObject([writer.pages[number].indirect_reference, *fit])
