"""How long the book says it is, and in what order to read it: boxes and reading paths."""

import re

import pytest
from nbformat.v4 import new_markdown_cell
from press.book import chapter_number
from press.course import lectures
from press.lines import WORDS_A_MINUTE, minutes, words

BOX = re.compile(r":::\{admonition\} Before you start\n(.*?)^:::", re.M | re.S)
SAID = re.compile(r"About (\d+) minutes to read")
CHAPTER = re.compile(r"\{doc\}`(\d+) <[^>]*>`, (\d+) minutes")
TOTAL = re.compile(r"\*(\d+) minutes")
SECTIONS = re.compile(r"\| (\d+) \|$")


def text(page):
    return "\n\n".join(cell.source for cell in page.cells if cell.cell_type == "markdown")


@pytest.fixture(scope="module")
def chapters(book):
    """The numbered chapters: number → page; the tour has none."""
    numbered = {chapter_number(page.name): page for page in book.notebooks}
    return {number: page for number, page in numbered.items() if number}


@pytest.fixture(scope="module")
def paths(book):
    """The sections of the reading paths: heading → text; for the course, what is read before its lectures."""
    (page,) = (page for page in book.pages if page.name == "appendix/reading-paths")
    parts = re.split(r"^## (.+)$", text(page), flags=re.M)
    before = "\n".join(lecture.before for lecture in lectures(book))
    return dict(zip(parts[1::2], parts[2::2], strict=True)) | {"Before the lectures": before}


def words_of(chapters, label):
    """How many words stand in the section that a label stands above, its title left out."""
    for page in chapters.values():
        _, found, rest = text(page).partition(f"({label})=\n## ")
        if found:
            body = rest.partition("\n")[2]
            return words([new_markdown_cell(re.split(r"^(?:\([\w-]+\)=\n)?## ", body, flags=re.M)[0])])
    raise AssertionError(f"no section of a chapter has the label {label}")


def test_the_box_of_each_chapter_has_its_minutes(chapters):
    said = {number: int(SAID.search(BOX.search(text(page))[1])[1]) for number, page in chapters.items()}
    assert said == {number: minutes(page.cells) for number, page in chapters.items()}


def test_reading_paths_have_the_minutes_of_the_boxes(chapters, paths):
    found = [
        (heading, int(number), int(said))
        for heading, part in paths.items()
        for number, said in CHAPTER.findall(" ".join(part.split()))
    ]
    assert len({heading for heading, *_ in found}) >= 5, "the pattern no longer finds the paths"
    wrong = [where for where in found if minutes(chapters[where[1]].cells) != where[2]]
    assert not wrong, f"heading, chapter, minutes: {wrong}"


def test_totals_are_sums(paths):
    totals = {heading: TOTAL.search(part) for heading, part in paths.items()}
    whole = {h: int(total[1]) for h, total in totals.items() if total and "by sections" not in paths[h]}
    assert len(whole) == 3
    for heading, total in whole.items():
        listed = dict(CHAPTER.findall(" ".join(paths[heading].split())))
        assert total == sum(map(int, listed.values())), heading


def test_the_engineers_hour_is_one(chapters, paths):
    part = paths["For an engineer"]
    rows = {row: int(SECTIONS.search(row)[1]) for row in part.splitlines() if "{ref}`sec-" in row}
    assert len(rows) >= 5
    for row, said in rows.items():
        counted = sum(words_of(chapters, label) for label in re.findall(r"\{ref\}`(sec-[\w-]+)`", row))
        assert abs(said - counted / WORDS_A_MINUTE) <= 1, f"{counted / WORDS_A_MINUTE:.1f} minutes: {row}"
    assert int(TOTAL.search(part)[1]) == sum(rows.values()) <= 60


def test_the_plan_builds_on_what_the_boxes_ask_for(chapters, paths):
    rows = re.findall(r"^\| (\d+) \|.*\| ([\d, ]*) ?\|$", paths["The plan of the book"], flags=re.M)
    said = {int(number): {int(n) for n in re.findall(r"\d+", needs)} for number, needs in rows}
    asked = {
        number: {int(n) for n in re.findall(r"\{doc\}`\d+ <(\d+)-", BOX.search(text(page))[1])}
        for number, page in chapters.items()
    }
    assert said == asked
