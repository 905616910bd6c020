"""How much code the chapters carry, against the limits in pyproject.toml: pages are for readers."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from press.book import Book, Page, chapter_number


def counts(page: Page, tag: str = "") -> list[int]:
    """Lines of each code cell of a page, blank ones too; with ``tag``, of the cells that have it."""
    code = [cell for cell in page.cells if cell.cell_type == "code"]
    return [len(cell.source.splitlines()) for cell in code if not tag or tag in cell.metadata.get("tags", [])]


def too_long(book: Book) -> Iterator[str]:
    """What is above a limit of ``[tool.press.lines]``, one message each.

    The sums are over the numbered chapters; an appendix answers for itself alone.
    """
    limits = book.settings.get("lines", {})
    chapters = [page for page in book.notebooks if chapter_number(page.name) is not None]
    measured = [
        ("all", "all chapters", sum(sum(counts(page)) for page in chapters)),
        ("checks", "all checks", sum(sum(counts(page, "check")) for page in chapters)),
        ("median", "the median cell", median([n for page in chapters for n in counts(page)] or [0])),
        *(("chapter", page.name, sum(counts(page))) for page in book.notebooks),
        *(("longest", f"the longest cell of {page.name}", max(counts(page), default=0)) for page in book.notebooks),
        *(("check", f"a check of {page.name}", max(counts(page, "check"), default=0)) for page in book.notebooks),
    ]
    for limit, what, lines in measured:
        if lines > limits.get(limit, lines):
            yield f"{what}: {lines:g} lines of code, at most {limits[limit]} are meant"
