"""Chapter 3: shapes of ellipsoids, and figures with their alt texts."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from normgeom.geometry import secular
from normgeom.geometry.ellipsoid import Ellipsoid
from normgeom.geometry.uniform import angle
from normgeom.view.style import COLORS, WIDTH, style
from torch import Tensor

from normgeom_lab.common.axes import MARKERS, ticks_of_powers


def coordinate_shares(axes: Tensor, k: int) -> Tensor:
    """The share of the squared length of each column of ``axes`` that lies in its ``k`` largest coordinates."""
    squares = axes.square()
    return squares.topk(k, dim=0).values.sum(0) / squares.sum(0)


def off_rank(body: Ellipsoid, shift: int = 0) -> float:
    """The 95 % quantile of the relative distance of the i-th semi-axis from √d times the (i + shift)-th largest gain.

    The i-th semi-axis lies between √d times the i-th largest |γ| and √d times the next (cor-interlacing). Gains of
    zero do not count.
    """
    gains = body.weight.abs().sort(descending=True).values
    gains = gains[gains > 0]
    gains = gains[shift : shift + body.dim]
    ratio = body.semi_axes[: len(gains)] / (len(body.weight) ** 0.5 * gains)
    return float((ratio - 1).abs().quantile(0.95))


def between_gains(body: Ellipsoid, axes: Tensor) -> float:
    """The share of axes whose two largest coordinates have the gains that enclose the semi-axis (cor-interlacing)."""
    order = body.weight.abs().argsort(descending=True)
    enclosing = torch.stack([order[: body.dim], order[1 : body.dim + 1]])
    heaviest = axes.abs().topk(2, dim=0).indices
    return float((heaviest.sort(0).values == enclosing.sort(0).values).all(0).double().mean())


def shapes(gains: Mapping[str, Tensor]) -> pd.DataFrame:
    """The ellipsoids of some LayerNorms in numbers, one row per norm.

    ``angle`` is the angle between the outputs' normal and 1 in degrees (cor-normal); ``one`` and ``two`` are medians
    over axes of :func:`coordinate_shares`; ``off_rank`` and ``off_next`` are :func:`off_rank` with shift 0 and 1.
    """
    rows = {}
    for name, gain in gains.items():
        body = Ellipsoid(gain)
        axes, size = body.axes(), body.weight.abs()
        rows[name] = dict(
            smallest=float(size.min()),
            median=float(size.median()),
            largest=float(size.max()),
            elongation=float(body.semi_axes[0] / body.semi_axes.median()),
            # the normal has no sign
            angle=float(90 - (angle(body.complement[:, 0], torch.ones_like(size)) - 90).abs()),
            one=float(coordinate_shares(axes, 1).median()),
            two=float(coordinate_shares(axes, 2).median()),
            off_rank=off_rank(body),
            off_next=off_rank(body, 1),
            enclosed=between_gains(body, axes),
        )
    return pd.DataFrame.from_dict(rows, orient="index")


def critical_points(gain: Tensor) -> tuple[Figure, str]:
    """The polynomial ∏(t − γ²), its roots and its critical points, as a curve and on a line (thm-critical-points)."""
    roots = gain.double().square().sort().values
    turns = (Ellipsoid(gain).semi_axes ** 2 / len(gain)).flip(0)
    margin = 0.05 * float(roots[-1])
    t = torch.linspace(float(roots[0]) - margin, float(roots[-1]) + margin, 500, dtype=roots.dtype)
    curve, heights = ((v[:, None] - roots).prod(-1) for v in (t, turns))
    reach = float(heights.abs().max())
    with style():
        figure, (top, line) = plt.subplots(2, 1, figsize=(WIDTH, 3.8), sharex=True, height_ratios=(4, 1))
        top.plot(t, curve, color=COLORS["ink"], lw=1.3)
        top.axhline(0, color=COLORS["null"], lw=0.8)
        top.plot(roots, 0 * roots, "o", color=COLORS["rms"], label="roots: γ², RMSNorm")
        top.plot(turns, heights, "s", color=COLORS["layer"], label="critical points: a²/d, LayerNorm")
        for turn in turns.tolist():
            top.axvline(turn, color=COLORS["layer"], lw=0.5, ls=":")
        top.set(ylabel="p(t)", ylim=(-1.6 * reach, 2.2 * reach))  # above, room for the legend
        top.legend(loc="upper center")
        line.plot(roots, 0 * roots, "o", color=COLORS["rms"])
        line.plot(turns, 0 * turns, "s", color=COLORS["layer"])
        line.set(yticks=[], xlabel="t")
        line.grid(False)
    return figure, (
        f"A curve that crosses zero at the squared gains {_listed(roots)} and has critical points between them, at "
        f"{_listed(turns)}. Below, circles and squares alternate on a line that begins and ends with a circle."
    )


def secular_equation(gain: Tensor, deficit: float) -> tuple[Figure, str]:
    """The secular equation (eq-secular) for u = 1/√d, its poles and roots, with and without a deficit."""
    poles = gain.double().square().sort().values
    inside = torch.linspace(0.002, 0.998, 300, dtype=poles.dtype)
    roots = {delta: secular.eigvalsh(gain, deficit=delta) for delta in (0.0, deficit)}
    roots[0.0] = roots[0.0][1:]  # without a deficit the smallest eigenvalue is zero, which is no root
    with style():
        figure, axis = plt.subplots(figsize=(WIDTH, 3.0))
        for delta, key, dash in ((0.0, "uniform", "-"), (deficit, "random_a", "--")):
            for low, high in pairwise([0.0, *poles.tolist()] if delta else poles.tolist()):
                t = low + (high - low) * inside
                left_side = -delta / t + (1 - delta) * (1 / (poles - t[:, None])).mean(-1)
                axis.plot(t, left_side, dash, color=COLORS[key], lw=1.3)
            axis.plot(roots[delta], 0 * roots[delta], "s", color=COLORS[key], label=f"roots, δ = {delta:g}")
        for pole in poles.tolist():
            axis.axvline(pole, color=COLORS["null"], lw=0.8, ls=":")
        axis.axhline(0, color=COLORS["null"], lw=0.8)
        axis.set(ylim=(-9, 9), xlabel="λ", ylabel="left side of the equation")
        figure.legend(loc="outside upper center", ncols=2)
    return figure, (
        f"Branches that rise from minus to plus infinity between the poles {_listed(poles)}. Without a deficit, there "
        f"are {len(poles) - 1} branches with one root each. With a deficit of {deficit:g} there is one more branch, "
        f"between zero and the first pole, with its root at {float(roots[deficit][0]):.3f}, and the other roots lie a "
        "little further to the right."
    )


_NO_GAIN = 1e-6  # where gains of zero are drawn on a logarithmic axis


def gains_by_norm(gains: pd.DataFrame) -> tuple[Figure, str]:
    """Quantiles of the sizes of gains, divided by the median, from the record published-gains; one panel per model."""
    words = []
    with style():
        models = gains.model.nunique()
        figure, axes = plt.subplots(1, models, figsize=(WIDTH, 3.2), sharey=True, squeeze=False)
        for axis, (model, rows) in zip(axes.flat, gains.groupby("model", sort=False), strict=True):
            place = np.arange(1, len(rows) + 1)
            smallest, largest = rows.q00 / rows.q50, rows.q100 / rows.q50
            none = (smallest == 0).to_numpy()
            axis.vlines(place, rows.q05 / rows.q50, rows.q95 / rows.q50, color=COLORS["uniform"], lw=2)
            axis.plot(place, largest, ".", color=COLORS["random_a"], ms=4)
            axis.plot(place, smallest.where(~none), ".", color=COLORS["random_b"], ms=4)
            axis.plot(place[none], [_NO_GAIN] * none.sum(), "o", color=COLORS["random_b"], mfc="none", ms=4)
            axis.set(yscale="log", title=model, xlabel="norms, first to last")
            words.append(
                f"{model}: the largest gain is {largest.median():.1f} times the median gain in the median norm, and at "
                f"most {largest.max():.0f} times; {none.sum()} norms have a gain of 0"
            )
        axes[0, 0].set_yticks([_NO_GAIN, 1e-4, 0.01, 1, 100], ["0", "10⁻⁴", "0.01", "1", "100"])
        axes[0, 0].minorticks_off()
        axes[0, 0].set_ylabel("gain / median gain")
    return figure, f"Gains of each norm. {'; '.join(words)}."


def shares_near_surface(found: pd.DataFrame, theory: pd.DataFrame, edge: float) -> tuple[Figure, str]:
    """The share of Gaussian inputs whose outputs lie near the surface, against their spread (prop-gaussian-skin)."""
    words, off = [], []
    with style():
        figure, axis = plt.subplots(figsize=(WIDTH, 3.0))
        for d, key in zip(found.columns, reversed(MARKERS), strict=False):
            axis.plot(theory.index, theory[d], color=COLORS[key], lw=1.3)
            axis.plot(found.index, found[d], MARKERS[key], color=COLORS[key], label=f"d = {d}")
            low, high = (float(np.interp(share, theory[d], theory.index)) for share in (0.1, 0.9))
            words.append(f"rises from 0.1 at {low:.1f} to 0.9 at {high:.1f} for {d} features")
            off.append(float(np.abs(found[d] - np.interp(found.index, theory.index, theory[d])).max()))
        axis.axvline(edge, color=COLORS["null"], ls=":", lw=1)
        axis.set(xscale="log", xlabel="standard deviation of the inputs / √ε", ylabel="share within 5 % of the surface")
        ticks_of_powers(axis.xaxis)
        axis.legend()
    return figure, (
        "Rising curves, steeper for more features: the share of outputs near the surface against the standard "
        f"deviation of the inputs in units of √ε. The share {'; '.join(words)}. A dotted line marks {edge:.2f}. The "
        f"markers lie within {max(off):.2f} of the curves."
    )


def _listed(values: Tensor) -> str:
    return ", ".join(f"{value:.2f}" for value in values.tolist())
