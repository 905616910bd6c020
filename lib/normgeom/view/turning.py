"""Pictures in three dimensions that turn under the mouse; a step slider needs no kernel."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go
import torch
from torch import Tensor

from normgeom.geometry.ellipsoid import Ellipsoid
from normgeom.geometry.uniform import angle, project_out, uniform_vector
from normgeom.norms.functions import layer_norm, layer_norm_steps, rms_norm
from normgeom.view.style import COLORS

_GREY = "#808080"
_ONE = torch.ones(3)


# What each of the six pictures shows, and of which trace; "drop" is the dotted line from x to its two components.
_PANELS = {
    "(a) a vector x and the uniform vector 1": ("x", "1"),
    "(b) its mean vector, and what is left": ("x", "mean vector", "centred", "drop"),
    "(c) the mean is dropped": ("1", "centred"),
    "(d) brought to length 1": ("centred", "length 1"),
    "(e) stretched to length √3, almost": ("length 1", "normalised"),
    "(f) gain and bias": ("normalised", "output"),
}


def three_steps(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> tuple[go.Figure, str]:
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
    frames = [
        go.Frame(name=panel, data=_step(tips, shown), traces=list(range(len(tips) + 1)), layout=_named(tips, shown))
        for panel, shown in _PANELS.items()
    ]
    reach = max(2.1, *(float(v.norm()) for v in tips.values()))
    figure = go.Figure(data=[*frames[0].data, _circle(3**0.5), *_room(2.3)], frames=frames)
    figure.update_layout(_scene(reach), sliders=[_slider(list(_PANELS))], height=470)
    figure.update_layout(frames[0].layout)
    eye = _frame() @ torch.tensor([0.80, -0.90, 0.75])
    figure.update_layout(_filled(reach, eye, _ONE / 3**0.5, lift=0.4))
    return figure, (
        f"An arrow in space in six steps. The vector {_numbers(x)} minus its component {_numbers(x - across)} along "
        f"(1, 1, 1) leaves {_numbers(across)} in the plane orthogonal to (1, 1, 1), of length "
        f"{float(across.norm()):.2f}; brought to length 1 and then to a length just below √3, it is "
        f"{_numbers(steps.normalized)} on a ring in that plane; gain and bias move it to {_numbers(steps.output)}, off "
        "the plane."
    )


def _step(tips: dict[str, Tensor], shown: tuple[str, ...]) -> list[go.Scatter3d]:
    """An arrow for each of ``tips``, of no length if it is not shown, and the dotted line of picture (b)."""
    colors = dict(zip(tips, ("uniform", "random_a", "random_b"), strict=False))
    later = {"centred": "#E69F00", "length 1": "#CC79A7", "normalised": "#56B4E9", "output": COLORS["ink"]}
    colors = {name: COLORS[key] for name, key in colors.items()} | later
    widths = {"length 1": 14, "centred": 4, "normalised": 4}  # the first lies inside the others
    arrows = [_arrow(v, colors[name], widths.get(name, 6), name in shown) for name, v in tips.items()]
    corners = torch.stack([tips["mean vector"], tips["x"], tips["centred"]]) * ("drop" in shown)
    dotted = dict(mode="lines", line=dict(width=3, color=_GREY, dash="dot"), hoverinfo="skip", showlegend=False)
    return [*arrows, go.Scatter3d(**_coordinates(corners), **dotted)]


def _named(tips: dict[str, Tensor], shown: tuple[str, ...]) -> dict:
    """The names of the arrows that are shown, at their tips, in ink; below them in the plane."""
    names = [name for name in shown if name in tips]
    below = {name: dict(yshift=-14) for name in ("centred", "normalised")}
    labels = [_label(name, tips[name], COLORS["ink"]) | below.get(name, {}) for name in names]
    return dict(scene=dict(annotations=labels))


def _filled(reach: float, eye: Tensor, up: Tensor, lift: float) -> dict:
    """The picture as large as a phone is wide, seen from far away along ``eye``, its middle ``lift`` up."""
    places = {"up": up, "center": lift * up, "eye": lift * up + eye}
    camera = {name: dict(zip("xyz", v.tolist(), strict=True)) for name, v in places.items()}
    camera["projection"] = dict(type="orthographic")
    return dict(scene=dict(aspectmode="manual", aspectratio=dict.fromkeys("xyz", 0.8 * reach), camera=camera))


def outputs_in_space(x: Tensor) -> tuple[go.Figure, str]:
    """Where LayerNorm and RMSNorm send the same points ``x`` ``(n, 3)`` of ℝ³; figure and alt text."""
    layer, rms = layer_norm(x, eps=0.0), rms_norm(x, eps=0.0)
    clouds = {
        "LayerNorm": (layer, COLORS["uniform"], "circle"),
        "RMSNorm": (rms, COLORS["random_a"], "diamond"),
    }
    data = [
        go.Scatter3d(
            **dict(zip("xyz", points.T.tolist(), strict=True)),
            mode="markers",
            name=name,
            marker=dict(size=2.5, color=color, symbol=symbol),
        )
        for name, (points, color, symbol) in clouds.items()
    ]
    one = uniform_vector(3).to(x), COLORS["random_b"]
    figure = go.Figure(data=[*data, _arrow(*one), *_room(2.3)])
    figure.update_layout(_scene(2.3), height=460, scene_annotations=[_label("1", *one)])
    off_plane = float((rms @ uniform_vector(3).to(x)).abs().max())
    words = (
        f"{len(x)} points of space after each norm. LayerNorm puts all of them on one ring of radius √3 in the plane "
        f"orthogonal to (1, 1, 1); RMSNorm spreads them over the whole sphere of radius √3, with a component along "
        f"(1, 1, 1) of up to {off_plane / 3**0.5:.2f}."
    )
    return figure, words


def ellipses_in_space(gains: dict[str, Tensor], x: Tensor, eps: Sequence[float]) -> tuple[go.Figure, str]:
    """LayerNorm's outputs in ℝ³, with a slider for the gain and one for ε (thm-image, cor-skin); figure and alt text.

    Args:
        gains: a label for the slider and a gain ``(3,)``, at most one of it zero, for each position.
        x: ``(n, 3)``, the inputs whose outputs are shown as points.
        eps: ε of the norm, one for each position of the second slider, which begins in the middle.
    """
    bodies = {label: Ellipsoid(gain) for label, gain in gains.items()}
    frames = [_tilted(label, body, [layer_norm(x, gains[label], eps=e) for e in eps]) for label, body in bodies.items()]
    reach = 1.05 * max([2.0, *(float(body.semi_axes.max()) for body in bodies.values())])
    figure = go.Figure(data=[*frames[0].data, *_room(reach)[1:]], frames=frames)
    first = len(frames[0].data) - len(eps)  # of the traces of points, one for each ε
    near = [100 * float((layer_norm(x, eps=e).norm(dim=-1) >= 0.95 * 3**0.5).double().mean()) for e in eps]
    names = [f"ε = {e:g}: {share:.0f} % within 5 % of the rim" for e, share in zip(eps, near, strict=True)]
    figure.update_layout(_scene(reach), sliders=[_slider(list(gains)), _chooser(names, first)], height=520)
    figure.update_layout(frames[0].layout)
    up = torch.tensor([0.0, 0.0, 1.0])  # at a third gain of zero the ellipse lies in the floor
    figure.update_layout(_filled(reach, torch.tensor([1.2, -0.25, 0.5]), up, lift=0.1))
    for i, trace in enumerate(figure.data[first : first + len(eps)]):
        trace.visible = i == len(eps) // 2
    words = "; ".join(
        f"at {label} the semi-axes are {' and '.join(f'{a:.2f}' for a in body.semi_axes)}, and the normal of the plane "
        f"stands at {float(angle(body.complement[:, 0], _ONE.double())):.0f} degrees to (1, 1, 1)"
        for label, body in bodies.items()
    )
    return figure, f"An ellipse in space that tilts and flattens: {words}. All outputs lie in it. {'; '.join(names)}."


def _tilted(label: str, body: Ellipsoid, outputs: list[Tensor]) -> go.Frame:
    """One position of the gain: ellipse, normal, 1, and the points for each ε."""
    ends = {"normal": (1.7 * body.complement[:, 0], COLORS["random_a"]), "1": (_ONE, COLORS["random_b"])}
    arrows = [_arrow(*ends["normal"]), _arrow(*ends["1"], 4)]
    dots = dict(mode="markers", marker=dict(size=2, color=COLORS["uniform"]), hoverinfo="skip", showlegend=False)
    points = [go.Scatter3d(**_coordinates(y), **dots) for y in outputs]
    data = [*_ellipse(body), *arrows, *points]
    notes = [_label("normal", *ends["normal"]), _label("1", *ends["1"]) | dict(yshift=-14)]
    layout = dict(scene=dict(annotations=notes))
    return go.Frame(name=label, data=data, traces=list(range(len(data))), layout=layout)


def _chooser(labels: list[str], first: int) -> dict:
    """A second slider, below the other, that shows one of the traces from ``first`` on; it begins in the middle."""
    places, slider = list(range(first, first + len(labels))), _slider(labels)
    for i, step in enumerate(slider["steps"]):
        shown = [place == first + i for place in places]
        step |= dict(method="restyle", args=[dict(visible=shown), places])
    return slider | dict(active=len(labels) // 2, pad=dict(l=20, r=20, b=10, t=80))


def _ellipse(body: Ellipsoid) -> list:
    """Curve, disc and semi-axes."""
    t = torch.linspace(0, 2 * torch.pi, 91, dtype=torch.float64)
    legs = body.axes() * body.semi_axes
    rim = legs @ torch.stack([t.cos(), t.sin()])
    x, y, z = rim.tolist()
    quiet = dict(hoverinfo="skip", showlegend=False)
    disc = torch.cat([torch.zeros(3, 1).double(), rim], dim=1).tolist()
    fan = list(range(1, rim.shape[1] + 1))
    lines = torch.stack([legs[:, 0], -legs[:, 0], torch.full((3,), torch.nan).double(), legs[:, 1], -legs[:, 1]], 1)
    return [
        go.Scatter3d(x=x, y=y, z=z, mode="lines", line=dict(width=4, color=COLORS["uniform"]), **quiet),
        go.Mesh3d(
            **dict(zip("xyz", disc, strict=True)), i=[0] * (len(fan) - 1), j=fan[:-1], k=fan[1:], color=_GREY,
            opacity=0.18, hoverinfo="skip",
        ),
        go.Scatter3d(**_coordinates(lines.T), mode="lines", line=dict(width=3, color=_GREY, dash="dash"), **quiet),
    ]  # fmt: skip


def _coordinates(points: Tensor) -> dict[str, list]:
    """``(n, 3)`` as plotly's x, y and z; NaN ends a line."""
    return {
        c: [None if v != v else round(v, 4) for v in column] for c, column in zip("xyz", points.T.tolist(), strict=True)
    }


def _arrow(v: Tensor, color: str, width: int = 6, shown: bool = True) -> go.Scatter3d:
    x, y, z = ([0.0, shown * float(c)] for c in v)
    return go.Scatter3d(
        x=x,
        y=y,
        z=z,
        mode="lines+markers",
        line=dict(width=width, color=color),
        marker=dict(size=[0, 5 if shown else 0], color=color),
        hoverinfo="skip",
        showlegend=False,
    )


def _label(name: str, v: Tensor, color: str) -> dict:
    font = dict(color=color, size=15)
    return dict(zip("xyz", v.tolist(), strict=True), text=name, font=font, showarrow=False, yshift=12)


def _frame() -> Tensor:
    """Three orthonormal columns: two of the plane orthogonal to 1, and 1 itself."""
    return torch.tensor([[1.0, -1.0, 0.0], [1.0, 1.0, -2.0], [1.0, 1.0, 1.0]]).T / torch.tensor([2.0, 6.0, 3.0]).sqrt()


def _circle(radius: float) -> go.Scatter3d:
    x, y, z = _ring(radius).tolist()
    return go.Scatter3d(
        x=x, y=y, z=z, mode="lines", line=dict(width=3, color=_GREY), hoverinfo="skip", showlegend=False
    )


def _ring(radius: float) -> Tensor:
    t = torch.linspace(0, 2 * torch.pi, 91)
    return radius * _frame()[:, :2] @ torch.stack([t.cos(), t.sin()])


def _room(reach: float) -> list:
    """The plane orthogonal to 1 as a disc, and the three coordinate axes."""
    x, y, z = torch.cat([torch.zeros(3, 1), _ring(0.8 * reach)], dim=1).tolist()
    rim = list(range(1, len(x)))
    disc = go.Mesh3d(
        x=x, y=y, z=z, i=[0] * (len(rim) - 1), j=rim[:-1], k=rim[1:], color="#808080", opacity=0.15, hoverinfo="skip"
    )
    axes = [
        go.Scatter3d(
            **{c: [0, reach if c == axis else 0] for c in "xyz"},
            mode="lines+text",
            text=["", label],
            textfont=dict(color=_GREY, size=13),
            line=dict(width=2, color=_GREY),
            hoverinfo="skip",
            showlegend=False,
        )
        for axis, label in zip("xyz", ("x₁", "x₂", "x₃"), strict=True)
    ]
    return [disc, *axes]


def _scene(reach: float) -> dict:
    eye = _frame() @ torch.tensor([0.80, -0.90, 0.50])  # 1 points up, the plane is the floor
    hidden = dict(range=[-reach, reach], visible=False)
    return dict(
        scene=dict(
            **{f"{c}axis": hidden for c in "xyz"},
            aspectmode="cube",
            camera=dict(eye=dict(zip("xyz", eye.tolist(), strict=True)), up=dict(x=1, y=1, z=1)),
        ),
        margin=dict(l=0, r=0, t=10, b=0),
        paper_bgcolor="rgba(0,0,0,0)",
        legend=dict(orientation="h", y=1.0, font=dict(color=_GREY, size=14), itemsizing="constant"),
    )


def _slider(labels: list[str]) -> dict:
    move = dict(mode="immediate", frame=dict(duration=0, redraw=True), transition=dict(duration=0))
    steps = [dict(method="animate", label=label, args=[[label], move]) for label in labels]
    current = dict(prefix="", font=dict(color=_GREY, size=15))
    return dict(steps=steps, currentvalue=current, font=dict(color="rgba(0,0,0,0)", size=1), pad=dict(l=20, r=20, b=10))


def _numbers(v: Tensor) -> str:
    return "(" + ", ".join(f"{float(c):.2f}" for c in v) + ")"
