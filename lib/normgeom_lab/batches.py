"""Chapter 1: figures of batch norm and layer norm, each with its alt text."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from normgeom.view.style import COLORS, WIDTH, style
from torch import Tensor

from normgeom_lab.common.axes import label_ends


def shared_statistics() -> tuple[Figure, str]:
    """The numbers of a table that share a mean and a variance, for batch norm and for layer norm (eq-axes)."""
    column, row = np.zeros((2, 5, 8))
    column[:, 2] = row[1] = 1
    with style():
        figure, axes = plt.subplots(1, 2, figsize=(WIDTH, 2.1))
        for axis, shade, title in zip(axes, (column, row), ("batch norm", "layer norm"), strict=True):
            axis.pcolormesh(shade, cmap="Blues", vmax=1.6, edgecolors="#B0B0B0")
            axis.set(title=title, xlabel="features", xticks=[], yticks=[], aspect=1)
            axis.invert_yaxis()  # the first example on top, as in a table
        axes[0].set_ylabel("examples")
    return figure, (
        "Two tables of 5 examples by 8 features. For batch norm one column is shaded, the third feature of all five "
        "examples; for layer norm one row, all eight features of the second example."
    )


def gaps_by_size(gaps: Mapping[int, float]) -> tuple[Figure, str]:
    """The difference between batch norm in training and at inference, by the number of examples in a batch."""
    sizes = sorted(gaps)
    with style():
        figure, axis = plt.subplots(figsize=(WIDTH, 2.8))
        axis.plot(sizes, [gaps[size] for size in sizes], marker="o", label="batch norm")
        axis.plot(sizes, [0] * len(sizes), marker="s", label="layer norm")
        axis.set(xscale="log", xticks=sizes, xticklabels=sizes)
        axis.set(xlabel="examples in a batch", ylabel="root mean square difference")
        axis.minorticks_off()
        label_ends(axis)
    words = ", ".join(f"{gaps[size]:.2f} at {size}" for size in (sizes[0], sizes[len(sizes) // 3], sizes[-1]))
    return figure, (
        f"A falling curve: the difference for batch norm, by the number of examples in a batch: {words}. "
        "For layer norm the line lies at zero."
    )


def one_far_out(before: Tensor, batch: Tensor, layer: Tensor) -> tuple[Figure, str]:
    """The first feature of a batch whose first example is an outlier: before and after each norm."""
    rows, edge, color = {"before": before, "batch norm": batch, "layer norm": layer}, 3.3, COLORS["random_a"]
    words = []
    with style():
        figure, axis = plt.subplots(figsize=(5, 2.5))
        for line, (name, x) in enumerate(rows.items()):
            height, far, others = -line, float(x[0, 0]), x[1:, 0].double()
            spread = float(others.std(correction=0))
            up = np.tile([height - 0.18, height + 0.18, np.nan], len(others))
            axis.plot(np.repeat(others.numpy(), 3), up, color=COLORS["uniform"], lw=1, label="others")
            if abs(far) < edge:
                axis.plot(far, height, "D", color=color, ms=7, label="first")
            else:  # an arrow at the edge, with its number
                end, marker, side = (edge, ">", "right") if far > 0 else (-edge, "<", "left")
                axis.plot(end, height, marker, color=color, ms=8, label="first")
                axis.text(end, height + 0.32, f"first at {far:.4g}", color=color, ha=side)
            axis.text(-3.4, 0.32 + height, f"{name}: others' standard deviation {spread:.2f}", color=COLORS["ink"])
            words.append(f"{name}: the first is at {far:.2f}, and the others have standard deviation {spread:.2f}")
        axis.set(xlim=(-3.5, 3.5), ylim=(-2.4, 0.6), yticks=[], xlabel="first feature (diamond: first example)")
        axis.spines["left"].set_visible(False)
    return figure, f"The first feature of {len(before)} examples, on three lines. {'; '.join(words).capitalize()}."


def doubled_weights() -> tuple[Figure, str]:
    """One step along the gradient from W and from 2W, if a layer norm reads their output (prop-effective-rate).

    The plane is that of W = (3, 0, −3) and of the gradient (−1, 2, −1)/(3√6) of the norm's second output for the input
    1. The step is six gradients long.
    """
    length, step = 18**0.5, 2.0
    with style():
        figure, axis = plt.subplots(figsize=(5.2, 2.3))
        axis.plot([0, 9.4], [0, 0], "--", color=COLORS["null"], lw=1)
        for times, name, shade in ((1, "W", "uniform"), (2, "2W", "random_a")):
            start, rise = times * length, step / times
            axis.plot([0, start], [0, rise], ":", color=COLORS[shade], lw=1.2)
            axis.annotate("", (start, rise), (start, 0), arrowprops={"arrowstyle": "->", "color": COLORS[shade]})
            axis.plot(start, 0, "o", color=COLORS[shade])
            axis.annotate(name, (start, 0), (0, -14), textcoords="offset points", ha="center")
            angle = np.degrees(np.arctan2(rise, start))
            axis.annotate(f"turned by {angle:.0f}°", (start, rise), (0, 5), textcoords="offset points", ha="center")
        axis.set(xlim=(-0.3, 9.6), ylim=(-0.9, 2.7), aspect="equal")
        axis.axis("off")
    return figure, (
        "A dashed ray with W at 4.2 and 2W at 8.5 from the origin; all its points have the same output. One step from "
        "W has length 2, is orthogonal to the ray and turns the weights by 25 degrees; a step from 2W with the same "
        "learning rate has length 1 and turns them by 7 degrees."
    )
