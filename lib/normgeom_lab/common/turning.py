"""Figures in space that turn: lines, areas, dots and text, as SVG with sliders and a script."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files

import torch
import torch.nn.functional as F
from torch import Tensor

# Two directions across (1, 1, 1), and (1, 1, 1) itself, which stands upright; and the coordinate axes.
ONE_UP = F.normalize(torch.tensor([[1.0, -1.0, 0.0], [1.0, 1.0, -2.0], [1.0, 1.0, 1.0]]).double(), dim=-1)
THIRD_UP = torch.eye(3).double()
TURN, TILT = 0.5, math.atan2(0.31, 0.95)  # radians, at first: from a little above
HEIGHT = 430  # of a drawing, in pixels

_PAGE = """<div class="turning" id="{id}" data-view="{view}">
{sliders}
<svg viewBox="{box}" role="img" aria-label="{alt}" font-size="17" stroke-linejoin="round">
{parts}
</svg>
<label class="explore-slider turn"><span>turn</span> \
<input type="range" min="-180" max="180" step="any" value="0"> <output></output></label>
<label class="explore-slider turn"><span>tilt</span> \
<input type="range" min="-85" max="85" step="any" value="{tilt:.4f}"> <output></output></label>
</div>
<script>({script})(document.getElementById("{id}"));</script>"""

_SLIDER = (
    '<label class="explore-slider"><span>{name}</span> '
    '<input type="range" min="0" max="{last}" step="1" value="{start}" data-labels="{labels}"> '
    "<output>{label}</output></label>"
)


def seen(points: Tensor, turn: float = TURN, tilt: float = TILT, frame: Tensor = ONE_UP) -> Tensor:
    """Coordinates ``(n, 3)`` of points ``(n, 3)`` seen from far away: to the right, up, and towards the eye."""
    p, q, up = (points.double() @ frame.T).unbind(-1)
    away = math.sin(turn) * p + math.cos(turn) * q
    right = math.cos(turn) * p - math.sin(turn) * q
    high, near = (math.cos(tilt) * up + math.sin(tilt) * away, math.sin(tilt) * up - math.cos(tilt) * away)
    return torch.stack([right, high, near], dim=-1)


@dataclass(frozen=True)
class Part:
    """A line, an area, dots or text, seen where sliders have the positions ``at``."""

    points: Tensor
    kind: str = "line"
    color: str = "currentColor"
    width: float = 2
    dash: str = ""
    words: str = ""
    below: bool = False
    square: bool = False
    at: Mapping[int, int] = field(default_factory=dict)

    def svg(self, picture: Turning) -> str:
        """The element as it is drawn at first, with its points for the script."""
        shown = all(picture.starts[slider] == position for slider, position in self.at.items())
        text = ",".join(" ".join(f"{v:.3f}" for v in x) for x in self.points.tolist())
        data = f'data-x="{text}" data-at="{escape(json.dumps(dict(self.at)))}"'
        data += "" if shown else ' style="display:none"'
        to = torch.tensor([picture.scale, -picture.scale, 1.0])  # right, down and towards the eye
        flat = (seen(self.points, picture.turn, picture.tilt, picture.frame) * to).tolist()
        if self.kind == "text":
            x, y = flat[0][:2]
            over = 'dy="22"' if self.below else 'dx="4" dy="-9"'
            return f'<text {data} x="{x:.1f}" y="{y:.1f}" {over} fill="{self.color}">{escape(self.words)}</text>'
        if self.kind == "dots":
            cap = "square" if self.square else "round"
            pen = f'stroke="{self.color}" stroke-width="{self.width}" stroke-linecap="{cap}"'
            sides = [x for x in flat if x[2] < 0], [x for x in flat if x[2] >= 0]
            far, near = ("".join(f"M{x:.1f},{y:.1f}h.01" for x, y, _ in side) * shown for side in sides)
            return f'<g {data} {pen}><path d="{far}" opacity="0.35"/><path d="{near}"/></g>'
        pen = f'fill="none" stroke="{self.color}" stroke-width="{self.width}"'
        if self.kind == "area":
            pen = f'fill="{self.color}" fill-opacity="0.14"'
        elif self.dash:
            pen += f' stroke-dasharray="{self.dash}"'
        path = "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y, _ in flat)
        return f'<path {data} {pen} d="{path * shown}"/>'


@dataclass(frozen=True)
class Turning:
    """A picture in space that turns, with sliders that choose what is seen and ``starts`` at first."""

    parts: Sequence[Part]
    sliders: Mapping[str, Sequence[str]] = field(default_factory=dict)
    starts: Sequence[int] = ()
    reach: float = 2.3
    frame: Tensor = field(default_factory=lambda: ONE_UP)
    turn: float = TURN
    tilt: float = TILT
    middle: float = 0
    legend: Mapping[str, str] = field(default_factory=dict)

    @property
    def scale(self) -> float:
        return HEIGHT / 2 / self.reach

    def page(self, alt: str) -> str:
        """HTML with the drawing, its sliders and its script."""
        view = dict(frame=self.frame.tolist(), scale=self.scale, turn=self.turn)
        sliders = [
            _SLIDER.format(
                name=escape(name),
                last=len(labels) - 1,
                start=start,
                label=escape(labels[start]),
                labels=escape(json.dumps(list(labels))),
            )
            for (name, labels), start in zip(self.sliders.items(), self.starts, strict=True)
        ]
        top = -HEIGHT / 2 - self.middle * self.scale
        legend = [
            f'<text x="-312" y="{top + 22 * (i + 1):.1f}" fill="{color}">{escape(name)}</text>'
            for i, (name, color) in enumerate(self.legend.items())
        ]
        parts = "\n".join([*legend, *(part.svg(self) for part in self.parts)])
        return _PAGE.format(
            id=f"turning-{hashlib.sha256(parts.encode()).hexdigest()[:12]}",
            view=escape(json.dumps(view)),
            tilt=math.degrees(self.tilt),
            box=f"-320 {top:g} 640 {HEIGHT}",
            alt=escape(alt),
            sliders="\n".join(sliders),
            parts=parts,
            script=files("normgeom_lab.common").joinpath("turning.js").read_text("utf-8").strip(),
        )
