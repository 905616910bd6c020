"""The book's pictures in three dimensions: the six steps, outputs of both norms, ellipses that tilt."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from normgeom.geometry.ellipsoid import Ellipsoid
from normgeom.geometry.uniform import angle, project_out, uniform_vector
from normgeom.norms.functions import layer_norm, layer_norm_steps, rms_norm
from normgeom.view.space import ONE_UP, THIRD_UP, Part, Turning
from normgeom.view.style import COLORS

_GREY, _INK = "#808080", "currentColor"
_ONE = torch.ones(3)
_ROUND = torch.linspace(0, 2 * math.pi, 91).double()

# What each of the six pictures shows, and of which arrows; "drop" is the dotted line from x to its two components.
_PANELS = {
    "(a) a vector x and the uniform vector 1": ("x", "1"),
    "(b) its mean vector, and what is left": ("x", "mean vector", "centred", "drop"),
    "(c) the mean is dropped": ("1", "centred"),
    "(d) brought to length 1": ("centred", "length 1"),
    "(e) stretched to length √3, almost": ("length 1", "normalised"),
    "(f) gain and bias": ("normalised", "output"),
}
_ARROWS = {
    "x": COLORS["uniform"],
    "1": COLORS["random_b"],
    "mean vector": COLORS["random_a"],
    "centred": "#E69F00",
    "length 1": "#CC79A7",
    "normalised": "#56B4E9",
    "output": _INK,
}
_THICK = {"length 1": 8, "centred": 3, "normalised": 3}  # the first lies inside the others
_BELOW = ("centred", "normalised")  # in the plane, where their names are


def three_steps(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> tuple[Turning, str]:
    """LayerNorm of one vector of ℝ³ in six pictures, one a position of the slider.

    Args:
        x, weight, bias: ``(3,)``.
        eps: ε of the norm.

    Returns:
        the figure and its alt text.
    """
    steps = layer_norm_steps(x, weight, bias, eps)
    one, across = uniform_vector(3).to(x), project_out(x, uniform_vector(3).to(x))
    tips = {"x": x, "1": one, "mean vector": x - across, "centred": across, "length 1": across / across.norm()}
    tips |= {"normalised": steps.normalized, "output": steps.output}
    reach = max(2.1, *(float(v.norm()) for v in tips.values()))
    parts = [*_room(0.8 * 2.3, 2.3), Part(_circle(ONE_UP[:2]), color=_GREY)]
    for position, shown in enumerate(_PANELS.values()):
        if "drop" in shown:
            corners = torch.stack([tips["mean vector"], x, across])
            parts += [Part(corners, color=_GREY, dash="2 4", at={0: position})]
        for name in (name for name in shown if name in tips):
            parts += _arrow(tips[name], _ARROWS[name], _THICK.get(name, 4), {0: position})
            parts += [_name(name, tips[name], at={0: position}, below=name in _BELOW)]
    figure = Turning(
        parts, {"picture": list(_PANELS)}, [0], reach=0.8 * reach, middle=0.2 * reach, turn=-0.35, tilt=0.55
    )
    return figure, (
        f"An arrow in space in six steps. The vector {_numbers(x)} minus its component {_numbers(x - across)} along "
        f"(1, 1, 1) leaves {_numbers(across)} in the plane orthogonal to (1, 1, 1), of length "
        f"{float(across.norm()):.2f}; brought to length 1 and then to a length just below √3, it is "
        f"{_numbers(steps.normalized)} on a ring in that plane; gain and bias move it to {_numbers(steps.output)}, off "
        "the plane."
    )


def outputs_in_space(x: Tensor) -> tuple[Turning, str]:
    """Where LayerNorm and RMSNorm send the same points ``x`` ``(n, 3)`` of ℝ³; figure and alt text."""
    layer, rms = layer_norm(x, eps=0.0), rms_norm(x, eps=0.0)
    one = uniform_vector(3).to(x)
    parts = [*_room(0.8 * 2.3, 2.3), Part(rms, "dots", COLORS["random_a"], 4.5, square=True)]
    parts += [Part(layer, "dots", COLORS["uniform"], 5), *_arrow(one, COLORS["random_b"], 4), _name("1", one)]
    legend = {"● LayerNorm": COLORS["uniform"], "■ RMSNorm": COLORS["random_a"]}
    off_plane = float((rms @ one).abs().max())
    words = (
        f"{len(x)} points of space after each norm. LayerNorm puts all of them on one ring of radius √3 in the plane "
        f"orthogonal to (1, 1, 1); RMSNorm spreads them over the whole sphere of radius √3, with a component along "
        f"(1, 1, 1) of up to {off_plane / 3**0.5:.2f}."
    )
    return Turning(parts, tilt=0.45, reach=2.2, middle=0.15, legend=legend), words


def ellipses_in_space(gains: Mapping[str, Tensor], x: Tensor, eps: Sequence[float]) -> tuple[Turning, str]:
    """LayerNorm's outputs in ℝ³, with a slider for the gain and one for ε (thm-image, cor-skin); figure and alt text.

    Args:
        gains: a label for the slider and a gain ``(3,)``, at most one of it zero, for each position.
        x: ``(n, 3)``, the inputs whose outputs are shown as points.
        eps: ε of the norm, one for each position of the second slider, which begins in the middle.
    """
    bodies = {label: Ellipsoid(gain) for label, gain in gains.items()}
    reach = 1.05 * max([2.0, *(float(body.semi_axes.max()) for body in bodies.values())])
    parts = _room(0, reach)
    for position, (label, body) in enumerate(bodies.items()):
        parts += _tilted(body, {0: position})
        outputs = [layer_norm(x, gains[label], eps=e) for e in eps]
        parts += [Part(y, "dots", COLORS["uniform"], 4, at={0: position, 1: i}) for i, y in enumerate(outputs)]
    near = [100 * float((layer_norm(x, eps=e).norm(dim=-1) >= 0.95 * 3**0.5).double().mean()) for e in eps]
    names = [f"ε = {e:g}: {share:.0f} % within 5 % of the rim" for e, share in zip(eps, near, strict=True)]
    words = "; ".join(
        f"at {label} the semi-axes are {' and '.join(f'{a:.2f}' for a in body.semi_axes)}, and the normal of the plane "
        f"stands at {float(angle(body.complement[:, 0], _ONE.double())):.0f} degrees to (1, 1, 1)"
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
    return figure, f"An ellipse in space that tilts and flattens: {words}. All outputs lie in it. {'; '.join(names)}."


def _tilted(body: Ellipsoid, at: dict[int, int]) -> list[Part]:
    """One position of the gain: the ellipse with its disc and semi-axes, the normal of its plane, and 1."""
    legs = (body.axes() * body.semi_axes).T
    rim = _circle(legs, radius=1.0)
    axes = torch.stack([legs[0], -legs[0], torch.full((3,), torch.nan), legs[1], -legs[1]])
    normal = 1.7 * body.complement[:, 0]
    return [
        Part(rim, "area", _GREY, at=at),
        Part(axes, color=_GREY, dash="7 5", at=at),
        Part(rim, color=COLORS["uniform"], width=2.5, at=at),
        *_arrow(normal, COLORS["random_a"], 4, at),
        *_arrow(_ONE, COLORS["random_b"], 3, at),
        _name("normal", normal, at),
        _name("1", _ONE, at, below=True),
    ]


def _arrow(v: Tensor, color: str, width: float, at: Mapping[int, int] | None = None) -> list[Part]:
    ends = torch.stack([torch.zeros(3), v.cpu().float()])
    return [
        Part(ends, color=color, width=width, at=at or {}),
        Part(ends[1:], "dots", color, width + 5, at=at or {}),
    ]


def _name(words: str, v: Tensor, at: Mapping[int, int] | None = None, below: bool = False) -> Part:
    return Part(v[None].cpu().float(), "text", words=words, at=at or {}, below=below)


def _circle(legs: Tensor, radius: float = 3**0.5) -> Tensor:
    return radius * torch.stack([_ROUND.cos(), _ROUND.sin()], dim=-1) @ legs.double()


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
