"""Exercises as they are written, and what the library's self-checks know of their mistakes.

An exercise asks for code if code stands with it: a cell before the next exercise, a block of code in its solution, or
in its question a call or a name of the library.  Such an exercise names the self-check that judges it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec

from press.book import CHAPTERS, Book
from press.labels import ALIAS, Claims

MODULE = "exercises"  # of the chapters' package
SECTION = re.compile(r"^## Exercises\n(.*?)(?=^## |\Z)", re.M | re.S)
BEGIN = re.compile(r"^(?=```\{exercise\})", re.M)
QUESTION = re.compile(r"```\{exercise\}[^\n]*\n:label: (?P<label>[\w-]+)\n(?P<text>.*?)^```(?P<rest>.*)", re.M | re.S)
CALLED = re.compile(rf"`(?:(?:{ALIAS}|{MODULE})\.[\w.]+|\w+\([^`]*\))`")
CODE = re.compile(r"^```(?:\{code-cell\}|python)|(?<=\n\n) {4}\S", re.M)
GRADER = re.compile(rf"\b{MODULE}\.(\w+)")


@dataclass(frozen=True)
class Exercise:
    """An exercise: its question, and what stands between it and the next one."""

    label: str
    page: str
    text: str
    rest: str

    @property
    def asks_for_code(self) -> bool:
        return bool(CALLED.search(self.text) or CODE.search(self.rest))

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
            matches = map(QUESTION.match, BEGIN.split(section)[1:])
            found += [Exercise(match["label"], name, match["text"], match["rest"]) for match in matches]
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


def code_without_grader(book: Book, claims: Claims) -> Iterator[str]:
    known = graders(book)
    for exercise in exercises(book):
        if exercise.asks_for_code and not exercise.graders:
            yield f"{exercise.page}: {exercise.label} asks for code and names no self-check ({MODULE}.…)"
        for name in exercise.graders:
            if name not in known:
                yield f"{exercise.page}: {exercise.label} names {MODULE}.{name}, which judges nothing"


def grader_without_exercise(book: Book, claims: Claims) -> Iterator[str]:
    named = {name for exercise in exercises(book) for name in exercise.graders}
    for name in graders(book):
        if name not in named:
            yield f"{MODULE}.{name} judges what no exercise asks for"
