"""What stands before the first chapter: title page, imprint, contents."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

from press.address import Address, address
from press.book import Book
from press.edition.chapter import Chapter
from press.imprint import edition, imprint

TITLE_PAGE = """<section class="front title-page">
<p class="book-title">{title}</p>
<p class="book-abstract">{abstract}</p>
<p class="book-authors">{authors}</p>
<p class="book-edition">{edition}</p>
</section>"""
IMPRINT = """<section class="front imprint">
<p>{title}, by {authors}. {edition}{commit}.</p>
<p>{licence}</p>
<p>This edition is made from the pages of the book. There figures move, sliders have all their frames, and code that
draws a figure or runs a check can be opened; here it is left out, and solutions stand at the end of each chapter. Page
numbers are those of the file.</p>
{places}
</section>"""
CONTENTS = """<nav class="front book-contents" aria-label="Contents">
<h1 id="contents" class="level-1">{first}</h1>
{entries}
</nav>"""
# The page is filled in when it is known, and its place is as wide before.
LINK = '<a href="#{id}" data-depth="{depth}"><span>{title}</span>{page}</a>'
PAGE = '<i></i><span class="number"></span>'


@dataclass(frozen=True)
class About:
    """What the book says about itself."""

    title: str
    abstract: str
    authors: str
    edition: str
    licence: str
    date: str
    commit: str | None
    where: Address | None


def about(book: Book) -> About:
    """Read it."""
    said = imprint(book)
    return About(
        title=said["title"],
        abstract=said["abstract"],
        authors=", ".join(said["authors"]),
        edition=edition(said),
        licence=(book.root / "LICENSE").read_text("utf-8").partition("\n\n")[0],
        date=said["date"],
        commit=said["commit"],
        where=address(book.project),
    )


def front(said: About, chapters: list[Chapter]) -> str:
    """The first pages; page numbers in the contents are still missing."""
    words = {name: escape(str(value)) for name, value in vars(said).items()}
    words["commit"] = f", commit {said.commit}" if said.commit else ""
    places = [said.where.pages, said.where.repository] if said.where else []
    links = "".join(f'<p><a href="{place}">{place}</a></p>' for place in places if place)
    first = LINK.format(id="contents", depth=0, title="Contents", page="")
    contents = CONTENTS.format(first=first, entries="\n".join(_entries(chapters)))
    return "\n".join([TITLE_PAGE.format(**words), IMPRINT.format(**words, places=links), contents])


def _entries(chapters: list[Chapter]) -> Iterator[str]:
    """Parts, chapters and sections, as deep as the outline has them."""
    kinds = {"part": ("part", ""), "level-1": ("chapter-entry", PAGE), "level-2": ("section-entry", PAGE)}
    for chapter in chapters:
        for heading in chapter.section.select(".part, .level-1, .level-2"):
            kind, page = kinds[heading["class"][0]]
            named = heading.get("id") or heading.parent["id"]
            depth, title = int(heading.name[1]) - 1, escape(heading.get_text())
            yield f'<p class="{kind}">{LINK.format(id=named, depth=depth, title=title, page=page)}</p>'
