"""Recorded tables that claims are judged from."""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from normgeom.records import FOLDER, Record

OWN = {"training": "1M, chapter 8"}  # what the records of the book's own pair are called
COLUMNS = {
    "survey": "site side direction positions kind tokens mean_deg occupancy",
    "nulls": "site side null low median high",
    "angles": "step site side direction mean_deg occupancy low median high rank norm seed",
    "loss": "norm seed loss",
    "curve": "norm seed step loss",
    "forms": "step site overlap q05 near norm seed",
    "observed": "claim deviation bound",
}


class Pair(NamedTuple):
    """What is recorded of a LayerNorm and an RMSNorm network in training; a table that is missing is None.

    ``angles`` has a column ``drawn``, the number of the null's directions, and ``forms`` a column ``width``, that of
    the network; they are NaN if the record does not say.
    """

    angles: pd.DataFrame | None = None
    loss: pd.DataFrame | None = None
    curve: pd.DataFrame | None = None
    forms: pd.DataFrame | None = None


def read(path: Path, kind: str) -> Record:
    """The table in a CSV file, and its provenance in the JSON file beside it.

    Raises:
        FileNotFoundError: one of the two files is missing.
        ValueError: a column that :data:`COLUMNS` lists for this kind of table is missing.
    """
    found = Record(pd.read_csv(path), json.loads(path.with_suffix(".json").read_text("utf-8")))
    if missing := [name for name in COLUMNS[kind].split() if name not in found.table]:
        raise ValueError(f"{path.name}: expected columns {COLUMNS[kind]}, got none of the name {', '.join(missing)}")
    return found


def only(table: pd.DataFrame, of: Mapping[str, str]) -> pd.DataFrame:
    """The rows whose columns have the given values."""
    for column, value in of.items():
        table = table[table[column] == value]
    return table


def models(folder: str | os.PathLike = FOLDER) -> dict[str, pd.DataFrame]:
    """What is recorded of each surveyed model, by the name in ``angles-NAME`` and ``nulls-NAME``.

    Returns:
        the rows of ``angles-NAME`` at positions ``"rest"``, with ``low``, ``median`` and ``high``, the 5 %, 50 % and
        95 % quantiles of the occupancy of random directions at the same norm and side; ``model``, the name; and
        ``drawn``, how many directions these are, NaN if the record does not say.

    Raises:
        FileNotFoundError, ValueError: as :func:`read`.
    """
    paths = sorted(Path(folder).glob("angles-*.csv"))
    return {name: _model(path, name) for path in paths if (name := path.stem.removeprefix("angles-"))}


def _model(path: Path, name: str) -> pd.DataFrame:
    angles, nulls = read(path, "survey").table, read(path.with_name(f"nulls-{name}.csv"), "nulls")
    band = only(nulls.table, {"null": "random_"}).drop(columns="null")
    rows = only(angles, {"positions": "rest"}).merge(band, "left", ["site", "side"], validate="many_to_one")
    return rows.assign(model=name, drawn=_directions(nulls))


def pairs(folder: str | os.PathLike = FOLDER) -> dict[str, Pair]:
    """What is recorded of each pair in training, by the SIZE in ``pair-SIZE-angles`` and so on.

    The book's own pair, in ``training-angles`` and so on, has the name in :data:`OWN`.

    Raises:
        FileNotFoundError, ValueError: as :func:`read`.
    """
    found = defaultdict(Pair)
    for path in sorted(Path(folder).glob("*.csv")):
        if match := re.fullmatch(rf"(training|pair-[^-]+)-({'|'.join(Pair._fields)})", path.stem):
            size, kind = OWN.get(match[1], match[1].removeprefix("pair-")), match[2]
            found[size] = found[size]._replace(**{kind: _of_pair(read(path, kind), kind)})
    return dict(found)


def _of_pair(record: Record, kind: str) -> pd.DataFrame:
    if kind == "angles":
        return record.table.assign(drawn=_directions(record))
    if kind == "forms":
        return record.table.assign(width=_number(r"\bd = (\d+)", record.provenance["model"]))
    return record.table


def _directions(record: Record) -> float:
    return _number(r"(\d+) (directions|random sign vectors)", record.provenance["what"])


def _number(pattern: str, text: str) -> float:
    found = re.search(pattern, text)
    return float(found[1]) if found else np.nan
