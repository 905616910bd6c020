"""Removing a direction and measuring an angle, right and wrong."""

from __future__ import annotations

import torch
from torch import Tensor

from normgeom.exercises.judge import Exercise, draw
from normgeom.geometry import uniform

_X = draw(4, 5, 6, seed=0) + 0.7
_PROBES = ((_X, draw(6, seed=4)), (_X[0, 0], torch.ones(6, dtype=torch.float64)))


def _cosine(x: Tensor, u: Tensor) -> Tensor:
    return x @ u / (x.norm(dim=-1) * u.norm())


PROJECT_OUT = Exercise(
    uniform.project_out,
    _PROBES,
    {
        "the direction is not made a unit vector": lambda x, u: x - (x @ u)[..., None] * u,
        "you divide by the length of the direction once; its square is needed": lambda x, u: (
            x - (x @ u)[..., None] * u / u.norm()
        ),
        "this is the component along the direction; return what is left": lambda x, u: x - uniform.project_out(x, u),
        "you subtract the component as a number; multiply it by the unit vector": lambda x, u: (
            x - (x @ u / u.norm())[..., None]
        ),
    },
)
ANGLE = Exercise(
    uniform.angle,
    _PROBES,
    {
        "the angle is in radians; return degrees": lambda x, u: torch.acos(_cosine(x, u)),
        "this is the cosine; return the angle in degrees": _cosine,
        "the absolute value folds angles above 90°": lambda x, u: torch.rad2deg(torch.acos(_cosine(x, u).abs())),
        "this is the angle to the hyperplane: 90° minus the one asked for": lambda x, u: 90 - uniform.angle(x, u),
    },
)
