"""A norm to hold: one vector in space and what LayerNorm or RMSNorm makes of it, at the reader's hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

import ipywidgets
import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor

from normgeom.geometry.ellipsoid import Ellipsoid
from normgeom.geometry.jacobian import NormJacobian
from normgeom.geometry.uniform import angle, uniform_vector
from normgeom.norms.functions import layer_norm, rms_norm
from normgeom.view.live import image, show_live, under_controls
from normgeom.view.space import ONE_UP, seen
from normgeom.view.style import COLORS, WIDTH, style

SHOWN = ("norm", "jacobian")
START = dict(x=(2.2, 0.4, -0.5), gain=(1.5, 1.0, 0.5), eps=1e-5, centered=True)
_SMALL, _DISC = 0.4, 2.3  # radii: of the circle around x, and of what is shown of the plane
_FRAME = '<div class="hold" data-show="{show}">{picture}</div>'


def hold(show: str = "norm") -> None:
    """Display a norm to hold: sliders where a kernel runs; on a page a picture that is alive by the page's script.

    Args:
        show: ``"norm"``, with the output's ellipse and its semi-axes; or ``"jacobian"``, with a small circle around x,
            its image by the Jacobian, and its true image.

    Raises:
        ValueError: ``show`` is neither.
    """
    picture, alt = held(**START, show=show)
    controls = {f"x{i + 1}": ipywidgets.FloatSlider(START["x"][i], min=-4, max=4, step=0.1) for i in range(3)}
    controls |= {f"g{i + 1}": ipywidgets.FloatSlider(START["gain"][i], min=-2, max=2, step=0.05) for i in range(3)}
    powers = [(f"1e{k}", 10.0**k) for k in range(-6, 1)]
    controls["eps"] = ipywidgets.SelectionSlider(options=powers, value=START["eps"])
    controls["centered"] = ipywidgets.Checkbox(START["centered"])
    for name, control in controls.items():
        control.description = {"eps": "ε", "centered": "subtract the mean"}.get(name, name.replace("g", "γ"))

    def draw(eps: float, centered: bool, **entries: float) -> str:
        x, gain = ([entries[f"{letter}{i}"] for i in (1, 2, 3)] for letter in "xg")
        figure, words = held(x, gain, eps, centered, show)
        return f"{image(figure, words)}<p>{escape(words)}</p>"

    page = _FRAME.format(show=show, picture=image(picture, alt))
    show_live(under_controls(controls, draw), page, f"A picture with sliders. {alt}")


def held(
    x: Sequence[float], gain: Sequence[float], eps: float, centered: bool = True, show: str = "norm"
) -> tuple[Figure, str]:
    """A vector of ℝ³, its n and its output, with the ellipse (thm-image), or a small circle and its image.

    Args:
        x, gain: three entries each.
        eps: ε.
        centered: whether the mean is subtracted; without it, RMSNorm.
        show: as for :func:`hold`.

    Returns:
        the figure and its alt text, with the numbers.

    Raises:
        ValueError: ``show`` is unknown, or a vector has not three entries.
    """
    if show not in SHOWN:
        raise ValueError(f"show: expected one of {SHOWN}, got {show!r}")
    if not len(x) == len(gain) == 3:
        raise ValueError(f"x, gain: expected three entries each, got {len(x)} and {len(gain)}")
    x, gain = (torch.tensor(v, dtype=torch.float64) for v in (x, gain))
    norm = layer_norm if centered else rms_norm
    n, y = norm(x, eps=eps), norm(x, gain, eps=eps)
    axes = Ellipsoid(gain, centered=centered).semi_axes
    with style():
        figure, axis = plt.subplots(figsize=(WIDTH, 3.6))
        axis.set_aspect("equal")
        axis.axis("off")
        grey, blue, ink = (COLORS[name] for name in ("null", "uniform", "ink"))
        axis.fill(*_flat(_circle(radius=_DISC)).T, color=grey, alpha=0.12, lw=0)
        axis.plot(*_flat(torch.tensor([[-1.5] * 3, [1.5] * 3])).T, color=grey, ls="--", lw=1)
        for circle in _rings(centered):
            axis.plot(*_flat(circle).T, color=grey, lw=1)
            axis.plot(*_flat(circle * gain).T, color=blue)
        way = torch.stack([x, *([x - x.mean()] if centered else []), n, y])
        axis.plot(*_flat(way).T, color=grey, ls=":", lw=1)
        if show == "jacobian":
            around = _circle(torch.eye(3).double()[:2], _SMALL)
            slope = NormJacobian(x, gain, eps, centered)
            axis.plot(*_flat(x + around).T, color=ink, lw=2)
            axis.plot(*_flat(y + slope.matvec(around)).T, color=ink, lw=2)
            axis.plot(*_flat(norm(x + around, gain, eps=eps)).T, color=ink, ls="--", lw=0.8)
        for name, at, color in (("x", x, ink), ("n", n, grey), ("y", y, blue)):
            axis.plot(*_flat(at[None]).T, "o", color=color, ms=7 if name == "x" else 5)
            axis.annotate(name, _flat(at[None])[0].tolist(), (6, 5), textcoords="offset points")
        axis.annotate("(1, 1, 1)", _flat(torch.full((1, 3), 1.4))[0].tolist(), (6, 0), textcoords="offset points")
    return figure, (
        f"A vector x = {_numbers(x)} above the plane of mean 0, its n of length {float(n.norm()):.2f} and the output "
        f"y = {_numbers(y)}. Mean {float(x.mean()):.2f}, σ {float(x.std(correction=0)):.2f}, angle to (1, 1, 1) "
        f"{float(angle(x, uniform_vector(3).double())):.1f}°; semi-axes of the outputs' "
        f"{'ellipse' if centered else 'ellipsoid'} {', '.join(f'{a:.2f}' for a in axes.tolist())}."
    )


def _flat(points: Tensor) -> Tensor:
    """Points ``(n, 3)`` as the page's own picture has them, ``(n, 2)``."""
    return seen(points)[:, :2]


def _circle(plane: Tensor = ONE_UP[:2], radius: float = 3**0.5) -> Tensor:
    t = torch.linspace(0, 2 * math.pi, 73).double()[:, None]
    return radius * (t.cos() * plane[0] + t.sin() * plane[1])


def _rings(centered: bool) -> list[Tensor]:
    """Where n is for ε = 0: a circle, or three circles of a sphere."""
    one = torch.eye(3).double()
    return [_circle()] if centered else [_circle(one[[i, j]]) for i, j in ((0, 1), (1, 2), (2, 0))]


def _numbers(x: Tensor) -> str:
    return f"({', '.join(f'{v:.2f}' for v in x.tolist())})"
