"""Figures that several chapters share, with their alt texts: an interactive norm, and error bars of angles."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import matplotlib.pyplot as plt
import pandas as pd
import torch
from IPython.display import display
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from normgeom.geometry.ellipsoid import Ellipsoid
from normgeom.geometry.jacobian import NormJacobian
from normgeom.geometry.uniform import angle, uniform_vector
from normgeom.norms.functions import layer_norm, rms_norm
from normgeom.view.explore import image
from normgeom.view.style import COLORS, WIDTH, style
from torch import Tensor

from normgeom_lab.common.axes import MARKERS
from normgeom_lab.common.space import ONE_UP, circle, draw_plane, flat

_SMALL = 0.4  # radius of the circle around x


def hold(
    show: str = "norm",
    x: Sequence[float] = (2.2, 0.4, -0.5),
    gain: Sequence[float] = (1.5, 1.0, 0.5),
    eps: float = 1e-5,
    centered: bool = True,
) -> None:
    """Display an interactive norm: on a page, a script replaces the picture; in a notebook, change the arguments.

    ``show`` chooses what the page asks about, "norm", "ellipse" or "jacobian"; the last also draws the Jacobian.
    """
    figure, words = held(x, gain, eps, centered, show)
    page = f'<div class="hold" data-show="{show}">{image(figure, words)}<p>{escape(words)}</p></div>'
    display({"text/html": page, "text/plain": f"A picture. {words}"}, raw=True)


def held(
    x: Sequence[float], gain: Sequence[float], eps: float, centered: bool = True, show: str = "norm"
) -> tuple[Figure, str]:
    """Draw a vector of ℝ³, n, y and the ellipse of outputs (thm-image); with "jacobian" also a circle and its image."""
    x, gain = (torch.tensor(v, dtype=torch.float64) for v in (x, gain))
    norm = layer_norm if centered else rms_norm
    n, y = norm(x, eps=eps), norm(x, gain, eps=eps)
    axes = Ellipsoid(gain, centered=centered).semi_axes
    with style():
        figure, axis = plt.subplots(figsize=(WIDTH, 3.6))
        draw_plane(axis)
        grey, own, ink = (COLORS[name] for name in ("null", "layer" if centered else "rms", "ink"))
        axis.plot(*flat(torch.tensor([[-1.5] * 3, [1.5] * 3])), color=grey, ls="--", lw=1)
        one = torch.eye(3).double()
        planes = [ONE_UP[:2]] if centered else [one[[i, j]] for i, j in ((0, 1), (1, 2), (2, 0))]
        for plane in planes:  # where n lies for ε = 0: a circle, or a sphere, shown by three circles
            axis.plot(*flat(circle(plane)), color=grey, lw=1)
            axis.plot(*flat(circle(plane) * gain), color=own)
        way = torch.stack([x, *([x - x.mean()] if centered else []), n, y])
        axis.plot(*flat(way), color=grey, ls=":", lw=1)
        if show == "jacobian":
            around = circle(one[:2], _SMALL)
            slope = NormJacobian(x, gain, eps, centered)
            axis.plot(*flat(x + around), color=ink, lw=2)
            axis.plot(*flat(y + slope.matvec(around)), color=ink, lw=2)
            axis.plot(*flat(norm(x + around, gain, eps=eps)), color=ink, ls="--", lw=0.8)
        for name, at, color in (("x", x, ink), ("n", n, grey), ("y", y, own)):
            axis.plot(*flat(at[None]), "o", color=color, ms=7 if name == "x" else 5)
            axis.annotate(name, flat(at[None])[:, 0].tolist(), (6, 5), textcoords="offset points")
        axis.annotate("(1, 1, 1)", flat(torch.full((1, 3), 1.4))[:, 0].tolist(), (6, 0), textcoords="offset points")
    return figure, (
        f"A vector x = {numbers(x)} above the plane of mean 0, its normalised vector n, of length "
        f"{float(n.norm()):.2f}, and the output y = {numbers(y)}. "
        f"Mean {float(x.mean()):.2f}, σ {float(x.std(correction=0)):.2f}, angle to (1, 1, 1) "
        f"{float(angle(x, uniform_vector(3).double())):.1f}°; semi-axes of the outputs' "
        f"{'ellipse' if centered else 'ellipsoid'} {', '.join(f'{a:.2f}' for a in axes.tolist())}."
    )


def numbers(v: Tensor) -> str:
    """Write a vector with two decimals per entry."""
    return "(" + ", ".join(f"{float(c):.2f}" for c in v) + ")"


def angle_bars(axis: Axes, places: Sequence[float], rows: pd.DataFrame, direction: str, **look) -> None:
    """Draw each row's mean angle ± one standard deviation at its place, in the colour and marker of a direction."""
    axis.errorbar(
        places,
        rows.mean_deg,
        rows.std_deg,
        color=COLORS[direction],
        marker=MARKERS[direction],
        linestyle="none",
        label=direction.replace("random_", "random "),
        **{"elinewidth": 1.0, **look},
    )


def null_band(table: pd.DataFrame, side: str = "in") -> pd.DataFrame:
    """For each site in order, the ``low`` (5 %), ``median`` and ``high`` (95 %) occupancy of random directions."""
    rows = at_side(table, side)
    drawn = rows[rows.direction.str.startswith("random_")].groupby("site", sort=False).occupancy
    low, high = (drawn.quantile(q) for q in (0.05, 0.95))
    return pd.DataFrame({"low": low, "median": drawn.median(), "high": high}).loc[rows.site.unique()]


def at_side(table: pd.DataFrame, side: str = "in", positions: str = "rest") -> pd.DataFrame:
    """The rows of a survey's table for one side of the norms and one group of positions."""
    return table[(table.side == side) & (table.positions == positions)]


LINES = ("-", "--", ":", "-.", (0, (6, 1, 1, 1)))
