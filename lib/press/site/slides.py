"""Slides: their content is cut out of the built pages, and is never written a second time."""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from copy import copy
from functools import cache
from pathlib import Path
from urllib.parse import urldefrag, urlsplit

from bs4 import BeautifulSoup, Tag
from jinja2 import Environment
from sphinx.application import Sphinx

from press.book import CHAPTERS, COURSE, Book
from press.course import SLIDES, Lecture, lectures
from press.site.labels import called, labels

INNER = ("proof-content", "exercise-content")  # ids that every statement or exercise of a page repeats
DECK = Path(__file__).with_name("deck.html")


def deck(lecture: Lecture, places: dict[str, dict[str, str]], read: Callable[[str], BeautifulSoup]) -> str:
    """Return a lecture's slides as a page; ``read`` parses a built page, ``places`` maps labels to their places."""
    head, kit = f"Lecture {lecture.number}", f"{CHAPTERS}/{COURSE}.html"

    def cut(label: str, over: str, title: str, minutes: str = "") -> dict[str, str]:
        place, page = places[label], f"{places[label]['doc']}.html"
        source, part = f"{page}#{place['anchor']}", shown(read(page), place["anchor"], page)
        return dict(name=label, over=over, title=title, shown=part, source=source, ref=called(place), minutes=minutes)

    words = shown(read(kit), lecture.glossary, kit)
    slides = [
        dict(name="aims", over=head, title=lecture.title, source=kit, ref="Course kit"),
        dict(name="words", over=head, title="Words and letters", shown=words, source=kit, ref="Course kit"),
    ]
    for begin, part in zip(lecture.begins, lecture.parts, strict=True):
        minutes = f"minutes {begin} to {begin + part.minutes}"
        slides += [cut(label, part.title, said, minutes) for label, said in part.show]
    slides += [cut(label, "After the lecture", called(places[label])) for label in lecture.exercises]
    dress = _dress(read(kit), kit)
    template = Environment(autoescape=True, trim_blocks=True).from_string(DECK.read_text("utf-8"))
    return template.render(lecture=lecture, slides=slides, dress=dress)


def shown(page: BeautifulSoup, anchor: str, path: str) -> str:
    """Return the element of a page with the id ``anchor``, and for an exercise also the code below it."""
    element = page.find(id=anchor)
    after = element.find_next_sibling() if "exercise" in element.get("class", []) else None
    elements = [element, *([after] if after and "cell" in after.get("class", []) else [])]
    return "\n".join(str(moved(copy(one), path)) for one in elements)


def moved(element: Tag, path: str) -> Tag:
    """Return a piece of the page ``path`` with its addresses rewritten for the folder of the slides."""
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
    """Return what a page loads for its styles and formulas, which slides need as well."""
    scripts = page.head.find_all("script")
    wanted = [s for s in scripts if "window.MathJax" in s.get_text() or "formulas.js" in s.get("src", "")]
    return "\n".join(str(moved(copy(one), path)) for one in (*page.head.select("link[rel=stylesheet]"), *wanted))


def write(app: Sphinx, exception: Exception | None) -> None:
    """Write one file per lecture."""
    if exception is not None or app.builder.format != "html":
        return
    places = labels(app.env)
    parsed = cache(lambda page: BeautifulSoup(Path(app.outdir, page).read_text("utf-8"), "html.parser"))
    for lecture in lectures(Book(Path(app.srcdir))):
        file = Path(app.outdir, lecture.file)
        file.parent.mkdir(exist_ok=True)
        file.write_text(deck(lecture, places, parsed), "utf-8")


def setup(app: Sphinx) -> None:
    app.connect("build-finished", write)
