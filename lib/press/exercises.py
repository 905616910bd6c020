"""The exercises of the pages, and the mistakes that their self-checks recognise."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec

from press.book import Book
from press.labels import Claims
from press.myst import walk

MODULE = "exercises"  # a module of the chapters' package
GRADER = re.compile(rf"\b{MODULE}\.(\w+)")


@dataclass(frozen=True)
class Exercise:
    """An exercise; ``text`` is its question."""

    label: str
    page: str
    text: str

    @property
    def graders(self) -> list[str]:
        """The self-checks that its question names."""
        return list(dict.fromkeys(GRADER.findall(self.text)))


def exercises(book: Book) -> list[Exercise]:
    """The exercises of all pages, in order."""
    return [
        Exercise(block.label, page.name, block.body)
        for page in book.pages
        for cell in page.cells
        if cell.cell_type == "markdown"
        for block, _ in walk(cell.source)
        if block.name == "exercise"
    ]


def graders(book: Book) -> dict[str, list[str]]:
    """Return the self-checks of the chapters' package, each with its messages for the mistakes that it recognises."""
    package = f"{book.project['name']}_lab"
    if not find_spec(package):
        return {}
    known = vars(import_module(f"{package}.{MODULE}")).items()
    return {name: list(value.mistakes) for name, value in known if type(value).__name__ == "Exercise"}


def mistakes(book: Book, grader: str) -> dict[str, str]:
    """Return the mistakes that a self-check recognises, each with its advice."""
    return dict(said.split(". ", 1) for said in graders(book)[grader])


def unmatched_grader(book: Book, claims: Claims) -> Iterator[str]:
    asking = {name: exercise for exercise in exercises(book) for name in exercise.graders}
    known = graders(book)
    for name in [name for name in asking if name not in known]:
        yield f"{asking[name].page}: {asking[name].label} names {MODULE}.{name}, which is not a self-check"
    for name in [name for name in known if name not in asking]:
        yield f"{MODULE}.{name} is a self-check that no exercise names"
