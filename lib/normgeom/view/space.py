"""Pictures in three dimensions, as SVG: they turn under the hand where scripts run, and stand still where none do."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from html import escape
from importlib.resources import files
from itertools import pairwise

import torch
from torch import Tensor

# Two directions across (1, 1, 1), and (1, 1, 1) itself, which stands upright; and the coordinate axes.
ONE_UP = torch.tensor([[1.0, -1.0, 0.0], [1.0, 1.0, -2.0], [1.0, 1.0, 1.0]]).double()
ONE_UP /= torch.linalg.vector_norm(ONE_UP, dim=-1, keepdim=True)
THIRD_UP = torch.eye(3).double()
TURN, TILT = 0.5, math.atan2(0.31, 0.95)  # radians: how a picture stands at first, from a little above

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
    """Points ``(n, 3)`` as the eye has them, from far away: ``(n, 3)``, to the right, up, and towards the eye.

    Args:
        points: of ℝ³; NaN stays NaN.
        turn, tilt: radians: about the upright direction, and of the eye above its plane.
        frame: ``(3, 3)``, orthonormal rows; the last one stands upright.
    """
    p, q, up = (points.double() @ frame.T).unbind(-1)
    away = math.sin(turn) * p + math.cos(turn) * q
    right = math.cos(turn) * p - math.sin(turn) * q
    high, near = (math.cos(tilt) * up + math.sin(tilt) * away, math.sin(tilt) * up - math.cos(tilt) * away)
    return torch.stack([right, high, near], dim=-1)


@dataclass(frozen=True)
class Part:
    """One thing to see.

    Attributes:
        points: ``(n, 3)``; a row of NaN ends a line; of a text its place, ``(1, 3)``.
        kind: ``"line"``, ``"area"``, ``"dots"``, of which those behind the middle are pale, or ``"text"``.
        color: of SVG; the page's ink if there is none.
        width: of a line, or of a dot; units of the drawing, about pixels.
        dash: of SVG, of a line.
        words: of a text; ``below`` its place instead of above.
        square: dots have corners.
        at: slider → position at which the part is seen; without one at all of them.
    """

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
        """The element, drawn as it is seen at first, with its points for the script."""
        lines = _lines(self.points)
        text = ";".join(",".join(" ".join(f"{v:.3f}" for v in x) for x in line.tolist()) for line in lines)
        shown = all(picture.starts[slider] == position for slider, position in self.at.items())
        data = f'data-x="{text}" data-at="{escape(json.dumps(dict(self.at)))}"'
        data += "" if shown else ' style="display:none"'
        flat = [picture.flat(line) for line in lines]
        if self.kind == "text":
            x, y = flat[0][0][:2]
            over = 'dy="22"' if self.below else 'dx="4" dy="-9"'
            return f'<text {data} x="{x:.1f}" y="{y:.1f}" {over} fill="{self.color}">{escape(self.words)}</text>'
        if self.kind == "dots":
            cap = "square" if self.square else "round"
            pen = f'stroke="{self.color}" stroke-width="{self.width}" stroke-linecap="{cap}"'
            sides = [[x for x in flat[0] if x[2] < 0], [x for x in flat[0] if x[2] >= 0]]
            drawn = ["".join(f"M{x:.1f},{y:.1f}h.01" for x, y, _ in side) * shown for side in sides]
            return f'<g {data} {pen}><path d="{drawn[0]}" opacity="0.35"/><path d="{drawn[1]}"/></g>'
        pen = f'fill="none" stroke="{self.color}" stroke-width="{self.width}"'
        if self.kind == "area":
            pen = f'fill="{self.color}" fill-opacity="0.14"'
        elif self.dash:
            pen += f' stroke-dasharray="{self.dash}"'
        paths = ["M" + "L".join(f"{x:.1f},{y:.1f}" for x, y, _ in line) for line in flat]
        return f'<path {data} {pen} d="{"".join(paths) * shown}"/>'


@dataclass(frozen=True)
class Turning:
    """A picture in space that turns, with a slider for its position and others that choose what is seen.

    Attributes:
        parts: drawn in this order, the last one over the others.
        sliders: name → a label for each position.
        starts: the position at which each slider begins.
        reach: how far the picture goes from its middle, in units of its points.
        frame: ``(3, 3)``, as for :func:`seen`.
        turn, tilt: radians, as for :func:`seen`.
        middle: how far the picture's middle lies above the origin, in units of its points.
        height: of the drawing, which is 640 wide.
        legend: name → color, in a corner.
    """

    parts: Sequence[Part]
    sliders: Mapping[str, Sequence[str]] = field(default_factory=dict)
    starts: Sequence[int] = ()
    reach: float = 2.3
    frame: Tensor = field(default_factory=lambda: ONE_UP)
    turn: float = TURN
    tilt: float = TILT
    middle: float = 0
    height: int = 430
    legend: Mapping[str, str] = field(default_factory=dict)

    @property
    def scale(self) -> float:
        """Units of the drawing for one of its points."""
        return self.height / 2 / self.reach

    def flat(self, points: Tensor) -> list[list[float]]:
        """Points ``(n, 3)`` in the drawing: to the right, down, and towards the eye."""
        return (seen(points, self.turn, self.tilt, self.frame) * torch.tensor([self.scale, -self.scale, 1.0])).tolist()

    def page(self, alt: str) -> str:
        """HTML with the drawing, its sliders and its script; ``alt`` says what is to be seen."""
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
        top = -self.height / 2 - self.middle * self.scale
        legend = [
            f'<text x="-312" y="{top + 22 * (i + 1):.1f}" fill="{color}">{escape(name)}</text>'
            for i, (name, color) in enumerate(self.legend.items())
        ]
        parts = "\n".join([*legend, *(part.svg(self) for part in self.parts)])
        return _PAGE.format(
            id=f"turning-{hashlib.sha256(parts.encode()).hexdigest()[:12]}",
            view=escape(json.dumps(view)),
            tilt=math.degrees(self.tilt),
            box=f"-320 {top:g} 640 {self.height}",
            alt=escape(alt),
            sliders="\n".join(sliders),
            parts=parts,
            script=_script(),
        )


def _lines(points: Tensor) -> list[Tensor]:
    """The stretches between rows of NaN."""
    ends = [-1, *points.isnan().any(-1).nonzero().flatten().tolist(), len(points)]
    return [points[a + 1 : b] for a, b in pairwise(ends)]


@cache
def _script() -> str:
    return files("normgeom.view").joinpath("turning.js").read_text("utf-8").strip()
