"""Exercises as they are written, and what the library's self-checks know of their mistakes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec

from press.book import CHAPTERS, Book
from press.labels import Claims

MODULE = "exercises"  # of the chapters' package
SECTION = re.compile(r"^## Exercises\n(.*?)(?=^## |\Z)", re.M | re.S)
QUESTION = re.compile(r"^```\{exercise\}[^\n]*\n:label: (?P<label>[\w-]+)\n(?P<text>.*?)^```", re.M | re.S)
GRADER = re.compile(rf"\b{MODULE}\.(\w+)")


@dataclass(frozen=True)
class Exercise:
    """An exercise: ``text`` is its question."""

    label: str
    page: str
    text: str

    @property
    def graders(self) -> list[str]:
        """The self-checks that its question names."""
        return list(dict.fromkeys(GRADER.findall(self.text)))


def exercises(book: Book) -> list[Exercise]:
    """The exercises of all pages, in order."""
    found = []
    for name in book.names:
        text = (book.root / CHAPTERS / f"{name}.md").read_text("utf-8")
        for section in SECTION.findall(text):
            found += [Exercise(match["label"], name, match["text"]) for match in QUESTION.finditer(section)]
    return found


def graders(book: Book) -> dict[str, list[str]]:
    """The self-checks of the chapters' package, each with the messages for the mistakes that it knows."""
    package = f"{book.project['name']}_lab"
    if not find_spec(package):
        return {}
    known = vars(import_module(f"{package}.{MODULE}")).items()
    return {name: list(value.mistakes) for name, value in known if type(value).__name__ == "Exercise"}


def mistakes(book: Book, grader: str) -> dict[str, str]:
    """The mistakes that a self-check knows, each with the advice behind it."""
    return dict(said.split(". ", 1) for said in graders(book)[grader])


def unknown_grader(book: Book, claims: Claims) -> Iterator[str]:
    known = graders(book)
    for exercise in exercises(book):
        for name in exercise.graders:
            if name not in known:
                yield f"{exercise.page}: {exercise.label} names {MODULE}.{name}, which judges nothing"


def grader_without_exercise(book: Book, claims: Claims) -> Iterator[str]:
    named = {name for exercise in exercises(book) for name in exercise.graders}
    for name in graders(book):
        if name not in named:
            yield f"{MODULE}.{name} judges what no exercise asks for"
