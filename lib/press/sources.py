"""Behind the caption of each recorded figure and table: the data, and the program that recorded them."""

from __future__ import annotations

import ast
import json
from fnmatch import filter as matching
from functools import cached_property
from pathlib import Path

import nbformat

from press.book import Book
from press.cells import Cell, behind

DATA, PROGRAMS = Path("figures/data"), Path("experiments")
HEAD = "data"  # in a cell's head: the records that the library reads for it, where its own code does not name them
LINE = '{caption} <span class="sources">{words}</span>'
DOWNLOAD = "{{download}}`{words} </{file}>`"


class Sources:
    """The recorded measurements of a book."""

    def __init__(self, book: Book):
        self.root = book.root
        self.used: dict[str, bytes] = {}  # file → content of what captions have led to so far

    @cached_property
    def names(self) -> list[str]:
        return sorted(path.stem for path in (self.root / DATA).glob("*.csv"))

    def behind(self, written: list[Cell], at: int) -> list[str]:
        """The measurements that a cell shows: those its head lists, or those named where what it uses was made."""
        if patterns := written[at].head.get(HEAD):
            return [name for pattern in patterns for name in matching(self.names, pattern)]
        read = [written[at], *(cell for cell, _ in behind(written, at))]
        words = {node.value for cell in read for node in ast.walk(cell.tree) if isinstance(node, ast.Constant)}
        return [name for name in self.names if name in words]

    def led(self, notebook: nbformat.NotebookNode, written: list[Cell]) -> nbformat.NotebookNode:
        """The notebook with the line behind each caption; ``written`` are its code cells."""
        code = (cell for cell in notebook.cells if cell.cell_type == "code")
        for at, cell in enumerate(code):
            captioned = cell.metadata.get("table") or cell.metadata.get("mystnb", {}).get("figure", {})
            if "caption" in captioned and (names := self.behind(written, at)):
                captioned["caption"] = LINE.format(caption=captioned["caption"], words=self._words(names))
        return notebook

    def _words(self, names: list[str]) -> str:
        programs = dict.fromkeys(program for name in names if (program := self._program(name)))
        links = {name: (DATA / f"{name}.csv").as_posix() for name in names} | {p.stem: p.as_posix() for p in programs}
        for file in links.values():
            self.used[file] = (self.root / file).read_bytes()
        parts = ("Data: ", names), ("; program: ", [program.stem for program in programs])
        return "".join(
            head + ", ".join(DOWNLOAD.format(words=name, file=links[name]) for name in listed)
            for head, listed in parts
            if listed
        )

    def _program(self, name: str) -> Path | None:
        """The module of a measurement, by its stamp the first in ``experiments``, else what runs chapters."""
        stamp = json.loads((self.root / DATA / f"{name}.json").read_text("utf-8")).get("stamp", "")
        module = next((part for part in stamp.split() if part.startswith(f"{PROGRAMS}.")), f"{PROGRAMS}.chapters")
        program = PROGRAMS / f"{module.rpartition('.')[2]}.py"
        return program if stamp and (self.root / program).is_file() else None
