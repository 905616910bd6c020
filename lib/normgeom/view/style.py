"""One look for every picture: vector output, readable without colour, with words for those who cannot see it."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager

import matplotlib.pyplot as plt
import plotly.graph_objects as go
from IPython.display import display
from matplotlib.figure import Figure

# Okabe and Ito's palette: told apart by readers of every colour vision, and by marker and dash without colour.
COLORS = {"uniform": "#0072B2", "random_a": "#D55E00", "random_b": "#009E73", "null": "#8A8A8A", "ink": "#2F2F2F"}
MARKERS = {"uniform": "o", "random_a": "s", "random_b": "^"}
WIDTH = 7.2

_RC = {
    "figure.figsize": (WIDTH, 3.2),
    "figure.dpi": 110,
    "figure.constrained_layout.use": True,
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.prop_cycle": plt.cycler(color=["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00"]),
    "grid.color": "#E4E4E4",
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


def show(figure: Figure | go.Figure, alt: str) -> None:
    """Display a figure with a text for readers who do not see it.

    Args:
        figure: of matplotlib, drawn inside :func:`style`, shown as SVG and closed; or of plotly, which turns.
        alt: what is to be seen, with its numbers.

    Raises:
        ValueError: ``alt`` is empty.
    """
    if not alt.strip():
        raise ValueError("alt: expected words that say what is to be seen, got an empty text")
    picture = {"image/svg+xml": svg(figure)} if isinstance(figure, Figure) else figure._repr_mimebundle_()
    display({**picture, "text/plain": f"Figure: {alt}"}, raw=True, metadata={"alt": alt})


def svg(figure: Figure) -> str:
    """A figure of matplotlib as SVG; it is closed."""
    out = io.StringIO()
    with plt.rc_context({"svg.hashsalt": "normgeom"}):  # the same drawing gives the same text
        figure.savefig(out, format="svg", metadata={"Date": None})
    plt.close(figure)
    text = out.getvalue()
    return text[text.index("<svg") :]
