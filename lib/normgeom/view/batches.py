"""Pictures of statistics over a batch: what they are taken of, and how far small batches take them off."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from normgeom.view.style import WIDTH, style


def shared_statistics() -> tuple[Figure, str]:
    """Which numbers of a table share their mean and variance, for batch norm and for layer norm (eq-axes).

    Returns:
        the figure and its alt text.
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

    Args:
        gaps: for each number of examples the root mean square of the difference (eq-inference).

    Returns:
        the figure and its alt text.

    Raises:
        ValueError: there is no gap.
    """
    if not gaps:
        raise ValueError("gaps: expected at least one batch size, got none")
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
