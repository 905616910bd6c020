"""Pictures of placements, each with its alt text; names of placements are keys of LOOKS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from normgeom.view.style import COLORS, WIDTH, style
from torch import Tensor

from normgeom_lab.common.axes import label_ends, ticks_of_powers
from normgeom_lab.common.growth import Growth
from normgeom_lab.common.stacks import DESIGNS, PLACEMENTS
from normgeom_lab.placement.experiments import power_law

WORDS = {name: DESIGNS[name].words for name in (*PLACEMENTS, "post-small")}

LOOKS = {
    "pre-norm": dict(color="#D55E00", marker="s"),
    "post-norm": dict(color="#0072B2", marker="o"),
    "post-norm, small outputs": dict(color="#56B4E9", marker="*"),
    "sandwich": dict(color="#009E73", marker="v"),
    "branch-out": dict(color="#CC79A7", marker="D"),
    "DeepNorm": dict(color="#E69F00", marker="^"),
    "pre-norm, no final norm": dict(color=COLORS["null"], marker="P"),
    "no norms": dict(color=COLORS["ink"], marker="x"),
}

_WIDE = dict(lw=5, alpha=0.4, ms=8, zorder=1)  # so wide that a line that covers it leaves both its sides visible
_LAW = dict(color=COLORS["ink"], lw=1.2, ls=(0, (2, 2)), zorder=5)
_BEHIND = dict(color=COLORS["null"], lw=3, alpha=0.5, zorder=0)


def sublayers() -> tuple[Figure, str]:
    """One sublayer of each placement (eq-sublayer)."""
    with style():
        figure, axes = plt.subplots(1, len(PLACEMENTS), figsize=(WIDTH, 2.7))
        for axis, (name, rule) in zip(axes, PLACEMENTS.items(), strict=True):
            axis.set(title=WORDS[name], xlim=(-0.8, 1.7), ylim=(-0.2, 6.9))
            axis.axis("off")
            axis.plot([0, 1, 1, 0], [0.7, 0.7, 4.6, 4.6], color=COLORS["null"], lw=1.2)
            axis.annotate("", (0, 6.9), (0, -0.2), arrowprops=dict(arrowstyle="->", color=COLORS["ink"], lw=1.6))
            boxes = (
                (1, 2.65, "f", True),
                (1, 1.6, "N", rule.before),
                (1, 3.7, "N", rule.after),
                (0, 5.7, "N", rule.sum),
                (0, 2.65, "α", rule.alpha != 1),
            )
            for x, y, letter, present in boxes:
                if present:
                    box = dict(boxstyle="square,pad=0.35", fc="#D6E6F2" if letter == "N" else "white")
                    axis.text(x, y, letter, ha="center", va="center", bbox=box)
            axis.text(0, 4.6, "+", ha="center", va="center", bbox=dict(boxstyle="circle,pad=0.2", fc="white"))
    return figure, (
        "Five drawings of a sublayer: the stream runs upwards, a branch f leaves it and is added again. Pre-norm has a "
        "norm N before f, post-norm on the stream after the sum, the sandwich before and after f, branch-out after f; "
        "DeepNorm is post-norm with a factor α on the stream before the sum."
    )


def gradient_powers(
    depths: Sequence[int], by_depth: Mapping[str, Tensor], by_block: Mapping[str, Tensor]
) -> tuple[Figure, str]:
    """Lengths of gradients against depth, ``(depths, seeds)``, with fitted powers, and by block."""
    words = []
    with style():
        figure, (left, right) = plt.subplots(1, 2, figsize=(WIDTH, 3.6), sharey=True)
        for name, lengths in by_depth.items():
            words.append(f"{_points_and_power(left, depths, lengths, name):.2f} for {name}")
        for name, lengths in by_block.items():
            look = LOOKS[name] | (_WIDE if name == "branch-out" else {})
            right.semilogy(range(1, len(lengths) + 1), lengths, label=name, **look)
        left.set_xticks(depths, depths)
        left.minorticks_off()
        ticks_of_powers(left.yaxis)
        left.set(xlabel="number of blocks", ylabel="length of the gradient", title="in the last block")
        right.set(xlabel="block", title=f"in each of {len(lengths)} blocks")
        label_ends(left)
        label_ends(right)
    ratios = ", ".join(f"{float(v[0] / v[-1]):.2f} for {name}" for name, v in by_block.items())
    return figure, (
        f"Gradients of the last block, double logarithmic, with fitted powers of the depth: {', '.join(words)}. "
        f"By block, the first block's over the last one's: {ratios}."
    )


def _points_and_power(axis: Axes, values: Sequence[int], lengths: Tensor, name: str) -> float:
    """Draw a point for each seed and the fitted power as a line; return the power."""
    axis.loglog(values, lengths, LOOKS[name]["marker"], color=LOOKS[name]["color"], ms=3, alpha=0.6)
    power, _ = power_law(values, lengths)
    x = np.log(np.asarray(values, float))
    line = np.exp(float(lengths.log().mean()) + power * (x - x.mean()))
    axis.loglog(values, line, color=LOOKS[name]["color"], lw=1.2, label=name)
    return power


def growth_by_sublayer(grown: Mapping[str, Growth]) -> tuple[Figure, str]:
    """Mean square of the stream and relative update by sublayer, means over stacks, with 1 + l and 1/√l."""
    ends = {"square": [], "update": []}
    with style():
        figure, (left, right) = plt.subplots(1, 2, figsize=(WIDTH, 4.2))
        for name, run in grown.items():
            square, update = run.square.mean(0), run.update.mean(0)
            number = np.arange(1, len(update) + 1)
            look = LOOKS[name] | (_WIDE if name == "branch-out" else {})
            left.plot(square, markevery=6, **look | (_WIDE if name == "post-norm" else {}))
            for first, dash, label in ((0, "-", name), (1, ":", None)):  # attention, MLP
                right.loglog(number[first::2], update[first::2], dash, markevery=4, label=label, **look)
            ends["square"].append(f"{float(square[-1]):.2g} for {name}")
            ends["update"].append(f"{float(update[-1]):.2g} for {name}")
        left.plot([0, number[-1]], [1, 1 + number[-1]], label="1 + l", **_LAW)
        left.annotate("1 + l", (number[-1], 1 + number[-1]), (-6, 0), textcoords="offset points", ha="right")
        right.loglog(number, number**-0.5, label="1/√l", **_LAW)
        ticks_of_powers(right.xaxis, right.yaxis)
        left.set(xlabel="sublayer", title="mean square\nof the stream")
        right.set(xlabel="sublayer", title="relative update")
        label_ends(right)
    return figure, (
        "Left, the mean square of the stream and the line 1 + l; at the end "
        f"{', '.join(ends['square'])}. Right, relative updates on double logarithmic axes, and 1/√l; at the end "
        f"{', '.join(ends['update'])}."
    )


def growth_rows(grown: Mapping[str, Growth]) -> dict[str, dict[str, float]]:
    """The growth of stacks in numbers, one row per name."""
    return {
        name: {
            "mean square at the end": float(run.square[:, -1].mean()),
            "added per sublayer": float(run.added.mean()),
            "least": float(run.added.min()),
            "most": float(run.added.max()),
            "update / stream": float(run.update[:, -4:].mean()),
            "turn / degrees": float(run.turn[:, -4:].mean()),
            "cosine with the input": float(run.cosine[:, -1].mean()),
        }
        for name, run in grown.items()
    }


def stream_shares(shares: Mapping[str, Sequence[Tensor]], sublayers: int) -> tuple[Figure, str]:
    """Shares of :func:`composition` after ``sublayers`` sublayers, a bar per placement, the input lowest and dark."""
    most = max(map(len, shares.values()))
    shades, words = [COLORS["ink"], *plt.get_cmap("viridis")(np.linspace(0.25, 1, most))], {}
    with style():
        figure, axis = plt.subplots(figsize=(5, 3.6))
        for place, (name, by_depth) in enumerate(shares.items()):
            share = by_depth[sublayers - 1].tolist()
            look = dict(color=shades[: len(share)], edgecolor="white", linewidth=0.5)
            axis.bar([place] * len(share), share, 0.72, np.cumsum([0, *share[:-1]]), **look)
            words[name] = f"input {100 * share[0]:.0f} %", f"last two {100 * sum(share[1:][-2:]):.0f} %"
        axis.set(ylabel="share of the squared length", ylim=(0, 1), title=f"after {sublayers} sublayers")
        axis.set_xticks(range(len(shares)), ["\n".join([name, *rest]) for name, rest in words.items()])
        axis.grid(visible=False)
    return figure, (
        f"After {sublayers} sublayers, the shares of the input and of every branch, one bar per placement, input "
        f"lowest, newest on top. {'; '.join(', '.join([name, *rest]) for name, rest in words.items())}."
    )


def saturation_by_block(runs: Mapping[str, tuple[Tensor, Tensor]]) -> tuple[Figure, str]:
    """Mean square of the stream and entropy of attention by block, of :func:`mean_saturation`."""
    words = []
    with style():
        figure, (left, right) = plt.subplots(1, 2, figsize=(WIDTH, 3.2))
        for name, (squares, entropies) in runs.items():
            blocks = range(1, len(squares) + 1)
            left.semilogy(blocks, squares, label=name, **LOOKS[name])
            right.plot(blocks, entropies, label=name, **LOOKS[name])
            words.append(f"{name} {float(squares[-1]):.0e} and {float(entropies[-1]):.2f}")
        ticks_of_powers(left.yaxis)
        left.set(xlabel="block", title="mean square of the stream")
        right.set(xlabel="block", title="attention entropy,\nrelative to even weights", ylim=(0, 1.05))
        label_ends(right)
    return figure, (
        "Mean square of the stream, logarithmic, and entropy of attention, both by block. In the last block they are: "
        f"{'; '.join(words)}."
    )


def losses_by_rate(sweep: pd.DataFrame, entropy: float) -> tuple[Figure, str]:
    """Loss against the learning rate, mean and range over seeds; a row per depth, a column per placement; entropy."""
    words, depths, placements = [], sorted(set(sweep.layers)), sweep.placement.unique()
    dashed = {True: dict(ls="-", mfc=None), False: dict(ls="--", mfc="none")}  # with a warm-up, and without
    with style():
        shape = dict(figsize=(WIDTH, 4.8), sharex=True, sharey=True, squeeze=False)
        figure, grid = plt.subplots(len(depths), len(placements), **shape)
        for (depth, placement), axis in zip(product(depths, placements), grid.flat, strict=True):
            name = WORDS[placement]
            of_panel = sweep[(sweep.layers == depth) & (sweep.placement == placement)]
            for warmup, runs in of_panel.groupby("warmup"):
                losses = runs.groupby("rate").loss
                mean, low, high = losses.mean(), losses.min(), losses.max()
                look = dict(capsize=2, label=f"warm-up {warmup}") | LOOKS[name] | dashed[warmup > 0]
                axis.errorbar(mean.index, mean, [mean - low, high - mean], **look)
                words.append(f"{name} of {depth} blocks, warm-up {warmup}, from {mean.min():.2f} to {mean.max():.2f}")
            axis.axhline(entropy, **_BEHIND)
            axis.set(xscale="log")
            axis.set_xticks(mean.index, [f"{10_000 * rate:g}" for rate in mean.index])
            axis.minorticks_off()
            axis.margins(x=0.15)
            if axis in grid[0]:
                axis.set_title(name.replace(", ", ",\n"))
        for row, depth in zip(grid, depths, strict=True):
            row[0].set_ylabel(f"{depth} blocks")
            label_ends(row[-1])
        figure.supxlabel("learning rate / 10⁻⁴")
        figure.supylabel("loss / nats per byte")
    return figure, f"Loss against learning rate, means over seeds: {'; '.join(words)}."


def losses_of_runs(runs: pd.DataFrame, entropy: float) -> tuple[Figure, str]:
    """Loss over training, a line per run, from columns ``placement``, ``seed``, ``step``, ``loss``; entropy in grey."""
    words = []
    with style():
        figure, axis = plt.subplots(figsize=(WIDTH, 3.2))
        for placement, of_one in runs.groupby("placement", sort=False):
            name = WORDS[placement]
            for number, (_, run) in enumerate(of_one.groupby("seed")):
                axis.plot(run.step, run.loss, ms=3, label=None if number else name, **LOOKS[name])
            last = of_one[of_one.step == of_one.step.max()].loss
            words.append(f"{name} ends at {last.min():.2f} to {last.max():.2f}")
        axis.axhline(entropy, **_BEHIND)
        axis.set(xlabel="steps", ylabel="loss / nats per byte")
        label_ends(axis)
    return figure, f"Loss over {runs.step.max()} steps, a line per run: {', '.join(words)}."
