"""Tables of trained twins: what the book's own small ones and any that ``normgeom train`` wrote are recorded by."""

import json
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

import click
import pandas as pd
from normgeom.jobs import PROVENANCE
from normgeom.records import FOLDER
from normgeom.training.trainer import DIRECTIONS
from normgeom_lab.common.recording import record
from normgeom_lab.training import beside_signs, shapes

# What tells two runs of one part from each other.
KEY = ("norm", "rate", "decay", "start", "seed")
TWINS = ("layer", "rms")
STAGES = (1, 5, 10, 20, 50, 100)  # percents of the updates
RULE = (
    "AdamW, β = 0.9 and 0.95, matrices and embeddings decay, gradients clipped to norm 1, linear warm-up over a tenth, "
    "at most 2000, cosine to a tenth"
)
ANGLES = f"Angles, occupancies and mean lengths at each norm, beside {len(DIRECTIONS) - 3} random sign vectors."
FORMS = "Gains, their ellipsoids, and the share of outputs within 5 % of the surface."


def table(folders: dict[tuple, Path], name: str) -> pd.DataFrame:
    """One table of some runs, with their keys."""
    tables = (
        pd.read_parquet(folder / f"{name}.parquet").assign(**dict(zip(KEY, key, strict=True)))
        for key, folder in folders.items()
    )
    return pd.concat(tables, ignore_index=True)


def ends(folders: dict[tuple, Path]) -> pd.DataFrame:
    """Held-out losses after the last update."""
    losses = table(folders, "loss")
    return losses[losses.step == losses.step.max()].drop(columns="step")


def course(folders: dict[tuple, Path]) -> pd.DataFrame:
    """Losses of training, means of ten updates."""
    curve = table(folders, "curve")
    curve["step"] = (curve.step - 1) // 10 * 10 + 10
    return curve.groupby(["norm", "seed", "step"], as_index=False, sort=False).loss.mean()


def angles(folders: dict[tuple, Path]) -> pd.DataFrame:
    """Angles beside random signs, one run after the other."""
    surveys = table(folders, "survey").groupby(list(KEY), sort=False)
    return pd.concat(
        [beside_signs(survey).assign(**dict(zip(KEY, key, strict=True))) for key, survey in surveys], ignore_index=True
    )


def angles_at_stages(folders: dict[tuple, Path]) -> pd.DataFrame:
    """Of :func:`angles` those that are shown: to the uniform direction, and to the drawn ones before the norms."""
    found = at_stages(angles(folders), STAGES).drop(columns=["rate", "decay", "start"])
    return found[(found.direction == "uniform") | (found.side == "in")]


def forms(folders: dict[tuple, Path]) -> pd.DataFrame:
    """Gains, axes and distance to the surface, one run after the other."""
    near, found = table(folders, "surface"), []
    for key, gains in table(folders, "gains").groupby(list(KEY), sort=False):
        of_run = near[(near.norm == key[0]) & (near.seed == key[-1])]
        of_run = shapes(gains, key[0] == "layer").merge(of_run[["step", "site", "q05", "near"]])
        found.append(of_run.assign(norm=key[0], seed=key[-1]))
    return pd.concat(found, ignore_index=True)


def at_stages(table: pd.DataFrame, percents: tuple[int, ...]) -> pd.DataFrame:
    """The rows of the start and of the stages next to some percents of the updates."""
    stages, last = sorted(set(table.step)), table.step.max()
    wanted = {min(stages, key=lambda step: abs(100 * step - percent * last)) for percent in percents}
    return table[table.step.isin({0, *wanted})]


# What is recorded of a pair, by the end of its name.
PARTS = {
    "loss": (ends, "Held-out loss in nats a token after training."),
    "curve": (course, "Training loss in nats a token, means of ten updates."),
    "angles": (angles_at_stages, ANGLES),
    "forms": (forms, FORMS),
}


def write_pair(name: str, runs: dict[tuple[str, int], Path], folder: Path = FOLDER) -> None:
    """Write pair-NAME-loss, -curve, -angles and -forms, with the columns of the records ``training-…``.

    Args:
        name: of the pair, such as its size.
        runs: for each norm and seed its folder, as :func:`normgeom.commands.train.train_twins` fills it: ``layer`` or
            ``rms`` in the folder that holds the provenance.
        folder: where the records go.

    Raises:
        ValueError: a run is not finished, or two were trained in different ways.
    """
    asked = {key: _asked(path) for key, path in runs.items()}
    about = _common(asked, runs)
    rate, decay = about["size"]["lr"], about["size"]["decay"]
    folders = {(norm, rate, decay, "drawn", seed): path for (norm, seed), path in runs.items()}
    for part, (measure, what) in PARTS.items():
        found = measure(folders)
        found = found.assign(part=name) if part == "loss" else found
        seeds = f"{sorted({seed for _, seed in runs})}: of weights, order of windows and directions"
        record(f"pair-{name}-{part}", found, what, folder, **_in_words(about), hours=_hours(runs.values()), seeds=seeds)


def _hours(runs: Iterable[Path]) -> str:
    """From the start of each folder's training to its end, pauses and whatever else the machine did included."""
    noted = [json.loads(path.read_text("utf-8")) for path in {run.parent / PROVENANCE for run in runs}]
    spans = [datetime.fromisoformat(one["had"]["finished"]) - datetime.fromisoformat(one["started"]) for one in noted]
    return f"{sum(span.total_seconds() for span in spans) / 3600:.2f}, pauses and other work included"


def _in_words(about: dict) -> dict[str, str]:
    """What a reader must know of a training that was asked for."""
    size = about["size"]
    return dict(
        model=f"GPT-2, {size['layers']} blocks, d = {size['width']}, {size['heads']} heads, no dropout, head tied; "
        "norms of normgeom_lab.common.variants.NORMS",
        tokens=f"{about['tokenizer']['name']}, a vocabulary of {about['tokenizer']['vocabulary']}",
        corpus=f"{_joined(about['corpus'])}; measured on {about['held_out']} tokens of its end",
        training=f"{size['steps']} updates of {size['batch']} windows of {size['length']} tokens, with a peak rate of "
        f"{size['lr']} and a decay of {size['decay']}; {RULE}",
        precision={"no": "float32"}.get(size["precision"], size["precision"]),
        trained=f"on {about['device']}, with {_joined(about['versions'])}",
    )


def _joined(named: dict[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in named.items())


def _asked(run: Path) -> dict:
    """What a finished run was asked for."""
    if not (run / "model").is_dir():
        raise ValueError(f"runs: expected a finished training, there is no {run / 'model'}")
    return json.loads((run.parent / PROVENANCE).read_text("utf-8"))["asked"]


def _common(asked: dict[tuple[str, int], dict], runs: dict[tuple[str, int], Path]) -> dict:
    """What was asked for in all runs alike, that is all but the seed."""
    first = next(iter(asked.values()), None)
    if first is None:
        raise ValueError("runs: expected at least one, got none")
    for key, other in asked.items():
        if differing := [name for name in first if name != "seed" and other.get(name) != first[name]]:
            raise ValueError(f"runs: expected trainings that differ in norm and seed, {runs[key]} in {differing} too")
    return first


def finished(folders: tuple[Path, ...]) -> dict[tuple[str, int], Path]:
    """The finished twins in folders that ``normgeom train`` wrote, one folder a seed, by norm and seed."""
    runs = {}
    for folder in folders:
        if all((folder / norm / "model").is_dir() for norm in TWINS):
            seed = json.loads((folder / PROVENANCE).read_text("utf-8"))["asked"]["seed"]
            runs |= {(norm, seed): folder / norm for norm in TWINS}
        else:
            click.echo(f"{folder}: not finished, and left out")
    return runs


@click.command()
@click.argument("name")
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--folder", default=FOLDER, type=click.Path(path_type=Path), help="Where the records go.")
def main(name: str, folders: tuple[Path, ...], folder: Path) -> None:
    """Write pair-NAME-loss, -curve, -angles and -forms of twins in FOLDERS, which normgeom train wrote."""
    runs = finished(folders)
    try:
        write_pair(name, runs, folder)
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"pair-{name}: {', '.join(f'{norm} {seed}' for norm, seed in runs)}")
