"""The measured claims of the chapters: each chapter runs as a notebook with many seeds."""

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
    """Run a chapter with a seed as the notebook ``draft``; return the verdicts of its checks, one row per verdict.

    Raises:
        RuntimeError: a cell failed, for example because a statement does not hold.
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
    # a kernel may split one print into several outputs
    found = json.loads("".join(o.text for o in done.cells[-1].outputs if o.get("name") == "stdout"))
    return pd.DataFrame(found, columns=["claim", "deviation", "mutant", "bound"])


def behind_claims(book: Book, page: str) -> list[Cell]:
    """Return the cells of a page that check its live claims, and the cells that these depend on, in order."""
    written, labels = cells(book, page), {claim.label for claim in claims.live(book) if claim.page == page}
    chosen = [at for at, cell in enumerate(written) if labels & set(cell.verifies)]
    needed = {*chosen, *(written.index(cell) for at in chosen for cell, _ in behind(written, at))}
    return [written[at] for at in sorted(needed)]


def modules(book: Book, page: str) -> dict[str, str]:
    """Return digests of the modules that a page's live claims use, found from the page's imports that they need."""
    tree = ast.Module([statement for cell in behind_claims(book, page) for statement in cell.tree.body], [])
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    for node in (node for cell in cells(book, page) for node in cell.tree.body):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            aliases = [alias for alias in node.names if (alias.asname or alias.name) in names]
            tree.body.append(type(node)(**{**dict(ast.iter_fields(node)), "names": aliases}))
    return through(tree)


def judged(page: str, root: Path, seed: int) -> list[dict]:
    """Run a chapter with a seed; return a row for each live claim, with its worst verdict in units of the bound."""
    found, rows = verdicts_of(page, KEPT / f"claims/{page}-{seed}.ipynb", seed, root), []
    for claim in (claim for claim in claims.live(Book(root)) if claim.page == page):
        mine = found[found.claim == claim.label]
        most, least = (mine.deviation / mine.bound).max(), (mine.mutant / mine.bound).min()
        rows.append(dict(claim=claim.label, deviation=most, mutant=least, version=claim.version))
    return rows


def register_claims(book: Book, register=experiment) -> None:
    """Register an experiment for each page with live claims."""
    live = claims.live(book)
    for page in dict.fromkeys(claim.page for claim in live):

        def stamp(page: str = page) -> dict[str, str]:
            versions = {claim.label: claim.version for claim in live if claim.page == page}
            return versions | modules(book, page)

        register(
            claims.file(book, page).stem,
            f"The measured claims of chapter {page} with {claims.LEAST} seeds. deviation: largest deviation from the "
            "claim; mutant: smallest deviation of a deliberately wrong version; both in units of the claim's bound.",
            dict(seed=range(claims.LEAST)),
            minutes=15,
            stamp=stamp,
            seeds="0 to 19; the seed is the chapter's parameter and decides every random draw",
        )(partial(judged, page, book.root))


register_claims(Book(Path(__file__).parents[1]))
