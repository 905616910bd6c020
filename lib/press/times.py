"""Where the time went: what each step of make cost, against the share that pyproject.toml gives it.

Shares are processor seconds of the machine on which they were set.  Each run times a fixed workload on its own machine
and scales them, so that a slower machine is no failure and a slower book is.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from press.book import Book

TIMES = Path("_build/times")
REFERENCE = 0.22  # processor seconds of the workload where the shares were set


@dataclass(frozen=True)
class Cost:
    """Seconds of one step: on the processor, all its processes together, and on the wall."""

    name: str
    processor: float
    wall: float


def calibration(repeats: int = 3) -> float:
    """Processor seconds of a fixed workload, a loop of Python and products of matrices, as a chapter has both."""
    took = []
    matrix = np.random.default_rng(0).standard_normal((400, 400))
    for _ in range(repeats):
        begin, text = time.process_time(), b""
        for number in range(500_000):
            text = hashlib.md5(text + number.to_bytes(4, "big")).digest()
        for _ in range(25):
            matrix @ matrix
        took.append(time.process_time() - begin)
    return median(took)


def costs(book: Book, of: str) -> list[Cost]:
    """What the steps of ``of``, ``"book"`` or ``"test"``, cost when they ran last."""
    folder = book.root / TIMES / of
    found = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        if seconds := path.read_text().split()[-3:]:
            user, system, wall = map(float, seconds)
            found.append(Cost(path.relative_to(folder).as_posix(), user + system, wall))
    return found


def table(book: Book, of: str) -> Iterator[str]:
    """The lines of a table."""
    found = costs(book, of)
    width = max((len(cost.name) for cost in found), default=0)
    yield f"{'seconds of':{width}}  processor   wall"
    for cost in found:
        yield f"{cost.name:{width}}  {cost.processor:9.0f} {cost.wall:6.0f}"
    yield f"{'all':{width}}  {sum(cost.processor for cost in found):9.0f}"


def above(book: Book, of: str) -> list[str]:
    """What is above its share on this machine."""
    limits, found, scale = book.settings.get("seconds", {}).get(of, {}), costs(book, of), calibration() / REFERENCE
    measured = [(cost.name, cost.processor, limits.get(cost.name, limits.get("each"))) for cost in found]
    measured.append(("all together", sum(cost.processor for cost in found), limits.get("all")))
    return [
        f"{name}: {seconds:.0f} processor seconds, at most {share * scale:.0f} are meant on this machine"
        for name, seconds, share in measured
        if share is not None and seconds > share * scale
    ]
