"""Compare the chapters' amounts of code and text with the limits in pyproject.toml, and estimate reading times.

A reading time counts the words before the exercises, without code, at 100 words per minute, rounded to 5 minutes.
A displayed formula counts as ten words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import nbformat

from press.book import Book, Page, chapter_number

WORDS_A_MINUTE, WORDS_A_FORMULA, STEP = 100, 10, 5
EXERCISES = re.compile(r"^## Exercises$", re.M)
FORMULA = re.compile(r"^```\{math\}.*?^```$|\$\$.*?\$\$", re.M | re.S)
CODE = re.compile(r"^```(?!\{)\w*\n.*?^```$", re.M | re.S)
MARKUP = re.compile(r"^(?::(?:label|class|name|alt):.*|\(.*\)=)$", re.M)
WORD = re.compile(r"\S*\w\S*")
TAKEAWAYS = re.compile(r"^## Takeaways\n(.*?)(?=^## )", re.M | re.S)
SENTENCES = re.compile(r"[.!?]\s+[A-Z$]")


def counts(page: Page, tag: str = "") -> list[int]:
    """Count the lines, blank ones too, of each code cell of a page; with ``tag``, only of the cells with that tag."""
    code = [cell for cell in page.cells if cell.cell_type == "code"]
    return [len(cell.source.splitlines()) for cell in code if not tag or tag in cell.metadata.get("tags", [])]


def too_long(book: Book) -> Iterator[str]:
    """Yield a message for each exceeded limit of ``[tool.press.lines]`` and for each takeaway of several sentences."""
    limits = book.settings.get("lines", {})
    chapters = [page for page in book.notebooks if chapter_number(page.name)]
    measured = [
        *(("chapter", page.name, "lines of code", sum(counts(page))) for page in book.notebooks),
        *(("check", f"a check of {page.name}", "lines", max(counts(page, "check") or [0])) for page in book.notebooks),
        *(("words", page.name, "words before its exercises", words(page.cells)) for page in chapters),
    ]
    for limit, where, what, found in measured:
        if found > limits.get(limit, found):
            yield f"{where}: {found} {what}; the limit is {limits[limit]}"
    for page in chapters:
        listed = TAKEAWAYS.findall("\n\n".join(cell.source for cell in page.cells))
        for takeaway in (item for items in listed for item in items.split("\n- ")[1:]):
            if SENTENCES.search(takeaway):
                yield f"{page.name}: a takeaway must be one sentence: {takeaway[:40]} …"


def words(cells: Iterable[nbformat.NotebookNode]) -> int:
    """Count the words of a page's Markdown cells before the exercises; a displayed formula counts as ten."""
    text = "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    text = EXERCISES.split(text)[0]
    text, formulas = FORMULA.subn("", text)
    return len(WORD.findall(MARKUP.sub("", CODE.sub("", text)))) + WORDS_A_FORMULA * formulas


def minutes(cells: Iterable[nbformat.NotebookNode]) -> int:
    """Return the minutes needed to read a page, a multiple of 5 and at least 5."""
    return max(STEP, STEP * round(words(cells) / WORDS_A_MINUTE / STEP))
