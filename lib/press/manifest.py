"""The manifest: every statement of the book as data, with its checks and the statements that it uses.

All of it is read from the pages: a statement *uses* the labels that its text and its proofs cite, a cell checks the
labels that it ``:verifies:``, and the result of a near miss is what the check printed.  :mod:`press.site.manifest`
adds the numbers and addresses of the built pages.
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
    """Return ``pages``, name → title, and ``statements``, one entry per label in the order of the book."""
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
    """Return the manifest as the bytes of a JSON file."""
    return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()


def status(s: Statement) -> str:
    """Return how a statement is known, such as ``proved and checked`` or ``measured``."""
    named = {"conj": "open", "claim": "measured", "def": "definition"}
    return named.get(s.prefix) or ("proved and checked" if s.proved else "checked numerically")


def _written(book: Book) -> dict[tuple[str, int], list[str]]:
    """Return, by page and cell number, the library names that a code cell uses, directly or through earlier cells."""
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
    """Yield the labels that the text and proofs of a statement cite, except those of itself and its own parts."""
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
