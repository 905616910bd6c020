"""Pictures of rounding: a walk whose totals are rounded, and errors of a norm against the mean of its rows."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from normgeom.bench.sums import rounded_walk
from normgeom.view.style import COLORS, WIDTH, style, ticks_of_powers


def walk(steps: Sequence[float], digits: int) -> tuple[Figure, str]:
    """The running totals of ``steps`` in float64 and rounded to ``digits`` binary digits; and the alt text.

    Raises:
        ValueError: ``digits`` is not between 1 and 53.
    """
    path, exact = rounded_walk(steps, digits), rounded_walk(steps, 53)
    with style():
        figure, axes = plt.subplots(figsize=(WIDTH, 2.8))
        axes.plot(exact, color=COLORS["null"], lw=3, label="exact")
        axes.plot(path, lw=1.2, label=f"{digits} digits")
        axes.set(xlabel="terms added", ylabel="running total", ylim=(min(exact) - 25, max(exact) + 25))
        axes.legend(loc="upper left")
    return figure, (
        f"A random walk of {len(steps)} steps and the same walk with totals rounded to {digits} digits; at the end "
        f"they are {abs(path[-1] - exact[-1]):.2g} apart."
    )


def errors_over_means(off: pd.DataFrame, unit: float) -> tuple[Figure, str]:
    """Largest errors against the mean of the rows, a line a way, over what rounding promises; and the alt text.

    Args:
        off: a row a mean and a column a way, as of :func:`normgeom.bench.precision.errors_at_means`.
        unit: the format's unit roundoff u; dashed are u times the mean, and u times its square as far as 10⁴.

    Raises:
        ValueError: there are more than four ways.
    """
    markers = "xs^o"
    if off.shape[1] > len(markers):
        raise ValueError(f"off: expected at most {len(markers)} ways, got {list(off)}")
    means = off.index.to_numpy()
    with style():
        figure, axes = plt.subplots(figsize=(WIDTH, 3.4))
        for way, marker in zip(off, markers, strict=False):
            axes.loglog(means, off[way], marker=marker, label=way)  # a gap where no row is left
        for power, shown in ((1, means), (2, means[means <= 1e4])):
            axes.loglog(shown, unit * shown**power, "--", color=COLORS["null"], lw=1)
        axes.set(xlabel="mean of the rows / standard deviation", ylabel="largest error", ylim=(1e-8, 100))
        ticks_of_powers(axes.xaxis, axes.yaxis, most=6)
        figure.legend(loc="outside upper center", ncols=2)
    words = []
    for way, errors in off.items():
        seen = errors.dropna()
        words.append(
            f"{way} from {seen.iloc[0]:.0e} at mean {seen.index[0]:g} to {seen.iloc[-1]:.0e} at {seen.index[-1]:g}"
        )
    return figure, f"Errors against means, double logarithmic: {'; '.join(words)}."
