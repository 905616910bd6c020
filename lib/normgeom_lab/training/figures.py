"""Pictures of the courses of twins, each with its alt text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import cycle

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from normgeom.view.style import COLORS, WIDTH, style

from normgeom_lab.common.axes import MARKERS, label_ends, ticks_of_powers
from normgeom_lab.common.pictures import LINES, angle_bars


def losses_over_steps(curves: Mapping[str, pd.DataFrame], alike: str = "") -> tuple[Figure, str]:
    """Loss against steps, one line per model: the mean over seeds in a band from the smallest to the largest.

    All lines but the last nearly coincide and share one name, ``alike``.
    """
    words, (*_, last) = [], curves
    with style():
        figure, axis = plt.subplots(figsize=(WIDTH, 3.2))
        for (name, curve), line in zip(curves.items(), cycle(LINES), strict=False):
            over_seeds = curve.groupby("step").loss
            mean, low, high = over_seeds.mean(), over_seeds.min(), over_seeds.max()
            (drawn,) = axis.plot(mean.index, mean, linestyle=line, label=name if name == last else alike)
            alike = ""
            axis.fill_between(mean.index, low, high, color=drawn.get_color(), alpha=0.2, linewidth=0)
            words.append(f"{name} from {mean.iloc[0]:.2f} to {mean.iloc[-1]:.2f}")
        axis.set(xlabel="steps", ylabel="loss / nats per byte")
        label_ends(axis)
    return figure, f"Loss against steps: {', '.join(words)} nats per byte."


def angles_over_steps(tables: Mapping[str, pd.DataFrame], sites: Sequence[str]) -> tuple[Figure, str]:
    """Mean angle ± one standard deviation at the inputs of norms against steps, for tables of :func:`beside_signs`."""
    words = []
    with style():
        figure, panels = _grid(tables, sites, "angle / degrees")
        for title, axis, rows in panels:
            for shift, direction in enumerate(MARKERS):
                part = rows[rows.direction == direction]
                beside = part.step * (0.9 + 0.1 * shift)  # on a logarithmic axis
                angle_bars(axis, beside, part, direction, elinewidth=0.9, markersize=3.5)
            axis.axhline(90, color=COLORS["ink"], linewidth=0.8)
            last = rows[rows.direction == "uniform"].iloc[-1]
            words.append(f"{title}: {last.mean_deg:.1f} ± {last.std_deg:.1f} at the end")
        figure.legend(*axis.get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure, f"Angles at the input of norms against steps. To the uniform vector: {'; '.join(words)}."


def occupancy_over_steps(tables: Mapping[str, pd.DataFrame], sites: Sequence[str]) -> tuple[Figure, str]:
    """Occupancy of the uniform direction at norms' inputs against steps, a line per seed, over the band of signs."""
    words = []
    with style():
        figure, panels = _grid(tables, sites, "occupancy d·E[cos²]")
        for title, axis, rows in panels:
            rows = rows[rows.direction == "uniform"]
            band = rows.groupby("step")[["low", "median", "high"]].agg(dict(low="min", median="median", high="max"))
            axis.fill_between(band.index, band.low, band.high, color=COLORS["null"], alpha=0.3, linewidth=0)
            axis.plot(band.index, band["median"], color=COLORS["null"], linestyle="--", label="sign vectors, median")
            runs = [run for _, run in rows.groupby("seed")] if "seed" in rows else [rows]
            for number, (run, line) in enumerate(zip(runs, cycle(LINES), strict=False)):
                label = "uniform vector, one line per seed" if number == 0 else None
                look = dict(color=COLORS["uniform"], linestyle=line, marker="o", markersize=3)
                axis.plot(run.step, run.occupancy, label=label, **look)
            axis.set_yscale("log")
            ticks_of_powers(axis.yaxis, most=4)
            last = rows[rows.step == rows.step.max()]
            words.append(
                f"{title}: from {last.occupancy.min():.2g} to {last.occupancy.max():.2g}, "
                f"band {last.low.min():.2g} to {last.high.max():.2g}"
            )
        figure.legend(*axis.get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return figure, f"Occupancy at the input of norms against steps. At the end: {'; '.join(words)}."


RANKS = 40  # the possible ranks of 1 among itself and 39 sign vectors


def ranks_over_seeds(ranks: Mapping[str, pd.Series]) -> tuple[Figure, str]:
    """The distribution function of ranks from 1 to 40 over seeds, one line for each of two models."""
    words = []
    with style():
        figure, axis = plt.subplots(figsize=(WIDTH, 2.8))
        looks = ("layer", "--", 0.95), ("rms", "-", 0.25)  # the last is the height at which a line has its name
        for (name, values), (color, line, height) in zip(ranks.items(), looks, strict=True):
            values = np.sort(values)
            share = np.arange(1, len(values) + 1) / len(values)
            axis.step([0, *values, RANKS], [0, *share, 1], where="post", color=COLORS[color], linestyle=line)
            low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
            place = np.quantile(values, height), height
            axis.annotate(f"{name}, {len(values)} seeds", place, (14, -14), textcoords="offset points")
            words.append(f"{name}: from {values[0]} to {values[-1]}, quartiles {low:.0f}, {middle:.0f} and {high:.0f}")
        axis.plot([0, RANKS], [0, 1], color=COLORS["null"], linestyle=":")
        axis.annotate("chance", (0.8 * RANKS, 0.8), (-6, 0), textcoords="offset points", horizontalalignment="right")
        axis.set(xlabel=f"rank of the uniform vector among {RANKS}", ylabel="share up to this rank")
    return figure, f"Distribution of the rank of the uniform vector among {RANKS} over seeds. {'; '.join(words)}."


def _grid(tables: Mapping, sites: Sequence[str], label: str) -> tuple[Figure, list[tuple[str, Axes, pd.DataFrame]]]:
    """Panels with a row per norm, a column per model: the name of each, its axes, and the rows of the norm's input."""
    size = (WIDTH, 1.2 + 1.7 * len(sites))
    figure, grid = plt.subplots(len(sites), len(tables), figsize=size, sharex=True, sharey=True, squeeze=False)
    panels = []
    for site, row in zip(sites, grid, strict=True):
        for (name, table), axis in zip(tables.items(), row, strict=True):
            steps = sorted(set(table.step) - {0})
            axis.set_xscale("symlog", linthresh=steps[0])
            axis.set_xticks([0, *_ticks(steps)])
            axis.minorticks_off()
            axis.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step:,.0f}"))
            axis.set_title(f"{name}: {_short(site)}")
            rows = table[(table.site == site) & (table.side == "in")]
            panels.append((f"{name}, {_short(site)}", axis, rows))
        row[0].set_ylabel(label)
    for axis in grid[-1]:
        axis.set_xlabel("steps")
    return figure, panels


def _ticks(steps: Sequence[int]) -> list[int]:
    """The last of the steps and those before it that are far enough apart on a logarithmic axis to have a tick."""
    chosen = [steps[-1]]
    for step in reversed(steps):
        if chosen[-1] >= 3.5 * step:
            chosen.append(step)
    return chosen[::-1]


def _short(site: str) -> str:
    """Names of GPT-2's norms in words, with blocks counted from 1; others as they are."""
    site = re.sub(r".*\bh\.(\d+)\.ln_(\d)$", lambda found: f"block {int(found[1]) + 1}, norm {found[2]}", site)
    return "final norm" if site.endswith("ln_f") else site
