"""The book on disk: its pages in the order of the table of contents, with notebook pages in executed form."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import nbformat
from sphinx_external_toc.parsing import parse_toc_yaml

CHAPTERS = Path("chapters")
EXECUTED = Path("_build/run")
HTML = Path("_build/html")
LEDGER, COURSE = "appendix/ledger", "appendix/course"
HEADER = re.compile(r"\A---\n(.*?\n)?jupytext:", re.S)


def chapter_number(name: str) -> int | None:
    """Return the number at the start of a file name, ``02-uniform-vector`` → 2, or None if there is none."""
    digits = re.match(r"\d+(?=-)", Path(name).name)
    return int(digits[0]) if digits else None


@dataclass(frozen=True)
class Page:
    """A page; ``name`` is its path below chapters/ without the suffix, and ``cells`` are its nbformat cells."""

    name: str
    is_notebook: bool
    notebook: nbformat.NotebookNode

    @property
    def cells(self) -> list[nbformat.NotebookNode]:
        return self.notebook.cells

    @property
    def title(self) -> str:
        return re.search(r"^# (.+)$", self.cells[0].source, re.M)[1]


class Book:
    """The pages under ``root``, with the metadata and settings of the book."""

    def __init__(self, root: Path):
        self.root = root

    @cached_property
    def names(self) -> list[str]:
        """The names of all pages in the table of contents, in order."""
        return [Path(file).relative_to(CHAPTERS).as_posix() for file in parse_toc_yaml(self.root / "_toc.yml")]

    @cached_property
    def pages(self) -> list[Page]:
        """All pages, in the order of the table of contents."""
        return [self._page(name) for name in self.names]

    @property
    def notebooks(self) -> list[Page]:
        return [page for page in self.pages if page.is_notebook]

    @property
    def project(self) -> dict:
        """The ``[project]`` table of pyproject.toml."""
        return self._pyproject["project"]

    @property
    def settings(self) -> dict:
        """The ``[tool.press]`` table of pyproject.toml."""
        return self._pyproject.get("tool", {}).get("press", {})

    @cached_property
    def _pyproject(self) -> dict:
        return tomllib.loads((self.root / "pyproject.toml").read_text("utf-8"))

    def is_notebook(self, name: str) -> bool:
        """Whether a page is a notebook, that is, whether its file has a jupytext header."""
        return HEADER.match(self._text(name)) is not None

    def _text(self, name: str) -> str:
        return (self.root / CHAPTERS / f"{name}.md").read_text("utf-8")

    def _page(self, name: str) -> Page:
        text = self._text(name)
        if HEADER.match(text):
            executed = nbformat.read(self.root / EXECUTED / f"{name}.ipynb", as_version=4)
            return Page(name, True, executed)
        return Page(name, False, nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(text)]))
