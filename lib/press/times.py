"""Where the time went: what each step of make cost, and all of them against the limit in pyproject.toml.

Limits are processor seconds of the machine on which they were set.  Each run times a fixed workload on its own machine
and scales them, so that a slower machine is no failure and a slower book is.
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
REFERENCE = 0.22  # processor seconds of the workload where the limits were set


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


def costs(book: Book, of: str) -> dict[str, tuple[float, float]]:
    """Seconds of each step of ``"book"`` or ``"test"``: on the processor, all its processes, and on the wall."""
    folder, found = book.root / TIMES / of, {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        if seconds := path.read_text().split()[-3:]:
            user, system, wall = map(float, seconds)
            found[path.relative_to(folder).as_posix()] = (user + system, wall)
    return found


def table(book: Book, of: str) -> Iterator[str]:
    """The lines of a table."""
    found = costs(book, of)
    yield f"{'seconds of':22}  processor   wall"
    for name, (processor, wall) in found.items():
        yield f"{name:22}  {processor:9.0f} {wall:6.0f}"
    yield f"{'all':22}  {sum(processor for processor, _ in found.values()):9.0f}"


def above(book: Book, of: str) -> list[str]:
    """What is wrong if all steps together are above the limit on this machine."""
    spent = sum(processor for processor, _ in costs(book, of).values())
    limit = book.settings.get("seconds", {}).get(of, math.inf) * calibration() / REFERENCE
    said = f"all together: {spent:.0f} processor seconds, at most {limit:.0f} are meant on this machine"
    return [said] if spent > limit else []
