"""The ledger: every statement of the book with its check, made from the manifest."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from press.book import Book
from press.labels import LISTED, reference
from press.manifest import manifest
from press.myst import table

COLUMNS = ("statement", "status", "seeds", "tested through", "wrong version", "printed", "check")


def ledger(book: Book) -> str:
    """Return the tables of the ledger in MyST."""
    content = manifest(book)
    listed = [entry for entry in content["statements"] if entry["label"].partition("-")[0] in LISTED]
    parts = []
    for page, group in groupby(listed, key=lambda entry: entry["page"]):
        parts += [f"## {content['pages'][page]}\n", table(COLUMNS, map(_row, group))]
    return "\n".join(parts)


def row(label: str) -> str:
    """Return the anchor of a statement's row."""
    return f"row-{label}"


def _row(entry: dict) -> list[str]:
    checks = entry["checks"]
    printed = [verdict for check in checks for verdict in check["printed"]]
    measured_on = "; ".join(dict.fromkeys(check["measured_on"] or "" for check in checks))
    return [
        f'<span id="{row(entry["label"])}"></span>{reference(entry["label"], entry["title"])}',
        f"measured on {measured_on}" if entry["status"] == "measured" else entry["status"],
        _seeds(entry["seeds"]),
        _each(", ", (f"`{name}`" for check in checks for name in check["functions"])),
        _each("; ", (verdict["near_miss"] for verdict in printed)),
        _each("; ", (f"{verdict['holds']} against {verdict['gave']}" for verdict in printed)),
        _each(", ", (f"{{ref}}`cell {check['cell']} <{check['anchor']}>`" for check in checks)),
    ]


def _seeds(tried: dict | None) -> str:
    return "{held} of {tried}, {deviation:.0%}".format(**tried) if tried else ""


def _each(between: str, words: Iterator[str]) -> str:
    return between.join(dict.fromkeys(words))
