"""Chapters run as notebooks: their measured claims at many seeds, and the reruns on other models of reruns.yml."""

import ast
import json
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import jupytext
import nbformat
import normgeom as ng
import pandas as pd
import papermill
import yaml
from normgeom.commands.loading import described
from normgeom.text.corpora import HUB, load_corpus
from normgeom.training.twins import SIZES
from normgeom_lab.common.pictures import NULLS, null_band
from papermill.exceptions import PapermillExecutionError
from press import seeds as claims
from press.book import CHAPTERS, Book
from press.cells import Cell, behind, cells
from press.trees import digest

from experiments.registry import KEPT, experiment
from experiments.stamps import through
from experiments.twins import ANGLES, FORMS, RULE, course, end, forms, shown_angles

ROOT = Path(__file__).parents[1]
TELL = "import json\nfrom normgeom.checks import verdicts\nprint(json.dumps(verdicts))"
TWINS = ("layer", "rms")


def verdicts_of(page: str, draft: Path, parameters: dict, progress: bool = False, root: Path = ROOT) -> pd.DataFrame:
    """Run a chapter with these parameters, cell by cell in ``draft``: what it judged, a row a verdict.

    Raises:
        RuntimeError: a cell failed, as where a statement does not hold.
    """
    notebook = jupytext.read(root / CHAPTERS / f"{page}.md")
    notebook.cells.append(nbformat.v4.new_code_cell(TELL, metadata=dict(jupyter=dict(source_hidden=True))))
    draft.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, draft)
    quiet = dict(progress_bar=progress, request_save_on_cell_execute=progress)
    try:
        done = papermill.execute_notebook(draft, draft, parameters, kernel_name="python3", **quiet)
    except PapermillExecutionError as error:
        raise RuntimeError(f"cell {error.cell_index}: {error.ename}: {error.evalue}") from None
    # a kernel may hand over one print in several outputs
    found = json.loads("".join(o.text for o in done.cells[-1].outputs if o.get("name") == "stdout"))
    return pd.DataFrame(found, columns=["claim", "deviation", "mutant", "bound"])


# what a chapter's numbers go through


def behind_claims(book: Book, page: str, name: str = "") -> list[Cell]:
    """The cells of a page that its live claims rest on, and those that use ``name``."""
    written, labels = cells(book, page), {claim.label for claim in claims.live(book) if claim.page == page}
    chosen = [at for at, cell in enumerate(written) if labels & set(cell.verifies) or name in cell.names]
    needed = {*chosen, *(written.index(cell) for at in chosen for cell, _ in behind(written, at))}
    return [written[at] for at in sorted(needed)]


def modules(book: Book, page: str, used: list[Cell]) -> dict[str, str]:
    """The library's modules that some cells of a page go through, by what they use of the page's imports."""
    tree = ast.Module([statement for cell in used for statement in cell.tree.body], [])
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    for node in (node for cell in cells(book, page) for node in cell.tree.body):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            aliases = [alias for alias in node.names if (alias.asname or alias.name) in names]
            tree.body.append(type(node)(**{**dict(ast.iter_fields(node)), "names": aliases}))
    return through(tree)


# claims at many seeds


def judged(page: str, root: Path, seed: int) -> list[dict]:
    """What a chapter judged of each of its live claims at a seed, the worst of several, in units of the bound."""
    found, rows = verdicts_of(page, KEPT / f"claims/{page}-{seed}.ipynb", dict(seed=seed), root=root), []
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
            return versions | modules(book, page, behind_claims(book, page))

        register(
            claims.file(book, page).stem,
            f"The measured claims of the chapter {page}, each at {claims.LEAST} seeds: its deviation and that of its "
            "wrong version, the worst of several, in units of the bound.",
            dict(seed=range(claims.LEAST)),
            minutes=15,
            stamp=stamp,
            seeds="0 to 19: the chapter's parameter seed, of every random draw",
        )(partial(judged, page, book.root))


# reruns


def rows_of(path: Path) -> Iterator[tuple[str, str, float, dict]]:
    """Chapter, name, minutes and parameters of each rerun in a file.

    Raises:
        ValueError: a row lacks one of these.
    """
    for row in yaml.safe_load(path.read_text("utf-8")):
        given = dict(row) if isinstance(row, dict) else {}
        try:
            chapter, name, minutes = given.pop("chapter"), given.pop("name"), given.pop("minutes")
        except KeyError as error:
            raise ValueError(f"{path.name}: expected {error.args[0]} in each row, got {row!r:.100}") from None
        if chapter in ("07-inference", "08-training"):
            given["out"] = (KEPT / "reruns" / chapter / name).as_posix()
        yield chapter, name, minutes, given


def register_reruns(path: Path, book: Book, register=experiment) -> None:
    """An experiment for each row of a file, and the records that it writes."""
    live = {claim.page for claim in claims.live(book)}
    reruns = list(rows_of(path))
    trained = {given["out"] for chapter, _, _, given in reruns if chapter == "08-training"}
    for chapter, name, minutes, given in reruns:
        what = {}
        if chapter in live:
            what[f"observed-{chapter[:2]}-{name}"] = (
                f"Observations of {chapter} on another model: one holds if its deviation is within its bound."
            )
        if chapter == "07-inference":
            for kind in [f"-{norm}" for norm in TWINS] if given["model"] in trained else [""]:
                what |= {f"angles-{name}{kind}": OF_ANGLES, f"nulls-{name}{kind}": OF_NULLS}
        if chapter == "08-training":
            what |= {f"pair-{name}-{part}": sentence for part, sentence in OF_PAIRS.items()}

        def stamp(page: str = chapter, at: str = f"{chapter}/{name}", given: dict = given) -> dict[str, str]:
            used = behind_claims(book, page, "out")
            code = {f"reruns.yml:{at}": digest(sorted(map(str, given.items()))), page: digest([c.tree for c in used])}
            return code | modules(book, page, used)

        register(
            f"{chapter}/{name}",
            what,
            {},
            minutes=minutes,
            workers=1,
            needs=partial(lacking, given),
            optional=True,
            stamp=stamp,
            **about(given),
        )(partial(rerun, chapter, name, given, list(what)))


OF_ANGLES = (
    "Survey.table(): angles in degrees between hidden vectors and the uniform vector, and two random directions, "
    "before and after every norm."
)
OF_NULLS = (
    "Occupancy of directions of each null, 5 %, 50 % and 95 % quantiles over the directions, position 0 left out.  "
    "random: Gaussian; signs: entries of one size with random signs; matched: sums with random signs of the unit "
    "vectors of the first batch at that side of that norm."
)
OF_PAIRS = {
    "loss": "Held-out loss in nats a token after training.",
    "curve": "Training loss in nats a token, means of ten updates.",
    "angles": ANGLES,
    "forms": FORMS,
}


def lacking(given: dict) -> str:
    """The folder of a model or the text that is not here."""
    places = [given[key] for key in ("model", "corpus") if given.get(key, "").endswith(".txt")]
    places += [given["model"]] if given.get("model", "").startswith((".", "/", "_")) else []
    return " and ".join(place for place in places if not Path(place).exists())


def about(given: dict) -> dict[str, object]:
    """What the provenance says of a rerun; of a folder its last two parts, for a path tells nobody else anything."""
    model, rest = given.get("model"), {key: value for key, value in given.items() if key not in ("model", "out")}
    if model is None:
        size = SIZES[given["size"]]
        words = f"GPT-2, {size.layers} blocks, d = {size.width}, {size.heads} heads, no dropout, head tied; {RULE}"
        return dict(model=words, parameters=json.dumps(rest), seeds=f"[{given.get('seed', 0)}]")
    folder = Path(model).is_dir() or model.startswith("_")
    return dict(
        model="/".join(Path(model).parts[-2:]) if folder else lambda _: "{name} {commit}".format(**described(model)),
        corpus=lambda _: (
            given["corpus"] if given["corpus"] in HUB else json.dumps(load_corpus(given["corpus"]).provenance)
        ),
        parameters=json.dumps(rest),
        seed=given.get("seed", 0),
    )


def rerun(chapter: str, name: str, given: dict, records: list[str]) -> dict[str, pd.DataFrame]:
    """Run a chapter with a row's parameters; what it measured, by record."""
    os.environ.pop("OMP_NUM_THREADS", None)  # a kernel alone has all cores
    verdicts = verdicts_of(chapter, KEPT / f"reruns/{chapter}/{name}.ipynb", given, progress=True)
    found = dict.fromkeys(records)
    for record in records:
        if record.startswith("observed"):
            labels = {label for cell in cells(Book(ROOT), chapter) for label in cell.verifies}
            labels &= {claim.label for claim in claims.live(Book(ROOT))}
            rows = verdicts[verdicts.claim.isin(labels)].reset_index(drop=True)
            worst = rows.loc[(rows.deviation / rows.bound).groupby(rows.claim, sort=False).idxmax()]
            found[record] = worst[["claim", "deviation", "bound"]]
        elif record.startswith("pair"):
            found[record] = _pair(Path(given["out"]), name, record.rpartition("-")[2], given.get("seed", 0))
    for state in sorted(Path(given["out"]).glob("*.safetensors")) if chapter == "07-inference" else ():
        survey = ng.Survey.load(state)
        kind = f"-{survey.sites[0]['kind']}" if f"angles-{name}" not in records else ""
        found |= {f"angles-{name}{kind}": angles(survey), f"nulls-{name}{kind}": bands(survey)}
    return found


def angles(survey: ng.Survey) -> pd.DataFrame:
    """A survey's table for the uniform vector and two random directions."""
    table = survey.table()
    shown = table[table.direction.isin(("uniform", "random_a", "random_b")) & (table.tokens > 0)]
    # an RMSNorm has no mean to drop, and records have no empty cells
    return shown.drop(columns="drop_error") if shown.drop_error.isna().any() else shown


def bands(survey: ng.Survey) -> pd.DataFrame:
    """What chance shows beside :func:`angles`, for each null."""
    table = survey.table()
    return pd.concat(
        null_band(table, side, null).reset_index().assign(side=side, null=null)
        for side in ("in", "out")
        for null in NULLS
    )


def _pair(out: Path, name: str, part: str, seed: int) -> pd.DataFrame:
    """One table of both twins that a chapter trained."""
    measure = dict(loss=end, curve=course, angles=shown_angles)
    tables = []
    for norm in TWINS:
        table = forms(out / norm, norm) if part == "forms" else measure[part](out / norm)
        tables.append(table.assign(norm=norm, seed=seed, **(dict(part=name) if part == "loss" else {})))
    return pd.concat(tables)


BOOK = Book(ROOT)
register_claims(BOOK)
register_reruns(Path(__file__).with_name("reruns.yml"), BOOK)
