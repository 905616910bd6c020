"""Claims on the ellipsoid of a norm: do outputs lie near its surface, and do its axes stay?"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from normgeom.claims.judging import FAILS, HOLDS, UNTOLD, Judgement, lacking, of_seeds, seeds, through

NEAR, TOO_FEW = 0.95, 0.9
AXES = 8  # the record compares the eight longest
STAYED, EXCHANGED = 7 / 8, 1 / 2
_MIDDLE = (0.3, 0.7)


def at_surface(forms: pd.DataFrame | None) -> Judgement:
    """Do outputs lie near the surface of the ellipsoid at the end of the training?

    Near is within 5 % of the way out.  An output lies at 1/√(1 + ε/σ²) of it (cor-radius), which for ε = 0 is exactly
    1: the null.  "Typical" is at least 95 % of outputs.  A seed holds where each norm has these, and fails where one
    norm has less than 90 %: twice as many far ones as "typical" allows, far beyond what a sample of 1000 could be off.
    Over seeds :func:`normgeom.claims.judging.of_seeds` decides.

    Args:
        forms: of one norm, as in :class:`normgeom.claims.evidence.Pair`.
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
    where more than half are exchanged.  Over seeds :func:`normgeom.claims.judging.of_seeds` decides.  The recorded
    step nearest to half is taken, from 30 to 70 %.

    Args:
        forms: of one norm, as in :class:`normgeom.claims.evidence.Pair`.
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
