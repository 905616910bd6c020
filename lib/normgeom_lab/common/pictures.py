"""Figures that several chapters share, with their alt texts: turning ones in space, a norm to hold, bars of angles."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

import matplotlib.pyplot as plt
import pandas as pd
import torch
from IPython.display import display
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from normgeom.geometry.ellipsoid import Ellipsoid
from normgeom.geometry.jacobian import NormJacobian
from normgeom.geometry.uniform import angle, project_out, uniform_vector
from normgeom.norms.functions import layer_norm, layer_norm_steps, rms_norm
from normgeom.view.explore import image
from normgeom.view.style import COLORS, WIDTH, style
from torch import Tensor

from normgeom_lab.common.axes import MARKERS
from normgeom_lab.common.turning import ONE_UP, THIRD_UP, Part, Turning, seen

_GREY, _INK = "#808080", "currentColor"
# Which arrows each of the six pictures shows; "drop" is the dotted line from x to its two components.
_PANELS = {
    "(a) a vector x and the uniform vector 1": ("x", "1"),
    "(b) its mean vector and what remains": ("x", "mean vector", "centred", "drop"),
    "(c) the mean vector is dropped": ("1", "centred"),
    "(d) scaled to length 1": ("centred", "length 1"),
    "(e) stretched to almost length √3": ("length 1", "normalised"),
    "(f) gain and bias": ("normalised", "output"),
}
_ARROWS = {  # color, width, and whether the name stands below, in the plane
    "x": (COLORS["uniform"], 4, False),
    "1": (COLORS["random_b"], 4, False),
    "mean vector": (COLORS["random_a"], 4, False),
    "centred": ("#E69F00", 3, True),
    "length 1": ("#CC79A7", 8, False),
    "normalised": ("#56B4E9", 3, True),
    "output": (_INK, 4, False),
}


def three_steps(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Turning, str]:
    """LayerNorm of a vector of ℝ³ in six pictures, one for each position of the slider."""
    steps = layer_norm_steps(x, weight, bias)
    one, across = uniform_vector(3).to(x), project_out(x, uniform_vector(3).to(x))
    tips = {"x": x, "1": one, "mean vector": x - across, "centred": across, "length 1": across / across.norm()}
    tips |= {"normalised": steps.normalized, "output": steps.output}
    reach = max(2.1, *(float(v.norm()) for v in tips.values()))
    parts = [*_room(0.8 * 2.3, 2.3), Part(_circle(), color=_GREY)]
    for position, shown in enumerate(_PANELS.values()):
        if "drop" in shown:
            corners = torch.stack([tips["mean vector"], x, across])
            parts += [Part(corners, color=_GREY, dash="2 4", at={0: position})]
        for name in (name for name in shown if name in tips):
            color, width, below = _ARROWS[name]
            parts += _arrow(tips[name], color, width, at={0: position})
            parts += [_name(name, tips[name], at={0: position}, below=below)]
    figure = Turning(
        parts, {"picture": list(_PANELS)}, [0], reach=0.8 * reach, middle=0.2 * reach, turn=-0.35, tilt=0.55
    )
    return figure, (
        f"An arrow in space in six steps. The vector {_numbers(x)} minus its component {_numbers(x - across)} along "
        f"(1, 1, 1) leaves {_numbers(across)}, of length {float(across.norm()):.2f}, in the plane orthogonal to "
        "(1, 1, 1). Scaled to length 1 and then to a length just below √3, it becomes "
        f"{_numbers(steps.normalized)} on a ring in that plane. Gain and bias move it to {_numbers(steps.output)}, off "
        "the plane."
    )


def outputs_in_space(x: Tensor) -> tuple[Turning, str]:
    """Where LayerNorm and RMSNorm send points ``x`` ``(n, 3)``."""
    layer, rms = layer_norm(x, eps=0.0), rms_norm(x, eps=0.0)
    one = uniform_vector(3).to(x)
    parts = [*_room(0.8 * 2.3, 2.3), Part(rms, "dots", COLORS["rms"], 4.5, square=True)]
    parts += [Part(layer, "dots", COLORS["layer"], 5), *_arrow(one, COLORS["random_b"], 4), _name("1", one)]
    legend = {"● LayerNorm": COLORS["layer"], "■ RMSNorm": COLORS["rms"]}
    off_plane = float((rms @ one).abs().max())
    words = (
        f"{len(x)} points in space, as each norm maps them. LayerNorm puts all of them on one ring of radius √3 in the "
        f"plane orthogonal to (1, 1, 1); RMSNorm spreads them over the whole sphere of radius √3, with a component "
        f"along (1, 1, 1) of up to {off_plane / 3**0.5:.2f}."
    )
    return Turning(parts, tilt=0.45, reach=2.2, middle=0.15, legend=legend), words


def ellipses_in_space(gains: Mapping[str, Tensor], x: Tensor, eps: Sequence[float]) -> tuple[Turning, str]:
    """LayerNorm's outputs in ℝ³, with sliders for the gain and for ε (thm-image, cor-skin)."""
    bodies = {label: Ellipsoid(gain) for label, gain in gains.items()}
    reach = 1.05 * max([2.0, *(float(body.semi_axes.max()) for body in bodies.values())])
    parts, one = _room(0, reach), uniform_vector(3).double()
    for position, (label, body) in enumerate(bodies.items()):
        at = {0: position}
        legs, normal = (body.axes() * body.semi_axes).T, 1.7 * body.complement[:, 0]
        rim = _circle(legs, 1.0)
        axes = [torch.stack([leg, -leg]) for leg in legs]
        parts += [Part(rim, "area", _GREY, at=at), *(Part(axis, color=_GREY, dash="7 5", at=at) for axis in axes)]
        parts += [Part(rim, color=COLORS["uniform"], width=2.5, at=at)]
        parts += [*_arrow(normal, COLORS["random_a"], 4, at=at), *_arrow(one, COLORS["random_b"], 3, at=at)]
        parts += [_name("normal", normal, at=at), _name("1", one, at=at, below=True)]
        outputs = [layer_norm(x, gains[label], eps=e) for e in eps]
        parts += [Part(y, "dots", COLORS["uniform"], 4, at={0: position, 1: i}) for i, y in enumerate(outputs)]
    near = [100 * float((layer_norm(x, eps=e).norm(dim=-1) >= 0.95 * 3**0.5).double().mean()) for e in eps]
    names = [f"ε = {e:g}: {share:.0f} % within 5 % of the rim" for e, share in zip(eps, near, strict=True)]
    words = "; ".join(
        f"at {label} the semi-axes are {' and '.join(f'{a:.2f}' for a in body.semi_axes)}, and the normal of the plane "
        f"makes an angle of {float(angle(body.complement[:, 0], one)):.0f} degrees with (1, 1, 1)"
        for label, body in bodies.items()
    )
    figure = Turning(
        parts,
        {"gain": list(gains), "ε": names},
        [0, len(eps) // 2],
        reach=reach,
        frame=THIRD_UP,
        turn=-1.8,
        tilt=0.4,
    )
    return figure, f"An ellipse in space that tilts and flattens: {words}. Outputs lie within it. {'; '.join(names)}."


def _arrow(v: Tensor, color: str, width: float, **look) -> list[Part]:
    ends = torch.stack([torch.zeros(3), v.float()])
    return [Part(ends, color=color, width=width, **look), Part(ends[1:], "dots", color, width + 5, **look)]


def _name(words: str, v: Tensor, **look) -> Part:
    return Part(v[None].float(), "text", words=words, **look)


def _circle(plane: Tensor = ONE_UP[:2], radius: float = 3**0.5, points: int = 91) -> Tensor:
    t = torch.linspace(0, 2 * math.pi, points).double()
    return radius * torch.stack([t.cos(), t.sin()], dim=-1) @ plane.double()


def _room(disc: float, reach: float) -> list[Part]:
    """The plane orthogonal to 1 as a disc, and the three coordinate axes with their names."""
    ends = reach * torch.eye(3)
    parts = [Part(_circle(ONE_UP[:2], disc), "area", _GREY)] if disc else []
    for end, name in zip(ends, ("x₁", "x₂", "x₃"), strict=True):
        parts += [
            Part(torch.stack([torch.zeros(3), end]), color=_GREY, width=1),
            Part(end[None], "text", _GREY, words=name),
        ]
    return parts


def _numbers(v: Tensor) -> str:
    return "(" + ", ".join(f"{float(c):.2f}" for c in v) + ")"


_SMALL, _DISC = 0.4, 2.3  # radii: of the circle around x, and of what is shown of the plane


def hold(
    show: str = "norm",
    x: Sequence[float] = (2.2, 0.4, -0.5),
    gain: Sequence[float] = (1.5, 1.0, 0.5),
    eps: float = 1e-5,
    centered: bool = True,
) -> None:
    """Display a norm to hold: on a page, a script takes the picture's place; in a notebook, change the arguments.

    ``show`` chooses what the page asks about, "norm", "ellipse" or "jacobian"; the last also draws the Jacobian.
    """
    figure, words = held(x, gain, eps, centered, show)
    page = f'<div class="hold" data-show="{show}">{image(figure, words)}<p>{escape(words)}</p></div>'
    display({"text/html": page, "text/plain": f"A picture. {words}"}, raw=True)


def held(
    x: Sequence[float], gain: Sequence[float], eps: float, centered: bool = True, show: str = "norm"
) -> tuple[Figure, str]:
    """A vector of ℝ³, its n and its output, with the ellipse of outputs (thm-image) or a small circle and its image."""
    x, gain = (torch.tensor(v, dtype=torch.float64) for v in (x, gain))
    norm = layer_norm if centered else rms_norm
    n, y = norm(x, eps=eps), norm(x, gain, eps=eps)
    axes = Ellipsoid(gain, centered=centered).semi_axes
    with style():
        figure, axis = plt.subplots(figsize=(WIDTH, 3.6))
        axis.set_aspect("equal")
        axis.axis("off")
        grey, blue, ink = (COLORS[name] for name in ("null", "uniform", "ink"))
        axis.fill(*_flat(_circle(radius=_DISC, points=73)).T, color=grey, alpha=0.12, lw=0)
        axis.plot(*_flat(torch.tensor([[-1.5] * 3, [1.5] * 3])).T, color=grey, ls="--", lw=1)
        one = torch.eye(3).double()
        planes = [ONE_UP[:2]] if centered else [one[[i, j]] for i, j in ((0, 1), (1, 2), (2, 0))]
        for plane in planes:  # where n is for ε = 0: a circle, or three circles of a sphere
            circle = _circle(plane, points=73)
            axis.plot(*_flat(circle).T, color=grey, lw=1)
            axis.plot(*_flat(circle * gain).T, color=blue)
        way = torch.stack([x, *([x - x.mean()] if centered else []), n, y])
        axis.plot(*_flat(way).T, color=grey, ls=":", lw=1)
        if show == "jacobian":
            around = _circle(one[:2], _SMALL, 73)
            slope = NormJacobian(x, gain, eps, centered)
            axis.plot(*_flat(x + around).T, color=ink, lw=2)
            axis.plot(*_flat(y + slope.matvec(around)).T, color=ink, lw=2)
            axis.plot(*_flat(norm(x + around, gain, eps=eps)).T, color=ink, ls="--", lw=0.8)
        for name, at, color in (("x", x, ink), ("n", n, grey), ("y", y, blue)):
            axis.plot(*_flat(at[None]).T, "o", color=color, ms=7 if name == "x" else 5)
            axis.annotate(name, _flat(at[None])[0].tolist(), (6, 5), textcoords="offset points")
        axis.annotate("(1, 1, 1)", _flat(torch.full((1, 3), 1.4))[0].tolist(), (6, 0), textcoords="offset points")
    return figure, (
        f"A vector x = {_numbers(x)} above the plane of mean 0, its normalised vector n, of length "
        f"{float(n.norm()):.2f}, and the output y = {_numbers(y)}. "
        f"Mean {float(x.mean()):.2f}, σ {float(x.std(correction=0)):.2f}, angle to (1, 1, 1) "
        f"{float(angle(x, uniform_vector(3).double())):.1f}°; semi-axes of the outputs' "
        f"{'ellipse' if centered else 'ellipsoid'} {', '.join(f'{a:.2f}' for a in axes.tolist())}."
    )


def _flat(points: Tensor) -> Tensor:
    """Points ``(n, 3)`` as the page's script draws them at first, ``(n, 2)``."""
    return seen(points)[:, :2]


def angle_bars(axis: Axes, places: Sequence[float], rows: pd.DataFrame, direction: str, **look) -> None:
    """Mean angle ± one standard deviation of each row at its place, in the look of a direction."""
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
    """The rows of a survey's table at one side of the norms."""
    return table[(table.side == side) & (table.positions == positions)]


LINES = ("-", "--", ":", "-.", (0, (6, 1, 1, 1)))
