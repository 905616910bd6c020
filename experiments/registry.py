"""The registry of experiments: their grids, what has become of their records, and the machine that measures."""

from __future__ import annotations

import fnmatch
import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Thread

import pandas as pd
import torch
from normgeom.jobs import locked, write_json
from normgeom.records import FOLDER
from normgeom_lab.common.recording import record, record_tensors
from tqdm.auto import tqdm

from experiments.stamps import key, of_module

KEPT = Path("_build/experiments")
FRESH, STALE, MISSING = "fresh", "stale", "missing"


@dataclass(frozen=True)
class Experiment:
    """A measurement over a grid.

    Attributes:
        measure: called with the values of one point; returns a row, or rows, or such by record.
        what: for each record, a sentence that says what it holds.
        grid: values by name, or a list of such grids.
        minutes: that it takes, roughly, on two processor cores.
        about: what else the provenance says.
        workers: processes at a time; with 1, each point has a fresh process.
        summary: makes the table of an experiment with one record out of the rows of all points.
        needs: says what is not here that it needs, empty where all is; the book does without a record that has needs.
        stamp: the digests of what it goes through, by name; by default of its module and what that imports.
    """

    name: str
    measure: Callable[..., object]
    what: dict[str, str]
    grid: dict | list
    minutes: float
    about: dict[str, object]
    workers: int = os.cpu_count()
    summary: Callable | None = None
    needs: Callable[[], str] | None = None
    stamp: Callable[[], dict[str, str]] | None = None

    def points(self) -> list[dict]:
        """The grid's points, in order."""
        parts = self.grid if isinstance(self.grid, list) else [self.grid]
        return [dict(zip(part, values, strict=True)) for part in parts for values in product(*part.values())]


class Failed(Exception):
    """Points that could not be measured, a line each."""


class Registry:
    """Experiments by name, the folder of their records, and the one where finished points are kept."""

    def __init__(self, folder: Path = FOLDER, kept: Path = KEPT):
        self.folder, self.kept = folder, kept
        self.experiments: dict[str, Experiment] = {}

    def experiment(self, name: str, what: str | dict, grid: dict | list, **settings: object) -> Callable:
        """Register a function that measures one point.

        Args:
            settings: ``minutes`` and what else is an attribute of :class:`Experiment`; all others are ``about``.

        Raises:
            ValueError: another experiment has this name or writes a record of this name.
        """
        what = {name: what} if isinstance(what, str) else what
        if twice := sorted({*self.experiments, *self._writers()} & {name, *what}):
            raise ValueError(f"{name}: expected a name of its own, there is already {', '.join(twice)}")
        about = {key: settings.pop(key) for key in [*settings] if key not in Experiment.__dataclass_fields__}

        def register(measure: Callable) -> Callable:
            module = getattr(measure, "func", measure).__module__  # of what a partial function calls
            settings.setdefault("stamp", lambda: of_module(module))
            self.experiments[name] = Experiment(name, measure, what, grid, about=about, **settings)
            return measure

        return register

    def _writers(self) -> dict[str, Experiment]:
        return {name: experiment for experiment in self.experiments.values() for name in experiment.what}

    def select(self, names: Sequence[str]) -> list[Experiment]:
        """The experiments of some names, cheapest first; all without names.

        A name is that of an experiment or of a record, ``*`` for anything.

        Raises:
            ValueError: no experiment has such a name.
        """
        found = {}
        for wanted in names or ["*"]:
            chosen = {e.name: e for e in self.experiments.values() if fnmatch.filter([e.name, *e.what], wanted)}
            if not chosen:
                raise ValueError(f"name: expected some of {', '.join(sorted(self.experiments))}, got {wanted!r}")
            found |= chosen
        return sorted(found.values(), key=lambda e: e.minutes)

    # what has become of records

    def state(self, experiment: Experiment) -> tuple[str, str]:
        """``"fresh"``, ``"stale"`` or ``"missing"``, the worst of its records, and why."""
        stamp, found = experiment.stamp(), []
        for name in experiment.what:
            try:
                found.append(_compared(self._notes(name), stamp))
            except FileNotFoundError:
                found.append((MISSING, name if len(experiment.what) > 1 else ""))
            except ValueError as error:
                found.append((STALE, f"{name}.json cannot be read: {error}"))
        return max(found, key=lambda one: (FRESH, STALE, MISSING).index(one[0]))

    def _notes(self, name: str) -> dict:
        """The notes of a record whose table is there."""
        if name not in self._tables():
            raise FileNotFoundError(name)
        return json.loads((self.folder / f"{name}.json").read_text("utf-8"))

    def _tables(self) -> set[str]:
        return {path.stem for end in ("csv", "safetensors") for path in self.folder.glob(f"*.{end}")}

    def orphans(self) -> list[str]:
        """The names of records that no experiment writes."""
        return sorted(self._tables() - self._writers().keys())

    # measuring

    def run(self, experiment: Experiment) -> None:
        """Measure the points that are not kept, and write the records.

        Raises:
            Failed: some points could not be measured; the others are kept.
            BlockingIOError: another process is at it.
        """
        one_thread()  # as in the processes that measure; records say how many
        with locked(self.kept / experiment.name):
            stamp = experiment.stamp()
            tables = self._measured(experiment, self.kept / experiment.name / f"{key(stamp)}.jsonl")
            if experiment.summary:
                tables = [experiment.summary(*tables)]
            grid = json.dumps(experiment.grid, default=list)
            for (name, what), table in zip(experiment.what.items(), tables, strict=True):
                command = f"make experiments ONLY={experiment.name}"
                about = experiment.about | dict(grid=grid, command=command, stamp=_written(stamp))
                (record_tensors if isinstance(table, dict) else record)(name, table, what, self.folder, **about)

    def restamp(self, experiment: Experiment) -> Iterator[str]:
        """Write the present stamp into the records that are there; a line for each."""
        stamp = experiment.stamp()
        for name in experiment.what:
            with suppress(FileNotFoundError, ValueError):
                notes = self._notes(name)
                word, why = _compared(notes, stamp)
                if word != FRESH:
                    write_json(self.folder / f"{name}.json", notes | dict(stamp=_written(stamp)))
                    yield f"{name}: restamped ({why})"

    def _measured(self, experiment: Experiment, kept: Path) -> list[pd.DataFrame]:
        done, points = _kept(kept), {json.dumps(point): point for point in experiment.points()}
        for point, rows in _in_pool(experiment, [point for name, point in points.items() if name not in done]):
            done[json.dumps(point)] = rows
            with kept.open("a", encoding="utf-8") as file:
                file.write("\n" + json.dumps([point, rows]))  # an end that was cut off keeps its own line
        return [
            pd.DataFrame([point | row for at, point in points.items() for row in done[at][name]])
            for name in experiment.what
        ]


def _in_pool(experiment: Experiment, points: list[dict]) -> Iterator[tuple[dict, dict]]:
    """Points and their rows by record, as they are finished."""
    failed, workers = [], min(experiment.workers, len(points) or 1)
    fresh = dict(max_tasks_per_child=1) if experiment.workers == 1 else {}
    with ProcessPoolExecutor(workers, get_context("spawn"), initializer=_in_worker, **fresh) as pool:
        jobs: dict[Future, dict] = {pool.submit(experiment.measure, **point): point for point in points}
        for job in tqdm(as_completed(jobs), experiment.name, len(jobs), unit="point"):
            try:
                yield jobs[job], _by_record(experiment, job.result())
            except Exception as error:
                where = ", ".join(f"{name} {value}" for name, value in jobs[job].items())
                failed.append(f"{experiment.name} at {where}: {type(error).__name__}: {error}".strip().splitlines()[0])
    if failed:
        raise Failed("\n".join(failed))


def one_thread() -> None:
    """Of torch, here and in the kernels that this process starts."""
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"


def _in_worker() -> None:
    """One thread; and a worker ends with its parent, even if that is killed."""
    one_thread()
    Thread(target=lambda: (parent_process().join(), os._exit(1)), daemon=True).start()


def _by_record(experiment: Experiment, found: object) -> dict[str, list[dict]]:
    """What a function returned for a point, as lists of rows by record."""
    if len(experiment.what) == 1:
        found = dict.fromkeys(experiment.what, found)
    rows = {}
    for name in experiment.what:
        table = [found[name]] if isinstance(found[name], dict) else found[name]
        rows[name] = pd.DataFrame(table).to_dict("records")
    return rows


def _kept(path: Path) -> dict[str, dict[str, list[dict]]]:
    """The rows of finished points; lines that were cut off are left out."""
    done = {}
    for line in path.read_text("utf-8").splitlines() if path.is_file() else ():
        with suppress(ValueError):
            point, rows = json.loads(line)
            done[json.dumps(point)] = rows
    return done


def _written(stamp: dict[str, str]) -> str:
    return ", ".join(f"{name} {digest}" for name, digest in stamp.items())


def _compared(notes: dict, stamp: dict[str, str]) -> tuple[str, str]:
    """Whether a record's notes have this stamp."""
    was = dict(part.rsplit(" ", 1) for part in notes.get("stamp", "").split(", ") if part)
    changed = [name for name in sorted({*was, *stamp}) if was.get(name) != stamp.get(name)]
    return (STALE, f"{', '.join(changed)} changed") if changed else (FRESH, "")


registry = Registry()
experiment = registry.experiment
