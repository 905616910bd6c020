"""The ledger: every statement of the book beside its check."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from press.book import Book
from press.labels import CHECKED, Check, Claims, Statement
from press.myst import table

HEAD = """# The ledger

Every statement of the book stands here with what vouches for it.
*Proved and checked* means that the text proves it and a cell tests it with numbers;
*checked numerically* that a cell tests it;
*measured* that it was observed on the material named, and says nothing about other material;
*open* that nobody has shown it.
Each check also tests a near miss, a plausible wrong version of its statement, and must see it fail.
*Printed* is how closely the statement held, and by how much its wrong version missed.
"""
COLUMNS = ("statement", "status", "tested through", "wrong version", "printed", "check")
LISTED = CHECKED | {"conj"}


def ledger(book: Book) -> str:
    """The ledger as a MyST page."""
    claims = Claims(book)
    titles = {page.name: page.title for page in book.pages}
    parts = [HEAD]
    for page, group in groupby(claims.statements, key=lambda s: s.page):
        if listed := [s for s in group if s.prefix in LISTED]:
            parts += [f"## {titles[page]}\n", table(COLUMNS, _rows(listed, claims))]
    return "\n".join(parts)


def _rows(statements: list[Statement], claims: Claims) -> Iterator[list[str]]:
    for s in statements:
        checks = [check for check in claims.checks if s.label in check.verifies]
        verdicts = [v for check in checks for v in check.verdicts if v.label == s.label and v.mutant]
        yield [
            s.link,
            _status(s, checks),
            ", ".join(dict.fromkeys(f"`{name}`" for check in checks for name in check.functions)),
            "; ".join(dict.fromkeys(v.mutant for v in verdicts)),
            "; ".join(dict.fromkeys(f"{v.holds} against {v.breaks}" for v in verdicts)),
            ", ".join(f"{{ref}}`cell {check.cell} <{check.anchor}>`" for check in checks),
        ]


def _status(s: Statement, checks: list[Check]) -> str:
    if s.prefix == "conj":
        return "open"
    if s.prefix == "claim":
        return "measured on " + "; ".join(dict.fromkeys(check.measured_on for check in checks))
    return "proved and checked" if s.proved else "checked numerically"
