"""Add links to the data after the caption of each recorded figure and table."""

from __future__ import annotations

import ast
from fnmatch import filter as matching
from pathlib import Path

import nbformat

from press.book import Book
from press.cells import Cell, behind

DATA = Path("figures/data")
HEAD = "data"  # key in a cell's head: the records that the library reads for it, if its own code does not name them
LINE = '{caption} <span class="sources">Data: {links}</span>'


class Sources:
    """The recorded measurements of a book; ``used`` contains the files that captions link to so far."""

    def __init__(self, book: Book):
        self.files = dict(sorted((path.stem, path) for path in (book.root / DATA).glob("*.csv")))
        self.used: dict[str, bytes] = {}

    def behind(self, written: list[Cell], at: int) -> list[str]:
        """Return the measurements that a cell shows: those in its head, or those named in the code it depends on."""
        if patterns := written[at].head.get(HEAD):
            return [name for pattern in patterns for name in matching(self.files, pattern)]
        read = [written[at], *(cell for cell, _ in behind(written, at))]
        words = {node.value for cell in read for node in ast.walk(cell.tree) if isinstance(node, ast.Constant)}
        return [name for name in self.files if name in words]

    def led(self, notebook: nbformat.NotebookNode, written: list[Cell]) -> nbformat.NotebookNode:
        """Return the notebook with the links after each caption; ``written`` contains its code cells."""
        code = (cell for cell in notebook.cells if cell.cell_type == "code")
        for at, cell in enumerate(code):
            captioned = cell.metadata.get("table") or cell.metadata.get("mystnb", {}).get("figure", {})
            if "caption" in captioned and (names := self.behind(written, at)):
                self.used |= {f"{DATA}/{name}.csv": self.files[name].read_bytes() for name in names}
                links = ", ".join(f"{{download}}`{name} </{DATA}/{name}.csv>`" for name in names)
                captioned["caption"] = LINE.format(caption=captioned["caption"], links=links)
        return notebook
