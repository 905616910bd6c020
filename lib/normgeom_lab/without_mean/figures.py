"""Costs of dropping the subtraction as tables, and figures with their alt texts."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure
from normgeom.view.style import COLORS, WIDTH, style
from normgeom.view.tables import table
from torch import Tensor

from normgeom_lab.common.axes import label_ends, ticks_of_powers

WORDS = {  # columns of the record published-speech-converted, as rows of a table
    "words": "words spoken",
    "errors unchanged": "errors, original",
    "errors converted": "errors, converted to RMSNorm",
    "errors dropped encoder": "errors, no subtraction in the encoder",
    "errors dropped decoder": "errors, no subtraction in the decoder",
    "errors dropped": "errors, no subtraction",
}

COLUMNS = {  # of a table of costs: the name in words, and the number format
    "nll": ("NLL / nats", 3),
    "more": ("change in NLL / nats", ".2g"),
    "kl": ("KL / nats", ".2g"),
    "largest": ("largest change in log p", ".2g"),
}


def cost_table(costs: pd.DataFrame) -> None:
    """Display a table of costs."""
    costs = costs if costs.index.name is None else costs.reset_index()
    names = [name for name in costs if name not in COLUMNS]
    words = [COLUMNS[name] for name in costs if name not in names]
    shown = costs.set_index(names).set_axis([name for name, _ in words], axis=1)
    table(shown, digits=dict(words), first=names)


def costs_by_shift(paths: pd.DataFrame, standing: pd.Series) -> tuple[Figure, str]:
    """KL against the size of the shift c, both logarithmic: a band over seeds and signs, with its median."""
    shifted = paths[paths.c != 0]
    over = shifted.kl.groupby(shifted.c.abs())
    low, middle, high = over.min(), over.median(), over.max()
    with style():
        figure, axes = plt.subplots(figsize=(WIDTH, 3.6))
        axes.fill_between(low.index, low, high, color=COLORS["uniform"], alpha=0.3, lw=0)
        axes.loglog(middle.index, middle, "o-", color=COLORS["uniform"], label="c added")
        axes.axhspan(standing.min(), standing.max(), color=COLORS["random_a"], alpha=0.3, lw=0)
        axes.plot(low.index, [standing.median()] * len(low), "--", color=COLORS["random_a"], label="as trained")
        ticks_of_powers(axes.xaxis, axes.yaxis)
        axes.set(xlabel="size |c| of the shift", ylabel="KL / nats per byte")
        label_ends(axes)
    sizes = paths.c.abs()
    near, far = (paths.kl[sizes == c] for c in (sizes[sizes > 0].min(), sizes.max()))
    return figure, (
        f"KL against the absolute value of c, both logarithmic: a narrow band that covers {len(standing)} models and "
        f"both signs. It lies between {near.min():.1g} and {near.max():.1g} nats at {sizes[sizes > 0].min():g}, rises "
        f"with an initial slope of two, flattens above 0.1, and lies between {far.min():.1f} and {far.max():.1f} nats "
        f"at {sizes.max():g}. With the weights as trained, KL is {standing.min():.1g} to {standing.max():.1g} nats."
    )


def next_after_shift(found: Mapping[float, Mapping[str, Tensor]], c: float) -> tuple[Figure, str]:
    """Log-probabilities of next tokens in shifted weights against the model's own, with the subtraction and without."""
    before, words = found[c]["before"], []
    lowest = min(float(values.min()) for each in found.values() for values in each.values())
    looks = {"with": ("o", COLORS["uniform"]), "without": ("s", COLORS["random_a"])}
    with style():
        figure, panels = plt.subplots(1, 2, figsize=(5, 3.2), sharey=True)
        for axis, (which, (marker, color)) in zip(panels, looks.items(), strict=True):
            apart = float((found[c][which] - before).abs().mean())
            axis.plot([lowest, 0], [lowest, 0], color=COLORS["null"], lw=1)
            axis.plot(before, found[c][which], marker, color=color, ms=3, alpha=0.6)
            axis.set(title=f"{which} the subtraction\n{apart:.2f} nats off", xlabel="ln p of the original")
            words.append(f"{which} the subtraction they are {apart:.2g} nats off on average")
        panels[0].set(ylabel=f"ln p at c = {c:g}", ylim=(1.05 * lowest, 0.5), xlim=(1.05 * float(before.min()), 0.5))
        panels[1].set(xlim=panels[0].get_xlim())
    return figure, (
        f"Log-probabilities of {len(before)} next tokens with c = {c:g} added to every entry, against those of the "
        f"original model: {'; '.join(words)}."
    )
