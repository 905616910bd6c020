"""What the pages state and what their check cells verify."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import nbformat

from press.book import Book, Page
from press.myst import Block, references, walk

PROOF = "prf:proof"
PROVABLE = {"thm", "prop", "cor", "lem"}
CHECKED = {"eq", "claim", "err", *PROVABLE}
LISTED = CHECKED | {"conj"}
STATED = LISTED | {"def"}
ROLES = {"eq": "eq", **dict.fromkeys(("fig", "tab"), "numref"), **dict.fromkeys(("sec", "ex", "sol"), "ref")}
PREFIXES = CHECKED | {"def", "conj", "fig", "sec", "ex", "sol", "tab"}
ALIAS, LAB = "ng", "lab"  # what the chapters call the library, and their own module
NOT_ASSERTED = "reported, not asserted"
FUNCTION = re.compile(rf"\b{ALIAS}((?:\.[A-Za-z_]\w*)+)")
NAMED = re.compile(rf"(?<![\w`-])(?:{'|'.join(sorted(PREFIXES))})-\w(?:[\w-]*\w)?")
LINE = re.compile(r"(?P<label>[\w-]+): (?P<rest>.+)")
MUTANT = re.compile(r"(?P<holds>.+); with (?P<mutant>.+?) (?P<breaks>(?:> )?\S+)")


@dataclass(frozen=True)
class Proof:
    """A proof: the labels that it cites, and the number of labels before it on its page."""

    cell: int
    cites: list[str]
    before: int


@dataclass
class Statement:
    """A label, where it is defined, and what the pages say about it.

    ``kind`` is what readers call it, such as theorem or equation; ``cites`` contains the labels in its own text;
    ``part_of`` is the label of the statement whose text or proof contains it, or an empty string.
    """

    label: str
    page: str
    cell: int
    title: str = ""
    kind: str = ""
    part_of: str = ""
    cites: list[str] = field(default_factory=list)
    proofs: list[Proof] = field(default_factory=list)
    proved: bool = False

    @property
    def prefix(self) -> str:
        return self.label.partition("-")[0] if "-" in self.label else ""

    @property
    def link(self) -> str:
        """A MyST reference to the statement, with its title."""
        return reference(self.label, self.title)


@dataclass(frozen=True)
class Verdict:
    """One line that a check printed; ``mutant`` and ``breaks`` are empty if it has no near miss."""

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
    verdicts: list[Verdict] = field(default_factory=list)

    @property
    def anchor(self) -> str:
        """The target that :mod:`press.stage` puts before the cell."""
        return f"check-{Path(self.page).name}-{self.cell}"


class Claims:
    """Everything that the book's pages define and check."""

    def __init__(self, book: Book):
        self.pages = book.pages

    @cached_property
    def statements(self) -> list[Statement]:
        return [statement for page in self.pages for statement in page_statements(page)]

    @cached_property
    def by_label(self) -> dict[str, Statement]:
        return {statement.label: statement for statement in self.statements}

    def whole(self, s: Statement) -> Statement:
        """Return the statement that contains ``s``, or ``s``: citing an equation of a theorem uses the theorem."""
        return self.by_label.get(s.part_of, s)

    @cached_property
    def checks(self) -> list[Check]:
        return [
            _check(page, number, cell)
            for page in self.pages
            for number, cell in enumerate(page.cells, 1)
            if "check" in cell.metadata.get("tags", [])
        ]


def role(label: str) -> str:
    """Return the MyST role for references to a label, which depends on its prefix."""
    return ROLES.get(label.partition("-")[0], "prf:ref")


def reference(label: str, title: str = "") -> str:
    """Return a MyST reference to a label, followed by the title in parentheses if there is one."""
    return f"{{{role(label)}}}`{label}`" + (f" ({title})" if title else "")


def page_statements(page: Page) -> list[Statement]:
    """Return the labels of a page in order, each with its proofs.

    A proof belongs to the nearest provable statement above it and to the equations in both.  A proof is taken to use
    whatever it cites, so a remark on later statements belongs outside the proof.
    """
    found: list[Statement] = []
    proven: Statement | None = None
    for number, cell in enumerate(page.cells, 1):
        if cell.cell_type == "code":
            for kind, captioned in (
                ("figure", cell.metadata.get("mystnb", {}).get("figure", {})),
                ("table", cell.metadata.get("table", {})),
            ):
                if "name" in captioned:
                    found.append(Statement(captioned["name"], page.name, number, kind=kind))
            continue
        for block, inside in walk(cell.source):
            if block.label:
                found.append(_stated(block, inside, page.name, number, proven))
            if block.name == PROOF:
                proven = next((s for s in reversed(found) if s.prefix in PROVABLE), None)
                if proven:
                    proven.proofs.append(Proof(number, references(block.body), len(found)))
    proved = {s.label for s in found if s.proofs}
    for statement in found:
        statement.proved |= bool({statement.label, statement.part_of} & proved)
    return found


def _stated(block: Block, inside: tuple[Block, ...], page: str, cell: int, proven: Statement | None) -> Statement:
    in_proof = PROOF in [outer.name for outer in inside]
    around = [outer.label for outer in inside if outer.name.startswith("prf:") and outer.label]
    part_of = (proven.label if proven else "") if in_proof else (around[-1] if around else "")
    kind = "equation" if block.kind == "math" or block.name == "math" else block.name.removeprefix("prf:")
    cites = references(f"{block.argument}\n{block.body}")
    return Statement(block.label, page, cell, block.argument, kind, part_of, cites, proved=in_proof)


def _check(page: Page, number: int, cell: nbformat.NotebookNode) -> Check:
    return Check(
        page=page.name,
        cell=number,
        verifies=list(cell.metadata.get("verifies", [])),
        measured_on=cell.metadata.get("measured-on", ""),
        verdicts=verdicts(cell),
    )


def verdicts(cell: nbformat.NotebookNode) -> list[Verdict]:
    """Return the lines of a cell's stdout that have the form of a check's output."""
    text = "".join(out.text for out in cell.get("outputs", []) if out.get("name") == "stdout")
    return [verdict(match) for line in text.splitlines() if (match := LINE.fullmatch(line))]


def verdict(line: re.Match) -> Verdict:
    mutant = MUTANT.fullmatch(line["rest"])
    return Verdict(line["label"], **mutant.groupdict()) if mutant else Verdict(line["label"], line["rest"])
