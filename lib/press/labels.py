"""What the pages state and what their check cells verify."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import nbformat

from press.book import Book, Page
from press.myst import roles, walk

PROVABLE = {"thm": "prf:theorem", "prop": "prf:proposition", "cor": "prf:corollary", "lem": "prf:lemma"}
CHECKED = {"eq", "claim", "err", *PROVABLE}
ROLES = {"eq": "eq", **dict.fromkeys(("fig", "tab"), "numref"), **dict.fromkeys(("sec", "ex", "sol"), "ref")}
PREFIXES = CHECKED | {"def", "conj", "fig", "sec", "ex", "sol", "tab"}
ALIAS = "ng"  # what the chapters call the library
NOT_ASSERTED = "reported, not asserted"
FUNCTION = re.compile(rf"\b{ALIAS}((?:\.[A-Za-z_]\w*)+)")
NAMED = re.compile(rf"(?<![\w`-])(?:{'|'.join(sorted(PREFIXES))})-\w(?:[\w-]*\w)?")
LINE = re.compile(r"(?P<label>[\w-]+): (?P<rest>.+)")
MUTANT = re.compile(r"(?P<holds>.+); with (?P<mutant>.+?) (?P<breaks>(?:> )?\S+)")


@dataclass
class Statement:
    """A label, where it is defined, and whether a proof stands by it."""

    label: str
    page: str
    cell: int
    title: str = ""
    inside: tuple[str, ...] = ()
    proved: bool = False

    @property
    def prefix(self) -> str:
        return self.label.partition("-")[0] if "-" in self.label else ""

    @property
    def link(self) -> str:
        """A reference to it in MyST, with its title."""
        return f"{{{role(self.label)}}}`{self.label}`" + (f" ({self.title})" if self.title else "")


@dataclass(frozen=True)
class Verdict:
    """One line that a check printed; without a mutant ``mutant`` and ``breaks`` are empty."""

    label: str
    holds: str
    mutant: str = ""
    breaks: str = ""


@dataclass(frozen=True)
class Check:
    """A cell tagged ``check``."""

    page: str
    cell: int
    verifies: list[str]
    measured_on: str
    functions: list[str]
    verdicts: list[Verdict] = field(default_factory=list)

    @property
    def anchor(self) -> str:
        """The target that staging puts before the cell."""
        return f"check-{Path(self.page).name}-{self.cell}"


class Claims:
    """Everything the book's pages define and check."""

    def __init__(self, book: Book):
        self.pages = book.pages

    @cached_property
    def statements(self) -> list[Statement]:
        return [statement for page in self.pages for statement in page_statements(page)]

    @cached_property
    def checks(self) -> list[Check]:
        return [
            _check(page, number, cell)
            for page in self.pages
            for number, cell in enumerate(page.cells, 1)
            if "check" in cell.metadata.get("tags", [])
        ]


def role(label: str) -> str:
    """The role that refers to a label of this prefix."""
    return ROLES.get(label.partition("-")[0], "prf:ref")


def page_statements(page: Page) -> list[Statement]:
    """The labels of a page in order; proofs are credited to the statement before them and to what they cite."""
    found: list[Statement] = []
    cited: set[str] = set()
    for number, cell in enumerate(page.cells, 1):
        if cell.cell_type == "code":
            for captioned in (cell.metadata.get("mystnb", {}).get("figure", {}), cell.metadata.get("table", {})):
                if "name" in captioned:
                    found.append(Statement(captioned["name"], page.name, number))
            continue
        for block, inside in walk(cell.source):
            if block.label:
                found.append(Statement(block.label, page.name, number, block.argument, inside))
            if block.name == "prf:proof":
                cited |= set(roles(block.body, "eq"))
                _credit(found)
    for statement in found:
        statement.proved |= statement.label in cited or "prf:proof" in statement.inside
    return found


def _credit(found: list[Statement]) -> None:
    """Mark what a proof proves: the nearest statement above that can have one, and the equations in it."""
    for statement in reversed(found):
        statement.proved |= bool(set(PROVABLE.values()) & set(statement.inside))
        if statement.prefix in PROVABLE:
            statement.proved = True
            return


def _check(page: Page, number: int, cell: nbformat.NotebookNode) -> Check:
    names = FUNCTION.findall(cell.source)
    return Check(
        page=page.name,
        cell=number,
        verifies=list(cell.metadata.get("verifies", [])),
        measured_on=cell.metadata.get("measured-on", ""),
        functions=[f"{ALIAS}{name}" for name in dict.fromkeys(names) if name != ".verify"],
        verdicts=verdicts(cell),
    )


def verdicts(cell: nbformat.NotebookNode) -> list[Verdict]:
    """The lines of a cell's stdout that a check may have printed."""
    text = "".join(out.text for out in cell.get("outputs", []) if out.get("name") == "stdout")
    return [verdict(match) for line in text.splitlines() if (match := LINE.fullmatch(line))]


def verdict(line: re.Match) -> Verdict:
    mutant = MUTANT.fullmatch(line["rest"])
    return Verdict(line["label"], **mutant.groupdict()) if mutant else Verdict(line["label"], line["rest"])
