"""Appendix "At scale": the sources' claims, each judged on recorded tables by a verdict and a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from normgeom.records import recorded

from normgeom_lab.common.pictures import at_side, null_band
from normgeom_lab.common.published import NAMES

HOLDS, FAILS, UNDECIDED = "holds", "fails", "undecided"
CHEAP = 0.1  # nats per token: the most that doing without 1 may cost
OUR_TEST = "1 does not matter (our test)"  # no claim of the sources


def limits(rows: pd.DataFrame) -> pd.Series:
    """The multiples of random directions' 95 % quantile above which an occupancy is more than chance.

    A limit is at least 2, and at least five times as far above the median as the quantile is, which is more if vectors
    lie in few dimensions.  With quantiles of 100 directions, chance exceeds a limit in at most one of 5,000 cases.
    """
    return np.maximum(2, (rows["median"] + 5 * (rows.high - rows["median"])) / rows.high)


def by_excess(rows: pd.DataFrame) -> str:
    """Are occupancies as small as those of random directions, with at most a tenth above their 95 % quantile?"""
    times = rows.occupancy / rows.high
    if (times > limits(rows)).any():
        return FAILS
    return HOLDS if (times > 1).mean() <= 0.1 else UNDECIDED


def of_seeds(verdicts: Sequence[str], fewest: int = 1) -> str:
    """The verdict over seeds: holds if none fails and nine tenths or more hold; fails if more than half fail."""
    found = np.array(verdicts)
    if len(found) < fewest:
        return UNDECIDED
    if (found == FAILS).mean() > 0.5:
        return FAILS
    return HOLDS if (found == HOLDS).mean() >= 0.9 and not (found == FAILS).any() else UNDECIDED


def little_along_one(rows: pd.DataFrame) -> tuple[str, str]:
    """Is the component along 1 of a model's hidden vectors no larger than along a random direction?"""
    times = rows.occupancy / rows.high
    sentence = (
        f"In {(times <= 1).sum()} of {len(times)} cases the occupancy of 1 is below the 95 % quantile of random "
        f"directions; the largest is {times.max():.3g} times that quantile, at {rows.site[times.idxmax()]}. Mean "
        f"angles to 1 lie between {rows.mean_deg.min():.1f}° and {rows.mean_deg.max():.1f}°."
    )
    return by_excess(rows), sentence


def ordinary(rows: pd.DataFrame) -> tuple[str, str]:
    """Is 1 like random directions, of which a tenth lie outside the middle nine tenths by chance?"""
    below, above = rows.occupancy < rows.low, rows.occupancy > rows.high
    share = (below | above).mean()
    times = rows.occupancy / rows["median"]
    sentence = (
        f"In {below.sum()} of {len(rows)} cases the occupancy of 1 is below the middle nine tenths of random "
        f"directions, and in {above.sum()} above them; it is {times.min():.2g} to {times.max():.3g} times their median."
    )
    return HOLDS if share <= 0.2 else FAILS if share > 0.5 else UNDECIDED, sentence


def removable(rows: pd.DataFrame) -> tuple[str, str]:
    """Does it cost less than 0.1 nats per token, on each text, if no norm of a model reads or removes 1 any more?"""
    one, signs = (rows[(rows.direction == "1") == of_one] for of_one in (True, False))
    one, median = one.cost, signs.groupby("text").cost.median()
    sentence = (
        f"With 1 removed (in Whisper, kept) at all norms, the loss changes by {one.min():.2f} to {one.max():.2f} nats "
        f"per token on {len(one)} texts; with a sign vector removed, by {median.min():.2f} to {median.max():.2f} (on "
        f"each text, the median of {signs.direction.nunique()} sign vectors)."
    )
    return HOLDS if one.max() < CHEAP else FAILS, sentence


def little_at_checkpoints(angles: pd.DataFrame) -> tuple[str, str]:
    """Is the component along 1 no larger than along a random direction, at any checkpoint and norm?

    A verdict needs three seeds: with RMSNorm the occupancy of 1 at one seed is one draw from the null (cor-sign-null).
    """
    uniform = angles[(angles.direction == "uniform") & (angles.step > 0)]
    times = uniform.occupancy / uniform.high
    verdicts = [by_excess(rows) for _, rows in uniform.groupby("seed")]
    at = uniform.loc[times.idxmax()]
    sentence = (
        f"At {(times <= 1).sum()} of {len(times)} places ({uniform.step.nunique()} checkpoints, "
        f"{uniform.site.nunique()} norms, {_seeds(verdicts)}) the occupancy of 1 is below the 95 % quantile of random "
        f"directions; the largest is {times.max():.3g} times that quantile, at {at.site} after {at.step} steps. "
        f"Mean angles to 1 differ from 90° by at most {(uniform.mean_deg - 90).abs().max():.2g}°."
    )
    return of_seeds(verdicts, fewest=3), sentence


# 97.5 % quantiles of Student's t for 2, 3, … pairs; for more than ten pairs that of ten, which is a little too large.
STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)


def comparable_losses(loss: pd.DataFrame) -> tuple[str, str]:
    """Do RMSNorm networks end within 1 % of their LayerNorm twins' loss, by a 95 % interval of Student's t?"""
    losses = loss.pivot_table(index="seed", columns="norm", values="loss").dropna()  # means over learning rates
    apart = (losses.rms - losses.layer) / losses.layer.mean()
    mean, count = apart.mean(), len(apart)
    found = f"RMSNorm's final loss minus LayerNorm's is {mean:+.2%} of {losses.layer.mean():.3f} nats"
    if count == 1:
        return UNDECIDED, f"{found}, in one pair; the scatter between seeds is unknown."
    reach = STUDENT[min(count - 2, len(STUDENT) - 1)] * apart.sem()
    verdict = HOLDS if abs(mean) + reach < 0.01 else FAILS if abs(mean) - reach > 0.01 else UNDECIDED
    return verdict, f"{found}, ± {reach:.2%} at 95 %; {count} pairs, from {apart.min():+.2%} to {apart.max():+.2%}."


def at_surface(forms: pd.DataFrame) -> tuple[str, str]:
    """After training, do at least 95 % of the outputs of each norm lie within 5 % of the ellipsoid's surface?"""
    last = forms[forms.step == forms.step.max()]
    least = last.near.groupby(last.seed).min()
    at = last.loc[last.near.idxmin()]
    sentence = (
        f"At each of {last.site.nunique()} norms, over {_seeds(least)}, at least {at.near:.2%} of the outputs lie "
        f"within 5 % of the surface; at {at.site}, which has the fewest, their 5 % quantile is {at.q05:.4f} of the way "
        "from the centre to the surface."
    )
    return of_seeds(np.select([least >= 0.95, least < 0.9], [HOLDS, FAILS], UNDECIDED)), sentence


def _seeds(of_each: Sequence) -> str:
    return "1 seed" if len(of_each) == 1 else f"{len(of_each)} seeds"


# For each claim: the function that judges it, its table, and the query for its rows.
CLAIMS = {
    # The geometry paper, abstract, section 3.2, figures 3 and 6: hidden vectors have on average no component along 1
    # before and after any norm, with a small spread; figures 6 and 7: before the norms of GPT-2 XL there is one.
    "before": (little_along_one, "survey", "side == 'in'"),
    "after": (little_along_one, "survey", "side == 'out'"),
    # The geometry paper, section 3.3, figures 4 and 7 to 13: 1 behaves as arbitrary vectors do.
    "ordinary": (ordinary, "survey", "side == 'in'"),
    # Our test of the geometry paper's conclusion that the mean subtraction in LayerNorm decoders can be dropped.
    OUR_TEST: (removable, "costs", ""),
    # The geometry paper, section 3.3, figures 4, 14, 17, 20, 23, 26, 29, 32 and 35: in training, hidden vectors are at
    # 90° to 1, from early checkpoints on and whatever the layer.
    "training, LayerNorm": (little_at_checkpoints, "angles", "norm == 'layer' and side == 'in'"),
    "training, RMSNorm": (little_at_checkpoints, "angles", "norm == 'rms' and side == 'in'"),
    # The geometry paper, section 3.3: downstream performance with RMSNorm is comparable to that with LayerNorm.
    "losses": (comparable_losses, "loss", "norm in ['layer', 'rms']"),
    # The summary of the dynamics note, key results: typical outputs of LayerNorm lie near the surface of its ellipsoid.
    "surface": (at_surface, "forms", "norm == 'layer'"),
}

PAIRS = "pairs of 1M weights, chapter 8"  # whose tables are the records training-*
MODELS = NAMES | {"whisper-base": "Whisper base"}


def models(surveys: str | Path = "") -> dict[str, pd.DataFrame]:
    """For each model the occupancy of 1 at each ``site``, with the quantiles ``low``, ``median``, ``high`` of a null.

    First the recorded published models, on all texts, then those with a folder of ``normgeom survey`` in ``surveys``.
    First positions are left out; the null consists of Gaussian directions.
    """
    speech = recorded("published-speech-angles").table.rename(columns={"recording": "text"})
    rows = pd.concat([recorded("published-angles").table, speech.assign(model="whisper-base")], ignore_index=True)
    rows = rows.rename(columns={"random_q05": "low", "random_q50": "median", "random_q95": "high"})
    rows["site"] = [f"norm {norm + 1} on {text}" for norm, text in zip(rows.norm, rows.text, strict=True)]
    found = {MODELS[name]: of_model.assign(side="in") for name, of_model in rows.groupby("model", sort=False)}
    for path in sorted(Path(surveys).glob("*/table.parquet")) if surveys else ():
        table = pd.read_parquet(path)
        uniform = table[table.direction == "uniform"]
        sides = [at_side(uniform, side).merge(null_band(table, side), on="site") for side in ("in", "out")]
        found[path.parent.name] = pd.concat(sides, ignore_index=True)
    return found


def costs() -> dict[str, pd.DataFrame]:
    """What published models lose without 1, and without sign vectors, at all norms: one row per direction and text.

    For a LayerNorm, doing without 1 means that it does not subtract the mean; the weights stay as they are.
    """
    speech = recorded("published-speech-removed").table.assign(model="whisper-base")
    rows = pd.concat([recorded("published-removed").table, speech])
    rows = rows.replace({"direction": {"uniform": "1", "dropped": "1"}})
    rows = rows[rows.direction.str.fullmatch(r"1|signs_\d+")]
    return {MODELS[name]: of_model for name, of_model in rows.groupby("model", sort=False)}


def judged(surveys: str | Path = "") -> pd.DataFrame:
    """The verdict on every claim for every model and pair that it is about."""
    tables = [("survey", name, table) for name, table in models(surveys).items()]
    tables += [("costs", name, table) for name, table in costs().items()]
    pairs = {"angles": "training-angles", "loss": "training-rates", "forms": "training-forms"}
    tables += [(kind, PAIRS, recorded(name).table) for kind, name in pairs.items()]
    found = []
    for claim, (judge, wanted, where) in CLAIMS.items():
        for name, table in ((name, table) for kind, name, table in tables if kind == wanted):
            rows = table.query(where) if where else table
            if not np.isfinite(rows.filter(["occupancy", "high", "loss", "near"])).all(axis=None):
                found.append((claim, name, UNDECIDED, "Not every row has a number."))
            elif len(rows):
                found.append((claim, name, *judge(rows)))
    return pd.DataFrame(found, columns=["claim", "evidence", "verdict", "sentence"])


def overview(found: pd.DataFrame) -> pd.DataFrame:
    """Verdicts of :func:`judged`: one row per model or pair, one column per claim."""
    table = found.pivot(index="evidence", columns="claim", values="verdict").astype(object)
    table = table.reindex(index=found.evidence.unique(), columns=found.claim.unique())
    return table.where(table.notna(), None)
