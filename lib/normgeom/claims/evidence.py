"""Recorded tables as evidence: read, and refused where they are not what they should be."""

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
from pandas.api import types

from normgeom.claims.columns import HUB, KINDS, Column, Kind, kind_of
from normgeom.records import FOLDER, Record

PROVENANCE = ("what", "model", "corpus", "device", "versions", "date", "command")
_IS = {"text": types.is_string_dtype, "whole number": types.is_integer_dtype, "number": types.is_numeric_dtype}
OWN = {"training": "1M, chapter 8"}  # what the records of the book's own pair are called
_TABLES = ("angles", "loss", "curve", "forms")


class Pair(NamedTuple):
    """What is recorded of a LayerNorm and an RMSNorm network in training; a table that is missing is None.

    The columns are those of :data:`normgeom.claims.columns.KINDS`; ``angles`` has ``drawn`` as well, the number of the
    null's directions, NaN if the record does not say.  ``provenance`` has that of each table, by its name.
    """

    angles: pd.DataFrame | None
    loss: pd.DataFrame | None
    curve: pd.DataFrame | None
    forms: pd.DataFrame | None
    provenance: Mapping[str, Mapping[str, str]]

    def only(self, of: Mapping[str, str]) -> Pair:
        """The rows whose columns have some values, of each table that has these columns."""
        return self._replace(
            **{name: only(table, of) for name in _TABLES if (table := getattr(self, name)) is not None}
        )


def only(table: pd.DataFrame, of: Mapping[str, str]) -> pd.DataFrame:
    """The rows whose columns have some values; a column that the table does not have is left alone."""
    for column, value in of.items():
        if column in table:
            table = table[table[column] == value]
    return table


def models(folder: str | os.PathLike = FOLDER) -> dict[str, pd.DataFrame]:
    """What is recorded of each surveyed model, by the name in ``angles-NAME`` and ``nulls-NAME``.

    Returns:
        the rows of ``angles-NAME`` at positions ``"rest"``, with ``low``, ``median`` and ``high``, the 5 %, 50 % and
        95 % quantiles of the occupancy of random directions at the same norm and side; ``model``, the name; and
        ``drawn``, how many directions these are, NaN if the record does not say.  ``attrs["provenance"]`` has the
        provenance of ``"angles"`` and of ``"nulls"``.

    Raises:
        ValueError: a record is malformed (:func:`check_record`).
    """
    folder = Path(folder)
    names = {path.stem.partition("-")[2] for part in ("angles", "nulls") for path in folder.glob(f"{part}-*.csv")}
    return {name: _model(folder, name) for name in sorted(names)}


def _model(folder: Path, name: str) -> pd.DataFrame:
    angles, nulls = (check_record(folder / f"{part}-{name}.csv") for part in ("angles", "nulls"))
    band = nulls.table[nulls.table.null == "random_"].drop(columns="null")
    rows = angles.table[angles.table.positions == "rest"].merge(band, on=["site", "side"], validate="many_to_one")
    rows = rows.assign(model=name, drawn=_drawn(nulls.provenance))
    rows.attrs["provenance"] = {"angles": angles.provenance, "nulls": nulls.provenance}
    return rows


def pairs(folder: str | os.PathLike = FOLDER) -> dict[str, Pair]:
    """What is recorded of each pair in training, by the SIZE in ``pair-SIZE-angles`` and so on.

    The book's own pair, in ``training-angles`` and so on, has the name in :data:`OWN`.

    Raises:
        ValueError: a record is malformed (:func:`check_record`).
    """
    found = defaultdict(dict)
    for path in sorted(Path(folder).glob("*.csv")):
        if match := re.fullmatch(rf"(training|pair-[^-]+)-({'|'.join(_TABLES)})", path.stem):
            found[OWN.get(match[1], match[1].removeprefix("pair-"))][match[2]] = check_record(path)
    return {size: _pair(records) for size, records in found.items()}


def _pair(records: Mapping[str, Record]) -> Pair:
    tables = {name: records[name].table if name in records else None for name in _TABLES}
    provenance = {name: record.provenance for name, record in records.items()}
    if "angles" in records:
        tables["angles"] = tables["angles"].assign(drawn=_drawn(provenance["angles"]))
    return Pair(**tables, provenance=provenance)


def _drawn(provenance: Mapping[str, str]) -> float:
    said = re.search(r"(\d+) (directions|random sign vectors)", provenance["what"])
    return float(said[1]) if said else np.nan


def check_record(path: str | os.PathLike) -> Record:
    """The record in a CSV file and the JSON file beside it, if nothing is wrong with it.

    An ``angles-NAME`` is no record without its ``nulls-NAME`` of the same model, text and seed at the same norms, nor
    the other way round.

    Raises:
        ValueError: there is no such file, or no claim is judged from records of its name; the provenance lacks
            something or is of another version of the program; a column is missing or too many; a cell is empty, of
            another type, or holds what cannot be; two rows are of the same.  The message names file and column, what
            was expected and what came.
    """
    path = Path(path)
    kind = kind_of(path.stem)
    if kind is None:
        raise _refusal(path, "name", f"one of {', '.join(KINDS)}", repr(path.stem))
    found = _read(path)
    _check_provenance(path, found.provenance)
    _check_columns(path, found.table, kind)
    for name in found.table:
        _check_cells(path, found.table[name], kind.columns[name])
    _check_rows(path, found.table, kind)
    if "dim" in found.table:
        most = found.table.dim
        _check_all(path, found.table.occupancy, found.table.occupancy <= most, "at most dim")
        least = most * found.table.mean_abs_cos**2  # Jensen; recorded numbers have seven digits
        _check_all(
            path, found.table.occupancy, found.table.occupancy >= least * (1 - 1e-5), "at least dim·mean_abs_cos²"
        )
    part, _, name = path.stem.partition("-")
    if part in ("angles", "nulls"):
        _check_partner(path, found, name, {"angles": "nulls", "nulls": "angles"}[part])
    return found


def _refusal(path: Path, where: str, expected: str, got: str) -> ValueError:
    return ValueError(f"{path.name}: {where}: expected {expected}, got {got}")


def _read(path: Path) -> Record:
    note = path.with_suffix(".json")
    for file in (path, note):
        if not file.is_file():
            raise _refusal(path, "files", f"{path.name} and {note.name} beside it", f"no {file.name}")
    try:
        table = pd.read_csv(path, index_col=False)
    except ValueError as error:
        raise _refusal(path, "table", "comma-separated values", str(error)) from error
    try:
        provenance = json.loads(note.read_text("utf-8"))
    except ValueError as error:
        raise _refusal(note, "provenance", "JSON", str(error)) from error
    return Record(table, provenance)


def _check_provenance(path: Path, provenance: Mapping[str, str]) -> None:
    note = path.with_suffix(".json")
    if not isinstance(provenance, dict):
        raise _refusal(note, "provenance", "names and values", type(provenance).__name__)
    versions = provenance.get("versions", "none")
    if "torch " not in versions:
        remedy = "; it is of another version: write it again by the command that its note names"
        raise _refusal(note, "versions", "that of torch among them", f"{versions}{remedy}")
    if missing := [name for name in PROVENANCE if not provenance.get(name)]:
        raise _refusal(note, "provenance", ", ".join(PROVENANCE), f"nothing for {', '.join(missing)}")
    if not {"seed", "seeds"} & provenance.keys():
        raise _refusal(note, "provenance", "seed or seeds", f"only {', '.join(provenance)}")


def _check_columns(path: Path, table: pd.DataFrame, kind: Kind) -> None:
    needed = [name for name, column in kind.columns.items() if not column.optional]
    if missing := [name for name in needed if name not in table]:
        raise _refusal(path, ", ".join(missing), "a column", f"only {', '.join(table)}")
    if extra := [name for name in table if name not in kind.columns]:
        raise _refusal(path, ", ".join(extra), "no such column", f"one beside {', '.join(kind.columns)}")
    if table.empty:
        raise _refusal(path, "table", "at least one row", "none")


def _check_cells(path: Path, cells: pd.Series, column: Column) -> None:
    _check_all(path, cells, cells.notna(), "no empty cell")
    if not _IS[column.holds](cells) or types.is_bool_dtype(cells):
        numbers = pd.to_numeric(cells, errors="coerce")
        good = numbers % 1 == 0 if column.holds == "whole number" else numbers.notna()
        _check_all(path, cells, good, f"a {column.holds}")
        raise _refusal(path, cells.name, f"a {column.holds} in each cell", f"{cells.dtype}")
    if column.words:
        _check_all(path, cells, cells.isin(column.words), f"one of {', '.join(column.words)}")
    elif column.holds != "text":
        inside = np.isfinite(cells) & cells.between(column.low, column.high)
        _check_all(path, cells, inside, f"a number from {column.low:g} to {column.high:g}")


def _check_all(path: Path, cells: pd.Series, good: pd.Series, expected: str) -> None:
    if not good.all():
        at = good.argmin()
        # The first line has the columns' names, and lines are counted from 1.
        raise _refusal(path, cells.name, expected, f"{cells.iloc[at]} in line {at + 2}")


def _check_rows(path: Path, table: pd.DataFrame, kind: Kind) -> None:
    for lower, upper in zip(kind.ascending, kind.ascending[1:], strict=False):
        _check_all(path, table[lower], table[lower] <= table[upper], f"at most {upper}")
    for column, words in kind.there.items():
        if missing := [word for word in words if word not in set(table[column])]:
            raise _refusal(path, column, f"rows with {', '.join(missing)}", "none")
    key = [*(kind.key or table.columns.drop("loss"))]
    same = table.duplicated(key)
    if same.any():
        raise _refusal(path, ", ".join(key), "each combination once", f"one again in line {same.argmax() + 2}")
    if kind.alike:
        _check_alike(path, table, kind.alike)


def _check_alike(path: Path, table: pd.DataFrame, columns: tuple[str, ...]) -> None:
    rows = table[table.direction == "uniform"]
    places = rows.groupby(["norm", "side", "seed"])[list(columns)].apply(lambda part: {*part.itertuples(index=False)})
    for (_, side), of_seeds in places.groupby(level=["norm", "side"]):
        if any(found != of_seeds.iloc[0] for found in of_seeds):
            raise _refusal(path, ", ".join(columns), f"the same at each seed, side {side}", "others at one of them")


def _check_partner(path: Path, found: Record, name: str, part: str) -> None:
    partner = path.with_name(f"{part}-{name}.csv")
    other = _read(partner)
    if (model := found.provenance["model"]) != HUB.get(name, model):
        raise _refusal(path, "model", f"{HUB[name]}, as the file is called", model)
    for about in ("model", "corpus", "windows", "seed"):
        if found.provenance.get(about) != other.provenance.get(about):
            expected, got = (of.provenance.get(about) for of in (other, found))
            raise _refusal(path, about, f"that of {partner.name}, {expected}", got)
    here, there = _places(found.table), _places(other.table)
    if apart := sorted(here ^ there):
        raise _refusal(path, "site, side", f"those of {partner.name}", f"{' '.join(apart[0])} in one of them only")


def _places(table: pd.DataFrame) -> set[tuple[str, str]]:
    rows = only(table, {"direction": "uniform", "positions": "rest", "null": "random_"})
    return {*zip(rows.get("site", []), rows.get("side", []), strict=True)}
