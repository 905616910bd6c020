"""Pictures of what has taken LayerNorm's place: growth by design, and losses of designs trained alike."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from normgeom.models.growth import Growth
from normgeom.view.style import WIDTH, style, ticks_of_powers

# What the designs of the records are called in words.
TITLES = {
    "pre": "pre-norm",
    "pre-rms": "pre-norm, RMSNorm",
    "post": "post-norm",
    "deepnorm": "DeepNorm",
    "sandwich": "sandwich (Peri-LN)",
    "branch-out": "branch-out",
    "mix": "Mix-LN",
    "hybrid": "HybridNorm",
    "scaled": "LayerNorm scaling",
    "keel": "Keel",
    "qk": "pre-norm with QK-norm",
    "sphere": "sphere (nGPT)",
    "dyt": "DyT",
    "derf": "Derf",
    "none": "no norms",
}
_LOOKS = {
    "pre": dict(color="#D55E00", marker="s"),
    "sandwich": dict(color="#009E73", marker="v"),
    "scaled": dict(color="#0072B2", marker="o"),
    "mix": dict(color="#CC79A7", marker="D"),
    "hybrid": dict(color="#E69F00", marker="^"),
    "keel": dict(color="#2F2F2F", marker="x"),
}
_MARKS = ("o", "s", "^", "D")


def growth_of_designs(grown: Mapping[str, Growth]) -> tuple[Figure, str]:
    """Mean square of the stream and size of the updates by sublayer.

    Args:
        grown: of each design, a key of :data:`TITLES`.

    Returns:
        the figure and its alt text, with the last numbers.
    """
    with style():
        figure, (size, late) = plt.subplots(2, 1, figsize=(WIDTH, 5.2), sharex=True)
        words = []
        for name, found in grown.items():
            square, update = found.square.mean(0).numpy(), found.update.mean(0).numpy()
            look = dict(_LOOKS.get(name, {}), label=TITLES[name], markevery=4)
            size.plot(np.arange(len(square)), square, **look)
            late.plot(np.arange(1, len(square)), update, **look)
            words.append(f"{TITLES[name]} {square[-1]:.2g} and {update[-1]:.2g}")
        for axis, title in ((size, "mean square of the stream"), (late, "update over stream")):
            axis.set(yscale="log", ylabel=title)
            ticks_of_powers(axis.yaxis)
        late.set_xlabel("sublayer")
        figure.legend(*size.get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return figure, (
        "Two panels of lines over the sublayers. Mean square of the stream behind the last one, and how much that one "
        f"changes it: {'; '.join(words)}."
    )


def losses_of_designs(best: pd.DataFrame) -> tuple[Figure, str]:
    """Losses of designs, each at its best rate, by depth: a mark a depth, a bar over the seeds.

    Args:
        best: one row a (design, layers): ``design``, a key of :data:`TITLES`, ``layers``, ``mean``, ``low``, ``high``.

    Returns:
        the figure and its alt text.
    """
    order = best.groupby("design").mean(numeric_only=True)["mean"].sort_values().index
    depths = sorted(best.layers.unique())
    with style():
        figure, axis = plt.subplots(figsize=(WIDTH, 0.5 + 0.34 * len(order)))
        for k, depth in enumerate(depths):
            rows = best[best.layers == depth].set_index("design").reindex(order)
            at = np.arange(len(order)) + 0.22 * (k - (len(depths) - 1) / 2)
            bars = np.abs(rows[["low", "high"]].to_numpy().T - rows["mean"].to_numpy())
            axis.errorbar(rows["mean"], at, xerr=bars, fmt=_MARKS[k], ms=5, lw=1.2, label=f"{depth} blocks")
        axis.set(yticks=range(len(order)), yticklabels=[TITLES[name] for name in order], xlabel="loss / nats a byte")
        axis.invert_yaxis()
        figure.legend(loc="outside upper center", ncols=len(depths))
    words = "; ".join(
        f"{TITLES[name]} {', '.join(f'{v:.2f}' for v in best[best.design == name].sort_values('layers')['mean'])}"
        for name in order
    )
    return figure, f"Losses in nats a byte at {', '.join(map(str, depths))} blocks, the lowest above: {words}."
