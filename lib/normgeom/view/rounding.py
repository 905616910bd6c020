"""Pictures of rounding: a walk whose totals are rounded, and errors of a norm against the mean of its rows."""

from __future__ import annotations

from collections.abc import Callable

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from normgeom.bench.sums import rounded_walk
from normgeom.view.style import COLORS, WIDTH, style, ticks_of_powers


def walk(walks: np.ndarray, digits: int, law: Callable[[int, float], float]) -> tuple[Figure, str]:
    """Random walks whose totals are rounded to ``digits`` binary digits; their errors in the law's band (prop-walk).

    Args:
        walks: ``(walks, n)``, the steps, of variance 1; above, the first of them is drawn.
        digits: p, between 1 and 53.
        law: of k steps and u = 2⁻ᵖ, the root mean square of the error over that of the sum.

    Returns:
        the figure and its alt text.

    Raises:
        ValueError: ``digits`` is not between 1 and 53.
    """
    exact = np.pad(np.cumsum(walks, axis=1), ((0, 0), (1, 0)))
    rounded = np.array([rounded_walk(steps, digits) for steps in walks.tolist()])
    off, at = rounded - exact, np.unique(np.linspace(0, walks.shape[1], 81).astype(int))
    band = np.array([k**0.5 * law(k, 2.0**-digits) for k in at])
    inside = int((abs(off[:, -1]) <= band[-1]).sum())
    with style():
        figure, (top, below) = plt.subplots(2, 1, figsize=(5, 4.2), sharex=True)
        top.plot(exact[0], color=COLORS["null"], lw=3, label="exact")
        top.plot(rounded[0], color=COLORS["uniform"], lw=1.2, label=f"{digits} digits")
        top.set(ylabel="running total", ylim=(exact[0].min() - 25, exact[0].max() + 25))
        top.legend(loc="upper left", ncols=2)
        below.fill_between(at, -band, band, color=COLORS["random_a"], alpha=0.25, lw=0)
        below.plot(at, off[:, at].T, color=COLORS["null"], lw=0.7)
        below.plot(at, off[0, at], color=COLORS["uniform"], lw=1.6)
        below.set(ylabel="error", xlabel="terms added", ylim=(-3.5 * band[-1], 3.5 * band[-1]))
        below.set_title(f"{inside} of {len(walks)} errors end within ±{band[-1]:.2g}")
    return figure, (
        f"A random walk of {walks.shape[1]} steps and the same walk with totals rounded to {digits} digits; at the end "
        f"they are {abs(off[0, -1]):.2g} apart. Below, the errors of {len(walks)} such walks: {inside} end within the "
        f"band of the law, {band[-1]:.2g} to either side."
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
