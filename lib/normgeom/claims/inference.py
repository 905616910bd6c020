"""Claims on trained models: is there anything along 1, and is 1 a direction like any other?"""

from __future__ import annotations

import pandas as pd

from normgeom.claims.judging import FAILS, HOLDS, UNTOLD, Judgement, by_excess, lacking

FEW, MANY = 0.2, 0.5  # of the norms

_OPPOSITE = {HOLDS: FAILS, FAILS: HOLDS, UNTOLD: UNTOLD}


def little_along_one(rows: pd.DataFrame) -> Judgement:
    """Do hidden vectors have no more along 1 than along a random direction?

    Mean angles do not decide it: those of random vectors are 90° too, and 60° and 120° average to 90°.  The occupancy
    d·E[cos²] sees offset and spread.  :func:`normgeom.claims.judging.by_excess` gives the verdict.

    Args:
        rows: of one model at one side of its norms, as :func:`normgeom.claims.models` gives them.
    """
    uniform = rows[rows.direction == "uniform"]
    if why := lacking(uniform, ["occupancy", "median", "high"]):
        return Judgement(UNTOLD, why)
    times = uniform.occupancy / uniform.high
    sentence = (
        f"At {(times <= 1).sum()} of {len(times)} norms the vector 1 holds no more than 95 % of random directions do; "
        f"at most {times.max():.3g} times that quantile, at {uniform.site[times.idxmax()]}. {_mean_angles(rows)}"
    )
    return Judgement(by_excess(uniform), sentence)


def _mean_angles(rows: pd.DataFrame) -> str:
    off = (rows.mean_deg - 90).abs().groupby(rows.direction).max()
    others = "".join(f", of {name} {value:.2g}°" for name, value in off.drop("uniform").items())
    return f"Mean angles are off 90° by at most: of 1 {off['uniform']:.2g}°{others}."


def much_along_one(rows: pd.DataFrame) -> Judgement:
    """Is this model an exception to :func:`little_along_one`?  Its sentence, and the opposite of its verdict."""
    found = little_along_one(rows)
    return found._replace(verdict=_OPPOSITE[found.verdict])


def ordinary(rows: pd.DataFrame) -> Judgement:
    """Does 1 behave as random directions do, with neither more nor less?

    A tenth of the norms lie outside of the middle nine tenths of random directions by chance.  It holds where at most
    a fifth do, and fails where more than half do.  Norms that read one stream depend on each other, so a model counts
    for fewer independent norms than it has: for ten, chance gives more than half once in 7,000 models and more than a
    fifth in one of 14; for five, once in 120 and in one of 12.

    Args:
        rows: as of :func:`little_along_one`.
    """
    uniform = rows[rows.direction == "uniform"]
    if why := lacking(uniform, ["occupancy", "low", "median", "high"]):
        return Judgement(UNTOLD, why)
    below, above = uniform.occupancy < uniform.low, uniform.occupancy > uniform.high
    share = (below | above).mean()
    times = uniform.occupancy / uniform["median"]
    verdict = HOLDS if share <= FEW else FAILS if share > MANY else UNTOLD
    sentence = (
        f"At {below.sum()} of {len(uniform)} norms the vector 1 holds less than the middle nine tenths of random "
        f"directions, at {above.sum()} more; from {times.min():.2g} to {times.max():.2g} times their median."
    )
    return Judgement(verdict, sentence)
