"""A built page as a chapter of one document: its text alone, checks as lines, solutions last."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from bs4 import BeautifulSoup, SoupStrainer, Tag

from press.book import CHAPTERS

AWAY = ".headerlink, .fold.code, details.recorded, .page-links, .sources, button"


@dataclass
class Chapter:
    """``head`` and ``section`` are of the page ``name``; ``ids`` has the document's name of each id of the page."""

    name: str
    head: str
    section: Tag
    ids: dict[str, str] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """The page below the folder of built pages."""
        return f"{CHAPTERS}/{self.name}.html"

    @property
    def mark(self) -> str:
        """A name for styles and ids that no other page has."""
        return f"page-{PurePosixPath(self.name).name}"

    @property
    def named(self) -> list[Tag]:
        """What has an id."""
        return [self.section, *self.section.select("[id]")]

    @property
    def title(self) -> str:
        return self.section.select_one(".level-1").get_text()


def read(html: Path, name: str, deeper: bool) -> Chapter:
    """A built page; ``deeper``: it is under a part, and its headings are a level lower."""
    head, _, body = (html / CHAPTERS / f"{name}.html").read_text("utf-8").partition("</head>")
    section = BeautifulSoup(body, "html.parser", parse_only=SoupStrainer("article")).section.extract()
    chapter = Chapter(name, head, section)
    for element in section.select(AWAY):
        element.decompose()
    for fold in section.select(".fold.check"):
        _as_line(fold)
    for fold in section.select("details"):
        fold["open"] = ""
    for cell in section.select(".cell:not([id])"):
        if not cell.get_text(strip=True) and not cell.find(["img", "svg"]):
            cell.decompose()
    _solutions_last(chapter)
    for heading in section.find_all(re.compile("^h[1-5]$")):
        level = int(heading.name[1])
        heading["class"] = [f"level-{level}"]
        heading.name = f"h{level + deeper}"
        for anchor in heading.find_previous_siblings("span", id=True):
            heading.insert(0, anchor.extract())  # else it may be left alone at the foot of the page before
    section["class"] = [*section.get("class", []), "chapter", chapter.mark]
    return chapter


def _as_line(fold: Tag) -> None:
    """A folded check is its one line, and its row of the ledger."""
    line, row = fold.summary.extract(), fold.select_one(".fold-row")
    line.name, line["class"] = "p", ["check-line"]
    del row["class"]
    line.extend([" (", row.extract(), ")"])
    fold.replace_with(line)


def _solutions_last(chapter: Chapter) -> None:
    """Who reads an exercise on paper does not see its solution: each stands, with its cells, at the chapter's end."""
    solutions = chapter.section.select(".solution")
    if not solutions:
        return
    markup = f'<section id="{chapter.mark}-solutions"><h2>Solutions</h2></section>'
    last = BeautifulSoup(markup, "html.parser").section
    for solution in solutions:
        belongs = [solution]
        for after in solution.find_next_siblings():
            if "cell" not in after.get("class", []):
                break
            belongs.append(after)
        last.extend([element.extract() for element in belongs])
    chapter.section.append(last)
