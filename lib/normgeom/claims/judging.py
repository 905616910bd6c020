"""How a table of occupancies decides a claim."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

HOLDS, FAILS, UNTOLD = "holds", "fails", "cannot be told"

FEWEST_DIRECTIONS, FEWEST_TOKENS, FEWEST_SEEDS = 30, 1000, 3
# Twice as often as chance has a direction above the 95 % quantile.
ABOVE_BY_CHANCE = 0.1
TWICE, FAR = 2, 5


class Judgement(NamedTuple):
    """What a table says of a claim: :data:`HOLDS`, :data:`FAILS` or :data:`UNTOLD`, and a sentence that says why."""

    verdict: str
    sentence: str


def lacking(rows: pd.DataFrame | None, columns: Sequence[str]) -> str:
    """Why these rows decide nothing, as a sentence; empty where they may."""
    if rows is None or rows.empty:
        return "There are no such rows."
    if holes := [name for name in columns if not np.isfinite(rows[name]).all()]:
        return f"Not every row has a number for {', '.join(holes)}."
    if "drawn" in rows and rows.drawn.isna().any():
        return "The record does not say of how many random directions its quantiles are."
    if "drawn" in rows and rows.drawn.min() < FEWEST_DIRECTIONS:
        return f"{rows.drawn.min():.0f} random directions are too few for quantiles; {FEWEST_DIRECTIONS} would do."
    if "tokens" in rows and rows.tokens.min() < FEWEST_TOKENS:
        return f"{rows.tokens.min()} tokens are too few; {FEWEST_TOKENS} would do."
    return ""


def limits(rows: pd.DataFrame) -> pd.Series:
    """How many times the 95 % quantile of random directions an occupancy must exceed to be more than chance.

    At least twice, and as often as it takes to be five times as far above the median as the quantile is.  The second
    asks for more where the null is wide, as where vectors keep to a few dimensions or have much in common.  Let them be
    normal in k dimensions, or share one direction with any part of their squared length: the occupancy of a random
    direction is then nearly chi-square with k degrees over k, or a shifted one with one degree.  Chance exceeds these
    limits in one of 20,000 cases at most; twice alone, in one of 180 where k = 1.  With quantiles of 100 drawn
    directions it is one of 5,000, with 30 one of 1,000.  So of a hundred independent norms, with 100 directions, chance
    makes one fail in at most one of fifty models; and norms of one stream depend on each other, which makes it fewer.

    Args:
        rows: with columns ``median`` and ``high``.
    """
    beyond = rows["median"] + FAR * (rows.high - rows["median"])
    return np.maximum(TWICE, beyond / rows.high)


def by_excess(rows: pd.DataFrame) -> str:
    """Whether occupancies are as small as those of random directions at the same places.

    It fails where one exceeds its :func:`limits`.  It holds where none does and at most a tenth exceed the 95 %
    quantile, since chance lets a twentieth.  Else it cannot be told.

    Args:
        rows: one a place, with columns ``occupancy``, ``median`` and ``high``.
    """
    times = rows.occupancy / rows.high
    if (times > limits(rows)).any():
        return FAILS
    return HOLDS if (times > 1).mean() <= ABOVE_BY_CHANCE else UNTOLD


def of_seeds(verdicts: Sequence[str]) -> str:
    """One verdict of those of several seeds.

    It holds where it fails at none and holds at nine of ten or more, so at all of fewer than ten; it fails where it
    fails at more than half.  Else it cannot be told.
    """
    found = np.array(verdicts)
    if (found == FAILS).mean() > 0.5:
        return FAILS
    holds = (found == HOLDS).mean() >= 1 - ABOVE_BY_CHANCE
    return HOLDS if holds and not (found == FAILS).any() else UNTOLD


def of_draws(verdicts: Sequence[str]) -> str:
    """As :func:`of_seeds`, of at least three: in one RMSNorm network from a symmetric start the occupancy of 1 is one
    draw from the null, whatever was learned (cor-sign-null)."""
    return of_seeds(verdicts) if len(verdicts) >= FEWEST_SEEDS else UNTOLD


def seeds(count: int) -> str:
    """So many, in words."""
    return "1 seed" if count == 1 else f"{count} seeds"


def through(low: float, high: float, digits: str = "") -> str:
    """From one number to another, in words."""
    ends = dict.fromkeys((f"{low:{digits}}", f"{high:{digits}}"))
    return " to ".join(ends)
