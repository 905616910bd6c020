"""Chapter 12: figures of designs that replace LayerNorm, with their alt texts; designs are keys of TITLES."""

from __future__ import annotations

import math
from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from normgeom.norms.elementwise import dyt
from normgeom.norms.functions import rms_norm
from normgeom.view.style import COLORS, WIDTH, style

from normgeom_lab.common.axes import label_ends, ticks_of_powers
from normgeom_lab.common.growth import Growth
from normgeom_lab.common.stacks import DESIGNS

TITLES = {name: design.words for name, design in DESIGNS.items()} | {"sandwich": "sandwich (Peri-LN)"}

_LOOKS = {
    "pre": dict(color="#D55E00", marker="s"),
    "sandwich": dict(color="#009E73", marker="v"),
    "scaled": dict(color="#0072B2", marker="o"),
    "mix": dict(color="#CC79A7", marker="D"),
    "hybrid": dict(color="#E69F00", marker="^"),
    "keel": dict(color="#2F2F2F", marker="x"),
}

_MARKS = ("o", "s", "^")
_DEPTHS = COLORS["uniform"], COLORS["random_a"], COLORS["random_b"]


def growth_of_designs(grown: Mapping[str, Growth]) -> tuple[Figure, str]:
    """The mean square of the stream and the relative size of its changes, by sublayer."""
    with style():
        figure, (size, late) = plt.subplots(2, 1, figsize=(WIDTH, 5.2), sharex=True)
        words = []
        for name, found in grown.items():
            square, update = found.square.mean(0).numpy(), found.update.mean(0).numpy()
            look = dict(_LOOKS[name], label=TITLES[name], markevery=4)
            size.plot(np.arange(len(square)), square, **look)
            late.plot(np.arange(1, len(square)), update, **look)
            words.append(f"{TITLES[name]} {square[-1]:.2g} and {update[-1]:.2g}")
        size.set(ylabel="mean square of the stream", ylim=(0, None))
        late.set(yscale="log", ylim=(0.01, 1.5), xlabel="sublayer", ylabel="relative change")
        ticks_of_powers(late.yaxis)
        label_ends(size)
    return figure, (
        "Two panels of lines over the sublayers. Mean square of the stream after the last sublayer, and its relative "
        f"change by that sublayer: {'; '.join(words)}."
    )


def losses_of_designs(best: pd.DataFrame, failed: pd.DataFrame, limit: float, settings: int) -> tuple[Figure, str]:
    """Losses of designs at their best settings: a mark per depth, a bar for the range over seeds; counts of failures.

    ``best`` has a row per ``design`` and ``layers``, with ``mean``, ``low``, ``high``; means above 10 are not drawn.
    ``failed`` counts, of ``settings``, the failed ones per design (row) and depth, whose losses are above ``limit``.
    """
    order = best.groupby("design").mean(numeric_only=True)["mean"].sort_values().index
    depths, least = sorted(best.layers.unique()), best.low.min()
    with style():
        figure, axis = plt.subplots(figsize=(WIDTH, 0.9 + 0.3 * len(order)))
        aside = dict(xycoords=axis.get_yaxis_transform(), textcoords="offset points", va="center")
        for k, (depth, color, sign) in enumerate(zip(depths, _DEPTHS, "●■▲", strict=False)):
            rows = best[(best.layers == depth) & (best["mean"] <= 10)].set_index("design").reindex(order)
            at = np.arange(len(order)) + 0.22 * (k - (len(depths) - 1) / 2)
            bars = np.abs(rows[["low", "high"]].to_numpy().T - rows["mean"].to_numpy())
            axis.errorbar(rows["mean"], at, xerr=bars, fmt=_MARKS[k], ms=5, lw=1.2, color=color)
            for place, text in [(-1.7, sign), (-0.9, depth), *enumerate(failed.loc[order, depth])]:
                axis.annotate(text, (1, place), (14 + 22 * k, 0), color=color, ha="center", **aside)
        axis.annotate(f"failed, of {settings}", (1, -2.5), (36, 0), ha="center", **aside)
        axis.annotate("blocks:", (1, -0.9), (0, 0), ha="right", **aside)
        axis.axvline(limit, color=COLORS["ink"], ls="--", lw=1)
        axis.text(limit + 0.02, len(order) - 1, "fails", va="center")
        axis.set(yticks=range(len(order)), yticklabels=[TITLES[name] for name in order], xlabel="loss / nats per byte")
        axis.set(ylim=(len(order) - 0.4, -0.6), xlim=(least - 0.05, None))
    said = best.assign(said=best["mean"].map(lambda mean: f"{mean:.2f}" if mean <= 10 else "beyond 10"))
    said = said.sort_values("layers").groupby("design").said.agg(", ".join)
    words = "; ".join(f"{TITLES[name]} {said[name]}, failed {', '.join(map(str, failed.loc[name]))}" for name in order)
    return figure, (
        f"Losses in nats per byte at {', '.join(map(str, depths))} blocks, lowest mean first, and failed settings of "
        f"{settings}; above {limit:.2f} a run fails: {words}."
    )


def what_becomes_of_rays() -> tuple[Figure, str]:
    """Rays in the plane, and their images under RMSNorm, DyT and a norm with a frozen scale, all with the same gain."""
    gain, lengths = torch.tensor([1.0, 0.6]), torch.linspace(0.05, 3, 60)
    angles = torch.arange(12) * (2 * math.pi / 12) + math.pi / 12
    rays = lengths[:, None, None] * torch.stack([angles.cos(), angles.sin()], -1)  # (lengths, rays, 2)
    panels = {
        "vectors on rays": rays,
        "RMSNorm: ray to point": rms_norm(rays, gain, eps=0.0),
        "DyT: ray to curve": dyt(rays, 1.0, gain),
        "frozen norm: ray to ray": rays * gain / lengths.mean(),
    }
    with style():
        figure, axes = plt.subplots(2, 2, figsize=(WIDTH, WIDTH))
        for axis, (title, points) in zip(axes.flat, panels.items(), strict=True):
            for k, ray in enumerate(points.unbind(1)):
                axis.plot(*ray.T, f"C{k % 6}", marker="o", ms=4, markevery=[-1])
            reach = 3.2 if points is rays else 2.1
            axis.set(title=title, xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")
        turn = torch.linspace(0, 2 * math.pi, 200)
        ellipse = math.sqrt(2) * torch.stack([turn.cos(), turn.sin()]) * gain[:, None]
        axes[0, 1].plot(*ellipse, color=COLORS["null"], lw=0.8)
        box = torch.tensor([[-1, 1, 1, -1, -1], [-1, -1, 1, 1, -1]]) * gain[:, None]
        axes[1, 0].plot(*box, color=COLORS["null"], lw=0.8)
    return figure, (
        "Four panels. Twelve rays of vectors from the origin, each in its own colour. RMSNorm maps each ray to a point "
        "of an ellipse. DyT maps each to a curve from the centre of a box that bends towards its edges. A norm with a "
        "frozen scale maps rays to rays and compresses the plane in one direction."
    )


def step_on_the_sphere(*steps: float) -> tuple[Figure, str]:
    """The angle by which nGPT's step rotates the stream, against the angle to the branch's proposal, for each a < ½."""
    theta, words = np.linspace(0, np.pi, 721), []
    with style():
        figure, axis = plt.subplots()
        for k, a in enumerate(steps):
            phi = np.degrees(np.arctan2(a * np.sin(theta), 1 - a + a * np.cos(theta)))
            (line,) = axis.plot(np.degrees(theta), phi)
            axis.plot(np.degrees(theta), a * np.degrees(theta), color=line.get_color(), lw=1, ls="--")
            top = np.degrees(theta[phi.argmax()]), phi.max()
            axis.plot(*top, _MARKS[k], color=line.get_color(), ms=6)
            above = -17 if top[1] > 10 else 12  # below a curve that is high enough, clear of its dashed line
            axis.annotate(f"a = {a:g}", top, (0, above), textcoords="offset points", ha="center")
            words.append(f"{top[1]:.1f} degrees at θ = {top[0]:.0f} for a = {a:g}")
        axis.set(xlabel="angle θ to the branch's proposal / degrees", ylabel="rotation φ / degrees")
        axis.set(xticks=range(0, 181, 45), ylim=(0, 45))
    return figure, (
        "Curves rise from 0, turn down beyond a right angle and return to 0 for an opposite proposal. Their maxima are "
        f"{'; '.join(words)}. Dashed: the lines aθ, which the curves follow at small angles."
    )
