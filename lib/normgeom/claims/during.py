"""Claims on training: is there anything along 1 at checkpoints, does it grow, and what does the mean do to the loss?"""

from __future__ import annotations

import numpy as np
import pandas as pd

from normgeom.claims.evidence import only
from normgeom.claims.judging import (
    FAILS,
    HOLDS,
    UNTOLD,
    Judgement,
    by_excess,
    lacking,
    limits,
    of_draws,
    seeds,
    through,
)

FEWEST_CHECKPOINTS, EARLY = 3, 0.1
COMPARABLE = 0.01
# 97.5 % quantiles of Student's t for 2, 3, … pairs; for more than ten that of ten, which is a little wide.
_STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)


def _uniform(angles: pd.DataFrame | None) -> pd.DataFrame | None:
    return None if angles is None else only(angles, {"direction": "uniform"})


def little_at_checkpoints(angles: pd.DataFrame | None) -> Judgement:
    """Do hidden vectors have no more along 1 than along a random direction, early and late, at any norm?

    Each seed is judged by :func:`normgeom.claims.judging.by_excess` over all norms and all checkpoints after the first
    update, and :func:`normgeom.claims.judging.of_draws` gives the verdict.  At least three checkpoints are asked for,
    one of them within the first tenth of the training.

    Args:
        angles: of one norm at one side, as in :class:`normgeom.claims.evidence.Pair`.
    """
    uniform = _uniform(angles)
    if why := lacking(uniform, ["occupancy", "median", "high"]):
        return Judgement(UNTOLD, why)
    uniform = uniform[uniform.step > 0]
    steps = np.unique(uniform.step)
    if len(steps) < FEWEST_CHECKPOINTS:
        return Judgement(UNTOLD, f"{len(steps)} checkpoints are too few; {FEWEST_CHECKPOINTS} would do.")
    if steps[0] > EARLY * steps[-1]:
        return Judgement(UNTOLD, f"The first checkpoint, at {steps[0]} of {steps[-1]} updates, is not early.")
    times = uniform.occupancy / uniform.high
    verdicts = [by_excess(rows) for _, rows in uniform.groupby("seed")]
    at = uniform.loc[times.idxmax()]
    sentence = (
        f"At {(times <= 1).sum()} of {len(times)} places ({len(steps)} checkpoints, {uniform.site.nunique()} norms, "
        f"{seeds(len(verdicts))}) the vector 1 holds no more than 95 % of random directions do; at most "
        f"{times.max():.3g} times that quantile, at {at.site} after {at.step} updates. "
        f"Mean angles to 1 are off 90° by at most {(uniform.mean_deg - 90).abs().max():.2g}°."
    )
    return Judgement(of_draws(verdicts), sentence)


def no_growth(angles: pd.DataFrame | None) -> Judgement:
    """Does training not make the stream grow along 1 more than along a random direction?

    It is judged at the input of the last norm, by the occupancy of 1 over the median of the null: the squared component
    along 1, in units of a median direction's.  A seed holds where the last checkpoint's occupancy is within the null's
    95 % quantile.  It fails where it exceeds :func:`normgeom.claims.judging.limits` and is more medians than at the
    first.  Over seeds :func:`normgeom.claims.judging.of_draws` decides.  Where the null is random signs and the norm
    RMSNorm, from a symmetric start, the rank of 1 is uniform over seeds, exactly (cor-sign-null): what one seed shows
    is then one draw.

    Args:
        angles: of one norm at one side, as in :class:`normgeom.claims.evidence.Pair`.
    """
    uniform = _uniform(angles)
    if why := lacking(uniform, ["occupancy", "median", "high", "rank"]):
        return Judgement(UNTOLD, why)
    uniform = uniform[uniform.site == uniform.site.iloc[-1]]
    first, last = (_at(uniform, step) for step in (uniform.step.min(), uniform.step.max()))
    if uniform.step.nunique() < 2 or not first.index.equals(last.index):
        return Judgement(UNTOLD, "There is not a first and a last checkpoint of each seed.")
    start, end = (rows.occupancy / rows["median"] for rows in (first, last))
    within, beyond = last.occupancy <= last.high, last.occupancy / last.high > limits(last)
    verdict = of_draws(np.select([within, beyond & (end > start)], [HOLDS, FAILS], UNTOLD))
    ranks, most = last["rank"], last.drawn.iloc[0] + 1
    sentence = (
        f"At {last.site.iloc[0]} the occupancy of 1 goes from {start.median():.2g} to {end.median():.2g} times a "
        f"median direction's (median of {seeds(len(end))}; at the end {through(end.min(), end.max(), '.2g')}); "
        f"its rank is {through(ranks.min(), ranks.max())} of {most:.0f} there."
    )
    return Judgement(verdict, sentence)


def _at(rows: pd.DataFrame, step: int) -> pd.DataFrame:
    return rows[rows.step == step].set_index("seed").sort_index()


def of_main_part(loss: pd.DataFrame) -> pd.DataFrame:
    """The losses of the training that the other tables show: of the part ``"main"``, where there are several."""
    return loss[loss.part == "main"] if "main" in set(loss.get("part", ())) else loss


def comparable_losses(loss: pd.DataFrame | None) -> Judgement:
    """Do networks with RMSNorm end at the loss of those with LayerNorm?

    Comparable is within 1 % of the loss: a choice; the book's twins without any norm are 6 % away.  The loss of
    RMSNorm less that of LayerNorm is taken pair by pair: same seed, and all else in the table the same.  It holds where
    the 95 % interval of Student's t for the mean lies within 1 %, and fails where it lies outside.  One pair has no
    spread to judge by: then it cannot be told.

    Args:
        loss: final losses; where there is a column ``part``, the part ``"main"`` is taken.
    """
    if why := lacking(loss, ["loss"]):
        return Judgement(UNTOLD, why)
    rows = of_main_part(loss)
    rows = rows[rows.norm.isin(["layer", "rms"])]
    same = [*rows.columns.drop(["norm", "loss"])]
    losses = rows.pivot(index=same, columns="norm", values="loss").reindex(columns=["layer", "rms"]).dropna()
    if losses.empty:
        return Judgement(UNTOLD, "No LayerNorm and RMSNorm network make a pair.")
    apart = (losses.rms - losses.layer) / losses.layer.mean()
    mean, count = apart.mean(), len(apart)
    found = f"RMSNorm's final loss less LayerNorm's is {mean:+.2%} of {losses.layer.mean():.3f} nats"
    if count == 1:
        return Judgement(UNTOLD, f"{found}, in one pair; how much seeds scatter is not known.")
    reach = _STUDENT[min(count - 2, len(_STUDENT) - 1)] * apart.sem()
    verdict = HOLDS if abs(mean) + reach < COMPARABLE else FAILS if abs(mean) - reach > COMPARABLE else UNTOLD
    sentence = f"{found}, ± {reach:.2%} at 95 %; {count} pairs from {apart.min():+.2%} to {apart.max():+.2%}."
    return Judgement(verdict, sentence)
