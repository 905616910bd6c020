"""One style for every figure: vector output, readable without colour, with alt text."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import quote

import matplotlib.pyplot as plt
from IPython.display import display
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager

# Okabe and Ito's palette, for every kind of colour vision; without colour, markers and dashes tell lines apart.
COLORS = {"uniform": "#0072B2", "random_a": "#D55E00", "random_b": "#009E73", "null": "#8A8A8A", "ink": "#2F2F2F"}
COLORS |= {"layer": COLORS["random_a"], "rms": COLORS["uniform"]}  # wherever both norms are drawn
WIDTH = 5.4  # inches: with letters of SIZE the text is 9 pixels high where a phone shows a figure 358 pixels wide
FACES, SIZE = ["DejaVu Sans"], 10
with suppress(ImportError):  # the typeface of the pages, which comes with the extra "book"; its letters are smaller
    from font_source_serif_pro import SourceSerifPro, SourceSerifProIt, SourceSerifProSemibold

    for file in (SourceSerifPro, SourceSerifProIt, SourceSerifProSemibold):
        fontManager.addfont(file)
    FACES, SIZE = ["Source Serif Pro", *FACES], 11.5
# not scale(…), which must stay exact: the coordinates of glyphs that it multiplies are large
_COORDINATES = re.compile(r'(?<= [dxy]=")[^"]*|(?<=translate\()[^)]*')
_LONG_NUMBER = re.compile(r"-?\d+\.\d{3,}")

_RC = {
    "figure.figsize": (WIDTH, 3.2),
    "figure.dpi": 110,
    "figure.constrained_layout.use": True,
    "font.family": FACES,
    **dict.fromkeys(
        ("font.size", "axes.titlesize", "figure.labelsize", "xtick.labelsize", "ytick.labelsize", "legend.fontsize"),
        SIZE,
    ),
    "legend.handlelength": 2.4,
    "legend.columnspacing": 1.2,
    **dict.fromkeys(("figure.facecolor", "axes.facecolor"), "none"),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right"), False),
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
    """The book's matplotlib settings, for figures made inside the block."""
    with plt.rc_context(_RC):
        yield


def show(figure: Figure, alt: str) -> None:
    """Display a figure with alt text for readers who cannot see it.

    Args:
        figure: a matplotlib figure drawn inside :func:`style`, which is shown as SVG and closed.
        alt: a text that says what the figure shows, with its numbers.

    Raises:
        ValueError: ``alt`` is empty.
    """
    if not alt.strip():
        raise ValueError("alt: expected words that say what the figure shows, got an empty text")
    display({"image/svg+xml": svg(figure), "text/plain": f"Figure: {alt}"}, raw=True, metadata={"alt": alt})


def svg(figure: Figure) -> str:
    """A matplotlib figure as SVG; the figure is closed."""
    out = io.StringIO()
    with plt.rc_context({"svg.hashsalt": "normgeom"}):  # the same drawing gives the same text
        figure.savefig(out, format="svg", metadata={"Date": None})
    plt.close(figure)
    text = out.getvalue()
    return _shortened(text[text.index("<svg") :])


def data_uri(drawing: str) -> str:
    """An SVG as a data URI for an attribute in double quotes; this is shorter than base64."""
    return "data:image/svg+xml," + quote(drawing.replace('"', "'"), safe=" !$'()*+,-./:;=?@_~")


def _shortened(text: str) -> str:
    """An SVG without its invisible parts: comments, white space, decimals beyond a hundredth of a point."""
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", text, flags=re.DOTALL)
    return _COORDINATES.sub(_rounded, re.sub(r"\s+", " ", text).replace("> <", "><"))


def _rounded(found: re.Match) -> str:
    """Coordinates with two decimals, and without the spaces around the letters of a path."""
    numbers = _LONG_NUMBER.sub(lambda number: f"{float(number[0]):.2f}", found[0])
    return re.sub(r" ?([A-Za-z]) ?", r"\1", numbers)
