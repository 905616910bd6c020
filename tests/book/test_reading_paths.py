"""The reading time in each chapter's box, and the plan of the book."""

import re

import pytest
from press.book import chapter_number
from press.lines import minutes

BOX = re.compile(r":::\{admonition\} Before you start\n(.*?)^:::", re.M | re.S)
SAID = re.compile(r"About (\d+) minutes to read")


def text(page):
    return "\n\n".join(cell.source for cell in page.cells if cell.cell_type == "markdown")


@pytest.fixture(scope="module")
def chapters(book):
    """The numbered chapters: number → page; the tour has none."""
    numbered = {chapter_number(page.name): page for page in book.notebooks}
    return {number: page for number, page in numbered.items() if number}


def test_the_box_of_each_chapter_has_its_minutes(chapters):
    said = {number: int(SAID.search(BOX.search(text(page))[1])[1]) for number, page in chapters.items()}
    assert said == {number: minutes(page.cells) for number, page in chapters.items()}


def test_the_plan_builds_on_what_the_boxes_ask_for(book, chapters):
    (paths,) = (page for page in book.pages if page.name == "appendix/reading-paths")
    rows = re.findall(r"^\| (\d+) \|.*\| (\d+) \| ([\d, ]*) ?\|$", text(paths), flags=re.M)
    said = {int(number): {int(n) for n in re.findall(r"\d+", needs)} for number, _, needs in rows}
    assert {int(number): int(took) for number, took, _ in rows} == {n: minutes(p.cells) for n, p in chapters.items()}
    asked = {
        number: {int(n) for n in re.findall(r"\{doc\}`\d+ <(\d+)-", BOX.search(text(page))[1])}
        for number, page in chapters.items()
    }
    assert said == asked
