"""The reasons to refuse to build the book: one function per rule, which yields a message for each violation.

Sphinx, whose warnings are errors here, refuses duplicate labels and references to unknown labels.
"""

from __future__ import annotations

from collections.abc import Iterator

from nbformat import NotebookNode

from press import seeds
from press.book import Book
from press.cells import cells
from press.course import asked_of_nothing
from press.exercises import unmatched_grader
from press.labels import CHECKED, NAMED, NOT_ASSERTED, PREFIXES, STATED, Claims
from press.myst import walk
from press.quiet import title
from press.stage import is_table

OPEN = 12  # maximum number of lines of a cell that stays open on its page
SLIDER = 'class="explore"'


def refusals(book: Book) -> list[str]:
    """Return the violations of all rules, one line each."""
    claims = Claims(book)
    return [message for rule in RULES for message in rule(book, claims)]


def unchecked_statement(book: Book, claims: Claims) -> Iterator[str]:
    verified = {label for check in claims.checks for label in check.verifies}
    for s in claims.statements:
        if s.prefix not in PREFIXES:
            yield f"{s.page}, cell {s.cell}: label {s.label} has no known prefix ({', '.join(sorted(PREFIXES))})"
        if s.prefix in CHECKED and s.label not in verified:
            yield f"{s.page}, cell {s.cell}: {s.label} has no check"


def faulty_check(book: Book, claims: Claims) -> Iterator[str]:
    for check in claims.checks:
        at = f"{check.page}, cell {check.cell}"
        failing = {verdict.label for verdict in check.verdicts if verdict.mutant}
        if not check.verifies:
            yield f"{at}: tagged check, but verifies no label (:verifies: [eq-…])"
        for label in check.verifies:
            if label not in claims.by_label:
                yield f"{at}: verifies {label}, which no page defines"
            if label not in failing:
                yield f"{at}: the check of {label} has no near miss that fails"
            if label.startswith("claim-") and not check.measured_on:
                yield f"{at}: {label} does not say what it was measured on (:measured-on: …)"
        for verdict in check.verdicts:
            if verdict.holds.startswith(NOT_ASSERTED):
                yield f"{at}: {verdict.label} is reported, not asserted; build the book with the default parameters"


def measured_when(book: Book, claims: Claims) -> Iterator[str]:
    """Readers must see which claims rest on a recorded table, and which on a run of the chapter."""
    for name in book.names:
        written = cells(book, name)
        for at, cell in enumerate(written):
            said = "recorded" in str(cell.head.get("measured-on", ""))
            if any(label.startswith("claim-") for label in cell.verifies) and said != seeds.is_recorded(written, at):
                how = "says recorded, but it is a live run" if said else "does not say recorded, but it reads a record"
                yield f"{name}, {cell.verifies[0]}: measured-on {how}"


def claim_untried(book: Book, claims: Claims) -> Iterator[str]:
    said = {block.label: block.body for _, cell in _cells(book, "markdown") for block, _ in walk(cell.source)}
    tried = seeds.tried(book)
    for claim in seeds.live(book):
        for message in seeds.amiss(claim, tried.get(claim.label), said.get(claim.label, "")):
            yield f"{claim.page}: {claim.label} {message}"


def long_open_cell(book: Book, claims: Claims) -> Iterator[str]:
    for at, cell in _cells(book, "code"):
        stays = not title(cell) and "check" not in cell.metadata.get("tags", [])
        if stays and (lines := len(cell.source.splitlines())) > OPEN:
            yield f"{at}: {lines} lines stay open; the limit is {OPEN} (add :fold: …)"


def figure_without_words(book: Book, claims: Claims) -> Iterator[str]:
    for at, cell in _cells(book, "code"):
        captioned = {"name", "caption"} <= set(cell.metadata.get("mystnb", {}).get("figure", {}))
        for output in cell.outputs:
            drawn, html = _is_drawn(output), output.get("data", {}).get("text/html", "")
            if drawn and not output.metadata.get("alt", "").strip():
                yield f"{at}: a figure without alt text"
            if not captioned and (drawn or SLIDER in html):
                yield f"{at}: a figure without a name and a caption (mystnb: {{figure: …}})"


def table_without_caption(book: Book, claims: Claims) -> Iterator[str]:
    """Report data frames displayed by pandas, and tables without a number or a caption."""
    for at, cell in _cells(book, "code"):
        captioned = cell.metadata.get("table", {})
        for output in cell.outputs:
            if 'class="dataframe"' in output.get("data", {}).get("text/html", ""):
                yield f"{at}: a data frame displayed by pandas; use view.table"
            if is_table(output) and not {"name", "caption"} <= set(captioned):
                yield f"{at}: a table without a name and a caption (table: {{name: tab-…}})"
        if captioned and sum(map(is_table, cell.outputs)) != 1:
            yield f"{at}: a caption of a table, but not exactly one table"


def glued_mathematics(book: Book, claims: Claims) -> Iterator[str]:
    """MyST reads ``$$`` in the middle of a paragraph as two empty formulas, and the page shows raw LaTeX."""
    for at, cell in _cells(book, "markdown"):
        for block, _ in walk(cell.source):
            if block.kind == "prose" and "$$" in map(str.strip, block.body.split("\n")):
                near = block.body.partition("\n")[0][:40]
                yield f"{at}: $$ needs an empty line before and after it, near “{near}”"


def label_of_nothing(book: Book, claims: Claims) -> Iterator[str]:
    """Report labels in docstrings and comments of the library and the chapters' package that no page defines."""
    name = book.project["name"]
    for path in sorted(path for package in (name, f"{name}_lab") for path in book.root.glob(f"lib/{package}/**/*.py")):
        for label in dict.fromkeys(NAMED.findall(path.read_text("utf-8"))):
            if label not in claims.by_label:
                yield f"{path.relative_to(book.root)} names {label}, which no page defines"


def used_before_stated(book: Book, claims: Claims) -> Iterator[str]:
    """A proof may cite only earlier statements, so that none is circular; later ones are cited outside the proof."""
    place = {s.label: number for number, s in enumerate(claims.statements)}
    first: dict[str, int] = {}
    for number, s in enumerate(claims.statements):
        first.setdefault(s.page, number)
    for s in claims.statements:
        for proof in s.proofs:
            for label in proof.cites:
                used = claims.by_label.get(label)
                ahead = used and place[label] >= first[s.page] + proof.before
                if ahead and used.prefix in STATED and claims.whole(used) is not s:
                    where = f"{used.page}, cell {used.cell}"
                    yield f"{s.page}, cell {proof.cell}: the proof of {s.label} uses {label}, stated later: {where}"


def _cells(book: Book, kind: str) -> Iterator[tuple[str, NotebookNode]]:
    """Yield the place of each cell of a kind, and the cell."""
    for page in book.pages:
        for number, cell in enumerate(page.cells, 1):
            if cell.cell_type == kind:
                yield f"{page.name}, cell {number}", cell


def _is_drawn(output: NotebookNode) -> bool:
    return any(kind.startswith("image/") for kind in output.get("data", {}))


RULES = [
    unchecked_statement,
    faulty_check,
    measured_when,
    claim_untried,
    long_open_cell,
    figure_without_words,
    table_without_caption,
    glued_mathematics,
    label_of_nothing,
    used_before_stated,
    unmatched_grader,
    asked_of_nothing,
]
