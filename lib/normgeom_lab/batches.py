"""Chapter 1: batch statistics against those of one example."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from normgeom.view.style import COLORS, WIDTH, style
from torch import Tensor


def shared_statistics() -> tuple[Figure, str]:
    """Which numbers of a table share their mean and variance, for batch norm and for layer norm (eq-axes).

    Returns: the figure and its alt text.
    """
    column, row = np.zeros((2, 5, 8))
    column[:, 2] = row[1] = 1
    with style():
        figure, axes = plt.subplots(1, 2, figsize=(WIDTH, 2.1))
        for axis, shade, title in zip(axes, (column, row), ("batch norm", "layer norm"), strict=True):
            axis.pcolormesh(shade, cmap="Blues", vmax=1.6, edgecolors="#B0B0B0")
            axis.set(title=title, xlabel="features", xticks=[], yticks=[], aspect=1)
            axis.invert_yaxis()  # the first example on top, as a table has it
        axes[0].set_ylabel("examples")
    return figure, (
        "Two tables of 5 examples by 8 features. For batch norm one column is shaded, the third feature of all five "
        "examples; for layer norm one row, all eight features of the second example."
    )


def gaps_by_size(gaps: Mapping[int, float]) -> tuple[Figure, str]:
    """How far batch norm in training is from batch norm at inference, by examples in a batch; layer norm's gap is zero.

    Returns: the figure and its alt text.
    """
    sizes = sorted(gaps)
    with style():
        figure, axis = plt.subplots(figsize=(WIDTH, 2.8))
        axis.plot(sizes, [gaps[size] for size in sizes], marker="o", label="batch norm")
        axis.plot(sizes, [0] * len(sizes), marker="s", label="layer norm")
        axis.set(xscale="log", xticks=sizes, xticklabels=sizes)
        axis.set(xlabel="examples in a batch", ylabel="rms difference")
        axis.minorticks_off()
        axis.legend()
    named = dict.fromkeys((sizes[0], sizes[len(sizes) // 3], sizes[-1]))
    words = ", ".join(f"{gaps[size]:.2f} at {size}" for size in named)
    return figure, f"The gap of batch norm by examples in a batch: {words}; the line of layer norm is at zero."


def one_far_out(before: Tensor, batch: Tensor, layer: Tensor) -> tuple[Figure, str]:
    """One feature of a batch, of which the first example is far out: as it is, after batch norm, after layer norm.

    Returns: the figure and its alt text, with the spread (standard deviation) of the others in each.
    """
    if len(before) < 3 or not before.shape == batch.shape == layer.shape:
        shapes = [tuple(x.shape) for x in (before, batch, layer)]
        raise ValueError(f"before, batch, layer: expected one shape (examples >= 3, d), got {shapes}")
    rows = {"as it is": before, "batch norm": batch, "layer norm": layer}
    words = []
    with style():
        figure, axis = plt.subplots(figsize=(5, 2.5))
        for height, (name, x) in enumerate(rows.items()):
            far, others = float(x[0, 0]), x[1:, 0].double()
            spread = float(others.std(correction=0))
            _strokes(axis, -height, others)
            _diamond(axis, -height, far)
            axis.text(-3.4, 0.32 - height, f"{name}: spread of the others {spread:.2f}", color=COLORS["ink"])
            words.append(f"{name}, the first is at {far:.2f} and the others have a spread of {spread:.2f}")
        axis.set(xlim=(-3.5, 3.5), ylim=(-2.4, 0.6), yticks=[], xlabel="first feature (diamond: of the first example)")
        axis.spines["left"].set_visible(False)
    return figure, f"The first feature of {len(before)} examples, on three lines. {'; '.join(words).capitalize()}."


def _strokes(axis: Axes, height: float, values: Tensor) -> None:
    """A stroke for each of the values, all in one path."""
    at = np.repeat(values.numpy(), 3)
    up = np.tile([height - 0.18, height + 0.18, np.nan], len(values))
    axis.plot(at, up, color=COLORS["uniform"], lw=1, label="others")


def _diamond(axis: Axes, height: float, at: float) -> None:
    """The example that is far out; at the edge an arrow with its number."""
    edge, color = 3.3, COLORS["random_a"]
    if abs(at) < edge:
        axis.plot(at, height, "D", color=color, ms=7, label="first")
        return
    side = np.sign(at)
    axis.plot(side * edge, height, ">" if side > 0 else "<", color=color, ms=8, label="first")
    axis.text(side * edge, height + 0.32, f"first at {at:.4g}", color=color, ha="right" if side > 0 else "left")


def doubled_weights() -> tuple[Figure, str]:
    """One step up the gradient from W and from 2W, where a layer norm reads their outputs (prop-effective-rate).

    In the plane of W = (3, 0, −3) and of the gradient (−1, 2, −1)/(3√6) of the norm's second output, for the input 1;
    the step is six gradients long.

    Returns: the figure and its alt text.
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
        "W, two long and at right angles to the ray, turns the weights by 25 degrees; the same step from 2W is one "
        "long and turns them by 7 degrees."
    )
