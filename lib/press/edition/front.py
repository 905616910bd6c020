"""What stands before the first chapter: title page, imprint, contents."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from html import escape
from pathlib import Path

import yaml

from press.address import Address, address
from press.book import Book
from press.edition.chapter import Chapter

TITLE_PAGE = """<section class="front title-page">
<p class="book-title">{title}</p>
<p class="book-abstract">{abstract}</p>
<p class="book-authors">{authors}</p>
<p class="book-edition">Version {version}, {date}</p>
</section>"""
IMPRINT = """<section class="front imprint">
<p>{title}, by {authors}. Version {version}, {date}{commit}.</p>
<p>{licence}</p>
<p>This edition is made from the pages of the book. There figures move, sliders have all their frames, and code that
draws a figure or runs a check can be opened; here it is left out, and solutions stand at the end of each chapter. Page
numbers are those of the file.</p>
{places}
</section>"""
CONTENTS = """<nav class="front contents" aria-label="Contents">
<h1 id="contents" class="level-1">Contents</h1>
{entries}
</nav>"""
PART = '<p class="part">{title}</p>'
# The page is filled in when it is known, and its place is as wide before.
ENTRY = '<p class="to-{kind}"><a href="#{id}"><span>{title}</span><i></i><span class="number"></span></a></p>'


@dataclass(frozen=True)
class About:
    """What the book's files say about it: CITATION.cff, LICENSE, pyproject.toml, and git where there is one."""

    title: str
    abstract: str
    authors: str
    version: str
    licence: str
    date: str
    commit: str | None
    where: Address | None


def about(book: Book) -> About:
    """Read it; without git the date is today's."""
    cited = yaml.safe_load((book.root / "CITATION.cff").read_text("utf-8"))
    authors = ", ".join(author.get("name") or f"{author['given-names']} {author['family-names']}" for author in cited["authors"])
    licence = (book.root / "LICENSE").read_text("utf-8").partition("\n\n")[0]
    commit, day = _commit(book.root) or (None, date.today().isoformat())
    return About(cited["title"], cited["abstract"], authors, cited["version"], licence, day, commit, address(book.project))


def _commit(root: Path) -> tuple[str, str] | None:
    """The commit of the sources and its date, where ``root`` is the top of a repository with git at hand."""
    if not (root / ".git").exists():
        return None
    try:
        asked = ["git", "-C", str(root), "log", "-1", "--format=%h %cs"]
        commit, day = subprocess.run(asked, capture_output=True, check=True, text=True).stdout.split()
    except (OSError, subprocess.CalledProcessError):
        return None
    return commit, day


def front(said: About, parts: list[tuple[str | None, list[Chapter]]]) -> str:
    """The first pages; page numbers in the contents are still missing."""
    words = {name: escape(str(value)) for name, value in vars(said).items()}
    words["commit"] = f", commit {said.commit}" if said.commit else ""
    places = [said.where.pages, said.where.repository] if said.where else []
    links = "".join(f'<p><a href="{place}">{place}</a></p>' for place in places if place)
    entries = "\n".join(_entries(parts))
    return "\n".join(
        [TITLE_PAGE.format(**words), IMPRINT.format(**words, places=links), CONTENTS.format(entries=entries)]
    )


def _entries(parts: list[tuple[str | None, list[Chapter]]]) -> Iterator[str]:
    for caption, chapters in parts:
        if caption:
            yield PART.format(title=escape(caption))
        for chapter in chapters:
            for kind in (1, 2):
                for heading in chapter.section.select(f".level-{kind}"):
                    yield ENTRY.format(kind=kind, id=heading.parent["id"], title=escape(heading.get_text()))
