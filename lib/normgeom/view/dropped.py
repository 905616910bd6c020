"""What dropping the subtraction of the mean costs a language model: as a table and as pictures."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from torch import Tensor

from normgeom.view.style import COLORS, WIDTH, style, ticks_of_powers
from normgeom.view.tables import table

# What normgeom.surgery.dropping measures: the column's name in words, and its digits.
COLUMNS = {
    "drop_error": ("change of the output", ".2g"),
    "nll": ("NLL / nats", 3),
    "more": ("change of NLL / nats", ".2g"),
    "kl": ("KL / nats", ".2g"),
    "largest": ("largest change of log p", ".2g"),
    "kept": ("KL with the subtraction / nats", ".2g"),
}
# What tells its rows apart, in words.
ROWS = {
    "seed": "seed",
    "model": "model",
    "way": "the subtraction",
    "site": "norm",
    "c": "c",
    "centred": "the mean taken from",
}
ALL = "all"  # in the place of a site: at every norm


def cost_table(costs: pd.DataFrame) -> None:
    """Display what a function of ``normgeom.surgery.dropping`` measured, now or for a record.

    Args:
        costs: columns of :data:`COLUMNS`, and of :data:`ROWS` those that tell the rows apart.  Norms are numbered in
            the order of their rows.

    Raises:
        ValueError: a column is none of these, or nothing tells the rows apart.
    """
    costs = costs if costs.index.name is None else costs.reset_index()
    names = [name for name in ROWS if name in costs]
    if unknown := set(costs.columns) - set(COLUMNS) - set(names):
        raise ValueError(f"costs: expected columns of {[*ROWS, *COLUMNS]}, got {sorted(unknown)}")
    if not names:
        raise ValueError(f"costs: expected one of {[*ROWS]} to tell the rows apart, got {list(costs.columns)}")
    if "site" in names:
        numbers = {site: str(number) for number, site in enumerate(costs.site.unique(), 1)} | {ALL: ALL}
        costs = costs.assign(site=costs.site.map(numbers))
    costs = costs.set_index(names).rename_axis([ROWS[name] for name in names])
    words = [COLUMNS[name] for name in costs.columns]
    table(costs.set_axis([name for name, _ in words], axis=1), digits=dict(words), first=ROWS[names[0]])


def costs_by_site(alone: pd.DataFrame, together: pd.DataFrame, paths: pd.DataFrame) -> tuple[Figure, str]:
    """KL against the relative change of the norms' outputs, both logarithmic.

    Args:
        alone: ``site``, ``drop_error`` and ``kl`` with the subtraction dropped at one norm; the first, the second and
            the last site have marks of their own.
        together: the same columns, dropped at all norms.
        paths: ``seed``, ``c``, ``drop_error`` and ``kl`` of weights that compute one function; those of ``c > 0`` are
            drawn, one line a seed.

    Returns:
        the figure and its alt text.
    """
    first, second, *others, final = alone.site.unique()
    at = {site: alone[alone.site == site] for site in (first, second, final)}
    groups = {
        "first norm": (at[first], "s", COLORS["random_a"]),
        "second norm": (at[second], "D", "#CC79A7"),
        "final norm": (at[final], "^", COLORS["random_b"]),
        "another norm": (alone[alone.site.isin(others)], "o", COLORS["uniform"]),
        "all norms": (together, "*", COLORS["ink"]),
    }
    paths = paths[paths.c > 0]
    with style():
        figure, axes = plt.subplots(figsize=(WIDTH, 4.6))
        for name, (points, marker, color) in groups.items():
            size = 8 if marker == "*" else 5
            axes.loglog(points.drop_error, points.kl, marker, color=color, label=name, markersize=size)
        for number, (_, path) in enumerate(paths.groupby("seed")):
            label = None if number else "all norms, other weights"
            axes.loglog(path.drop_error, path.kl, color=COLORS["null"], label=label)
        reach = np.array([0.01, 0.3])
        axes.loglog(reach, 3e-8 * (reach / 0.01) ** 2, ":", color=COLORS["ink"], lw=1)
        axes.text(0.1, 1e-6, "slope 2")
        axes.set(xlabel="relative change of the norm's output", ylabel="KL / nats a byte")
        ticks_of_powers(axes.xaxis, axes.yaxis)
        figure.legend(loc="outside upper center", ncols=2)
    words = "; ".join(
        f"{name}: change {100 * points.drop_error.min():.1f} to {100 * points.drop_error.max():.1f} %, "
        f"KL {points.kl.min():.1g} to {points.kl.max():.1g} nats"
        for name, (points, _, _) in groups.items()
    )
    return figure, (
        f"KL against relative change, both logarithmic. {words}. In other weights of the same functions, lines that "
        f"rise from {paths.kl.min():.0e} at {100 * paths.drop_error.min():.1f} %, first with slope two, to about "
        f"{paths.kl.max():.1f} nats."
    )


def costs_by_shift(paths: pd.DataFrame, standing: pd.Series) -> tuple[Figure, str]:
    """KL against the size of the shift c, both logarithmic: a band over seeds and signs, with its median.

    Args:
        paths: ``seed``, ``c`` and ``kl``.
        standing: by seed, the KL in the weights as training left them: a second, level band.

    Returns:
        the figure and its alt text.
    """
    shifted = paths[paths.c != 0]
    over = shifted.kl.groupby(shifted.c.abs())
    low, middle, high = over.min(), over.median(), over.max()
    with style():
        figure, axes = plt.subplots(figsize=(WIDTH, 3.6))
        axes.fill_between(low.index, low, high, color=COLORS["uniform"], alpha=0.3, lw=0)
        label = f"c in each entry ({len(standing)} seeds, both signs)"
        axes.loglog(middle.index, middle, "o-", color=COLORS["uniform"], label=label)
        axes.axhspan(standing.min(), standing.max(), color=COLORS["random_a"], alpha=0.3, lw=0)
        axes.axhline(standing.median(), ls="--", color=COLORS["random_a"], label="as training left them")
        ticks_of_powers(axes.xaxis, axes.yaxis)
        axes.set(xlabel="|c|", ylabel="KL / nats a byte")
        figure.legend(loc="outside upper center")
    sizes = paths.c.abs()
    near, far = (paths.kl[sizes == c] for c in (sizes[sizes > 0].min(), sizes.max()))
    return figure, (
        f"KL against the absolute value of c, both logarithmic, one narrow band over {len(standing)} models and both "
        f"signs: from {near.min():.1g} to {near.max():.1g} nats at {sizes[sizes > 0].min():g}, rising at first with "
        f"slope two, flattening above 0.1, and between {far.min():.1f} and {far.max():.1f} nats at {sizes.max():g}. "
        f"As the models stand: {standing.min():.1g} to {standing.max():.1g}."
    )


def next_after_shift(found: Mapping[float, Mapping[str, Tensor]], c: float) -> tuple[Figure, str]:
    """Log-probabilities of the next tokens in shifted weights against the model's own: with the subtraction, without.

    Args:
        found: as :func:`normgeom.surgery.dropping.next_by_shift` gives it.
        c: one of its shifts.

    Returns:
        the figure and its alt text.
    """
    before, words = found[c]["before"], []
    lowest = min(float(values.min()) for each in found.values() for values in each.values())
    looks = {"with": ("o", COLORS["uniform"]), "without": ("s", COLORS["random_a"])}
    with style():
        figure, panels = plt.subplots(1, 2, figsize=(5, 3.2), sharey=True)
        for axis, (which, (marker, color)) in zip(panels, looks.items(), strict=True):
            apart = float((found[c][which] - before).abs().mean())
            axis.plot([lowest, 0], [lowest, 0], color=COLORS["null"], lw=1)
            axis.plot(before, found[c][which], marker, color=color, ms=3, alpha=0.6)
            axis.set(title=f"{which} the subtraction\n{apart:.2f} nats off", xlabel="ln p before")
            words.append(f"{which} the subtraction they are {apart:.2g} nats off on average")
        panels[0].set(ylabel=f"ln p, c = {c:g}", ylim=(1.05 * lowest, 0.5), xlim=(1.05 * float(before.min()), 0.5))
        panels[1].set(xlim=panels[0].get_xlim())
    return figure, (
        f"Log-probabilities of {len(before)} next tokens with c = {c:g} on every entry, against those of the model as "
        f"it was: {'; '.join(words)}."
    )
