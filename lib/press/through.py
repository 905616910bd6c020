"""What a check goes through: the library's functions in its cell, and in the lines above that made what it uses."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from press.book import Book, Page
from press.cells import BLOCKS, MAGIC, bound, used
from press.labels import ALIAS, FUNCTION, Check
from press.library import Library

SERVICES = ("checks", "view")  # rooms of the library that every cell may use and no statement is about
EVERYWHERE = {".verify", ".check_parameters"}
REPLACES = (ast.Assign, ast.AnnAssign, ast.FunctionDef, ast.ClassDef, *BLOCKS)


@dataclass(frozen=True)
class Part:
    """A statement of Python at the top of a cell: the names that it makes, those that it changes by an index, an
    attribute or a method, and those that it uses and others made.
    """

    cell: int
    node: ast.stmt

    @cached_property
    def _tree(self) -> ast.Module:
        return ast.Module([self.node], type_ignores=[])

    @cached_property
    def makes(self) -> set[str]:
        return set(bound(self._tree))

    @cached_property
    def changes(self) -> set[str]:
        found = set()
        for node in ast.walk(self.node):
            stored = isinstance(node, (ast.Subscript, ast.Attribute)) and isinstance(node.ctx, ast.Store)
            called = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
            base = node if stored else node.value.func if called else None
            while isinstance(base, (ast.Subscript, ast.Attribute)):
                base = base.value
                if isinstance(base, ast.Name):
                    found.add(base.id)
        return found

    @cached_property
    def uses(self) -> set[str]:
        found = used(self._tree)
        return found - self.makes if isinstance(self.node, BLOCKS) else found


class Through:
    """The functions behind the checks of a book."""

    def __init__(self, book: Book):
        self.library = Library(book)
        self.pages = {page.name: page for page in book.pages}
        self.parts: dict[str, list[Part]] = {}

    def functions(self, check: Check) -> list[str]:
        """``ng.…`` for public names, ``room.file.name`` for others; first those that the cell itself names."""
        parts = self._parts(check.page)
        imports = _imports(parts)
        found, wanted = dict.fromkeys(check.functions), set()
        for part in reversed(parts):
            if part.cell == check.cell or (part.makes | part.changes) & wanted:
                found |= dict.fromkeys(self._named(part, imports))
                wanted = (wanted - part.makes if isinstance(part.node, REPLACES) else wanted) | part.uses
                wanted -= set(imports)
        return list(found)

    def _parts(self, name: str) -> list[Part]:
        if name not in self.parts:
            self.parts[name] = list(_parts(self.pages[name]))
        return self.parts[name]

    def _named(self, part: Part, imports: dict[str, str]) -> Iterator[str]:
        """The library's functions and classes that a line names."""
        for name in FUNCTION.findall(ast.unparse(part.node)):
            if name not in EVERYWHERE:
                yield f"{ALIAS}{name}"
        for node in ast.walk(part.node):
            if isinstance(node, ast.Name) and node.id in part.uses:
                yield from self._home(imports.get(node.id, ""))
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in part.uses:
                yield from self._home(f"{imports.get(node.value.id, '')}.{node.attr}")

    def _home(self, path: str) -> Iterator[str]:
        """``room.file.name`` where that is a function or a class of the library."""
        module, _, name = path.rpartition(".")
        inside = path.removeprefix(f"{self.library.name}.")
        if module not in self.library.modules or inside.partition(".")[0] in SERVICES:
            return
        if name in self.library.modules[module].definitions:
            yield inside
        elif (source := self.library.modules[module].imported(name)) not in (None, module):
            yield from self._home(f"{source}.{name}")


def _parts(page: Page) -> Iterator[Part]:
    for number, cell in enumerate(page.cells, 1):
        if cell.cell_type == "code":
            for node in ast.parse(MAGIC.sub("pass", cell.source)).body:
                yield Part(number, node)


def _imports(parts: list[Part]) -> dict[str, str]:
    """Name → what it was imported as, ``package.file.name``."""
    found = {}
    for part in parts:
        if isinstance(part.node, (ast.Import, ast.ImportFrom)):
            above = getattr(part.node, "module", "")
            found |= {alias.asname or alias.name: f"{above}.{alias.name}" for alias in part.node.names}
    return found
