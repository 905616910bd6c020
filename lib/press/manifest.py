"""The manifest: every statement of the book as data, with what vouches for it and what it rests on.

All of it is read from the pages: what a statement *uses* is what its own text or a proof of it refers to, what a cell
checks is what it ``:verifies:``, and what a near miss gave is what the check printed.  The numbers and addresses of
built pages are added by :mod:`press.site.manifest`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from press.book import Book
from press.cells import cells
from press.labels import STATED, Claims, Statement
from press.seeds import Tried, tried
from press.through import Through

FILE = "manifest.json"


def manifest(book: Book) -> dict:
    """``pages``: name → title; ``statements``: one entry a label, in the order of the book."""
    claims, through, tries, sources = Claims(book), Through(book), tried(book), _sources(book)
    stated = [s for s in claims.statements if s.prefix in STATED]
    entries = [_entry(s, claims, through, tries.get(s.label), sources) for s in stated]
    users = {entry["label"]: [] for entry in entries}
    for entry in entries:
        for used in entry["uses"]:
            users[used["label"]].append(entry["label"])
    for entry in entries:
        entry["used_by"] = users[entry["label"]]
    return {"pages": {page.name: page.title for page in book.pages}, "statements": entries}


def dumped(content: dict) -> bytes:
    """The manifest as a file."""
    return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()


def status(s: Statement) -> str:
    """What vouches for a statement."""
    named = {"conj": "open", "claim": "measured", "def": "definition"}
    return named.get(s.prefix) or ("proved and checked" if s.proved else "checked numerically")


def _sources(book: Book) -> dict[tuple[str, int], dict]:
    """Page and number of a code cell → the file that it is written in, and the line."""
    found = {}
    for page in book.notebooks:
        numbers = [number for number, cell in enumerate(page.cells, 1) if cell.cell_type == "code"]
        for number, cell in zip(numbers, cells(book, page.name), strict=True):
            found[page.name, number] = {"file": cell.file, "line": cell.line}
    return found


def _entry(s: Statement, claims: Claims, through: Through, tries: Tried | None, sources: dict) -> dict:
    return {
        "label": s.label,
        "kind": s.kind,
        "title": s.title,
        "page": s.page,
        "cell": s.cell,
        "part_of": s.part_of or None,
        "status": status(s),
        "checks": list(_checks(s, claims, through, sources)),
        "seeds": tries and tries.summary,
        "uses": list(_uses(s, claims)),
    }


def _checks(s: Statement, claims: Claims, through: Through, sources: dict) -> Iterator[dict]:
    for check in claims.checks:
        if s.label in check.verifies:
            yield {
                "page": check.page,
                "cell": check.cell,
                "anchor": check.anchor,
                "source": sources[check.page, check.cell],
                "measured_on": check.measured_on or None,
                "functions": through.functions(check),
                "printed": [
                    {"holds": v.holds, "near_miss": v.mutant, "gave": v.breaks}
                    for v in check.verdicts
                    if v.label == s.label and v.mutant
                ],
            }


def _uses(s: Statement, claims: Claims) -> Iterator[dict]:
    """What the text and the proofs of a statement refer to, less itself and its own parts."""
    by_label = claims.by_label
    places = {"statement": s.cites, "proof": [label for proof in s.proofs for label in proof.cites]}
    found: dict[str, list[str]] = {}
    for place, labels in places.items():
        for label in dict.fromkeys(labels):
            other = by_label.get(label)
            if other and other.prefix in STATED and claims.whole(other) is not claims.whole(s):
                found.setdefault(label, []).append(place)
    for label, where in found.items():
        yield {"label": label, "in": where}
