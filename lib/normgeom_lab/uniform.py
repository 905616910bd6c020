"""Chapter 2: figures of the uniform vector and of the steps of a norm, each with its alt text."""

from __future__ import annotations

import math

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from normgeom.norms.functions import layer_norm, layer_norm_steps, rms_norm
from normgeom.view.style import COLORS, WIDTH, style
from normgeom.view.tables import number
from torch import Tensor

from normgeom_lab.common.axes import ticks_of_powers
from normgeom_lab.common.pictures import numbers
from normgeom_lab.common.space import ONE_UP, circle, draw_plane, flat, seen

_MEAN = r"$m\mathbf{1}$"


def two_norms(degrees: float) -> tuple[Figure, str]:
    """Centring, LayerNorm and RMSNorm of one vector, in the plane that it spans with 1 (prop-distance)."""
    sine, cosine = math.sin(math.radians(degrees)), math.cos(math.radians(degrees))
    x = (1.3 * sine, 1.3 * cosine)
    with style():
        figure, (left, right) = plt.subplots(1, 2, figsize=(WIDTH, 2.6))
        _arrow(left, x, "x", COLORS["rms"])
        _arrow(left, (0, x[1]), _MEAN, COLORS["random_b"], (-24, -4))
        _arrow(left, (x[0], 0), "Πx", COLORS["layer"], (-4, -14))
        left.plot([x[0], x[0]], [x[1], 0], ":", color=COLORS["null"])
        left.annotate("θ", (0.08, 0.2))
        turn = torch.linspace(0, math.pi / 2, 60)
        right.plot(turn.cos(), turn.sin(), color=COLORS["null"], lw=1)
        _arrow(right, (sine, cosine), "RMSNorm(x)", COLORS["rms"])
        _arrow(right, (1, 0), "LN(x)", COLORS["layer"], (-30, -14))
        right.plot([sine, 1], [cosine, 0], ":", color=COLORS["ink"])
        for axis in (left, right):
            axis.axhline(0, color=COLORS["null"], lw=0.6)
            axis.axvline(0, color=COLORS["null"], lw=0.6)
            axis.set(xlim=(-0.25, 1.6), ylim=(-0.2, 1.15), aspect="equal")
            axis.axis("off")
            axis.annotate("direction of 1", (0, 1.1), (4, -4), textcoords="offset points")
    return figure, (
        f"Two drawings in the plane of x and the vertical direction of 1. Left: x leans {degrees:g} degrees from the "
        "vertical; its projection on the vertical is m1, its projection on the horizontal line is Πx. Right: the "
        "output of RMSNorm has the direction of x, that of LayerNorm is horizontal; both end on a quarter circle, "
        f"{90 - degrees:g} degrees apart."
    )


def turned_axes() -> tuple[Figure, str]:
    """The arrow (3, 1) with its mean vector, and the same arrow in axes turned by 45 degrees (eq-mean-vector)."""
    arrow, half = torch.tensor([3.0, 1.0]), 0.5**0.5
    drawn = ((torch.eye(2), "mean 2"), (torch.tensor([[half, half], [-half, half]]), "mean 0.71"))
    with style():
        figure, panels = plt.subplots(1, 2, figsize=(5.2, 2.2))
        for panel, (axes, title) in zip(panels, drawn, strict=True):
            ones = axes.sum(0)  # where (1, 1) of these axes points
            mean = (arrow @ ones) / 2 * ones
            for axis in axes:
                panel.axline((0, 0), axis.tolist(), color=COLORS["null"], lw=0.8)
            _arrow(panel, arrow.tolist(), "x", COLORS["uniform"])
            _arrow(panel, mean.tolist(), _MEAN, COLORS["random_b"], (-24, 2))
            panel.plot(*torch.stack([arrow, mean]).T, ":", color=COLORS["ink"])
            panel.set(xlim=(-0.6, 3.4), ylim=(-0.9, 2.4), aspect="equal", title=title)
            panel.axis("off")
    return figure, (
        "The same arrow x twice. Left, in upright axes its entries are 3 and 1, their mean is 2, and the mean vector "
        "m1 has length 2.83. Right, in axes turned by 45 degrees its entries are 2.83 and −1.41, their mean is 0.71, "
        "and m1, now vertical, has length 1."
    )


_PANELS = {  # title → what it shows
    "x and 1": ("x", "1"),
    "two components": ("x", _MEAN, "Πx"),
    "drop": ("1", "Πx"),
    "normalise": ("Πx", "length 1"),
    "stretch": ("length 1", "n"),
    "gain and bias": ("n", "y"),
}


def three_steps(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Figure, str]:
    """LayerNorm of a vector of ℝ³, one panel per step (eq-three-steps)."""
    steps = layer_norm_steps(x, weight, bias)
    across = x - x.mean()
    arrows = {  # tip, color, and offset of the name
        "x": (x, "uniform", (5, -3)),
        "1": (torch.ones(3), "random_b", (-10, 4)),
        _MEAN: (x - across, "random_b", (-24, -4)),
        "Πx": (across, "random_a", (-10, -15)),
        "length 1": (across / across.norm(), "ink", (-30, 8)),
        "n": (steps.normalized, "uniform", (-4, -15)),
        "y": (steps.output, "random_a", (4, 4)),
    }
    with style():
        figure, grid = plt.subplots(2, 3, figsize=(WIDTH, 3.5), sharex=True, sharey=True)
        for axis, (title, shown) in zip(grid.flat, _PANELS.items(), strict=True):
            draw_plane(axis)
            axis.set(title=title, ylim=(-0.8, 2.7))
            if "n" in shown:
                axis.plot(*flat(circle()), color=COLORS["null"], lw=1)
            for name in shown:
                tip, color, shift = arrows[name]
                _arrow(axis, flat(tip[None])[:, 0].tolist(), name, COLORS[color], shift)
            if _MEAN in shown:
                axis.plot(*flat(torch.stack([x - across, x, across])), ":", color=COLORS["ink"])
    return figure, (
        f"An arrow in space in six panels. The vector {numbers(x)} minus its component {numbers(x - across)} along "
        f"(1, 1, 1) leaves {numbers(across)}, of length {float(across.norm()):.2f}, in the plane orthogonal to "
        "(1, 1, 1). Scaled to length 1 and then to a length just below √3, it becomes "
        f"{numbers(steps.normalized)} in that plane. Gain and bias move it to {numbers(steps.output)}, off the plane."
    )


def outputs_in_space(x: Tensor) -> tuple[Figure, str]:
    """Where LayerNorm and RMSNorm send points ``x`` ``(n, 3)``; those in the back half are paler."""
    sphere, ring = rms_norm(x, eps=0.0), layer_norm(x, eps=0.0)
    with style():
        figure, axis = plt.subplots(figsize=(WIDTH, 4.2))
        draw_plane(axis)
        for points, marker, name, color, place in (
            (sphere, "s", "RMSNorm", COLORS["rms"], (-2.2, 1.4)),
            (ring, "o", "LayerNorm", COLORS["layer"], (1.7, -0.8)),
        ):
            right, up, near = seen(points)
            for side, alpha in ((near < 0, 0.35), (near >= 0, 1)):
                axis.plot(right[side], up[side], marker, color=color, ms=3, alpha=alpha)
            axis.text(*place, name, color=color)
        _arrow(axis, flat(torch.ones(1, 3))[:, 0].tolist(), "1", COLORS["random_b"])
    along = float(sphere.mean(-1).abs().max())
    return figure, (
        f"{len(x)} points in space, as each norm maps them. LayerNorm puts all of them on one ring of radius √3 in the "
        "plane orthogonal to (1, 1, 1); RMSNorm spreads them over the whole sphere of radius √3, with a component "
        f"along (1, 1, 1) of up to {along * 3**0.5:.2f}."
    )


def towards_the_ring(x: Tensor, eps: float) -> tuple[Figure, str]:
    """Vectors of ℝ³ before and after LayerNorm, in the plane orthogonal to 1, with the ring of radius √3."""
    x = x.double()
    n = layer_norm(x, eps=eps)
    before, after = (v @ ONE_UP[:2].T for v in (x, n))
    with style():
        figure, axis = plt.subplots(figsize=(4.2, 3.6))
        axis.plot(*torch.stack([before, after]).unbind(-1), color="#D0D0D0", lw=0.8)
        axis.plot(*before.T, "o", color=COLORS["null"], ms=3, label="Πx")
        axis.plot(*after.T, "s", color=COLORS["uniform"], ms=3.5, label="n")
        axis.add_patch(plt.Circle((0, 0), 3**0.5, fill=False, color=COLORS["ink"]))
        axis.set(xlim=(-3.2, 3.2), ylim=(-2.6, 2.6), aspect="equal")
        axis.set(xlabel="along (1, −1, 0)", ylabel="along (1, 1, −2)")
        axis.legend(loc="upper right")
    spread, share = float(x.std(-1, correction=0).median()), float(n.norm(dim=-1).median()) / 3**0.5
    return figure, (
        f"Normalised vectors of {len(x)} inputs with a median standard deviation of {spread:.1g}, for ε = {eps:g}. "
        f"Their median length is {share:.2f} times the ring's radius √3."
    )


def length_by_spread(x: Tensor, *eps: float) -> tuple[Figure, str]:
    """The length of LayerNorm's output over √d by the input's standard deviation, a curve for each ε (cor-radius)."""
    spread = x.std(-1, correction=0)
    sigma = torch.logspace(*(math.log10(float(end)) for end in (spread.min(), spread.max())), 200)
    off = []
    with style():
        figure, axis = plt.subplots(figsize=(WIDTH, 3.2))
        for e, marker, side in zip(eps, "^os", (1, -1, -1), strict=False):
            name = f"ε = {number(e, 1)}"
            (line,) = axis.plot(sigma, 1 / torch.sqrt(1 + e / sigma**2), label=name)
            look = dict(textcoords="offset points", color=line.get_color(), ha="left" if side > 0 else "right")
            axis.annotate(name, (e**0.5, 0.5**0.5), (9 * side, -4), **look)
            found = layer_norm(x, eps=e).norm(dim=-1) / x.shape[-1] ** 0.5
            axis.plot(spread, found, marker, color=line.get_color())
            off.append(float((found - 1 / torch.sqrt(1 + e / spread**2)).abs().max()))
        axis.set(xscale="log", xlabel="standard deviation σ of the input", ylabel="length of n / √d")
        ticks_of_powers(axis.xaxis)
    roots = ", ".join(f"{e**0.5:.2g} for ε = {number(e, 1)}" for e in eps)
    return figure, (
        "S-shaped curves that rise from 0 to 1 as σ grows. Each passes through 0.71 where σ equals the root of its ε: "
        f"{roots}. The markers of {len(x)} vectors lie within {max(off):.0e} of the curves."
    )


def _arrow(axis: Axes, tip: tuple[float, float], name: str, color: str, shift: tuple[int, int] = (4, 4)) -> None:
    axis.annotate("", tip, (0, 0), arrowprops=dict(arrowstyle="->", color=color, lw=2))
    axis.annotate(name, tip, shift, textcoords="offset points", color=color)
