"""Several networks surveyed alike, and what their tables say of the uniform vector."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
from torch import Tensor, nn

from normgeom.survey.survey import Survey


def survey_runs(
    networks: Mapping[tuple[str, int], nn.Module],
    batches: Sequence[Tensor],
    directions: Sequence[str],
    seed: int,
    progress: bool = False,
    out: str | os.PathLike = "",
) -> pd.DataFrame:
    """The survey of each network on the same text, as one table.

    Args:
        networks: by the name of the model and the number of the run, such as the seed of its training.
        batches: token ids ``(batch, length)``; matched directions are drawn from the first.
        directions: as in :class:`normgeom.Survey`, as is ``seed``.
        out: a folder that keeps the state of each survey as ``<model>-<run>.npz``, slashes in the name as ``--``; the
            same call goes on where it was stopped.  By default nothing is kept.

    Returns:
        the rows of :meth:`normgeom.Survey.table`, with columns ``model`` and ``run`` before them.

    Raises:
        ValueError: there is no network or no batch, or :class:`normgeom.Survey` refuses one; ``out`` holds the survey
            of something else.
        OSError: ``out`` cannot be written.
    """
    if not networks:
        raise ValueError("networks: expected at least one, got none")
    if not batches:
        raise ValueError("batches: expected at least one, got none")
    if out:
        Path(out).mkdir(parents=True, exist_ok=True)
    tables = []
    for (model, run), network in networks.items():
        survey = Survey(network, directions, seed, pilot=batches[0])
        found = survey.run(batches, progress, kept_as(out, model, run) if out else None).table()
        found.insert(0, "model", model)
        found.insert(1, "run", run)
        tables.append(found)
    return pd.concat(tables, ignore_index=True)


def kept_as(out: str | os.PathLike, model: str, run: int) -> Path:
    """Where :func:`survey_runs` keeps the state of a survey."""
    return Path(out) / f"{model.replace('/', '--')}-{run}.npz"


def of_uniform(angles: pd.DataFrame, side: str = "in", positions: str = "rest") -> pd.DataFrame:
    """The rows of the uniform vector at one side of the norms, in order of use.

    Args:
        angles: as :meth:`normgeom.Survey.table` gives it, perhaps with more columns.
        side: ``"in"`` or ``"out"``.
        positions: ``"first"``, ``"rest"`` or ``"all"``.

    Raises:
        ValueError: there are none.
    """
    wanted = dict(side=side, positions=positions, direction="uniform")
    rows = angles
    for column, value in wanted.items():
        rows = rows[rows[column] == value]
        if rows.empty:
            raise ValueError(f"{column}: expected rows with {value!r}, got a table without")
    return rows


# What a reader is told of each column; units stand behind the stroke.
WORDS = {
    "kind": "kind",
    "positions": "positions",
    "tokens": "tokens",
    "mean_deg": "mean angle / degrees",
    "std_deg": "spread / degrees",
    "occupancy": "occupancy",
    "mean_norm": "mean length",
    "mean_abs_cos": "mean |cos|",
    "top_share": "share of the largest entry",
    "drop_error": "change of the output",
}
KINDS = {"layer": "LayerNorm", "rms": "RMSNorm"}


def in_words(angles: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """Some columns of a survey's table as a reader is shown them: names of :data:`WORDS`, one row a norm.

    Raises:
        ValueError: a column that is not in :data:`WORDS`.
    """
    if unknown := [name for name in columns if name not in WORDS]:
        raise ValueError(f"columns: expected some of {', '.join(WORDS)}, got {', '.join(unknown)}")
    rows = angles.set_index("site")[list(columns)].replace({"kind": KINDS} if "kind" in columns else {})
    return rows.rename(columns=WORDS).rename_axis("norm")


def at_last_norm(angles: pd.DataFrame) -> pd.DataFrame:
    """The stream that enters the last norm: its mean ``length`` and, roughly, its component ``along 1``.

    The component is the length times the root mean square of the cosine: √(ω/d) of it, ω the occupancy (eq-occupancy).

    Args:
        angles: as :func:`survey_runs` gives them.

    Returns:
        one row a (model, seed), the run being the seed.
    """
    last = of_uniform(angles).rename(columns={"run": "seed"})
    last = last.groupby(["model", "seed"], sort=False).tail(1).set_index(["model", "seed"])
    along = last.mean_norm * (last.occupancy / last.dim) ** 0.5
    return pd.DataFrame({"length": last.mean_norm, "along 1": along})
