"""Axes that many figures share: markers of directions, few ticks on logarithmic axes, names at the ends of lines."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from normgeom.view.tables import number

MARKERS = {"uniform": "o", "random_a": "s", "random_b": "^"}
_LINE = 12.5  # points from one line of text to the next


def label_ends(axis: Axes) -> None:
    """Name lines and bands of a panel at their right ends, instead of a legend; names that would overlap move apart.

    Call it when the panel is complete: where a line ends depends on limits and scales.
    """
    axis.get_ylim()  # limits that follow from the data are computed only on request
    to_panel, ends = axis.transData - axis.transAxes, []
    for drawn, label in zip(*axis.get_legend_handles_labels(), strict=True):
        drawn = drawn[0] if isinstance(drawn, tuple) else drawn  # for error bars, the line
        if isinstance(drawn, Line2D):
            points, color = drawn.get_xydata(), drawn.get_color()
        else:  # a band
            points, color = drawn.get_paths()[0].vertices, drawn.get_facecolor()[0]
        points = to_panel.transform(points[np.isfinite(points).all(-1)])
        seen = points[(points[:, 1] >= 0) & (points[:, 1] <= 1)]  # a line may leave the panel before its end
        x, y = seen[seen[:, 0] > seen[:, 0].max() - 1e-6].mean(0)
        if x < 0.8:  # inside, where the line ends
            axis.annotate(
                label, (x, y), (12, 0), "axes fraction", textcoords="offset points", verticalalignment="center"
            )
        else:
            ends.append((y, x, label.replace(", ", ",\n"), color))
    ends.sort(key=lambda end: end[0])
    heights = np.array([1 + label.count("\n") for _, _, label, _ in ends]) * _LINE
    least = (heights[:-1] + heights[1:]) / 2 * axis.figure.dpi / 72 / axis.bbox.height
    places = np.array([y for y, *_ in ends])
    for _ in range(300):
        push = np.maximum(least - np.diff(places), 0) / 2
        places[:-1] -= push
        places[1:] += push
    for (y, x, label, color), place in zip(ends, places, strict=True):
        lead = dict(arrowstyle="-", color=color, linewidth=0.7, shrinkA=0, shrinkB=0, relpos=(0, 0.5))
        look = dict(xycoords="axes fraction", verticalalignment="center", annotation_clip=False)
        axis.annotate(label, (x, y), (1.05, place), arrowprops=lead, **look)


def ticks_of_powers(*axes: Axis, most: int = 5) -> None:
    """Set a few ticks on axes that are already logarithmic: powers of ten, and on a short axis 2 and 5 between them.

    Where there are more than ``most`` decades, every second, third, … has a tick.
    """
    for axis in axes:
        axis.set_major_locator(_Powers(10, numticks=most))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda value, _: number(value, 1)))


class _Powers(LogLocator):
    """Powers of ten; where fewer than two of them are visible, 2 and 5 as well."""

    def tick_values(self, low: float, high: float) -> np.ndarray:
        ends = math.log10(low), math.log10(high)
        self.set_params(subs=(1,) if math.floor(max(ends)) > math.ceil(min(ends)) else (1, 2, 5))
        return super().tick_values(low, high)
