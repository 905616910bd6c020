"""Pictures of a training: losses, and angles and occupancies over its course."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Protocol

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from torch import Tensor

from normgeom.view.plots import angle_bars
from normgeom.view.style import COLORS, MARKERS, WIDTH, style, ticks_of_powers

_TURNS = 20  # steps that a point of turns_over_steps is the mean of
LINES = ("-", "--", ":", "-.", (0, (6, 1, 1, 1)))


class Turning(Protocol):
    """What a training of one weight showed: after each step its length and the step's turn in degrees, ``(steps,)``."""

    lengths: Tensor
    turns: Tensor


def losses_over_steps(curves: Mapping[str, pd.DataFrame]) -> tuple[Figure, str]:
    """Loss against updates, one line a model: the mean over seeds in a band from the smallest to the largest.

    Args:
        curves: for each model's name, rows of ``step``, ``loss`` and, with several seeds, ``seed``.
    """
    words = []
    with style():
        figure, axis = plt.subplots(figsize=(WIDTH, 3.2))
        for number, (name, curve) in enumerate(curves.items()):
            over_seeds = curve.groupby("step").loss
            mean, low, high = over_seeds.mean(), over_seeds.min(), over_seeds.max()
            (line,) = axis.plot(mean.index, mean, linestyle=LINES[number % len(LINES)], label=name)
            axis.fill_between(mean.index, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
            words.append(f"{name} from {mean.iloc[0]:.2f} to {mean.iloc[-1]:.2f}")
        axis.set(xlabel="updates", ylabel="loss / nats a token")
        axis.legend()
    return figure, f"Loss against updates: {', '.join(words)} nats a token."


def angles_over_steps(tables: Mapping[str, pd.DataFrame], sites: Sequence[str], side: str = "in") -> tuple[Figure, str]:
    """Mean angle ± one standard deviation to three directions against updates, a row of panels a norm.

    Args:
        tables: for each model's name, what :func:`normgeom.training.courses.beside_signs` gave.
        sites: the norms that are shown.
        side: ``"in"`` or ``"out"`` of them.
    """
    words = []
    with style():
        figure, axes = _grid(tables, sites, "angle / degrees")
        for (site, name), axis in axes.items():
            rows = _at(tables[name], site, side)
            for shift, direction in enumerate(MARKERS):
                part = rows[rows.direction == direction]
                beside = part.step * (0.9 + 0.1 * shift)  # on a logarithmic axis
                angle_bars(axis, beside, part, direction, elinewidth=0.9, markersize=3.5)
            axis.axhline(90, color=COLORS["ink"], linewidth=0.8)
            last = rows[rows.direction == "uniform"].iloc[-1]
            words.append(f"{name}, {_short(site)}: {last.mean_deg:.1f} ± {last.std_deg:.1f} at the end")
        figure.legend(*axis.get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure, f"Angles at the {side}put of norms against updates. To the uniform vector: {'; '.join(words)}."


def occupancy_over_steps(
    tables: Mapping[str, pd.DataFrame], sites: Sequence[str], side: str = "in"
) -> tuple[Figure, str]:
    """Occupancy of the uniform direction against updates, one line a seed, over the band of random signs.

    Arguments are those of :func:`angles_over_steps`; a table may hold several seeds, told apart by a column ``seed``.
    """
    words = []
    with style():
        figure, axes = _grid(tables, sites, "occupancy d·E[cos²]")
        for (site, name), axis in axes.items():
            rows = _at(tables[name], site, side)
            rows = rows[rows.direction == "uniform"]
            band = rows.groupby("step")[["low", "median", "high"]].agg(dict(low="min", median="median", high="max"))
            axis.fill_between(band.index, band.low, band.high, color=COLORS["null"], alpha=0.3, linewidth=0)
            axis.plot(band.index, band["median"], color=COLORS["null"], linestyle="--", label="random signs, median")
            for number, (_, run) in enumerate(rows.groupby("seed") if "seed" in rows else [(0, rows)]):
                label = "uniform vector, one line a seed" if number == 0 else None
                axis.plot(
                    run.step,
                    run.occupancy,
                    color=COLORS["uniform"],
                    linestyle=LINES[number % len(LINES)],
                    marker="o",
                    markersize=3,
                    label=label,
                )
            axis.set_yscale("log")
            ticks_of_powers(axis.yaxis, most=4)
            last = rows[rows.step == rows.step.max()]
            words.append(
                f"{name}, {_short(site)}: from {last.occupancy.min():.2g} to {last.occupancy.max():.2g}, "
                f"band {last.low.min():.2g} to {last.high.max():.2g}"
            )
        figure.legend(*axis.get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return figure, f"Occupancy at the {side}put of norms against updates. At the end: {'; '.join(words)}."


def turns_over_steps(
    runs: Mapping[float, Turning], with_eps: Mapping[float, Turning], predicted: float
) -> tuple[Figure, str]:
    """The length of a weight before a norm, and how far each step turns it, in means of 20 steps.

    Args:
        runs: with ε = 0, by the length at the start, up to three; what
            :func:`normgeom.training.scale_free.train_scale_free` gave.
        with_eps: turns alone, by ε, up to two.
        predicted: the turn in degrees where growth and decay balance (claim-equilibrium).

    Raises:
        ValueError: there is no run with ε = 0, or one has fewer than 20 steps.
    """
    if not runs:
        raise ValueError("runs: expected at least one, got none")
    for name, group in (("runs", runs), ("with_eps", with_eps)):
        if short := [len(run.turns) for run in group.values() if len(run.turns) < _TURNS]:
            raise ValueError(f"{name}: expected at least {_TURNS} steps, got {min(short)}")

    def smooth(run: Turning) -> tuple[list[float], list[float]]:
        means = run.turns.unfold(0, _TURNS, _TURNS).mean(-1).tolist()
        return [_TURNS * (i + 0.5) for i in range(len(means))], means

    words = []
    with style():
        figure, (left, right) = plt.subplots(1, 2, figsize=(WIDTH, 3.2))
        for (start, run), dash in zip(runs.items(), LINES, strict=False):
            left.plot(run.lengths.tolist(), linestyle=dash, label=f"start {start:g}")
            right.plot(*smooth(run), linestyle=dash)
            last = float(run.lengths[-1])
            words.append(f"from {start:g} by way of {_farthest(start, run):.1f} to {last:.1f}")
        for (eps, run), marker in zip(with_eps.items(), "^v", strict=False):
            right.plot(*smooth(run), marker, ms=3, label=f"ε = {eps:g}")
        right.axhline(predicted, color=COLORS["null"], lw=3, alpha=0.5, zorder=0)
        left.set(xlabel="step", ylabel="length of W", ylim=(0, None))
        right.set(xlabel="step", ylabel="turn per step / degrees", ylim=(0, 1.35 * predicted))
        left.legend()
        if with_eps:
            right.legend(loc="lower right")
    named = {f"start {start:g}": run for start, run in runs.items()} | {f"ε = {e:g}": r for e, r in with_eps.items()}
    late = ", ".join(f"{run.turns[len(run.turns) // 2 :].mean():.1f} ({name})" for name, run in named.items())
    return figure, (
        f"Left: the length of W, {'; '.join(words)}. Right: the turn per step in degrees, on average over the "
        f"second half {late}; a grey line at {predicted:.1f}."
    )


def _farthest(start: float, run: Turning) -> float:
    """The length that is farthest from the start, as a ratio."""
    return max(run.lengths.tolist(), key=lambda length: abs(math.log(length / start)))


def ranks_over_seeds(ranks: Mapping[str, pd.Series], most: int = 40) -> tuple[Figure, str]:
    """The distribution function of a rank over seeds, one line a model, beside the uniform one.

    Args:
        ranks: for the names of two models, a rank of 1 to ``most`` for each seed.
    """
    words = []
    with style():
        figure, axis = plt.subplots(figsize=(WIDTH, 2.6))
        for (name, values), color, line in zip(ranks.items(), ("random_a", "uniform"), ("--", "-"), strict=True):
            values = np.sort(values)
            share = np.arange(1, len(values) + 1) / len(values)
            label = f"{name}, {len(values)} seeds"
            axis.step(
                [0, *values, most], [0, *share, 1], where="post", color=COLORS[color], linestyle=line, label=label
            )
            low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
            words.append(f"{name}: from {values[0]} to {values[-1]}, quartiles {low:.0f}, {middle:.0f} and {high:.0f}")
        axis.plot([0, most], [0, 1], color=COLORS["null"], linestyle=":", label="uniform")
        axis.set(xlabel=f"rank of 1 among {most}", ylabel="share of seeds up to it")
        axis.legend(loc="lower right")
    return figure, f"Distribution of the rank of the uniform vector among {most} over seeds. {'; '.join(words)}."


def rank_dots(ranks: pd.DataFrame, norm: int, updates: int, most: int = 40) -> tuple[Figure, str]:
    """One dot a seed at the rank of 1, in columns of five ranks, a panel a model; a dotted line where they are even.

    Args:
        ranks: ``norm``, the model, and ``seed``, ``step``, ``site`` and ``rank``, from 1 to ``most``.
        norm: which site, from 1, in the order of the rows.
        updates: which step.

    Returns:
        the figure and its alt text.
    """
    here, words = ranks[(ranks.site == ranks.site.unique()[norm - 1]) & (ranks.step == updates)], []
    with style():
        figure, panels = plt.subplots(2, 1, figsize=(5, 3.8), sharex=True)
        for axis, (name, rows), color, marker in zip(
            panels, here.groupby("norm"), ("uniform", "random_a"), "os", strict=True
        ):
            column = (rows["rank"].to_numpy(int) - 1) // 5
            height = pd.Series(column).groupby(column).cumcount() + 1
            axis.plot(5 * column + 3, height, marker, color=COLORS[color])
            axis.axhline(len(rows) * 5 / most + 0.5, color=COLORS["null"], linestyle=":")
            axis.set(title=f"{name}, {len(rows)} seeds", ylim=(0, 11), yticks=[0, 5, 10], ylabel="seeds")
            words.append(
                f"{name}, {len(rows)} seeds: median rank {rows['rank'].median():g}, {100 * np.mean(column == 0):.0f} % "
                f"of them among the lowest five, {100 * np.mean(column == most // 5 - 1):.0f} % among the highest"
            )
        axis.set(xlabel=f"rank of 1 among {most}", xlim=(0, most + 1), xticks=range(0, most + 1, 5))
    return figure, f"After {updates} updates, at norm {norm}. {'; '.join(words)}."


def shapes_over_steps(forms: Mapping[str, pd.DataFrame], by_chance: float) -> tuple[Figure, str]:
    """Spread of the gains, and their and the longest axes' agreement with the end, against updates.

    Means over norms and seeds; of the first model in bands from the smallest to the largest.

    Args:
        forms: for each model's name, what :func:`normgeom.training.courses.shapes` gave, of several norms and seeds.
        by_chance: the overlap of axes that chance gives.
    """
    words = []
    with style():
        figure, (upper, lower) = plt.subplots(2, 1, figsize=(WIDTH, 5.6), sharex=True)
        for number, (name, rows) in enumerate(forms.items()):
            over = rows.groupby("step")
            look = dict(linestyle=LINES[number % len(LINES)])
            for axis, column, color, what in (
                (upper, "spread", "uniform", ""),
                (lower, "correlation", "uniform", ", gains"),
                (lower, "overlap", "random_a", ", axes"),
            ):
                mean, low, high = (over[column].agg(of) for of in ("mean", "min", "max"))
                axis.plot(mean.index, mean, color=COLORS[color], label=name + what, **look)
                if number == 0:
                    axis.fill_between(mean.index, low, high, color=COLORS[color], alpha=0.15, linewidth=0)
            means = over[["spread", "correlation", "overlap"]].mean()
            tenth = means.iloc[np.abs(means.index - means.index.max() / 10).argmin()]
            words.append(
                f"{name}: spread {means.spread.iloc[-1]:.3f} at the end; a tenth of the way the gains correlate "
                f"with those of the end by {tenth.correlation:.2f}, the axes overlap by {tenth.overlap:.2f}"
            )
        lower.axhline(by_chance, color=COLORS["null"], linestyle=":", label="axes, by chance")
        upper.set(ylabel="spread of the gains")
        lower.set(xlabel="updates", ylabel="agreement with the end")
        upper.legend()
        figure.legend(*lower.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure, f"Gains and axes over the course of training. {'; '.join(words)}."


def _grid(tables: Mapping, sites: Sequence[str], label: str) -> tuple[Figure, dict[tuple[str, str], Axes]]:
    figure, grid = plt.subplots(
        len(sites), len(tables), figsize=(WIDTH, 1.2 + 1.7 * len(sites)), sharex=True, sharey=True, squeeze=False
    )
    axes = {}
    for site, row in zip(sites, grid, strict=True):
        for name, axis in zip(tables, row, strict=True):
            steps = sorted({step for step in tables[name].step if step > 0})
            axis.set_xscale("symlog", linthresh=steps[0])
            axis.set_xticks([0, *_apart(steps)])
            axis.minorticks_off()
            axis.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step:,.0f}"))
            axis.set_title(f"{name}: {_short(site)}")
            axes[site, name] = axis
        row[0].set_ylabel(label)
    for axis in grid[-1]:
        axis.set_xlabel("updates")
    return figure, axes


def _apart(steps: Sequence[int], ratio: float = 3.5) -> list[int]:
    """The last of the steps and those before it that are far enough apart on a logarithmic axis to have a tick."""
    chosen = [steps[-1]]
    for step in reversed(steps):
        if chosen[-1] >= ratio * step:
            chosen.append(step)
    return chosen[::-1]


def _at(table: pd.DataFrame, site: str, side: str) -> pd.DataFrame:
    return table[(table.site == site) & (table.side == side)]


def _short(site: str) -> str:
    """GPT-2's names in words, others as they are."""
    site = re.sub(r".*\bh\.(\d+)\.ln_(\d)$", r"block \1, norm \2", site)
    return "last norm" if site.endswith("ln_f") else site
