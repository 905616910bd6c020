"""Pictures of parts, each with its alt text; names of models as in :data:`normgeom_lab.common.published.NAMES`."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from normgeom.view.style import COLORS, WIDTH, style

from normgeom_lab.common.axes import label_ends, ticks_of_powers

_PAIRS = {
    "credit, direct": ("o", COLORS["uniform"], "credit"),
    "direct, total": ("s", COLORS["random_a"], "total effect"),
}

_LENSES = {  # look, name, and the name's height in points above the middle of its line in the first panel
    "own": (dict(ls="-", color=COLORS["uniform"]), "own scale", 8),
    "final": (dict(ls="-", color=COLORS["random_a"]), "final scale", -14),
    "mean": (dict(ls="", marker="^", markevery=3, color=COLORS["random_b"]), "mean scale", 19),
    "fitted": (dict(ls="-.", color=COLORS["ink"]), "fitted map", -24),
}
_GUESSES = {"uniform": (":", "uniform guess"), "frequency": ("--", "frequency guess")}

_LOST = {"logit": "in truth", "frozen": "with the scale frozen", "tangent": "along the tangent"}


def rankings(rows: pd.DataFrame) -> tuple[Figure, str]:
    """Rank correlations of credit, direct and total effect with intervals; a panel per model, a row per replacement."""
    words, places = [], {name: place for place, name in enumerate(dict.fromkeys(rows.replaced))}
    with style():
        height = 1 + 0.3 * len(places)
        figure, axes = plt.subplots(1, rows.model.nunique(), figsize=(WIDTH, height), sharey=True, squeeze=False)
        for axis, (model, of_model) in zip(axes.flat, rows.groupby("model", sort=False), strict=True):
            for pair, (marker, color, label) in _PAIRS.items():
                at = of_model[of_model.pair == pair]
                y = at.replaced.map(places)
                axis.hlines(y, at.low, at.high, color=color, lw=1)
                axis.plot(at["rank"], y, marker, color=color)
                axis.text(at["rank"].iloc[0], -0.6, label, color=color, ha="center")
                words.append(f"{model}, {pair}: {at['rank'].min():.2f} to {at['rank'].max():.2f}")
            null = of_model[of_model.pair == "direct, total"]
            axis.plot(null.other, null.replaced.map(places), "|", color=COLORS["null"], ms=8)
            axis.set(title=model, xlim=(-0.2, 1.2), ylim=(len(places) - 0.5, -1.2), xticks=(0, 0.5, 1))
        axes[0, 0].set_yticks([*places.values()], [*places])
        figure.supxlabel("rank correlation")
    return figure, f"Rank correlations over parts or heads. {'; '.join(words)}."


def lenses_by_depth(rows: pd.DataFrame) -> tuple[Figure, str]:
    """The divergence of logit lenses and two guesses from the prediction; a panel per model, a line per text."""
    words = []
    with style():
        figure, axes = plt.subplots(1, rows.model.nunique(), figsize=(WIDTH, 3.8), sharey=True, squeeze=False)
        for axis, (model, of_model) in zip(axes.flat, rows.groupby("model", sort=False), strict=True):
            for _, at in of_model.groupby("text"):
                at = at.iloc[:-1]  # at the end all lenses but that of the mean scale give the prediction
                depth, middle = np.arange(len(at)) / len(at), len(at) // 2
                for lens, (look, _, _) in _LENSES.items():
                    axis.semilogy(depth, at[lens], lw=1.4, label=lens, **look)
                for guess, (dash, _) in _GUESSES.items():
                    axis.semilogy(depth, at[guess], dash, color=COLORS["null"], lw=1, label=guess)
            axis.set(title=model, xlabel="share of the depth")
            axis.grid(visible=False)  # its lines would strike through names
            names = _LENSES.items() if axis is axes[0, 0] else ()
            for lens, (look, name, above) in names:
                place = (depth[middle], at[lens].iloc[middle])
                axis.annotate(name, place, (0, above), color=look["color"], textcoords="offset points", ha="center")
            first = ", ".join(f"{name} {at[name].iloc[0]:.1f}" for name in (*_LENSES, *_GUESSES))
            words.append(f"{model}, at the first block: {first}")
        for guess, (_, name) in _GUESSES.items():
            axis.annotate(name, (depth[-1], at[guess].iloc[-1]), (5, 0), textcoords="offset points", va="center")
        ticks_of_powers(axes[0, 0].yaxis)
        axes[0, 0].set_ylabel("KL / nats")
    return figure, f"Divergence from the model's prediction, in nats. {'; '.join(words)}."


def fading_part(faded: pd.DataFrame, kept: float) -> tuple[Figure, str]:
    """What two attributions predict while a part fades, and the truth; right, contributions of part and others."""
    looks = {
        "frozen": ("--", COLORS["random_a"]),
        "tangent": (":", COLORS["random_b"]),
        "logit": ("-", COLORS["uniform"]),
    }
    name, so_far, here, whole = faded.index.name, faded[faded.index >= kept], faded.loc[kept], faded.iloc[0]
    with style():
        figure, (left, right) = plt.subplots(1, 2, figsize=(5, 3.4), sharey=True, width_ratios=(2, 1))
        for column, (dash, color) in looks.items():
            left.plot(faded.index, faded[column], dash, color=color, alpha=0.35, label=column.replace("logit", "truth"))
            left.plot(so_far.index, so_far[column], dash, color=color, lw=2.5)
            left.plot(kept, here[column], "o", color=color, ms=6)
        left.set(xlabel="share kept", ylabel="logit above the mean", xlim=(1.04, -0.04))
        right.set_axisbelow(True)
        look = dict(width=0.6, tick_label=[name, "others"], color=("#CC79A7", "#56B4E9"))
        right.bar((0, 1), here[["part", "others"]], **look)
        right.hlines(whole[["part", "others"]], (-0.4, 0.6), (0.4, 1.4), color=COLORS["ink"])
        right.set_title("contributions")
        label_ends(left)
    values = ", ".join(f"{whole[column] - here[column]:.1f} {words}" for column, words in _LOST.items())
    return figure, (
        f"With {kept:g} of the part kept, the logit above the mean is {here.logit:.1f} instead of "
        f"{whole.logit:.1f}. The drop is {values}. The part contributes {here.part:.1f} instead "
        f"of {whole.part:.1f}, the others {here.others:.1f} instead of {whole.others:.1f}."
    )
