"""Axes that many figures share: markers of the directions, and few ticks on logarithmic axes."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.axis import Axis
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

MARKERS = {"uniform": "o", "random_a": "s", "random_b": "^"}
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def ticks_of_powers(*axes: Axis, most: int = 5) -> None:
    """Few ticks on axes that are logarithmic already: powers of ten, and on a short axis 2 and 5 between them.

    Where there are more than ``most`` decades, every second, third, … has a tick.
    """
    for axis in axes:
        axis.set_major_locator(_Powers(10, numticks=most))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(_power))


class _Powers(LogLocator):
    """Powers of ten; where fewer than two of them are in sight, 2 and 5 as well."""

    def tick_values(self, low: float, high: float) -> np.ndarray:
        ends = math.log10(low), math.log10(high)
        self.set_params(subs=(1,) if math.floor(max(ends)) > math.ceil(min(ends)) else (1, 2, 5))
        return super().tick_values(low, high)


def _power(value: float, _place: int | None = None) -> str:
    """A plain number near 1, else a power of ten whose exponent is made of letters, to be read on a phone."""
    exponent = math.floor(math.log10(value) + 1e-9)
    if -3 <= exponent <= 3:
        return f"{value:g}"
    factor = round(value / 10.0**exponent)
    return ("" if factor == 1 else f"{factor}·") + "10" + str(exponent).translate(_RAISED)
