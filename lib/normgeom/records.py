"""The measurements that were recorded for the book, each with a note of how it was made."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import NamedTuple

import pandas as pd

FOLDER = Path(__file__).parent / "data"


class Record(NamedTuple):
    """A table and its provenance: what was measured, on what, with which seed, versions and command."""

    table: pd.DataFrame
    provenance: dict[str, str]

    def __str__(self) -> str:
        lines = (f"{key}: {value}" for key, value in self.provenance.items())
        return "\n".join(textwrap.fill(line, 78, subsequent_indent="  ") for line in lines)


def recorded(name: str) -> Record:
    """The recorded measurement of that name: ``.table`` and ``.provenance``.

    Raises:
        ValueError: no record has that name; the message lists the names.

    Example:
        >>> import normgeom as ng
        >>> shapes = ng.recorded("published-shapes")
        >>> shapes.table.shape, shapes.provenance["corpus"]
        ((32, 11), 'none')
    """
    path = FOLDER / f"{name}.csv"
    if not path.is_file():
        raise ValueError(f"name: expected one of {sorted(p.stem for p in FOLDER.glob('*.csv'))}, got {name!r}")
    notes = json.loads(path.with_suffix(".json").read_text("utf-8"))
    notes.pop("stamp", None)  # of the code that made it, for the project's experiments
    return Record(pd.read_csv(path), notes)
