"""Appendix "At scale": what the sources claim, judged from recorded tables."""

from __future__ import annotations

import json
import math
import os
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from normgeom.records import FOLDER, Record

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


FEW, MANY = 0.2, 0.5  # of the norms

_OPPOSITE = {HOLDS: FAILS, FAILS: HOLDS, UNTOLD: UNTOLD}


def little_along_one(rows: pd.DataFrame) -> Judgement:
    """Do hidden vectors have no more along 1 than along a random direction?

    Mean angles do not decide it: those of random vectors are 90° too, and 60° and 120° average to 90°.  The occupancy
    d·E[cos²] sees offset and spread.  :func:`normgeom_lab.scale.by_excess` gives the verdict.

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


FEWEST_CHECKPOINTS, EARLY = 3, 0.1

COMPARABLE = 0.01

# 97.5 % quantiles of Student's t for 2, 3, … pairs; for more than ten that of ten, which is a little wide.
_STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)


def _uniform(angles: pd.DataFrame | None) -> pd.DataFrame | None:
    return None if angles is None else only(angles, {"direction": "uniform"})


def little_at_checkpoints(angles: pd.DataFrame | None) -> Judgement:
    """Do hidden vectors have no more along 1 than along a random direction, early and late, at any norm?

    Each seed is judged by :func:`normgeom_lab.scale.by_excess` over all norms and all checkpoints after the first
    update, and :func:`normgeom_lab.scale.of_draws` gives the verdict.  At least three checkpoints are asked for,
    one of them within the first tenth of the training.

    Args:
        angles: of one norm at one side, as in :class:`normgeom_lab.scale.Pair`.
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
    95 % quantile.  It fails where it exceeds :func:`normgeom_lab.scale.limits` and is more medians than at the
    first.  Over seeds :func:`normgeom_lab.scale.of_draws` decides.  Where the null is random signs and the norm
    RMSNorm, from a symmetric start, the rank of 1 is uniform over seeds, exactly (cor-sign-null): what one seed shows
    is then one draw.

    Args:
        angles: of one norm at one side, as in :class:`normgeom_lab.scale.Pair`.
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


NEAR, TOO_FEW = 0.95, 0.9

AXES = 8  # the record compares the eight longest

STAYED, EXCHANGED = 7 / 8, 1 / 2

_MIDDLE = (0.3, 0.7)


def at_surface(forms: pd.DataFrame | None) -> Judgement:
    """Do outputs lie near the surface of the ellipsoid at the end of the training?

    Near is within 5 % of the way out.  An output lies at 1/√(1 + ε/σ²) of it (cor-radius), which for ε = 0 is exactly
    1: the null.  "Typical" is at least 95 % of outputs.  A seed holds where each norm has these, and fails where one
    norm has less than 90 %: twice as many far ones as "typical" allows, far beyond what a sample of 1000 could be off.
    Over seeds :func:`normgeom_lab.scale.of_seeds` decides.

    Args:
        forms: of one norm, as in :class:`normgeom_lab.scale.Pair`.
    """
    if why := lacking(forms, ["near"]):
        return Judgement(UNTOLD, why)
    last = forms[forms.step == forms.step.max()]
    least = last.near.groupby(last.seed).min()
    verdict = of_seeds(np.select([least >= NEAR, least < TOO_FEW], [HOLDS, FAILS], UNTOLD))
    at = last.loc[last.near.idxmin()]
    sentence = (
        f"At each of {last.site.nunique()} norms in {seeds(len(least))} at least {at.near:.2%} of the outputs lie "
        f"within 5 % of the surface, at {at.site} fewest; their 5 % quantile is there {at.q05:.4f} of the way out."
    )
    return Judgement(verdict, sentence)


def axes_stay(forms: pd.DataFrame | None) -> Judgement:
    """Are the longest axes, half-way through the training, those of its end?

    The overlap of the eight longest axes with those of the end, in the mean over norms.  A seed holds where it is at
    least 7/8, so that on average no more than one of the eight is exchanged in the second half, and above the 95 %
    quantile of what noise gives (:func:`noise_overlap`): for any course comes to rest as its rate falls.  It fails
    where more than half are exchanged.  Over seeds :func:`normgeom_lab.scale.of_seeds` decides.  The recorded
    step nearest to half is taken, from 30 to 70 %.

    Args:
        forms: of one norm, as in :class:`normgeom_lab.scale.Pair`.
    """
    if why := lacking(forms, ["overlap"]):
        return Judgement(UNTOLD, why)
    width = forms.width.iloc[0]
    if np.isnan(width):
        return Judgement(UNTOLD, "The record's note does not say how wide the network is.")
    steps, end = forms.step.unique(), forms.step.max()
    half = min(steps, key=lambda step: abs(step - end / 2))
    if not _MIDDLE[0] <= half / end <= _MIDDLE[1]:
        return Judgement(UNTOLD, f"There is no checkpoint near half of the {end} updates.")
    found = forms[forms.step == half].groupby("seed").overlap.mean()
    noise = noise_overlap(int(width), forms.site.nunique(), half, end)
    by_noise = np.quantile(noise, 0.95)
    stays = (found >= STAYED) & (found > by_noise)
    verdict = of_seeds(np.select([stays, found < EXCHANGED], [HOLDS, FAILS], UNTOLD))
    sentence = (
        f"After {half} of {end} updates the {AXES} longest axes share {found.mean():.2f} with those of the end (mean "
        f"over norms; {seeds(len(found))}, {through(found.min(), found.max(), '.2f')}); gains moved by noise share "
        f"{noise.mean():.2f}, in one of twenty sets more than {by_noise:.2f}."
    )
    return Judgement(verdict, sentence)


def noise_overlap(width: int, norms: int, step: int, steps: int, sets: int = 200) -> np.ndarray:
    """The overlap of the longest axes with those of the end, of gains that an optimiser moves on noise.

    Steps that are independent and as large as the rate give gains whose correlation with the end is the root of the
    share of the squared rates that has been used.  The rate is that of the recorded trainings: a linear warm-up over a
    tenth of the steps, at most 2000, then a cosine to a tenth.  Axes are those of the largest gains, exactly for
    RMSNorm and nearly for LayerNorm.

    Args:
        width: of a norm, more than eight.
        norms: of how many an overlap is the mean.
        step: of ``steps``.

    Returns:
        ``(sets,)``: one mean overlap a set of norms; the same numbers at each call.
    """
    correlation = math.sqrt(_squared_rates(steps)[:step].sum() / _squared_rates(steps).sum())
    generator = np.random.default_rng(0)
    found = np.empty(sets)
    for index in range(sets):
        now, more = generator.standard_normal((2, norms, width))
        end = correlation * now + math.sqrt(1 - correlation**2) * more
        longest = [np.argpartition(-gains, AXES)[:, :AXES] for gains in (now, end)]
        found[index] = (longest[0][:, :, None] == longest[1][:, None]).sum() / (norms * AXES)
    return found


def _squared_rates(steps: int) -> np.ndarray:
    warmup = max(1, min(2000, steps // 10))
    step = np.arange(steps)
    cosine = 0.1 + 0.45 * (1 + np.cos(np.pi * (step - warmup) / max(1, steps - warmup)))
    return np.where(step < warmup, (step + 1) / warmup, cosine) ** 2


class Claim(NamedTuple):
    """A claim of a source.

    Attributes:
        judge: the function that judges the rows that the claim speaks of.
        table: ``"survey"``, a table of :func:`normgeom.claims.models`, or a table of :class:`Pair`, by its name.
        of: the values that columns have in these rows.
        without: a model that the claim does not speak of.
    """

    judge: Callable[[pd.DataFrame], Judgement]
    table: str
    of: Mapping[str, str] = {}
    without: str = ""

    @property
    def needs(self) -> str:
        """What the claim speaks of, a ``"model"`` or a ``"pair"``."""
        return "model" if self.table == "survey" else "pair"

    def asked(self, evidence: pd.DataFrame | Pair) -> Judgement | None:
        """What a model's table or a pair says of the claim; None where the claim does not speak of this model."""
        if self.needs == "pair":
            table = getattr(evidence, self.table)
            return self.judge(None if table is None else only(table, self.of))
        rows = only(evidence, self.of)
        rows = rows[rows.model != self.without]
        return None if rows.empty else self.judge(rows)


CLAIMS: dict[str, Claim] = {
    # The geometry paper, abstract, section 3.2, figures 3 and 6: hidden vectors have on average no component along 1
    # before and after any norm, with a small spread; figures 6 and 7: before the norms of GPT-2 XL there is one.
    "before-layer": Claim(little_along_one, "survey", {"kind": "layer", "side": "in"}, without="gpt2-xl"),
    "after-layer": Claim(little_along_one, "survey", {"kind": "layer", "side": "out"}),
    "exception": Claim(much_along_one, "survey", {"model": "gpt2-xl", "kind": "layer", "side": "in"}),
    "before-rms": Claim(little_along_one, "survey", {"kind": "rms", "side": "in"}),
    "after-rms": Claim(little_along_one, "survey", {"kind": "rms", "side": "out"}),
    # The geometry paper, section 3.3, figures 4, 14, 17, 20, 23, 26, 29, 32 and 35: in training, hidden vectors are at
    # 90° to 1, from early checkpoints on and whatever the layer.
    "training-layer": Claim(little_at_checkpoints, "angles", {"norm": "layer", "side": "in"}),
    "training-rms": Claim(little_at_checkpoints, "angles", {"norm": "rms", "side": "in"}),
    # Ours, suggested by section 3.3: training leaves no more along 1 at the last norm than along a random direction.
    "growth-layer": Claim(no_growth, "angles", {"norm": "layer", "side": "in"}),
    "growth-rms": Claim(no_growth, "angles", {"norm": "rms", "side": "in"}),
    # The geometry paper, section 3.3, figures 4 and 7 to 13: 1 behaves as arbitrary vectors do.
    "ordinary-layer": Claim(ordinary, "survey", {"kind": "layer", "side": "in"}),
    "ordinary-rms": Claim(ordinary, "survey", {"kind": "rms", "side": "in"}),
    # The geometry paper, section 3.3: downstream performance with RMSNorm is comparable to that with LayerNorm.
    "losses": Claim(comparable_losses, "loss"),
    # The summary of the dynamics note, key results: typical outputs of LayerNorm lie near the surface of its ellipsoid.
    "surface": Claim(at_surface, "forms", {"norm": "layer"}),
    # Ours, suggested by the note's next checks: the principal axes by the middle of training are those of its end.
    "axes": Claim(axes_stay, "forms", {"norm": "layer"}),
}

# The models of the paper's table 1, by the names of their files in reruns/ and of their records.
MODELS = ("gpt2-xl", "gpt-neo-1.3b", "pythia-1.4b", "gpt-j-6b", "pythia-6.9b", "llama-2-7b", "llama-3-8b")

PAIRS = ("70M", "160M", "410M", "1B")  # the sizes of the paper's table 2, by the names of their files in reruns/


def overview(found: pd.DataFrame, needs: str) -> pd.DataFrame:
    """One row a model or a pair, those of the sources first, with a verdict on each claim that speaks of it.

    Args:
        found: as :func:`normgeom.claims.judged` gives it.
        needs: ``"model"`` or ``"pair"``.

    Returns:
        a column a claim, None where it does not speak of the row or where nobody has measured it; and ``measured``,
        ``"yes"`` or the command that measures it.  Of a model, which has norms of one kind, claims that differ in that
        kind alone share a column.
    """
    labels = {label: re.sub("-(layer|rms)$", "", label) if needs == "model" else label for label in _asking(needs)}
    rows = found[found.claim.isin(labels)]
    asked = {"model": MODELS, "pair": PAIRS}[needs]
    evidence = list(dict.fromkeys([*asked, *rows.evidence]))
    table = rows.assign(claim=rows.claim.map(labels)).pivot(index="evidence", columns="claim", values="verdict")
    table = table.reindex(index=evidence, columns=list(dict.fromkeys(labels.values()))).astype(object)
    table = table.where(table.notna(), None)
    measured = set(rows.evidence)
    return table.assign(measured=["yes" if name in measured else f"make scale ONLY={name}" for name in evidence])


def _asking(needs: str) -> list[str]:
    return [label for label, claim in CLAIMS.items() if claim.needs == needs]


def ends(found: Mapping[str, Pair]) -> pd.DataFrame:
    """How each pair ends: losses on held-out text, and what lies along 1 at the last norm.

    Args:
        found: as :func:`normgeom.claims.pairs` gives it.

    Returns:
        one row a pair that has angles and losses: ``seeds``, how many; for each norm its mean loss in nats a token, and
        ``along 1``, the occupancy of 1 over the median of random signs, the median over seeds.
    """
    rows = {}
    for size, pair in found.items():
        if pair.angles is None or pair.loss is None:
            continue
        last = only(pair.angles, {"direction": "uniform", "side": "in"})
        last = last[(last.step == last.step.max()) & (last.site == last.site.iloc[-1])]
        along = (last.occupancy / last["median"]).groupby(last.norm).median()
        loss = of_main_part(pair.loss).groupby("norm").loss.mean()
        rows[size] = {"seeds": last.seed.nunique()}
        for norm, title in (("layer", "LayerNorm"), ("rms", "RMSNorm")):
            rows[size] |= {f"loss, {title}": loss[norm], f"along 1, {title}": along[norm]}
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("pair")


def observations(folder: str | os.PathLike = FOLDER) -> pd.DataFrame:
    """The book's own observations on other networks beside the chapters' small ones, in units of their bounds.

    Returns:
        one row a claim: ``small``, the largest deviation of the chapter's networks over the seeds that it was tried at;
        and a column for each network, by the NAME in ``observed-NN-NAME``, NaN where it was not judged.  An observation
        holds where the number is at most 1.

    Raises:
        FileNotFoundError, ValueError: as :func:`normgeom_lab.scale.read`.
    """
    small, others = {}, {}
    for path in sorted(Path(folder).glob("observed-*.csv")):
        _, chapter, name = path.stem.split("-", 2)
        judged = read(path, "observed").table.set_index("claim")
        others.setdefault(name, {}).update(judged.deviation / judged.bound)
        tried = pd.read_csv(Path(folder) / f"claims-{chapter}.csv").groupby("claim", sort=False).deviation.max()
        small.update(tried[[claim for claim in tried.index if claim in judged.index]])
    return pd.DataFrame({"small": small, **others}).rename_axis("claim")


def judged(folder: str | os.PathLike = FOLDER) -> pd.DataFrame:
    """Every claim asked of every record in a folder that it speaks of.

    Returns:
        one row a claim and a record, in the order of :data:`CLAIMS`: ``claim``, its label; ``evidence``, the model's
        name or the pair's size; ``verdict`` and ``sentence`` as in :class:`normgeom_lab.scale.Judgement`.

    Raises:
        FileNotFoundError: a table is there without its provenance, or a model's angles without its nulls.
        ValueError: a table lacks a column.
    """
    evidence = {"model": models(folder), "pair": pairs(folder)}
    rows = [
        (label, name, *found)
        for label, claim in CLAIMS.items()
        for name, tables in evidence[claim.needs].items()
        if (found := claim.asked(tables)) is not None
    ]
    return pd.DataFrame(rows, columns=["claim", "evidence", *Judgement._fields])
