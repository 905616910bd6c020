"""Pictures of surveys by layer, each with its alt text."""

from __future__ import annotations

import math
from collections.abc import Mapping

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from normgeom.view.style import COLORS, WIDTH, style

from normgeom_lab.common.axes import MARKERS, label_ends, ticks_of_powers
from normgeom_lab.common.pictures import angle_bars, at_side, null_band
from normgeom_lab.inference.experiments import of_uniform

_ORDER = "norms, first to last"


def angles_by_layer(tables: Mapping[str, pd.DataFrame]) -> tuple[Figure, str]:
    """Mean angle ± one standard deviation to three directions at each norm, a column of panels for each survey."""
    words = []
    with style():
        figure, grid = plt.subplots(2, len(tables), figsize=(WIDTH, 4.9), sharex="col", sharey=True, squeeze=False)
        for side, axes in zip(("in", "out"), grid, strict=True):
            for axis, (model, table) in zip(axes, tables.items(), strict=True):
                rows = at_side(table, side)
                for shift, direction in enumerate(MARKERS):
                    part = rows[rows.direction == direction]
                    angle_bars(axis, [i + 0.22 * (shift - 1) for i in range(len(part))], part, direction)
                axis.axhline(90, color=COLORS["ink"], linewidth=0.8)
                axis.set(title=f"{model}, {side}puts", xticks=_ticks(rows.site.nunique()))
                uniform = rows[rows.direction == "uniform"]
                words.append(
                    f"{side}puts of {model}: mean angle to the uniform vector between {uniform.mean_deg.min():.1f} and "
                    f"{uniform.mean_deg.max():.1f} degrees, "
                    f"standard deviation {uniform.std_deg.min():.1f} to {uniform.std_deg.max():.1f}"
                )
            axes[0].set_ylabel("angle / degrees")
        for axis in grid[-1]:
            axis.set_xlabel(_ORDER)
        figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure, "Angles at each norm, mean and standard deviation: " + "; ".join(words) + "."


def occupancy_by_layer(tables: Mapping[str, pd.DataFrame]) -> tuple[Figure, str]:
    """Occupancy of the uniform direction at the norms' inputs, a line per run, over the band of random directions."""
    words = []
    with style():
        figure, (axes,) = plt.subplots(1, len(tables), figsize=(WIDTH, 3.2), sharey=True, squeeze=False)
        for axis, (model, table) in zip(axes, tables.items(), strict=True):
            band = null_band(table)
            place = range(len(band))
            gray = dict(color=COLORS["null"])
            axis.fill_between(place, band.low, band.high, alpha=0.3, linewidth=0, label="random, 5 to 95 %", **gray)
            axis.plot(place, band["median"], linestyle="--", label="random, median", **gray)
            uniform = of_uniform(table).pivot(index="site", columns="run", values="occupancy").loc[band.index]
            for number, run in enumerate(uniform):
                label = "uniform vector, one line per run" if number == 0 else None
                axis.plot(place, uniform[run], color=COLORS["uniform"], marker="o", label=label)
            axis.set(title=model, xlabel=_ORDER, xticks=_ticks(len(band)), yscale="log")
            values = uniform.to_numpy()
            below = (values < band.low.to_numpy()[:, None]).sum()
            above = (values > band.high.to_numpy()[:, None]).sum()
            words.append(
                f"{model}: the uniform vector from {values.min():.2g} to {values.max():.2g}, below the random "
                f"directions' band at {below} and above it at {above} of {values.size} points"
            )
        ticks_of_powers(*(axis.yaxis for axis in axes))
        axes[0].set_ylabel("occupancy d·E[cos²]")
        label_ends(axes[-1])
    return figure, "Occupancy at the input of each norm. " + "; ".join(words) + "."


def _ticks(sites: int) -> range:
    return range(0, sites, max(1, sites // 5))


def turned_by(found: Mapping[str, pd.DataFrame], c: float) -> tuple[Figure, str]:
    """The angle to 1 at the final norm after c·1 is added, and the change of the output, from :func:`turned`."""
    words, looks = [], (("o", "-", COLORS["layer"]), ("s", "--", COLORS["rms"]))
    with style():
        figure, (left, right) = plt.subplots(1, 2, figsize=(5, 3.0), width_ratios=(1, 1.5))
        left.set(xlim=(-0.08, 1.15), ylim=(-0.4, 1.15), aspect=1, title="angle to 1")
        left.axis("off")
        _arrow(left, 0.0, COLORS["ink"], "-", width=1.0)
        left.text(0.05, 1.0, "1", color=COLORS["ink"])
        for place, ((model, rows), (marker, dash, color)) in enumerate(zip(found.items(), looks, strict=False)):
            _, angle, change = rows[rows.c == c].iloc[0]
            _arrow(left, math.radians(angle), color, dash)
            left.text(0, -0.2 - 0.2 * place, f"{model.split()[0]} {angle:.0f}°", color=color)
            right.plot(rows.c, rows["change of output"], color=color, linestyle=dash, marker=marker, ms=3, alpha=0.45)
            right.plot(c, change, marker, color=color, ms=9, label=model)
            words.append(f"{model}: angle {angle:.0f} degrees, change of the output {change:.1g} of its length")
        right.set(xlabel="c", title="relative change of the output", ylim=(-0.06, None))
    return figure, f"With c = {c:g} on every entry of the stream, at the final norm. {'; '.join(words)}."


def _arrow(axis: Axes, angle: float, color: str, dash: str, width: float = 2.5) -> None:
    """Draw an arrow of length 1 from the origin, at an angle to the vertical."""
    look = dict(arrowstyle="-|>", color=color, linestyle=dash, linewidth=width, shrinkA=0, shrinkB=0)
    axis.annotate("", (math.sin(angle), math.cos(angle)), (0, 0), arrowprops=look)
