"""The code cells of a chapter's source: the names that each cell defines, and those that it uses."""

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
BLOCKS = (ast.For, ast.With)  # a name that such a statement both binds and uses does not count as used
EVERYWHERE = {".verify"}  # every check calls it, so it tells nothing about a statement


@dataclass(frozen=True)
class Cell:
    """A code cell of a chapter's source; ``head`` contains its metadata."""

    head: dict
    code: str

    @property
    def verifies(self) -> list[str]:
        """The labels that the cell checks."""
        return self.head.get("verifies", [])

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(MAGIC.sub("pass", self.code))

    @cached_property
    def makes(self) -> frozenset[str]:
        """The names that the cell defines."""
        return frozenset().union(*map(bound, self.tree.body))

    @cached_property
    def names(self) -> frozenset[str]:
        """The names that the cell uses before defining them, and library attributes as ``ng.…`` and ``lab.…``."""
        attributes = (ast.unparse(node) for node in ast.walk(self.tree) if isinstance(node, ast.Attribute))
        found, made = {a for a in attributes if a.startswith((f"{ALIAS}.", f"{LAB}."))}, set()
        for node in self.tree.body:
            here = bound(node)
            found |= used(node) - made - (here if isinstance(node, BLOCKS) else set())
            made |= here
        return frozenset(found)

    @property
    def is_setup(self) -> bool:
        """Whether the cell is set-up: it has the parameters, imports names or calls ``check_parameters``."""
        imports = any(isinstance(node, ast.ImportFrom) for node in self.tree.body)
        return imports or "parameters" in self.head.get("tags", []) or "check_parameters" in self.names


def _tables(scope: ast.stmt) -> Iterator[SymbolTable]:
    """Yield the symbol table of a statement, then those of the scopes inside it."""
    waiting = [symtable(ast.unparse(scope), "a cell", "exec")]
    while waiting:
        yield (table := waiting.pop())
        waiting += table.get_children()


def bound(scope: ast.stmt) -> set[str]:
    """Return the names that a statement binds, without those bound only in scopes inside it."""
    symbols = next(_tables(scope)).get_symbols()
    return {s.get_name() for s in symbols if s.is_assigned() or s.is_imported() or s.is_namespace()}


def used(scope: ast.stmt) -> set[str]:
    """Return the names that a statement uses, including the globals that scopes inside it use."""
    own, *inside = _tables(scope)
    outer = (symbol for table in inside for symbol in table.get_symbols() if symbol.is_global())
    return {symbol.get_name() for symbol in (*own.get_symbols(), *outer) if symbol.is_referenced()}


@cache
def cells(book: Book, name: str) -> list[Cell]:
    """Return the code cells of a chapter's source; a text page has none."""
    if not book.is_notebook(name):
        return []
    written = jupytext.read(book.root / CHAPTERS / f"{name}.md").cells
    return [Cell(cell.metadata, cell.source) for cell in written if cell.cell_type == "code"]


def behind(written: list[Cell], at: int) -> Iterator[tuple[Cell, set[str]]]:
    """Yield the earlier cells that a cell depends on, nearest first, each with the needed names that it defines."""
    wanted = set(written[at].names)
    for cell in reversed(written[:at]):
        if (made := cell.makes & wanted) and not cell.is_setup:
            yield cell, made
            wanted = (wanted - made) | cell.names


def through(written: list[Cell], at: int) -> list[str]:
    """Return the public library names that a check uses: those in its cell, then those in the cells it depends on."""
    read = [written[at], *(cell for cell, _ in behind(written, at))]
    names = dict.fromkeys(name for cell in read for name in FUNCTION.findall(cell.code))
    return [f"{ALIAS}{name}" for name in names if name not in EVERYWHERE]
