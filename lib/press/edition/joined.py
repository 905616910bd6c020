"""The built pages as one HTML document: each id once, links inside of it, nothing that only a screen can use."""

from __future__ import annotations

import json
import posixpath
import re
from collections import Counter
from html import escape
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

from bs4 import BeautifulSoup

from press.address import Address
from press.book import Book
from press.edition.chapter import Chapter, read
from press.edition.front import about, front

HTML = Path("_build/html")
BESIDE = "../html"  # from the document's folder
STYLE = Path(__file__).with_name("edition.css")
PREFACE = "Preface"  # the front page, whose title is the book's
# Of what pages load: all styles, and what sets formulas and draws; a network has a picture of its own.
STYLES = re.compile(r'<link[^>]*rel="stylesheet"[^>]*>')
SCRIPTS = re.compile(r"<script[^>]*(?:formulas|/fit|norms|/page|hold|three-steps)\.js[^>]*></script>")
SETTINGS = re.compile(r"<script>window\.MathJax = .*?</script>")
WHERE = re.compile(r'(?<=(?:href|.src)=")([^"?]*)[^"]*')
UNNAMED = re.compile(r"[^\w.-]")  # XML has no such sign in an id
MOVING = ".explore, .turning, .hold, .network, #moving-steps"
DOCUMENT = """<!doctype html>
<html lang="en" data-theme="light">
<head>
<meta charset="utf-8">
<title>{title}</title>
{head}
<style>
{style}
</style>
</head>
<body>
<main class="bd-content"><article class="bd-article">
{body}
</article></main>
</body>
</html>
"""


def joined(book: Book) -> str:
    """The document, for a folder beside the built pages."""
    html, said = book.root / HTML, about(book)
    parts = [(caption, [read(html, name, deeper=bool(caption)) for name in names]) for caption, names in book.parts]
    chapters = [chapter for _, part in parts for chapter in part]
    chapters[0].section.select_one(".level-1").string = PREFACE
    one_name_each(chapters)
    link(chapters, said.where)
    for number, (caption, part) in enumerate(parts):
        if caption:
            part[0].section.insert(0, _made(f'<h1 class="part" id="part-{number}">{escape(caption)}</h1>'))
    body = [front(said, chapters), *(str(chapter.section) for chapter in chapters)]
    style = [STYLE.read_text("utf-8"), *map(_named_page, chapters)]
    return DOCUMENT.format(title=escape(said.title), head=_head(chapters), style="\n".join(style), body="\n".join(body))


def one_name_each(chapters: list[Chapter]) -> None:
    """Rename the ids that several pages have, and drop those that one page has twice."""
    found = [Counter(element["id"] for element in chapter.named) for chapter in chapters]
    pages = Counter(name for names in found for name in names)
    for chapter, names in zip(chapters, found, strict=True):
        marked = {name: name if pages[name] == 1 else f"{chapter.mark}-{name}" for name in names}
        chapter.ids = {name: UNNAMED.sub("-", mark) for name, mark in marked.items()}
        for element in chapter.named:
            if names[name := element["id"]] == 1:
                element["id"] = chapter.ids[name]
            else:
                del element["id"]


def link(chapters: list[Chapter], where: Address | None) -> None:
    """Turn links between pages into links within the document, and say where the moving parts move."""
    by_path = {chapter.path: chapter for chapter in chapters}
    for chapter in chapters:
        for anchor in chapter.section.select("a[href]"):
            if target := _target(anchor["href"], chapter, by_path, where):
                anchor["href"] = target
            else:
                anchor.unwrap()
        for picture in chapter.section.select("img[src]"):
            if not urlsplit(picture["src"]).scheme:
                picture["src"] = f"{BESIDE}/{_beside(chapter.path, picture['src'])}"
        for moving in chapter.section.select(MOVING):
            if page := where and where.page(chapter.path):
                moving.insert_after(_made(f'<p class="moves">It moves at <a href="{page}">{page}</a>.</p>'))


def _target(href: str, chapter: Chapter, by_path: dict[str, Chapter], where: Address | None) -> str | None:
    """Where a link of a page leads in the document, or in public; None where it would lead to a file on this disk."""
    if urlsplit(href).scheme:
        return href
    page, name = urldefrag(href)
    path = _beside(chapter.path, page) if page else chapter.path
    if path not in by_path:
        return where and where.page(path)
    goal = by_path[path]
    return "#" + (goal.ids[unquote(name)] if name else goal.section["id"])


def _beside(path: str, relative: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), unquote(relative)))


def _head(chapters: list[Chapter]) -> str:
    """What the pages' heads load, each once."""
    lines = {}
    for chapter in chapters:
        for pattern in (STYLES, SETTINGS, SCRIPTS):
            for tag in pattern.findall(chapter.head):
                lines[WHERE.sub(lambda found, at=chapter.path: f"{BESIDE}/{_beside(at, found[1])}", tag)] = None
    return "\n".join(lines)


def _named_page(chapter: Chapter) -> str:
    """A running head cannot be read off the text: each chapter has pages of its own, with its title."""
    title = json.dumps(chapter.title, ensure_ascii=False)
    return f".{chapter.mark} {{ page: {chapter.mark}; }} @page {chapter.mark} {{ @top-left {{ content: {title}; }} }}"


def _made(markup: str) -> BeautifulSoup:
    return BeautifulSoup(markup, "html.parser")
