"""The book's recurring pictures. Each returns a figure and the words that describe it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from normgeom.view.style import COLORS, MARKERS, WIDTH, style, ticks_of_powers

_ORDER = "norm, in order of use"
NULL_QUANTILES = (0.05, 0.95)
# How the names of a null's directions begin, what a legend calls it, and how its band is drawn.
NULLS = {
    "random_": ("random directions", dict(color=COLORS["null"], alpha=0.35, linewidth=0)),
    "signs_": ("random signs", dict(facecolor="none", edgecolor=COLORS["ink"], linestyle=":")),
    "matched_": ("matched directions", dict(facecolor="none", edgecolor=COLORS["random_a"], hatch="////", linewidth=0)),
}


def angles_by_layer(
    tables: Mapping[str, pd.DataFrame], sides: Sequence[str] = ("in", "out"), positions: str = "rest"
) -> tuple[Figure, str]:
    """Mean angle ± one standard deviation at each norm, for the directions of :data:`normgeom.view.style.MARKERS`.

    Args:
        tables: for each model's name, what :meth:`normgeom.Survey.table` gave.
        sides: ``"in"`` and ``"out"`` of the norms, or one of them.
        positions: which tokens, as in the table.

    Returns:
        the figure, a row of panels a side and a column a model, and its alt text.
    """
    words = []
    with style():
        size = (WIDTH, 1.1 + 1.9 * len(sides))
        figure, grid = plt.subplots(len(sides), len(tables), figsize=size, sharex="col", sharey=True, squeeze=False)
        for side, axes in zip(sides, grid, strict=True):
            for axis, (model, table) in zip(axes, tables.items(), strict=True):
                rows = _rows(table, side, positions)
                for shift, direction in enumerate(MARKERS):
                    part = rows[rows.direction == direction]
                    angle_bars(axis, [i + 0.22 * (shift - 1) for i in range(len(part))], part, direction)
                axis.axhline(90, color=COLORS["ink"], linewidth=0.8)
                axis.set(title=f"{model}, {side}puts", xticks=_ticks(rows.site.nunique()))
                uniform = rows[rows.direction == "uniform"]
                words.append(
                    f"{side}puts of {model}: mean angle to the uniform vector between {uniform.mean_deg.min():.1f} and "
                    f"{uniform.mean_deg.max():.1f} degrees, "
                    f"spread {uniform.std_deg.min():.1f} to {uniform.std_deg.max():.1f}"
                )
            axes[0].set_ylabel("angle / degrees")
        for axis in grid[-1]:
            axis.set_xlabel(_ORDER)
        figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure, "Angles at each norm, mean and standard deviation: " + "; ".join(words) + "."


def angle_bars(axis: Axes, places: Sequence[float], rows: pd.DataFrame, direction: str, **look) -> None:
    """Mean angle ± one standard deviation of each row, at its place, in the look of one of the three directions."""
    axis.errorbar(
        places,
        rows.mean_deg,
        rows.std_deg,
        color=COLORS[direction],
        marker=MARKERS[direction],
        linestyle="none",
        label=direction.replace("random_", "random "),
        **{"elinewidth": 1.0, **look},
    )


def occupancy_by_layer(
    tables: Mapping[str, pd.DataFrame], side: str = "in", positions: str = "rest"
) -> tuple[Figure, str]:
    """Occupancy of the uniform direction at each norm, one line a run, over the null's band (:func:`null_band`).

    Arguments and results are those of :func:`angles_by_layer`; a table may hold several runs, told apart by a
    column ``run``.
    """
    words = []
    with style():
        figure, axes = plt.subplots(1, len(tables), figsize=(WIDTH, 3.2), sharey=True, squeeze=False)
        for axis, (model, table) in zip(axes[0], tables.items(), strict=True):
            rows, band = _rows(table, side, positions), null_band(table, side, positions)
            place = range(len(band))
            axis.fill_between(
                place, band.low, band.high, color=COLORS["null"], alpha=0.3, linewidth=0, label="random, 5 to 95 %"
            )
            axis.plot(place, band["median"], color=COLORS["null"], linestyle="--", label="random, median")
            uniform = rows[rows.direction == "uniform"].pivot(index="site", columns="run", values="occupancy")
            uniform = uniform.loc[band.index]
            for number, run in enumerate(uniform):
                label = "uniform vector, one line a run" if number == 0 else None
                axis.plot(place, uniform[run], color=COLORS["uniform"], marker="o", label=label)
            axis.set(title=model, xlabel=_ORDER, xticks=_ticks(len(band)), yscale="log")
            ticks_of_powers(axis.yaxis)
            values = uniform.to_numpy()
            below = (values < band.low.to_numpy()[:, None]).sum()
            above = (values > band.high.to_numpy()[:, None]).sum()
            words.append(
                f"{model}: the uniform vector from {values.min():.2g} to {values.max():.2g}, below the random "
                f"directions' band at {below} and above it at {above} of {values.size} points"
            )
        axes[0, 0].set_ylabel("occupancy d·E[cos²]")
        figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return figure, f"Occupancy at the {side}put of each norm. " + "; ".join(words) + "."


def nulls_by_layer(panels: Mapping[str, tuple[pd.Series, Mapping[str, pd.DataFrame]]]) -> tuple[Figure, str]:
    """Occupancy of the uniform direction at each norm, over the bands of several nulls.

    Args:
        panels: for each title, the occupancy by site, and for each of :data:`NULLS` its :func:`null_band`.

    Returns:
        the figure, one panel a title, and its alt text.
    """
    words = []
    with style():
        figure, axes = plt.subplots(1, len(panels), figsize=(WIDTH, 3.6), sharey=True, squeeze=False)
        for axis, (title, (uniform, bands)) in zip(axes[0], panels.items(), strict=True):
            place = range(len(uniform))
            compared = []
            for null, band in bands.items():
                name, look = NULLS[null]
                band = band.loc[uniform.index]
                axis.fill_between(place, band.low, band.high, label=f"{name}, 5 to 95 %", **look)
                compared.append(f"below the band of {name} at {(uniform < band.low).sum()}, above at ")
                compared[-1] += str((uniform > band.high).sum())
            axis.plot(place, uniform, color=COLORS["uniform"], marker="o", label="uniform vector")
            axis.set(title=title, xlabel=_ORDER, xticks=_ticks(len(uniform)), yscale="log")
            ticks_of_powers(axis.yaxis)
            words.append(
                f"{title}: the uniform vector from {uniform.min():.2g} to {uniform.max():.2g} over {len(uniform)} "
                f"norms, {'; '.join(compared)}"
            )
        axes[0, 0].set_ylabel("occupancy d·E[cos²]")
        figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return figure, "Occupancy at each norm over three nulls. " + ". ".join(words) + "."


def errors_by_layer(tables: Mapping[str, pd.DataFrame], positions: str = "rest") -> tuple[Figure, str]:
    """The error of dropping the mean at each LayerNorm beside the mean |cos| to the uniform direction at its input.

    Arguments and results are those of :func:`angles_by_layer`; a model without LayerNorm has an empty panel.
    """
    columns = {"drop_error": ("change of the output", "-", "o"), "mean_abs_cos": ("mean |cos| at the input", "--", "s")}
    words = []
    with style():
        figure, axes = plt.subplots(1, len(tables), figsize=(WIDTH, 3.2), sharey=True, squeeze=False)
        for axis, (model, table) in zip(axes[0], tables.items(), strict=True):
            rows = _rows(table, "in", positions)
            rows = rows[(rows.direction == "uniform") & (rows.kind == "layer")]
            for color, (column, (label, line, marker)) in zip(("uniform", "random_a"), columns.items(), strict=True):
                axis.plot(
                    range(len(rows)), rows[column], color=COLORS[color], linestyle=line, marker=marker, label=label
                )
            axis.set(title=model, xlabel="LayerNorm, in order of use", yscale="log", xticks=_ticks(len(rows)))
            ticks_of_powers(axis.yaxis)
            words.append(
                f"{model}: the change is {rows.drop_error.min():.2g} to {rows.drop_error.max():.2g}, "
                f"{(rows.drop_error / rows.mean_abs_cos).min():.2g} to "
                f"{(rows.drop_error / rows.mean_abs_cos).max():.2g} times the mean |cos|"
                if len(rows)
                else f"{model}: no LayerNorm"
            )
        axes[0, 0].set_ylabel("relative error")
        figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return figure, "Error of dropping the mean at each LayerNorm. " + "; ".join(words) + "."


def null_band(table: pd.DataFrame, side: str = "in", positions: str = "rest", null: str = "random_") -> pd.DataFrame:
    """For each norm the quantiles of the occupancy over all directions of a null, of all runs in the table.

    Args:
        null: how the names of its directions begin: ``"random_"``, ``"signs_"`` or ``"matched_"``.

    Returns:
        a frame indexed by site in order of use, columns ``low`` (5 %), ``median`` and ``high`` (95 %).
    """
    rows = _rows(table, side, positions)
    drawn = rows[rows.direction.str.startswith(null)].groupby("site", sort=False).occupancy
    low, high = (drawn.quantile(q) for q in NULL_QUANTILES)
    return pd.DataFrame({"low": low, "median": drawn.median(), "high": high}).loc[rows.site.unique()]


def _rows(table: pd.DataFrame, side: str, positions: str) -> pd.DataFrame:
    rows = table[(table.side == side) & (table.positions == positions)]
    return rows if "run" in rows else rows.assign(run=0)


def _ticks(sites: int) -> range:
    return range(0, sites, max(1, sites // 5))


def turned_by(found: Mapping[str, pd.DataFrame], c: float) -> tuple[Figure, str]:
    """Where adding c·1 sends the mean vector at the last norm, and what it does to the output there.

    Args:
        found: for each model's name, what :func:`normgeom.surgery.gauge.turned` gave; the lines of the right panel go
            through all its rows, arrows and marks are those of ``c``.
        c: one of its constants.

    Returns:
        the figure and its alt text.
    """
    words, looks = [], (("o", "-", COLORS["uniform"]), ("s", "--", COLORS["random_a"]))
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
        right.set(xlabel="c", title="change of the output / its length", ylim=(-0.06, None))
        right.legend(loc="center right")
    return figure, f"With c = {c:g} on every entry of the stream, at the last norm. {'; '.join(words)}."


def _arrow(axis: Axes, angle: float, color: str, dash: str, width: float = 2.5) -> None:
    """From the origin, at an angle to the vertical, of length 1."""
    look = dict(arrowstyle="-|>", color=color, linestyle=dash, linewidth=width, shrinkA=0, shrinkB=0)
    axis.annotate("", (math.sin(angle), math.cos(angle)), (0, 0), arrowprops=look)
