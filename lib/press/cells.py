"""The code cells of a chapter as it is written: what each makes, and what it is made from."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from symtable import SymbolTable, symtable

import jupytext

from press.book import CHAPTERS, Book
from press.labels import ALIAS, FUNCTION, LAB

MAGIC = re.compile(r"^[%!].*$", re.M)
BLOCKS = (ast.For, ast.With)  # names that they make and use are taken for their own
EVERYWHERE = {".verify"}  # what every check calls and no statement is about


@dataclass(frozen=True)
class Cell:
    """A code cell of a chapter's text; ``head`` are its metadata."""

    head: dict
    code: str

    @property
    def verifies(self) -> list[str]:
        """The labels that it checks."""
        return self.head.get("verifies", [])

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(MAGIC.sub("pass", self.code))

    @cached_property
    def makes(self) -> frozenset[str]:
        """The names that it leaves behind."""
        return frozenset().union(*map(bound, self.tree.body))

    @cached_property
    def names(self) -> frozenset[str]:
        """What it looks up before it makes it: names, and attributes of the library as ``ng.…`` and ``lab.…``."""
        attributes = (ast.unparse(node) for node in ast.walk(self.tree) if isinstance(node, ast.Attribute))
        found, made = {a for a in attributes if a.startswith((f"{ALIAS}.", f"{LAB}."))}, set()
        for node in self.tree.body:
            here = bound(node)
            found |= used(node) - made - (here if isinstance(node, BLOCKS) else set())
            made |= here
        return frozenset(found)

    @property
    def is_setup(self) -> bool:
        """Parameters, imports, seeds and devices: what every cell needs and none is about."""
        imports = any(isinstance(node, ast.ImportFrom) for node in self.tree.body)
        return imports or "parameters" in self.head.get("tags", []) or "check_parameters" in self.names


def _tables(scope: ast.stmt) -> Iterator[SymbolTable]:
    """The symbols of a statement, and those of the scopes inside it."""
    waiting = [symtable(ast.unparse(scope), "a cell", "exec")]
    while waiting:
        yield (table := waiting.pop())
        waiting += table.get_children()


def bound(scope: ast.stmt) -> set[str]:
    """The names that a statement binds, those of scopes inside it left out."""
    symbols = next(_tables(scope)).get_symbols()
    return {s.get_name() for s in symbols if s.is_assigned() or s.is_imported() or s.is_namespace()}


def used(scope: ast.stmt) -> set[str]:
    """The names that a statement and the scopes inside it look up outside of those."""
    own, *inside = _tables(scope)
    outer = (symbol for table in inside for symbol in table.get_symbols() if symbol.is_global())
    return {symbol.get_name() for symbol in (*own.get_symbols(), *outer) if symbol.is_referenced()}


@cache
def cells(book: Book, name: str) -> list[Cell]:
    """The code cells of a chapter; a page of text has none."""
    if not book.is_notebook(name):
        return []
    written = jupytext.read(book.root / CHAPTERS / f"{name}.md").cells
    return [Cell(cell.metadata, cell.source) for cell in written if cell.cell_type == "code"]


def behind(written: list[Cell], at: int) -> Iterator[tuple[Cell, set[str]]]:
    """The cells that made what a cell uses, the nearest first, each with the names that were wanted of it."""
    wanted = set(written[at].names)
    for cell in reversed(written[:at]):
        if (made := cell.makes & wanted) and not cell.is_setup:
            yield cell, made
            wanted = (wanted - made) | cell.names


def through(written: list[Cell], at: int) -> list[str]:
    """The library's public names that a check goes through: those in its cell, then those in the cells behind it."""
    read = [written[at], *(cell for cell, _ in behind(written, at))]
    names = dict.fromkeys(name for cell in read for name in FUNCTION.findall(cell.code))
    return [f"{ALIAS}{name}" for name in names if name not in EVERYWHERE]
