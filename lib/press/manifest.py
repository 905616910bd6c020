"""The manifest: every statement of the book as data, with what vouches for it and what it rests on.

All of it is read from the pages: what a statement *uses* is what its own text or a proof of it refers to, what a cell
checks is what it ``:verifies:``, and what a near miss gave is what the check printed.  The numbers and addresses of
built pages are added by :mod:`press.site.manifest`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from press.book import Book
from press.cells import cells, through
from press.labels import STATED, Claims, Statement
from press.seeds import Tried, tried

FILE = "manifest.json"


def manifest(book: Book) -> dict:
    """``pages``: name → title; ``statements``: one entry a label, in the order of the book."""
    claims, tries, written = Claims(book), tried(book), _written(book)
    stated = [s for s in claims.statements if s.prefix in STATED]
    entries = [_entry(s, claims, tries.get(s.label), written) for s in stated]
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


def _written(book: Book) -> dict[tuple[str, int], list[str]]:
    """Page and number of a code cell → what of the library it goes through."""
    found = {}
    for page in book.notebooks:
        numbers = [number for number, cell in enumerate(page.cells, 1) if cell.cell_type == "code"]
        written = cells(book, page.name)
        found |= {(page.name, number): through(written, at) for at, number in enumerate(numbers)}
    return found


def _entry(s: Statement, claims: Claims, tries: Tried | None, written: dict) -> dict:
    return {
        "label": s.label,
        "kind": s.kind,
        "title": s.title,
        "page": s.page,
        "cell": s.cell,
        "part_of": s.part_of or None,
        "status": status(s),
        "checks": list(_checks(s, claims, written)),
        "seeds": tries and tries.summary,
        "uses": list(_uses(s, claims)),
    }


def _checks(s: Statement, claims: Claims, written: dict) -> Iterator[dict]:
    for check in claims.checks:
        if s.label in check.verifies:
            yield {
                "page": check.page,
                "cell": check.cell,
                "anchor": check.anchor,
                "measured_on": check.measured_on or None,
                "functions": written[check.page, check.cell],
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
