"""What a record that claims are judged from looks like: its name, its columns, and what their cells may hold."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import inf
from typing import NamedTuple


class Column(NamedTuple):
    """What a cell may hold: ``"text"``, a ``"whole number"`` or a ``"number"``; from where to where, or which words."""

    holds: str
    low: float = -inf
    high: float = inf
    words: tuple[str, ...] = ()
    optional: bool = False


class Kind(NamedTuple):
    """A kind of record.

    ``key``: what tells rows apart; empty: all columns but ``loss``.  ``ascending``: columns that may not fall from left
    to right.  ``there``: words that a column must have in some row.  ``alike``: columns whose values must be the same
    together at each seed.
    """

    columns: Mapping[str, Column]
    key: tuple[str, ...] = ()
    ascending: tuple[str, ...] = ()
    there: Mapping[str, tuple[str, ...]] = {}
    alike: tuple[str, ...] = ()


# The models of the paper's table 1: what the hub calls each, by the name of its file in reruns/ and of its records.
HUB = {
    "gpt2-xl": "openai-community/gpt2-xl",
    "gpt-neo-1.3b": "EleutherAI/gpt-neo-1.3B",
    "pythia-1.4b": "EleutherAI/pythia-1.4b",
    "gpt-j-6b": "EleutherAI/gpt-j-6b",
    "pythia-6.9b": "EleutherAI/pythia-6.9b",
    "llama-2-7b": "meta-llama/Llama-2-7b-hf",
    "llama-3-8b": "meta-llama/Meta-Llama-3-8B",
}
TEXT, COUNT, NUMBER = Column("text"), Column("whole number", 1), Column("number")
STEP = SEED = Column("whole number", 0)
SIDE, NORM = Column("text", words=("in", "out")), Column("text", words=("layer", "rms"))
DEGREES, SHARE, SIZE = Column("number", 0, 180), Column("number", 0, 1), Column("number", 0)
BAND = dict(low=SIZE, median=SIZE, high=SIZE)
TWINS = {"norm": ("layer", "rms")}


def _maybe(**columns: Column) -> dict[str, Column]:
    return {name: column._replace(optional=True) for name, column in columns.items()}


KINDS = {
    r"angles-(.+)": Kind(
        dict(
            site=TEXT,
            side=SIDE,
            direction=TEXT,
            positions=Column("text", words=("first", "rest", "all")),
            kind=NORM,
            dim=COUNT,
            tokens=COUNT,
            mean_deg=DEGREES,
            std_deg=DEGREES,
            q05_deg=DEGREES,
            q50_deg=DEGREES,
            q95_deg=DEGREES,
            mean_abs_cos=SHARE,
            occupancy=SIZE,
            mean_norm=SIZE,
            top_share=SHARE,
            # An RMSNorm has no mean to drop; a table of such norms has no such column, for records have no empty cells.
            **_maybe(drop_error=SIZE),
        ),
        key=("site", "side", "direction", "positions"),
        ascending=("q05_deg", "q50_deg", "q95_deg"),
        there={"direction": ("uniform",), "positions": ("rest",)},
    ),
    r"nulls-(.+)": Kind(
        dict(site=TEXT, **BAND, side=SIDE, null=TEXT),
        key=("site", "side", "null"),
        ascending=("low", "median", "high"),
        there={"null": ("random_",)},
    ),
    r"(training|pair-[^-]+)-angles": Kind(
        dict(
            step=STEP,
            site=TEXT,
            side=SIDE,
            direction=TEXT,
            mean_deg=DEGREES,
            std_deg=DEGREES,
            occupancy=SIZE,
            mean_norm=SIZE,
            **BAND,
            rank=COUNT,
            norm=NORM,
            seed=SEED,
        ),
        key=("step", "site", "side", "direction", "norm", "seed"),
        ascending=("low", "median", "high"),
        there={"direction": ("uniform",), "side": ("in",), **TWINS},
        alike=("step", "site"),
    ),
    r"(training|pair-[^-]+)-loss": Kind(
        dict(loss=SIZE, norm=TEXT, seed=SEED, **_maybe(rate=SIZE, decay=SIZE, start=TEXT, part=TEXT)), there=TWINS
    ),
    r"(training|pair-[^-]+)-curve": Kind(
        dict(norm=TEXT, seed=SEED, step=STEP, loss=SIZE), key=("norm", "seed", "step"), there=TWINS
    ),
    r"(training|pair-[^-]+)-forms": Kind(
        dict(
            step=STEP,
            site=TEXT,
            correlation=Column("number", -1, 1),
            overlap=SHARE,
            q05=SHARE,
            near=SHARE,
            norm=NORM,
            seed=SEED,
            **_maybe(
                smallest=NUMBER,
                mean=NUMBER,
                largest=NUMBER,
                spread=SIZE,
                axis_ratio=Column("number", 1),
                pointing=SHARE,
            ),
        ),
        key=("step", "site", "norm", "seed"),
        there=TWINS,
    ),
    r"observed-\d\d-(.+)": Kind(dict(claim=TEXT, deviation=SIZE, bound=SIZE), key=("claim",)),
}


def kind_of(name: str) -> Kind | None:
    """The kind of the record ``name`` (a file's name without its ending), None where no claim is judged from it."""
    return next((kind for pattern, kind in KINDS.items() if re.fullmatch(pattern, name)), None)
