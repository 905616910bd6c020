"""Points of ℝ³ as pictures show them: seen from far away and a little above, with (1, 1, 1) upright."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from normgeom.view.style import COLORS
from torch import Tensor

# Two directions orthogonal to (1, 1, 1), and (1, 1, 1) itself.
ONE_UP = F.normalize(torch.tensor([[1.0, -1.0, 0.0], [1.0, 1.0, -2.0], [1.0, 1.0, 1.0]]).double(), dim=-1)
_TURN, _TILT = 0.5, math.atan2(0.31, 0.95)  # radians; the pages' scripts start with the same angles


def seen(points: Tensor) -> Tensor:
    """Coordinates of points ``(n, 3)`` to the right, up, and towards the eye, ``(3, n)``."""
    p, q, up = (points.double() @ ONE_UP.T).T
    away = math.sin(_TURN) * p + math.cos(_TURN) * q
    right = math.cos(_TURN) * p - math.sin(_TURN) * q
    high, near = math.cos(_TILT) * up + math.sin(_TILT) * away, math.sin(_TILT) * up - math.cos(_TILT) * away
    return torch.stack([right, high, near])


def flat(points: Tensor) -> Tensor:
    """The coordinates ``(2, n)`` at which points ``(n, 3)`` are drawn."""
    return seen(points)[:2]


def circle(plane: Tensor = ONE_UP[:2], radius: float = 3**0.5) -> Tensor:
    """A circle ``(73, 3)`` in the plane that two rows span, by default the plane of mean 0."""
    t = torch.linspace(0, 2 * math.pi, 73).double()
    return radius * torch.stack([t.cos(), t.sin()], dim=-1) @ plane.double()


def draw_plane(axis: Axes) -> None:
    """Prepare an axis for points in space, and draw part of the plane of mean 0."""
    axis.set_aspect("equal")
    axis.axis("off")
    axis.fill(*flat(circle(radius=2.3)), color=COLORS["null"], alpha=0.12, lw=0)
