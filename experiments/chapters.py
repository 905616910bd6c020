"""The chapters' measured claims, each chapter run as a notebook at many seeds."""

import ast
import json
from functools import partial
from pathlib import Path

import jupytext
import nbformat
import pandas as pd
import papermill
from papermill.exceptions import PapermillExecutionError
from press import seeds as claims
from press.book import CHAPTERS, Book
from press.cells import Cell, behind, cells

from experiments.registry import KEPT, experiment
from experiments.stamps import through

TELL = "import json\nfrom normgeom.checks import verdicts\nprint(json.dumps(verdicts))"


def verdicts_of(page: str, draft: Path, seed: int, root: Path) -> pd.DataFrame:
    """Run a chapter at a seed, cell by cell in ``draft``: what it judged, a row a verdict.

    Raises:
        RuntimeError: a cell failed, as where a statement does not hold.
    """
    notebook = jupytext.read(root / CHAPTERS / f"{page}.md")
    notebook.cells.append(nbformat.v4.new_code_cell(TELL, metadata=dict(jupyter=dict(source_hidden=True))))
    draft.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, draft)
    quiet = dict(progress_bar=False, request_save_on_cell_execute=False)
    try:
        done = papermill.execute_notebook(draft, draft, dict(seed=seed), kernel_name="python3", **quiet)
    except PapermillExecutionError as error:
        raise RuntimeError(f"cell {error.cell_index}: {error.ename}: {error.evalue}") from None
    # a kernel may hand over one print in several outputs
    found = json.loads("".join(o.text for o in done.cells[-1].outputs if o.get("name") == "stdout"))
    return pd.DataFrame(found, columns=["claim", "deviation", "mutant", "bound"])


def behind_claims(book: Book, page: str) -> list[Cell]:
    """The cells of a page that its live claims rest on."""
    written, labels = cells(book, page), {claim.label for claim in claims.live(book) if claim.page == page}
    chosen = [at for at, cell in enumerate(written) if labels & set(cell.verifies)]
    needed = {*chosen, *(written.index(cell) for at in chosen for cell, _ in behind(written, at))}
    return [written[at] for at in sorted(needed)]


def modules(book: Book, page: str) -> dict[str, str]:
    """The library's modules that a page's live claims go through, by what they use of the page's imports."""
    tree = ast.Module([statement for cell in behind_claims(book, page) for statement in cell.tree.body], [])
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    for node in (node for cell in cells(book, page) for node in cell.tree.body):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            aliases = [alias for alias in node.names if (alias.asname or alias.name) in names]
            tree.body.append(type(node)(**{**dict(ast.iter_fields(node)), "names": aliases}))
    return through(tree)


def judged(page: str, root: Path, seed: int) -> list[dict]:
    """What a chapter judged of each of its live claims at a seed, the worst of several, in units of the bound."""
    found, rows = verdicts_of(page, KEPT / f"claims/{page}-{seed}.ipynb", seed, root), []
    for claim in (claim for claim in claims.live(Book(root)) if claim.page == page):
        mine = found[found.claim == claim.label]
        most, least = (mine.deviation / mine.bound).max(), (mine.mutant / mine.bound).min()
        rows.append(dict(claim=claim.label, deviation=most, mutant=least, version=claim.version))
    return rows


def register_claims(book: Book, register=experiment) -> None:
    """An experiment for each page with live claims."""
    live = claims.live(book)
    for page in dict.fromkeys(claim.page for claim in live):

        def stamp(page: str = page) -> dict[str, str]:
            versions = {claim.label: claim.version for claim in live if claim.page == page}
            return versions | modules(book, page)

        register(
            claims.file(book, page).stem,
            f"The measured claims of the chapter {page}, each at {claims.LEAST} seeds: its deviation and that of its "
            "wrong version, the worst of several, in units of the bound.",
            dict(seed=range(claims.LEAST)),
            minutes=15,
            stamp=stamp,
            seeds="0 to 19: the chapter's parameter seed, of every random draw",
        )(partial(judged, page, book.root))


register_claims(Book(Path(__file__).parents[1]))
