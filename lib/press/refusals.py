"""The reasons not to build the book: one function a rule, each yielding its messages.

Sphinx, whose every warning is an error here, refuses labels that are defined twice and references to nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from nbformat import NotebookNode

from press import seeds
from press.book import Book
from press.cells import cells
from press.course import asked_of_nothing
from press.exercises import grader_without_exercise, unknown_grader
from press.labels import CHECKED, NAMED, NOT_ASSERTED, PREFIXES, STATED, Check, Claims
from press.myst import walk
from press.quiet import title
from press.stage import is_table

OPEN = 12  # lines of a cell that stays open on its page
TURNING = 'class="turning"'


def refusals(book: Book) -> list[str]:
    """Everything that stands between the book and its pages, one line each."""
    claims = Claims(book)
    return [message for rule in RULES for message in rule(book, claims)]


def unknown_prefix(book: Book, claims: Claims) -> Iterator[str]:
    for s in claims.statements:
        if s.prefix not in PREFIXES:
            yield f"{s.page}, cell {s.cell}: label {s.label} has no known prefix ({', '.join(sorted(PREFIXES))})"


def unchecked_statement(book: Book, claims: Claims) -> Iterator[str]:
    verified = {label for check in claims.checks for label in check.verifies}
    for s in claims.statements:
        if s.prefix in CHECKED and s.label not in verified:
            yield f"{s.page}, cell {s.cell}: {s.label} has no check"


def check_of_nothing(book: Book, claims: Claims) -> Iterator[str]:
    for check in claims.checks:
        if not check.verifies:
            yield f"{_at(check)}: tagged check, but verifies no label (:verifies: [eq-…])"


def undefined_label(book: Book, claims: Claims) -> Iterator[str]:
    for check in claims.checks:
        for label in check.verifies:
            if label not in claims.by_label:
                yield f"{_at(check)}: verifies {label}, which no page defines"


def check_without_mutant(book: Book, claims: Claims) -> Iterator[str]:
    for check in claims.checks:
        failing = {verdict.label for verdict in check.verdicts if verdict.mutant}
        for label in check.verifies:
            if label not in failing:
                yield f"{_at(check)}: {label} has a check without a mutant that fails"


def claim_not_asserted(book: Book, claims: Claims) -> Iterator[str]:
    for check in claims.checks:
        for verdict in check.verdicts:
            if verdict.holds.startswith(NOT_ASSERTED):
                yield f"{_at(check)}: {verdict.label} is only reported: the book is built at the default parameters"


def measured_on_what(book: Book, claims: Claims) -> Iterator[str]:
    for check in claims.checks:
        for label in check.verifies:
            if label.startswith("claim-") and not check.measured_on:
                yield f"{_at(check)}: {label} does not say what it was measured on (:measured-on: …)"


def measured_when(book: Book, claims: Claims) -> Iterator[str]:
    """Readers must see which claims rest on a recorded table, and which on a run of the chapter."""
    for name in book.names:
        written = cells(book, name)
        for at, cell in enumerate(written):
            said = "recorded" in str(cell.head.get("measured-on", ""))
            if any(label.startswith("claim-") for label in cell.verifies) and said != seeds.is_recorded(written, at):
                how = "says recorded; it is a run of the page" if said else "does not say recorded; it is a record"
                yield f"{name}, {cell.verifies[0]}: measured-on {how}"


def claim_untried(book: Book, claims: Claims) -> Iterator[str]:
    said = {block.label: block.body for _, cell in _text(book) for block, _ in walk(cell.source)}
    tried = seeds.tried(book)
    for claim in seeds.live(book):
        for message in seeds.amiss(claim, tried.get(claim.label), said.get(claim.label, "")):
            yield f"{claim.page}: {claim.label} {message}"


def bound_of_nothing(book: Book, claims: Claims) -> Iterator[str]:
    for claim in seeds.live(book):
        if claim.theorem and claim.theorem not in claims.by_label:
            yield f"{claim.page}: the bound of {claim.label} is that of {claim.theorem}, which no page defines"


def long_open_cell(book: Book, claims: Claims) -> Iterator[str]:
    for at, cell in _code(book):
        stays = not title(cell) and "check" not in cell.metadata.get("tags", [])
        if stays and (lines := len(cell.source.splitlines())) > OPEN:
            yield f"{at}: {lines} lines stay open, at most {OPEN} are meant (:fold: …)"


def figure_without_alt(book: Book, claims: Claims) -> Iterator[str]:
    for at, cell in _code(book):
        if any(_is_drawn(out) and not out.metadata.get("alt", "").strip() for out in cell.outputs):
            yield f"{at}: a figure without alt text"


def figure_without_caption(book: Book, claims: Claims) -> Iterator[str]:
    for at, cell in _code(book):
        captioned = {"name", "caption"} <= set(cell.metadata.get("mystnb", {}).get("figure", {}))
        if not captioned and any(_is_drawn(out) or _slides(out) for out in cell.outputs):
            yield f"{at}: a figure without a name and a caption (mystnb: {{figure: …}})"


def table_without_caption(book: Book, claims: Claims) -> Iterator[str]:
    """A frame as pandas shows it, or a table that nobody numbered."""
    for at, cell in _code(book):
        captioned = cell.metadata.get("table", {})
        for output in cell.outputs:
            if 'class="dataframe"' in output.get("data", {}).get("text/html", ""):
                yield f"{at}: a frame as pandas shows it; use view.table"
            if is_table(output) and not {"name", "caption"} <= set(captioned):
                yield f"{at}: a table without a name and a caption (table: {{name: tab-…}})"
        if captioned and sum(map(is_table, cell.outputs)) != 1:
            yield f"{at}: a caption of a table, but not one table"


def glued_mathematics(book: Book, claims: Claims) -> Iterator[str]:
    """MyST reads ``$$`` in the middle of a paragraph as two empty formulas, and the page shows raw LaTeX."""
    for at, cell in _text(book):
        for block, _ in walk(cell.source):
            if block.kind == "prose" and "$$" in map(str.strip, block.body.split("\n")):
                near = block.body.partition("\n")[0][:40]
                yield f"{at}: $$ needs an empty line before and after it, near “{near}”"


def docstring_of_nothing(book: Book, claims: Claims) -> Iterator[str]:
    for place, doc in _docstrings(book):
        for label in dict.fromkeys(NAMED.findall(doc)):
            if label not in claims.by_label:
                yield f"{place}: the docstring names {label}, which no page defines"


def used_before_stated(book: Book, claims: Claims) -> Iterator[str]:
    """A proof refers to what it uses, so that none goes in a circle; a look ahead belongs outside of it."""
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


def _docstrings(book: Book) -> Iterator[tuple[str, str]]:
    """Where it stands and what it says: every docstring of the library and of the chapters' package."""
    name = book.project["name"]
    for path in sorted(path for package in (name, f"{name}_lab") for path in book.root.glob(f"lib/{package}/**/*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, (ast.Module, ast.FunctionDef, ast.ClassDef)) and (doc := ast.get_docstring(node)):
                yield f"{path.relative_to(book.root)}, {getattr(node, 'name', 'its head')}", doc


def _code(book: Book) -> Iterator[tuple[str, NotebookNode]]:
    """Each code cell of the book, and where it stands."""
    for page in book.notebooks:
        for number, cell in enumerate(page.cells, 1):
            if cell.cell_type == "code":
                yield f"{page.name}, cell {number}", cell


def _text(book: Book) -> Iterator[tuple[str, NotebookNode]]:
    """Each cell of words, and where it stands."""
    for page in book.pages:
        for number, cell in enumerate(page.cells, 1):
            if cell.cell_type == "markdown":
                yield f"{page.name}, cell {number}", cell


def _is_drawn(output: NotebookNode) -> bool:
    data = output.get("data", {})
    return any(kind.startswith("image/") for kind in data) or TURNING in data.get("text/html", "")


def _slides(output: NotebookNode) -> bool:
    return 'class="explore"' in output.get("data", {}).get("text/html", "")


def _at(check: Check) -> str:
    return f"{check.page}, cell {check.cell}"


RULES = [
    unknown_prefix,
    unchecked_statement,
    check_of_nothing,
    undefined_label,
    check_without_mutant,
    claim_not_asserted,
    measured_on_what,
    measured_when,
    claim_untried,
    bound_of_nothing,
    long_open_cell,
    figure_without_alt,
    figure_without_caption,
    table_without_caption,
    glued_mathematics,
    docstring_of_nothing,
    used_before_stated,
    unknown_grader,
    grader_without_exercise,
    asked_of_nothing,
]
