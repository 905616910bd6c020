"""Slides: what is shown is cut out of the built pages, and never written a second time."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from dataclasses import dataclass
from html import escape

from press.book import CHAPTERS, COURSE
from press.course import SLIDES, Lecture

TAG = re.compile(r"<!--.*?-->|<script\b.*?</script>|<(?P<end>/)?(?P<name>[a-z][\w-]*)\b[^>]*>", re.S)
ADDRESS = re.compile(r'\b(href|src)="(?![a-z]+:)([^"#]*)(#[^"]*)?"')
INNER = re.compile(r' id="(?:proof|exercise)-content"')  # the same on each statement of a page
CELL = re.compile(r'\s*<div class="cell\b')
DRESS = re.compile(
    r'<link\b[^>]*\brel="stylesheet"[^>]*>|<script>window\.MathJax.*?</script>|<script\b[^>]*formulas\.js[^>]*></script>'
)
PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
{dress}
<link href="../_static/live/deck.css" rel="stylesheet">
<script src="../_static/live/deck.js"></script>
</head>
<body class="tex2jax_ignore mathjax_ignore">
<main class="bd-content" aria-label="Slides">
{slides}
</main>
</body>
</html>
"""
SLIDE = """<section class="slide" id="slide-{name}" aria-labelledby="title-{name}" tabindex="-1">
<header><p>{over}</p><h{level} id="title-{name}">{title}</h{level}></header>
<div class="shown bd-article">
{shown}
</div>
<footer><span class="source">{source}</span><span class="minutes">{minutes}</span><span>{at} / {of}</span></footer>
</section>
"""


@dataclass(frozen=True)
class Place:
    """Where a label stands in the built book, and what a reference to it reads."""

    page: str
    anchor: str
    ref: str


@dataclass(frozen=True)
class Slide:
    """One slide, in HTML, its number still open."""

    name: str
    over: str
    title: str
    shown: str
    source: str = ""
    minutes: str = ""
    level: int = 2


def deck(lecture: Lecture, places: dict[str, Place], read: Callable[[str], str]) -> str:
    """A lecture's slides as a page; ``read`` gives the text of a built page."""
    head = f"Lecture {lecture.number}"

    def cut(label: str, over: str, title: str, minutes: str = "") -> Slide:
        place = places[label]
        shown = element(read(place.page), place.anchor)
        link = f'<a href="../{place.page}#{place.anchor}">{escape(place.ref)}</a>'
        return Slide(label, escape(over), escape(title), moved(shown, place.page), link, minutes)

    aims = "".join(f"<li>{escape(aim)}</li>" for aim in lecture.aims)
    page = f"{CHAPTERS}/{COURSE}.html"
    kit = f'<a href="../{page}">Course kit</a>'
    words = moved(element(read(page), lecture.glossary), page)
    slides = [
        Slide("aims", head, escape(lecture.title), f"<p>After this lecture you can</p><ul>{aims}</ul>", kit, level=1),
        Slide("words", head, "Words and letters", words, kit),
    ]
    for begin, part in zip(lecture.begins, lecture.parts, strict=True):
        minutes = f"minutes {begin} to {begin + part.minutes}"
        slides += [cut(label, part.title, words, minutes) for label, words in part.show]
    slides += [cut(label, "After the lecture", places[label].ref) for label in lecture.exercises]
    numbered = (SLIDE.format(**vars(slide), at=at, of=len(slides)) for at, slide in enumerate(slides, 1))
    first = places[lecture.shown[0]].page
    dress = moved("\n".join(DRESS.findall(read(first).partition("</head>")[0])), first)
    return PAGE.format(title=escape(f"{head}: {lecture.title}"), dress=dress, slides="\n".join(numbered))


def element(page: str, anchor: str) -> str:
    """The element with the id ``anchor``; with an exercise, the code below it."""
    start = page.rindex("<", 0, page.index(f' id="{anchor}"'))
    end = _end(page, start)
    cell = CELL.match(page, end) if 'class="exercise' in page[start:end] else None
    return INNER.sub("", page[start : _end(page, cell.end() - len(cell[0].lstrip())) if cell else end])


def moved(html: str, page: str) -> str:
    """A piece of ``page`` with addresses that hold in the folder of the slides."""

    def readdressed(match: re.Match) -> str:
        name, path, anchor = match[1], match[2], match[3] or ""
        there = posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else page
        return f'{name}="{posixpath.relpath(there, SLIDES)}{anchor}"'

    return ADDRESS.sub(readdressed, html)


def _end(page: str, start: int) -> int:
    """Where the element that begins at ``start`` ends: its tags are counted, those of scripts left out."""
    depth, opened = 0, TAG.match(page, start)["name"]
    for tag in TAG.finditer(page, start):
        if tag["name"] == opened:
            depth += -1 if tag["end"] else 1
        if not depth:
            return tag.end()
    raise ValueError(f"an element <{opened}> without an end")
