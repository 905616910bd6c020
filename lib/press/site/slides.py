"""Slides: what is shown is cut out of the built pages, and never written a second time."""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from urllib.parse import urldefrag, urlsplit

from bs4 import BeautifulSoup, Tag
from jinja2 import Environment
from sphinx.application import Sphinx

from press.book import CHAPTERS, COURSE, Book
from press.course import SLIDES, Lecture, lectures
from press.site.labels import anchors, labels

INNER = ("proof-content", "exercise-content")  # ids that each statement of a page has
DECK = Path(__file__).with_name("deck.html")


@dataclass(frozen=True)
class Place:
    """Where a label stands in the built book, and what a reference to it reads."""

    page: str
    anchor: str
    ref: str


@dataclass(frozen=True)
class Slide:
    """One slide: ``source`` is where its ``shown`` stands in the book, ``ref`` how that is called."""

    name: str
    over: str
    title: str
    shown: str
    source: str
    ref: str
    minutes: str = ""
    level: int = 2


def deck(lecture: Lecture, places: dict[str, Place], read: Callable[[str], BeautifulSoup]) -> str:
    """A lecture's slides as a page; ``read`` gives a built page."""
    head, kit = f"Lecture {lecture.number}", f"{CHAPTERS}/{COURSE}.html"

    def cut(label: str, over: str, title: str, minutes: str = "") -> Slide:
        place = places[label]
        part = shown(read(place.page), place.anchor, place.page)
        return Slide(label, over, title, part, f"{place.page}#{place.anchor}", place.ref, minutes)

    words = shown(read(kit), lecture.glossary, kit)
    slides = [
        Slide("aims", head, lecture.title, "", kit, "Course kit", level=1),
        Slide("words", head, "Words and letters", words, kit, "Course kit"),
    ]
    for begin, part in zip(lecture.begins, lecture.parts, strict=True):
        minutes = f"minutes {begin} to {begin + part.minutes}"
        slides += [cut(label, part.title, said, minutes) for label, said in part.show]
    slides += [cut(label, "After the lecture", places[label].ref) for label in lecture.exercises]
    dress = _dress(read(places[lecture.shown[0]].page), places[lecture.shown[0]].page)
    template = Environment(autoescape=True, trim_blocks=True).from_string(DECK.read_text("utf-8"))
    return template.render(lecture=lecture, slides=slides, dress=dress)


def shown(page: BeautifulSoup, anchor: str, path: str) -> str:
    """The element of a page with an id; with an exercise, the code below it."""
    element = page.find(id=anchor)
    after = element.find_next_sibling() if "exercise" in element.get("class", []) else None
    elements = [element, *([after] if after and "cell" in after.get("class", []) else [])]
    return "\n".join(str(moved(copy(one), path)) for one in elements)


def moved(element: Tag, path: str) -> Tag:
    """A piece of the page ``path`` with addresses that hold in the folder of the slides."""
    for one in (element, *element.find_all(True)):
        if one.get("id") in INNER:
            del one["id"]
        for name in {"href", "src"} & set(one.attrs):
            file, anchor = urldefrag(one[name])
            if not urlsplit(file).scheme:
                there = posixpath.normpath(posixpath.join(posixpath.dirname(path), file)) if file else path
                one[name] = posixpath.relpath(there, SLIDES) + (f"#{anchor}" if anchor else "")
    return element


def _dress(page: BeautifulSoup, path: str) -> str:
    """What a page loads that formulas and pictures on a slide need."""
    scripts = page.head.find_all("script")
    wanted = [s for s in scripts if "window.MathJax" in s.get_text() or "formulas.js" in s.get("src", "")]
    return "\n".join(str(moved(copy(one), path)) for one in (*page.head.select("link[rel=stylesheet]"), *wanted))


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
