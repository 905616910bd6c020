"""The registry of experiments: their grids, the state of their records, and the code that runs them."""

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
        measure: is called with the values of one point; returns a row or rows, or a dict of these by record.
        what: for each record, a description of its contents.
        grid: values by name, or a list of such grids.
        minutes: the approximate duration on two processor cores.
        about: further entries of the provenance.
        workers: the number of processes that run at the same time; with 1, each point has a fresh process.
        summary: makes the table from the rows of all points, for an experiment with a single record.
        needs: names what is missing on this computer, or returns ""; the book can do without a record that has needs.
        stamp: digests of the modules that the measurement uses, by name; by default its own and all that it imports.
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
        """Return the points of the grid, in order."""
        parts = self.grid if isinstance(self.grid, list) else [self.grid]
        return [dict(zip(part, values, strict=True)) for part in parts for values in product(*part.values())]


class Failed(Exception):
    """Some points could not be measured; the message has one line for each."""


class Registry:
    """Experiments by name, the folder of their records, and the folder in which finished points are kept."""

    def __init__(self, folder: Path = FOLDER, kept: Path = KEPT):
        self.folder, self.kept = folder, kept
        self.experiments: dict[str, Experiment] = {}

    def experiment(self, name: str, what: str | dict, grid: dict | list, **settings: object) -> Callable:
        """Return a decorator that registers a function that measures one point.

        Args:
            settings: ``minutes`` and other attributes of :class:`Experiment`; all other settings go to ``about``.

        Raises:
            ValueError: another experiment has this name, or writes a record with one of these names.
        """
        what = {name: what} if isinstance(what, str) else what
        if twice := sorted({*self.experiments, *self._writers()} & {name, *what}):
            raise ValueError(f"{name}: expected a new name, already used: {', '.join(twice)}")
        about = {key: settings.pop(key) for key in [*settings] if key not in Experiment.__dataclass_fields__}

        def register(measure: Callable) -> Callable:
            module = getattr(measure, "func", measure).__module__  # for a partial, of what it calls
            settings.setdefault("stamp", lambda: of_module(module))
            self.experiments[name] = Experiment(name, measure, what, grid, about=about, **settings)
            return measure

        return register

    def _writers(self) -> dict[str, Experiment]:
        return {name: experiment for experiment in self.experiments.values() for name in experiment.what}

    def select(self, names: Sequence[str]) -> list[Experiment]:
        """Return the experiments with these names, or all if there are no names, the cheapest first.

        A name is that of an experiment or of a record, and ``*`` matches anything.

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

    # the state of records

    def state(self, experiment: Experiment) -> tuple[str, str]:
        """Return ``"fresh"``, ``"stale"`` or ``"missing"``, whichever is worst among its records, and the reason."""
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
        """Read the notes of a record; raise FileNotFoundError if its table or its notes are missing."""
        if name not in self._tables():
            raise FileNotFoundError(name)
        return json.loads((self.folder / f"{name}.json").read_text("utf-8"))

    def _tables(self) -> set[str]:
        return {path.stem for end in ("csv", "safetensors") for path in self.folder.glob(f"*.{end}")}

    def orphans(self) -> list[str]:
        """Return the names of records that no experiment writes."""
        return sorted(self._tables() - self._writers().keys())

    # measuring

    def run(self, experiment: Experiment) -> None:
        """Measure the points that are not yet finished, and write the records.

        Raises:
            Failed: some points could not be measured; the others are kept.
            BlockingIOError: another process is running this experiment.
        """
        one_thread()  # like the processes that measure, because the notes give the number of threads
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
        """Write the present stamp into existing records; yield one line for each record that changes."""
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
                file.write("\n" + json.dumps([point, rows]))  # a line that was cut off cannot spoil this one
        return [
            pd.DataFrame([point | row for at, point in points.items() for row in done[at][name]])
            for name in experiment.what
        ]


def _in_pool(experiment: Experiment, points: list[dict]) -> Iterator[tuple[dict, dict]]:
    """Yield each point with its rows by record, in the order in which points finish."""
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
    """Use one thread in torch and in the kernels that this process starts."""
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"


def _in_worker() -> None:
    """Prepare a worker: it uses one thread, and ends when its parent ends, even if the parent is killed."""
    one_thread()
    Thread(target=lambda: (parent_process().join(), os._exit(1)), daemon=True).start()


def _by_record(experiment: Experiment, found: object) -> dict[str, list[dict]]:
    """Turn what a function returned for one point into lists of rows by record."""
    if len(experiment.what) == 1:
        found = dict.fromkeys(experiment.what, found)
    rows = {}
    for name in experiment.what:
        table = [found[name]] if isinstance(found[name], dict) else found[name]
        rows[name] = pd.DataFrame(table).to_dict("records")
    return rows


def _kept(path: Path) -> dict[str, dict[str, list[dict]]]:
    """Read the rows of finished points; skip lines that were cut off."""
    done = {}
    for line in path.read_text("utf-8").splitlines() if path.is_file() else ():
        with suppress(ValueError):
            point, rows = json.loads(line)
            done[json.dumps(point)] = rows
    return done


def _written(stamp: dict[str, str]) -> str:
    return ", ".join(f"{name} {digest}" for name, digest in stamp.items())


def _compared(notes: dict, stamp: dict[str, str]) -> tuple[str, str]:
    """Say whether the stamp in a record's notes matches this stamp, and if not, which parts differ."""
    was = dict(part.rsplit(" ", 1) for part in notes.get("stamp", "").split(", ") if part)
    changed = [name for name in sorted({*was, *stamp}) if was.get(name) != stamp.get(name)]
    return (STALE, f"{', '.join(changed)} changed") if changed else (FRESH, "")


registry = Registry()
experiment = registry.experiment
