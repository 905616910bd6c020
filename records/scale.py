"""The reruns of chapters in reruns/: what each needs, in order of cost, resumed, and what they measured recorded."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import click
import nbformat
import normgeom as ng
import pandas as pd
import torch
import yaml
from nbclient.exceptions import DeadKernelError
from normgeom.commands.loading import described
from normgeom.jobs import write_json
from normgeom.records import FOLDER
from normgeom.text.corpora import load_corpus
from normgeom_lab.common.recording import record
from papermill.exceptions import PapermillExecutionError
from press import seeds as claims
from press.book import Book

from records.angles import write_angles
from records.needs import Absent, Speed, in_bytes, in_time, lacking, measured_speed, need_of, place_of
from records.pairs import finished, write_pair
from records.running import verdicts_of

KEPT = Path("_build/scale")
MEMORY = "free its memory or take a larger one; the same command goes on from what was saved"
HELP = {
    "OutOfMemoryError": MEMORY,
    "MemoryError": MEMORY,
    "DeadKernelError": f"most likely the system ended it for want of memory: {MEMORY}",
}


class Rerun(NamedTuple):
    """A chapter, the name of a file in reruns/, and its parameters."""

    chapter: str
    name: str
    parameters: dict

    def __str__(self) -> str:
        return f"{self.chapter}/{self.name}"

    def kept(self, suffix: str) -> Path:
        """Where a result of this rerun is kept."""
        return KEPT / f"{self}{suffix}"

    @property
    def notebook(self) -> nbformat.NotebookNode:
        return nbformat.read(Path("notebooks") / f"{self.chapter}.ipynb", as_version=4)

    @property
    def version(self) -> str:
        """Tells two contents of a file, or two versions of its chapter, apart."""
        code = [cell.source for cell in self.notebook.cells if cell.cell_type == "code"]
        return hashlib.sha256(json.dumps([code, self.parameters], sort_keys=True).encode()).hexdigest()[:12]

    @property
    def done(self) -> bool:
        mark = self.kept(".json")
        return mark.is_file() and json.loads(mark.read_text("utf-8"))["version"] == self.version


def read(folder: Path, only: tuple[str, ...], models: Path | None, given: dict[str, object]) -> list[Rerun]:
    """The reruns of a folder, those of some names, or all.

    Args:
        models: a folder of models, taken in place of those of the same name on the hub.
        given: parameters in place of those in the files, where a file has them.

    Raises:
        click.ClickException: a name that no file has; a file without parameters, or with one that its chapter has not.
    """
    found = []
    for path in sorted(folder.glob("*/*.yaml")):
        rerun = Rerun(path.parent.name, path.stem, yaml.safe_load(path.read_text("utf-8")))
        _check(path, rerun)
        values = {name: given.get(name, value) for name, value in rerun.parameters.items()}
        if "model" in values:
            values["model"] = place_of(values["model"], models)
        found.append(rerun._replace(parameters=values))
    if unknown := sorted(set(only) - {rerun.name for rerun in found}):
        names = ", ".join(dict.fromkeys(rerun.name for rerun in found))
        raise click.ClickException(f"ONLY: expected some of {names}, got {', '.join(unknown)}")
    return [rerun for rerun in found if not only or rerun.name in only]


def _check(path: Path, rerun: Rerun) -> None:
    if not isinstance(rerun.parameters, dict):
        raise click.ClickException(f"{path}: expected parameters by name, got {rerun.parameters!r:.40}")
    cell = next(cell for cell in rerun.notebook.cells if "parameters" in cell.metadata.get("tags", []))
    known = [line.partition(":")[0] for line in cell.source.splitlines()]
    if unknown := [name for name in rerun.parameters if name not in known]:
        raise click.ClickException(f"{path}: expected some of {', '.join(known)}, got {', '.join(unknown)}")


def parent(rerun: Rerun, others: list[Rerun]) -> Rerun | None:
    """The rerun whose training makes the model of this one."""
    model = Path(rerun.parameters.get("model", ""))
    above = {model, *model.parents} - {Path()}
    return next((o for o in others if o is not rerun and Path(o.parameters.get("out", "")) in above), None)


def planned(rerun: Rerun, speed: Callable[[], Speed]) -> tuple[float, str]:
    """The seconds of a rerun, and a line that says what it needs.

    Raises:
        Absent: it cannot run here; the message says why.
    """
    need = need_of(rerun.chapter, rerun.parameters, speed)
    line = f"memory {in_bytes(need.memory)}, disk {in_bytes(need.disk)}, time {in_time(need.seconds)}"
    if words := list(lacking(need, rerun.chapter, KEPT)):
        raise Absent(f"{'; '.join(words)} ({line})")
    return need.seconds, line


def plan(reruns: list[Rerun], speed: Callable[[], Speed]) -> Iterator[Rerun]:
    """The reruns that can run, in order of cost, each said with what it needs; of the others why not."""
    first, seconds = [], {}
    for rerun in reruns:
        try:
            if rerun.done:
                click.echo(f"{rerun}: done")
            elif (before := parent(rerun, reruns)) and not before.done:
                click.echo(f"{rerun}: after {before}")
            else:
                seconds[str(rerun)], line = planned(rerun, speed)
                click.echo(f"{rerun}: {line}")
                first.append(rerun)
        except Absent as error:
            click.echo(f"{rerun}: skipped: {error}")
    for rerun in sorted(first, key=lambda r: seconds[str(r)]):
        yield rerun
        if rerun.done:
            yield from plan([r for r in reruns if parent(r, reruns) is rerun and not r.done], speed)


def run(rerun: Rerun, folder: Path, live: list[claims.Live]) -> None:
    """Run a chapter, record what it measured, and mark it as done.

    Raises:
        PapermillExecutionError, DeadKernelError: it failed; what its own folder holds is gone on from.
    """
    verdicts = verdicts_of(rerun.notebook, rerun.kept(".ipynb"), rerun.parameters, progress=True)
    about = _about(rerun.parameters)
    _write_observed(rerun, verdicts, live, folder, about)
    if rerun.chapter in WRITERS:
        WRITERS[rerun.chapter](rerun, folder, about)
    write_json(rerun.kept(".json"), dict(version=rerun.version))


def _about(parameters: dict) -> dict:
    """What the provenance says of a rerun; of a folder its last two parts, for a path tells nobody else anything."""
    model = parameters.get("model", parameters.get("size"))
    local = Path(model).is_dir()
    rest = {name: value for name, value in parameters.items() if name not in ("model", "corpus", "out")}
    return dict(
        model="/".join(Path(model).parts[-2:]) if local else model,
        **(dict(commit=described(model)["commit"]) if "model" in parameters and not local else {}),
        corpus=json.dumps(load_corpus(parameters["corpus"]).provenance),
        parameters=json.dumps(rest),
        seed=parameters.get("seed", 0),
    )


def _write_observed(rerun: Rerun, verdicts: list[list], live: list[claims.Live], folder: Path, about: dict) -> None:
    """Write observed-NN-NAME: each observation of the chapter that was judged on this model."""
    wanted = {claim.label for claim in live if claim.page == rerun.chapter}
    rows = pd.DataFrame([v for v in verdicts if v[0] in wanted], columns=["claim", "deviation", "mutant", "bound"])
    if not rows.empty:
        worst = rows.loc[(rows.deviation / rows.bound).groupby(rows.claim, sort=False).idxmax()]
        what = f"Observations of {rerun.chapter} on another model: one holds if its deviation is within its bound."
        name = f"observed-{rerun.chapter[:2]}-{rerun.name}"
        record(name, worst[["claim", "deviation", "bound"]], what, folder, **about)


def _write_surveys(rerun: Rerun, folder: Path, about: dict) -> None:
    states = sorted(Path(rerun.parameters["out"]).glob("*.safetensors"))
    for state in states:
        survey = ng.Survey.load(state)
        name = rerun.name if len(states) == 1 else f"{rerun.name}-{survey.sites[0]['kind']}"
        measured = dict(windows=f"{survey.tokens} tokens in {survey.batches} batches", weights=survey.fingerprint)
        write_angles(name, survey, folder=folder, **measured, **about)


def _write_twins(rerun: Rerun, folder: Path, about: dict) -> None:
    write_pair(rerun.parameters["size"], finished((Path(rerun.parameters["out"]),)), folder)


WRITERS = {"07-inference": _write_surveys, "08-training": _write_twins}


@click.command()
@click.option("--only", multiple=True, help="Only the files of this name, such as gpt2-xl.")
@click.option("--models", type=click.Path(exists=True, file_okay=False, path_type=Path), help="A folder of models.")
@click.option("--corpus", type=click.Path(exists=True, dir_okay=False), help="A text in place of those in the files.")
@click.option("--tokens", type=click.IntRange(1000), help="How many are measured in place of those in the files.")
@click.option("--seconds", default=20.0, help="How long each of two speeds of the device is measured, at least.")
@click.option("--folder", default=FOLDER, type=click.Path(path_type=Path), help="Where the records go.")
def main(
    only: tuple[str, ...], models: Path | None, corpus: str | None, tokens: int | None, seconds: float, folder: Path
) -> None:
    """Run the chapters with the parameters in reruns/, cheapest first, and record what they measured.

    Finished ones are not run again, interrupted ones go on.  What a machine cannot take is skipped with a word.
    """
    given = {name: value for name, value in dict(corpus=corpus, tokens=tokens).items() if value}
    reruns, live = read(Path("reruns"), only, models, given), claims.live(Book(Path(".")))
    device, failed = "cuda" if torch.cuda.is_available() else "cpu", []

    @cache
    def speed() -> Speed:
        click.echo(f"measuring the speed of this {device}")
        return measured_speed(device, seconds)

    for rerun in plan(reruns, speed):
        click.echo(f"running {rerun}")
        try:
            run(rerun, folder, live)
        except (PapermillExecutionError, DeadKernelError) as error:
            name = getattr(error, "ename", type(error).__name__)
            why = HELP.get(name, getattr(error, "evalue", str(error)))
            failed.append(f"{rerun}: {name}: {why}")
            click.echo(failed[-1])
    if failed:
        raise click.ClickException("\n".join(["these failed, the others stay as they are", *failed]))
