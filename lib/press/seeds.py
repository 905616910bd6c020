"""Measured claims tried at many seeds: which claims are live, what was recorded for each, and what is wrong with it."""

from __future__ import annotations

import ast
import csv
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from press.book import Book, chapter_number
from press.cells import Cell, behind, cells
from press.labels import ALIAS
from press.trees import digest

LEAST = 20  # minimum number of seeds at which a claim is tried
ROOM = 0.8  # a claim may reach at most this share of its bound, and the bound at most this share of the near miss
RECORDED = f"{ALIAS}.recorded"


class Live(NamedTuple):
    """A claim that is measured when its chapter runs; ``version`` identifies the code that measures it."""

    label: str
    page: str
    version: str


class Tried(NamedTuple):
    """The results of a claim over all seeds; ``deviation`` and ``mutant``, its near miss, are in units of the bound."""

    seeds: int
    held: int
    deviation: float
    mutant: float
    version: str

    @property
    def summary(self) -> dict:
        """The manifest's entry: ``deviation`` is the largest and ``mutant`` the smallest, in units of the bound."""
        return dict(tried=self.seeds, held=self.held, deviation=self.deviation, mutant=self.mutant)


def is_recorded(written: list[Cell], at: int) -> bool:
    """Whether a check reads a recorded measurement, directly or through the cells that it depends on."""
    return any(RECORDED in cell.names for cell in (written[at], *(cell for cell, _ in behind(written, at))))


@cache
def live(book: Book) -> list[Live]:
    """Return the claims that are measured when their page runs, in the order of the book."""
    found = {}
    for name in book.names:
        written = cells(book, name)
        for at, cell in enumerate(written):
            for label in cell.verifies:
                if label.startswith("claim-") and not is_recorded(written, at):
                    found[label] = Live(label, name, version(written, label))
    return list(found.values())


def version(written: list[Cell], label: str) -> str:
    """Return a hash of a claim's code without comments: its checks, the cells they depend on, the parameters used."""
    parts = []
    for at in (at for at, cell in enumerate(written) if label in cell.verifies):
        used = [written[at], *(other for other, _ in behind(written, at))]
        names = set().union(*(cell.names for cell in used))
        parts += [*(cell.tree for cell in used), *_values(written, names)]
    return digest(parts)


def _values(written: list[Cell], names: set[str]) -> Iterator[list]:
    """Yield the parameters among ``names`` with their values."""
    for cell in written:
        for node in cell.tree.body if "parameters" in cell.head.get("tags", []) else ():
            if isinstance(node, ast.AnnAssign) and node.target.id in names:
                yield [node.target, node.value]


def file(book: Book, page: str) -> Path:
    """Return the path of the record of a page's claims."""
    return book.root / "figures/data" / f"claims-{chapter_number(page) or Path(page).name:02}.csv"


def tried(book: Book) -> dict[str, Tried]:
    """Return the recorded results of each live claim, by label."""
    rows = defaultdict(list)
    for path in {file(book, claim.page) for claim in live(book)}:
        if path.is_file():
            with path.open(encoding="utf-8", newline="") as lines:
                for row in csv.DictReader(lines):
                    rows[row["claim"]].append(row)
    return {label: _summary(of) for label, of in rows.items()}


def _summary(rows: list[dict[str, str]]) -> Tried:
    deviations = [float(row["deviation"]) for row in rows]
    return Tried(
        seeds=len({row["seed"] for row in rows}),
        held=sum(deviation <= 1 for deviation in deviations),
        deviation=max(deviations),
        mutant=min(float(row["mutant"]) for row in rows),
        version=rows[0]["version"],
    )


def amiss(claim: Live, found: Tried | None, statement: str) -> Iterator[str]:
    """Yield what is wrong with the record of a claim with the text ``statement``, in words that follow its label."""
    if found is None or found.seeds < LEAST:
        yield f"is measured live, but was tried at {found.seeds if found else 0} seeds, not {LEAST} (make experiments)"
        return
    if found.version != claim.version:
        yield "was tried at many seeds, but its cells have changed (make experiments)"
    if found.held < found.seeds and f"in {found.held} of {found.seeds} seeds" not in statement:
        yield f"held in {found.held} of {found.seeds} seeds, but its statement does not say so"
    if found.held == found.seeds and found.deviation > ROOM:
        yield f"uses {found.deviation:.0%} of its bound at one of its seeds; the limit is {ROOM:.0%}"
    if found.mutant * ROOM < 1:
        yield f"has a near miss that deviates by only {found.mutant:.2f} times its bound at one of its seeds"
