"""How much code the chapters carry, against the limits in pyproject.toml: pages are for readers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from press.book import Book, Page, chapter_number


@dataclass(frozen=True)
class Count:
    """Lines of a page's code cells, blank ones too; ``checks`` are those of the cells tagged check."""

    name: str
    cells: list[int]
    checks: list[int]


def counts(book: Book) -> list[Count]:
    """A count for each page with code."""
    return [_count(page) for page in book.notebooks]


def _count(page: Page) -> Count:
    code = [cell for cell in page.cells if cell.cell_type == "code" and not _is_injected(cell)]
    checks = [cell for cell in code if "check" in cell.metadata.get("tags", [])]
    return Count(page.name, [_lines(cell) for cell in code], [_lines(cell) for cell in checks])


def _is_injected(cell) -> bool:
    return "injected-parameters" in cell.metadata.get("tags", [])


def _lines(cell) -> int:
    return len(cell.source.splitlines())


def table(book: Book) -> Iterator[str]:
    """The lines of a table."""
    found = counts(book)
    width = max((len(count.name) for count in found), default=0)
    yield f"{'lines of code':{width}}  cells   all  checks  median  longest"
    for count in [*found, _together(found)]:
        yield (
            f"{count.name:{width}}  {len(count.cells):5} {sum(count.cells):5}  {sum(count.checks):6}"
            f"  {median(count.cells):6g}  {max(count.cells):7}"
        )


def too_long(book: Book) -> Iterator[str]:
    """What is above a limit of ``[tool.press.lines]``, one message each."""
    limits, found = book.settings["lines"], counts(book)
    together = _together(found)
    measured = [
        ("all", "all chapters", sum(together.cells)),
        ("checks", "all checks", sum(together.checks)),
        ("median", "the median cell", median(together.cells)),
        *(("chapter", count.name, sum(count.cells)) for count in found),
        *(("longest", f"the longest cell of {count.name}", max(count.cells)) for count in found),
        *(("check", f"the longest check of {count.name}", max(count.checks, default=0)) for count in found),
    ]
    for limit, what, lines in measured:
        if lines > limits[limit]:
            yield f"{what}: {lines:g} lines of code, at most {limits[limit]} are meant"


def _together(found: list[Count]) -> Count:
    """Of the numbered chapters; an appendix answers for itself alone."""
    chapters = [count for count in found if chapter_number(count.name) is not None]
    return Count(
        "chapters",
        [n for count in chapters for n in count.cells],
        [n for count in chapters for n in count.checks],
    )
