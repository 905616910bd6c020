"""Appendix "At scale": the sources' claims, judged on recorded tables, each with a verdict and a sentence."""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import torch
from normgeom.records import FOLDER
from normgeom.training.loop import warmup_cosine

HOLDS, FAILS, UNDECIDED = "holds", "fails", "cannot be told"


def limits(rows: pd.DataFrame) -> pd.Series:
    """The multiples of random directions' 95 % quantile above which an occupancy is more than chance.

    At least 2, and at least the median plus five times the distance from the median to the quantile, which is more
    where vectors lie in few dimensions. With quantiles of 100 directions chance exceeds these limits in at most one of
    5,000 cases.
    """
    return np.maximum(2, (rows["median"] + 5 * (rows.high - rows["median"])) / rows.high)


def by_excess(rows: pd.DataFrame) -> str:
    """Are occupancies as small as those of random directions, with at most a tenth above their 95 % quantile?"""
    times = rows.occupancy / rows.high
    if (times > limits(rows)).any():
        return FAILS
    return HOLDS if (times > 1).mean() <= 0.1 else UNDECIDED


def of_seeds(verdicts: Sequence[str], fewest: int = 1) -> str:
    """Holds if it fails at no seed and holds at nine tenths of them or more; fails if it fails at more than half."""
    found = np.array(verdicts)
    if len(found) < fewest:
        return UNDECIDED
    if (found == FAILS).mean() > 0.5:
        return FAILS
    return HOLDS if (found == HOLDS).mean() >= 0.9 and not (found == FAILS).any() else UNDECIDED


def little_along_one(rows: pd.DataFrame) -> tuple[str, str]:
    """Is the component along 1 of a model's hidden vectors no larger than along a random direction?"""
    uniform = rows[rows.direction == "uniform"]
    times = uniform.occupancy / uniform.high
    off = (rows.mean_deg - 90).abs().groupby(rows.direction).max().rename({"uniform": "1"})
    largest = ", ".join(f"{off[name]:.2g}° (to {name})" for name in ["1", *off.index.drop("1")])
    sentence = (
        f"At {(times <= 1).sum()} of {len(times)} norms the occupancy of 1 is below the 95 % quantile of random "
        f"directions; the largest is {times.max():.3g} times that quantile, at {uniform.site[times.idxmax()]}. Mean "
        f"angles differ from 90° by at most {largest}."
    )
    return by_excess(uniform), sentence


def much_along_one(rows: pd.DataFrame) -> tuple[str, str]:
    """Is this model an exception to :func:`little_along_one`?"""
    verdict, sentence = little_along_one(rows)
    return {HOLDS: FAILS, FAILS: HOLDS}.get(verdict, verdict), sentence


def ordinary(rows: pd.DataFrame) -> tuple[str, str]:
    """Is 1 like random directions, a tenth of which lie outside the middle nine tenths by chance?"""
    uniform = rows[rows.direction == "uniform"]
    below, above = uniform.occupancy < uniform.low, uniform.occupancy > uniform.high
    share = (below | above).mean()
    times = uniform.occupancy / uniform["median"]
    sentence = (
        f"At {below.sum()} of {len(uniform)} norms the occupancy of 1 is below the middle nine tenths of random "
        f"directions, and at {above.sum()} above; it is {times.min():.2g} to {times.max():.2g} times their median."
    )
    return HOLDS if share <= 0.2 else FAILS if share > 0.5 else UNDECIDED, sentence


def little_at_checkpoints(angles: pd.DataFrame) -> tuple[str, str]:
    """Is the component along 1 no larger than along a random direction, at any checkpoint and norm?

    This takes three seeds: with RMSNorm the occupancy of 1 at one seed is one draw from the null (cor-sign-null).
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


def no_growth(angles: pd.DataFrame) -> tuple[str, str]:
    """Does the stream at the last norm grow along 1 no more than along a random direction?"""
    uniform = angles[(angles.direction == "uniform") & (angles.site == angles.site.iloc[-1])].set_index("seed")
    first, last = (uniform[uniform.step == step].sort_index() for step in (uniform.step.min(), uniform.step.max()))
    start, end = (rows.occupancy / rows["median"] for rows in (first, last))
    within, beyond = last.occupancy <= last.high, last.occupancy / last.high > limits(last)
    verdicts = np.select([within, beyond & (end > start)], [HOLDS, FAILS], UNDECIDED)
    sentence = (
        f"At {last.site.iloc[0]} the occupancy of 1 goes from {start.median():.2g} to {end.median():.2g} times a "
        f"median direction's (median of {_seeds(end)}; at the end {_range(end, '.2g')}); "
        f"its rank is {_range(last['rank'])} of 40 there."
    )
    return of_seeds(verdicts, fewest=3), sentence


# 97.5 % quantiles of Student's t for 2, 3, … pairs; from ten pairs on that of ten, which is a little too large.
STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)


def comparable_losses(loss: pd.DataFrame) -> tuple[str, str]:
    """Do RMSNorm networks end within 1 % of their LayerNorm twins' loss, by the 95 % interval of Student's t?"""
    rows = _main(loss)
    losses = rows.pivot(index=[*rows.columns.drop(["norm", "loss"])], columns="norm", values="loss").dropna()
    apart = (losses.rms - losses.layer) / losses.layer.mean()
    mean, count = apart.mean(), len(apart)
    found = f"RMSNorm's final loss minus LayerNorm's is {mean:+.2%} of {losses.layer.mean():.3f} nats"
    if count == 1:
        return UNDECIDED, f"{found}, in one pair; the scatter over seeds is not known."
    reach = STUDENT[min(count - 2, len(STUDENT) - 1)] * apart.sem()
    verdict = HOLDS if abs(mean) + reach < 0.01 else FAILS if abs(mean) - reach > 0.01 else UNDECIDED
    return verdict, f"{found}, ± {reach:.2%} at 95 %; {count} pairs from {apart.min():+.2%} to {apart.max():+.2%}."


def at_surface(forms: pd.DataFrame) -> tuple[str, str]:
    """Do 95 % of the outputs or more lie within 5 % of the ellipsoid's surface, at each norm, after training?"""
    last = forms[forms.step == forms.step.max()]
    least = last.near.groupby(last.seed).min()
    at = last.loc[last.near.idxmin()]
    sentence = (
        f"At each of {last.site.nunique()} norms in {_seeds(least)} at least {at.near:.2%} of the outputs lie within "
        f"5 % of the surface. At {at.site}, where they are fewest, their 5 % quantile is {at.q05:.4f} of the way out."
    )
    return of_seeds(np.select([least >= 0.95, least < 0.9], [HOLDS, FAILS], UNDECIDED)), sentence


def axes_stay(forms: pd.DataFrame) -> tuple[str, str]:
    """Are the eight longest axes by mid-training those of the end, more than if noise changed the gains?"""
    end = forms.step.max()
    half = min(forms.step.unique(), key=lambda step: abs(step - end / 2))
    found = forms[forms.step == half].groupby("seed").overlap.mean()
    noise = noise_overlap(forms.width.iloc[0], forms.site.nunique(), half, end)
    by_noise = np.quantile(noise, 0.95)
    stays = (found >= 7 / 8) & (found > by_noise)
    sentence = (
        f"After {half} of {end} steps the overlap of the 8 longest axes with those of the end is {found.mean():.2f} "
        f"(mean over norms; {_seeds(found)}, {_range(found, '.2f')}); with gains changed by noise it is "
        f"{noise.mean():.2f}, and above {by_noise:.2f} in one of twenty sets."
    )
    return of_seeds(np.select([stays, found < 1 / 2], [HOLDS, FAILS], UNDECIDED)), sentence


def noise_overlap(width: int, norms: int, step: int, steps: int) -> np.ndarray:
    """The overlap of the eight largest gains with those of the end if noise changes them: 200 means over norms.

    Steps are independent and as large as the learning rate, so the squared correlation of the gains with those of the
    end is the share of the squared rates up to ``step``.
    """
    (factor,) = warmup_cosine(torch.optim.SGD([torch.zeros(1)]), steps).lr_lambdas
    rates = np.array([factor(i) for i in range(steps)]) ** 2
    correlation = math.sqrt(rates[:step].sum() / rates.sum())
    generator, found = np.random.default_rng(0), []
    for _ in range(200):
        now, more = generator.standard_normal((2, norms, width))
        end = correlation * now + math.sqrt(1 - correlation**2) * more
        longest = [np.argpartition(-gains, 8)[:, :8] for gains in (now, end)]
        found.append((longest[0][:, :, None] == longest[1][:, None]).sum() / (norms * 8))
    return np.array(found)


def _seeds(of_each: Sequence) -> str:
    return "1 seed" if len(of_each) == 1 else f"{len(of_each)} seeds"


def _range(values: pd.Series, digits: str = "") -> str:
    return " to ".join(dict.fromkeys((f"{values.min():{digits}}", f"{values.max():{digits}}")))


def _main(loss: pd.DataFrame) -> pd.DataFrame:
    """The losses of the main training, which the other tables describe, where there are several."""
    return loss[loss.part == "main"] if "main" in set(loss.part) else loss


# For each claim the function that judges it, its table, and its rows.
CLAIMS = {
    # The geometry paper, abstract, section 3.2, figures 3 and 6: hidden vectors have on average no component along 1
    # before and after any norm, with a small spread; figures 6 and 7: before the norms of GPT-2 XL there is one.
    "before-layer": (little_along_one, "survey", "kind == 'layer' and side == 'in' and model != 'gpt2-xl'"),
    "after-layer": (little_along_one, "survey", "kind == 'layer' and side == 'out'"),
    "exception": (much_along_one, "survey", "kind == 'layer' and side == 'in' and model == 'gpt2-xl'"),
    "before-rms": (little_along_one, "survey", "kind == 'rms' and side == 'in'"),
    "after-rms": (little_along_one, "survey", "kind == 'rms' and side == 'out'"),
    # The geometry paper, section 3.3, figures 4, 14, 17, 20, 23, 26, 29, 32 and 35: in training, hidden vectors are at
    # 90° to 1, from early checkpoints on and whatever the layer.
    "training-layer": (little_at_checkpoints, "angles", "norm == 'layer' and side == 'in'"),
    "training-rms": (little_at_checkpoints, "angles", "norm == 'rms' and side == 'in'"),
    # Ours, suggested by section 3.3: training leaves no more along 1 at the last norm than along a random direction.
    "growth-layer": (no_growth, "angles", "norm == 'layer' and side == 'in'"),
    "growth-rms": (no_growth, "angles", "norm == 'rms' and side == 'in'"),
    # The geometry paper, section 3.3, figures 4 and 7 to 13: 1 behaves as arbitrary vectors do.
    "ordinary-layer": (ordinary, "survey", "kind == 'layer' and side == 'in'"),
    "ordinary-rms": (ordinary, "survey", "kind == 'rms' and side == 'in'"),
    # The geometry paper, section 3.3: downstream performance with RMSNorm is comparable to that with LayerNorm.
    "losses": (comparable_losses, "loss", "norm in ['layer', 'rms']"),
    # The summary of the dynamics note, key results: typical outputs of LayerNorm lie near the surface of its ellipsoid.
    "surface": (at_surface, "forms", "norm == 'layer'"),
    # Ours, suggested by the note's next checks: the principal axes by the middle of training are those of its end.
    "axes": (axes_stay, "forms", "norm == 'layer'"),
}

# What the paper measured, its tables 1 and 2, by the names of the rows in experiments/reruns.yml and of their records.
PAPER = {
    "model": ("gpt2-xl", "gpt-neo-1.3b", "pythia-1.4b", "gpt-j-6b", "pythia-6.9b", "llama-2-7b", "llama-3-8b"),
    "pair": ("70M", "160M", "410M", "1B"),
}


def models(folder: str | Path = FOLDER) -> dict[str, pd.DataFrame]:
    """The records ``angles-NAME`` by name, without first positions, with the quantiles of random directions."""
    found = {}
    for path in sorted(Path(folder).glob("angles-*.csv")):
        name = path.stem.removeprefix("angles-")
        nulls = pd.read_csv(path.with_name(f"nulls-{name}.csv")).query("null == 'random_'").drop(columns="null")
        rows = pd.read_csv(path).query("positions == 'rest'")
        found[name] = rows.merge(nulls, "left", ["site", "side"]).assign(model=name)
    return found


def pairs(folder: str | Path = FOLDER) -> dict[str, SimpleNamespace]:
    """The records ``pair-SIZE-angles``, ``-loss``, ``-curve`` and ``-forms`` by size, and the book's own pair's."""
    found = defaultdict(SimpleNamespace)
    for path in sorted(Path(folder).glob("*.csv")):
        if match := re.fullmatch("(training|pair-[^-]+)-(angles|loss|curve|forms)", path.stem):
            size, kind = match[1].removeprefix("pair-").replace("training", "1M, chapter 8"), match[2]
            table = pd.read_csv(path)
            if kind == "forms":
                about = json.loads(path.with_suffix(".json").read_text("utf-8"))["model"]
                table["width"] = int(re.search(r"\bd = (\d+)", about)[1])
            setattr(found[size], kind, table)
    return dict(found)


def judged(folder: str | Path = FOLDER) -> pd.DataFrame:
    """The verdict on every claim for every record in a folder to which it applies."""
    tables = [("survey", name, table) for name, table in models(folder).items()]
    tables += [(kind, size, table) for size, pair in pairs(folder).items() for kind, table in vars(pair).items()]
    found = []
    for claim, (judge, wanted, where) in CLAIMS.items():
        for kind, name, table in tables:
            rows = table.query(where) if kind == wanted else table[:0]
            if not np.isfinite(rows.filter(["occupancy", "high", "loss", "near", "overlap"])).all(axis=None):
                found.append((claim, name, UNDECIDED, "Not every row has a number."))
            elif len(rows):
                found.append((claim, name, *judge(rows)))
    return pd.DataFrame(found, columns=["claim", "evidence", "verdict", "sentence"])


def overview(found: pd.DataFrame, needs: str) -> pd.DataFrame:
    """A row of :func:`judged` verdicts for each ``"model"`` or ``"pair"``; one column for both kinds of norm."""
    of_models = {label: re.sub("-(layer|rms)$", "", label) for label, claim in CLAIMS.items() if claim[1] == "survey"}
    labels = of_models if needs == "model" else {label: label for label in CLAIMS if label not in of_models}
    rows = found[found.claim.isin(labels)]
    names = list(dict.fromkeys([*PAPER[needs], *rows.evidence]))
    table = rows.assign(claim=rows.claim.map(labels)).pivot(index="evidence", columns="claim", values="verdict")
    table = table.reindex(index=names, columns=list(dict.fromkeys(labels.values()))).astype(object)
    measured = ["yes" if name in set(rows.evidence) else f"make experiments ONLY={name}" for name in names]
    return table.where(table.notna(), None).assign(measured=measured)


def ends(found: Mapping[str, SimpleNamespace]) -> pd.DataFrame:
    """How each of :func:`pairs` ends: losses, and the occupancy of 1 at the last norm over the null's median."""
    rows = {}
    for size, pair in found.items():
        last = pair.angles.query("direction == 'uniform' and side == 'in' and step == step.max()")
        last = last[last.site == last.site.iloc[-1]]
        along = (last.occupancy / last["median"]).groupby(last.norm).median()
        loss = _main(pair.loss).groupby("norm").loss.mean()
        rows[size] = {"seeds": last.seed.nunique()}
        for norm, title in (("layer", "LayerNorm"), ("rms", "RMSNorm")):
            rows[size] |= {f"loss, {title}": loss[norm], f"along 1, {title}": along[norm]}
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("pair")


def observations() -> pd.DataFrame:
    """The chapters' observations in units of their bounds; ``small`` are those of their own networks, all seeds."""
    small, others = {}, defaultdict(dict)
    for path in sorted(FOLDER.glob("observed-*.csv")):
        _, chapter, name = path.stem.split("-", 2)
        judged = pd.read_csv(path, index_col="claim")
        others[name].update(judged.deviation / judged.bound)
        tried = pd.read_csv(FOLDER / f"claims-{chapter}.csv").groupby("claim", sort=False).deviation.max()
        small.update(tried[tried.index.isin(judged.index)])
    return pd.DataFrame({"small": small, **others}).rename_axis("claim")
