"""Where the time went: what each step of make cost, against the share that pyproject.toml gives it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import nbformat

from press.book import EXECUTED, Book

TIMES = Path("_build/times")
SLOWEST = 3  # cells of a chapter above its share that are named


@dataclass(frozen=True)
class Cost:
    """Seconds of one step: on the processor, all its processes together, and on the wall."""

    name: str
    processor: float
    wall: float


def costs(book: Book, of: str) -> list[Cost]:
    """What the steps of ``of``, ``"book"`` or ``"test"``, cost when they ran last, in the order of their names.

    A step that is still running has an empty file, and is left out.
    """
    folder = book.root / TIMES / of
    ended = {path: seconds for path in sorted(folder.rglob("*")) if path.is_file() and (seconds := path.read_text())}
    found = []
    for path, seconds in ended.items():
        user, system, wall = map(float, seconds.split()[-3:])
        found.append(Cost(path.relative_to(folder).as_posix(), user + system, wall))
    return found


def table(book: Book, of: str) -> Iterator[str]:
    """The lines of a table; a step above its share is named, a chapter also with its slowest cells."""
    found = costs(book, of)
    limits = book.settings.get("seconds", {}).get(of, {})
    width = max((len(cost.name) for cost in found), default=0)
    yield f"{'seconds of':{width}}  processor   wall  share"
    for cost in found:
        limit = _limit(cost.name, limits)
        yield f"{cost.name:{width}}  {cost.processor:9.0f} {cost.wall:6.0f}  {limit or '':>5}".rstrip()
    total = sum(cost.processor for cost in found)
    yield f"{'all':{width}}  {total:9.0f} {'':6}  {limits.get('all', ''):>5}".rstrip()
    for cost in found:
        limit = _limit(cost.name, limits)
        if limit is not None and cost.processor > limit:
            yield f"{cost.name} is above its share of {limit} processor seconds{_slowest(book, cost.name)}"
    if total > limits.get("all", total):
        yield f"all together is above {limits['all']} processor seconds"


def _limit(name: str, limits: dict) -> int | None:
    return limits.get(name, limits.get("each"))


def _slowest(book: Book, name: str) -> str:
    path = book.root / EXECUTED / f"{name}.ipynb"
    if not path.is_file():
        return ""
    cells = nbformat.read(path, as_version=4).cells
    took = [(cell.metadata.get("papermill", {}).get("duration") or 0, i) for i, cell in enumerate(cells, 1)]
    named = ", ".join(f"cell {i} takes {seconds:.0f} s" for seconds, i in sorted(took, reverse=True)[:SLOWEST])
    return f": {named} (on the wall)"
