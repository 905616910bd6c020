"""Each measured claim of a chapter tried at many seeds, by running the chapter at each."""

import hashlib
import json
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import product
from multiprocessing import get_context
from pathlib import Path

import click
import jupytext
import pandas as pd
from normgeom.records import FOLDER
from normgeom_lab.common.recording import record
from papermill.exceptions import PapermillExecutionError
from press import seeds as claims
from press.book import CHAPTERS, Book
from tqdm.auto import tqdm

from records.running import verdicts_of


def run(root: Path, page: str, seed: int, kept: Path) -> list[list]:
    """The verdicts of a chapter at a seed, ``[label, holds, breaks, tol]``; a run of the same cells is not run again.

    Raises:
        RuntimeError: a cell failed, as where a statement does not hold.
    """
    notebook = jupytext.read(root / CHAPTERS / f"{page}.md")
    code = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    path = kept / page / f"{hashlib.sha256(code.encode()).hexdigest()[:12]}-{seed}.json"
    if not path.is_file():
        draft = path.with_suffix(".ipynb")
        try:
            found = verdicts_of(notebook, draft, dict(seed=seed))
        except PapermillExecutionError as error:
            why = f"{error.ename}: {error.evalue}"
            raise RuntimeError(f"{page} at seed {seed}, cell {error.cell_index}: {why}") from None
        path.write_text(json.dumps(found), "utf-8")
        draft.unlink()
    return json.loads(path.read_text("utf-8"))


def table(verdicts: dict[int, list[list]], live: list[claims.Live]) -> pd.DataFrame:
    """One row a claim and seed: what was judged of it, the worst of several, in units of the bound."""
    rows = []
    for claim, (seed, judged) in product(live, verdicts.items()):
        ratios = [(holds / tol, breaks / tol) for label, holds, breaks, tol in judged if label == claim.label]
        deviation, mutant = max(r[0] for r in ratios), min(r[1] for r in ratios)
        rows.append(dict(claim=claim.label, seed=seed, deviation=deviation, mutant=mutant, version=claim.version))
    return pd.DataFrame(rows)


def stale(book: Book) -> list[str]:
    """The pages with a live claim that has no record of its present version at enough seeds."""
    tried = claims.tried(book)
    fresh = {label: found.version for label, found in tried.items() if found.seeds >= claims.LEAST}
    return list(dict.fromkeys(c.page for c in claims.live(book) if fresh.get(c.label) != c.version))


@click.command()
@click.argument("pages", nargs=-1)
@click.option("--seeds", default=claims.LEAST, help="How many seeds, from 0.", show_default=True)
@click.option("--processes", default=2, help="Runs at a time.", show_default=True)
@click.option("--root", default=".", type=click.Path(path_type=Path, file_okay=False), help="The folder of the book.")
@click.option("--folder", default=FOLDER, type=click.Path(path_type=Path), help="Where the records go.")
@click.option(
    "--kept",
    default="_build/claims",
    type=click.Path(path_type=Path),
    help="Finished runs; delete it after a change in the library.",
)
def main(pages: tuple[str, ...], seeds: int, processes: int, root: Path, folder: Path, kept: Path) -> None:
    """Write claims-NN for PAGES such as 06-placement: every live claim at many seeds.

    Without PAGES for those whose records are missing or of another version.
    """
    book = Book(root)
    live = claims.live(book)
    known = list(dict.fromkeys(claim.page for claim in live))
    if unknown := [page for page in pages if page not in known]:
        raise click.ClickException(f"pages: expected some of {', '.join(known)}, got {', '.join(unknown)}")
    pages = pages or stale(book)
    found: dict[str, dict[int, list]] = {page: {} for page in pages}
    failed = []
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        jobs = {pool.submit(run, root, page, seed, kept): (page, seed) for page, seed in product(pages, range(seeds))}
        for job in tqdm(as_completed(jobs), total=len(jobs), unit="run"):
            page, seed = jobs[job]
            try:
                found[page][seed] = job.result()
            except RuntimeError as error:
                failed.append(str(error))
    for page, verdicts in found.items():
        if len(verdicts) == seeds:
            write(book, page, dict(sorted(verdicts.items())), folder)
    if failed:
        raise click.ClickException("\n".join(failed))


def write(book: Book, page: str, verdicts: dict[int, list[list]], folder: Path) -> None:
    """Record a page's claims and say what became of them."""
    of_page = [claim for claim in claims.live(book) if claim.page == page]
    tries = table(verdicts, of_page)
    record(
        claims.file(book, page).stem,
        tries,
        f"The measured claims of the chapter {page}, each at {len(verdicts)} seeds: its deviation and that of its "
        "wrong version, the worst of several, in units of the bound.",
        folder,
        seeds=f"{min(verdicts)} to {max(verdicts)}: the chapter's parameter seed, of every random draw",
    )
    for label, rows in tries.groupby("claim", sort=False):
        held, most, least = (rows.deviation <= 1).sum(), rows.deviation.max(), rows.mutant.min()
        click.echo(
            f"{label}: held at {held} of {len(rows)} seeds, at most {most:.2f}, wrong version at least {least:.2f}"
        )
