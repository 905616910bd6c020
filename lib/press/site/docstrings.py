"""Docstrings on the reference page, from autodoc: their labels become references, and the package is called ``ng``."""

from __future__ import annotations

from pathlib import Path

from sphinx.application import Sphinx

from press.book import Book
from press.reference import linked, public


def link(app: Sphinx, what: str, name: str, value: object, options: object, lines: list[str]) -> None:
    lines[:] = linked("\n".join(lines), app.config.press_package).split("\n")


def find(app: Sphinx) -> None:
    """Let autodoc find the library under the name that chapters give it."""
    app.config.press_package = Book(Path(app.srcdir)).project["name"]
    public(app.config.press_package)


def setup(app: Sphinx) -> None:
    app.add_config_value("press_package", "", "env", str)
    app.connect("builder-inited", find)
    app.connect("autodoc-process-docstring", link, priority=100)
