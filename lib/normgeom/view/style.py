"""One look for every picture: vector output, readable without colour, with words for those who cannot see it."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import matplotlib.pyplot as plt
import numpy as np
from IPython.display import display
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

# Okabe and Ito's palette: told apart by readers of every colour vision, and by marker and dash without colour.
COLORS = {"uniform": "#0072B2", "random_a": "#D55E00", "random_b": "#009E73", "null": "#8A8A8A", "ink": "#2F2F2F"}
MARKERS = {"uniform": "o", "random_a": "s", "random_b": "^"}
WIDTH = 5.4  # inches: with letters of 10 points the text is 9 pixels high where a phone shows a figure 358 pixels wide
_DRAWN, _PATH = re.compile(r' (?:d|x|y)="[^"]*"|translate\([^)]*\)'), re.compile(r'(?<= d=")[^"]*')
_LONG = re.compile(r"-?\d+\.\d{3,}")
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

_RC = {
    "figure.figsize": (WIDTH, 3.2),
    "figure.dpi": 110,
    "figure.constrained_layout.use": True,
    "font.size": 10,
    "axes.titlesize": 10,
    "xtick.labelsize": 10,
    "ytick.labelsize": 10,
    "legend.fontsize": 10,
    "legend.handlelength": 2.4,
    "legend.columnspacing": 1.2,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.prop_cycle": plt.cycler(color=["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00"]),
    "grid.color": "#8A8A8A",
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "legend.frameon": False,
}


@contextmanager
def style() -> Iterator[None]:
    """The book's settings of matplotlib for the figures made inside the block."""
    with plt.rc_context(_RC):
        yield


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


def show(figure: Any, alt: str) -> None:
    """Display a figure with a text for readers who do not see it.

    Args:
        figure: of matplotlib, drawn inside :func:`style`, shown as SVG and closed; or an object with ``page(alt)``.
        alt: what is to be seen, with its numbers.

    Raises:
        ValueError: ``alt`` is empty.
    """
    if not alt.strip():
        raise ValueError("alt: expected words that say what is to be seen, got an empty text")
    picture = {"text/html": figure.page(alt)} if hasattr(figure, "page") else {"image/svg+xml": svg(figure)}
    display({**picture, "text/plain": f"Figure: {alt}"}, raw=True, metadata={"alt": alt})


def svg(figure: Figure) -> str:
    """A figure of matplotlib as SVG; it is closed."""
    out = io.StringIO()
    with plt.rc_context({"svg.hashsalt": "normgeom"}):  # the same drawing gives the same text
        figure.savefig(out, format="svg", metadata={"Date": None})
    plt.close(figure)
    text = out.getvalue()
    return _spare(text[text.index("<svg") :])


def data_uri(drawing: str) -> str:
    """An SVG as the address of an image, ready for an attribute in double quotes; shorter than in base64."""
    return "data:image/svg+xml," + quote(drawing.replace('"', "'"), safe=" !$'()*+,-./:;=?@_~")


def _spare(text: str) -> str:
    """An SVG without what nobody sees: comments, space, decimals beyond a hundredth of a point."""
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"\s+", " ", text).replace("> <", "><")
    text = _DRAWN.sub(lambda found: _LONG.sub(lambda number: f"{float(number[0]):.2f}", found[0]), text)
    return _PATH.sub(lambda found: re.sub(r" ?([A-Za-z]) ?", r"\1", found[0]), text)
