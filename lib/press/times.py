"""Report the time that each step of make took, and compare the total with the limit in pyproject.toml.

Limits are in processor seconds of the machine on which they were set.  Each run times a fixed workload on its own
machine and scales the limits, so that a slower book fails but a slower machine does not.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import numpy as np

from press.book import Book

TIMES = Path("_build/times")
REFERENCE = 0.22  # processor seconds of the workload on the machine where the limits were set


def calibration(repeats: int = 3) -> float:
    """Return the processor seconds of a fixed workload: a Python loop and matrix products, the work of chapters."""
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


def costs(book: Book, of: str) -> dict[str, tuple[float, float]]:
    """Return the processor seconds, over all processes, and wall seconds of each step of ``"book"`` or ``"test"``."""
    folder, found = book.root / TIMES / of, {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        if seconds := path.read_text().split()[-3:]:
            user, system, wall = map(float, seconds)
            found[path.relative_to(folder).as_posix()] = (user + system, wall)
    return found


def table(book: Book, of: str) -> Iterator[str]:
    """Yield the lines of a table of these times."""
    found = costs(book, of)
    yield f"{'seconds of':22}  processor   wall"
    for name, (processor, wall) in found.items():
        yield f"{name:22}  {processor:9.0f} {wall:6.0f}"
    yield f"{'all':22}  {sum(processor for processor, _ in found.values()):9.0f}"


def above(book: Book, of: str) -> list[str]:
    """Return a message if all steps together exceed the limit for this machine, and otherwise nothing."""
    spent = sum(processor for processor, _ in costs(book, of).values())
    limit = book.settings.get("seconds", {}).get(of, math.inf) * calibration() / REFERENCE
    said = f"all together: {spent:.0f} processor seconds; the limit on this machine is {limit:.0f}"
    return [said] if spent > limit else []
