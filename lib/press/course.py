"""The course kit: chapters/course.yml as data, and as a page of the book."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import yaml
from jinja2 import Environment

from press.book import CHAPTERS, Book
from press.exercises import exercises, mistakes
from press.labels import Claims, reference
from press.myst import table

FILE = f"{CHAPTERS}/course.yml"
TEMPLATE = Path(__file__).with_name("course.md")
SLIDES = "course"  # the folder of the slides, next to that of the chapters


@dataclass(frozen=True)
class Part:
    """A part of a lecture; ``show`` contains labels with a line of explanation each, in the order of the slides."""

    title: str
    minutes: int
    show: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Lecture:
    """A lecture; ``words``, ``before``, ``run`` and ``after`` are MyST text, ``prove`` and ``exercises`` are labels."""

    number: int
    title: str
    aims: list[str]
    words: list[str]
    before: str
    parts: tuple[Part, ...]
    prove: list[str]
    run: str
    exercises: list[str]
    after: str

    @property
    def file(self) -> str:
        """The path of its slides, relative to the folder of the pages."""
        return f"{SLIDES}/lecture-{self.number}.html"

    @property
    def glossary(self) -> str:
        """The anchor of its list of terms on the page of the course kit."""
        return f"{SLIDES}-words-{self.number}"

    @property
    def shown(self) -> list[str]:
        return [label for part in self.parts for label, _ in part.show]

    @property
    def begins(self) -> list[int]:
        """The minute at which each part begins."""
        return [0, *accumulate(part.minutes for part in self.parts)][:-1]


def lectures(book: Book) -> list[Lecture]:
    """The lectures of the book; a book without a course has none."""
    path = book.root / FILE
    entries = yaml.safe_load(path.read_text("utf-8"))["lectures"] if path.is_file() else []
    return [_lecture(number, entry) for number, entry in enumerate(entries, 1)]


def course(book: Book) -> str:
    """Return the lectures of the course kit as MyST text."""
    known = {exercise.label: exercise for exercise in exercises(book)}
    words = Environment(trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    words.filters["reference"] = reference
    return words.from_string(TEMPLATE.read_text("utf-8")).render(
        lectures=lectures(book),
        timetable=lambda lecture: table(("minutes", "part", "on the slides"), _timetable(lecture)),
        asked=lambda lecture: [known[label] for label in lecture.exercises],
        mistakes=lambda grader: table(("mistake", "what the self-check says"), mistakes(book, grader).items()),
    )


def asked_of_nothing(book: Book, claims: Claims) -> Iterator[str]:
    """Report course labels that are not exercises or are on no slide; Sphinx refuses all other unknown labels."""
    asked = {exercise.label for exercise in exercises(book)}
    for lecture in lectures(book):
        for label in lecture.exercises:
            if label not in asked:
                yield f"{FILE}, lecture {lecture.number}: {label} is not an exercise"
        for label in lecture.prove:
            if label not in lecture.shown:
                yield f"{FILE}, lecture {lecture.number}: {label} is to be proved, but no slide shows it"


def _lecture(number: int, entry: dict) -> Lecture:
    parts = (
        part | {"show": tuple(pair for shown in part["show"] for pair in shown.items())} for part in entry["parts"]
    )
    return Lecture(number, **entry | {"parts": tuple(Part(**part) for part in parts)})


def _timetable(lecture: Lecture) -> Iterator[list[str]]:
    for begin, part in zip(lecture.begins, lecture.parts, strict=True):
        for at, (label, words) in enumerate(part.show):
            minutes = f"{begin} to {begin + part.minutes}"
            yield [*((minutes, part.title) if at == 0 else ("", "")), f"{reference(label)}: {words}"]
