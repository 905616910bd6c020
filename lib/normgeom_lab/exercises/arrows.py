"""Removing a direction, and measuring an angle and an occupancy, right and wrong."""

from __future__ import annotations

import torch
from normgeom.geometry import uniform
from torch import Tensor

from normgeom_lab.exercises.judge import Exercise, Function, Wrong, draw

_X = draw(4, 5, 6, seed=0) + 0.7
_LONG = (_X, draw(6, seed=4))
# So short that a product of them is below 1: an arc cosine of what is no cosine is then a number.
_SHORT = (0.2 * _X, 0.3 * draw(6, seed=10))


def _along(x: Tensor, u: Tensor) -> Tensor:
    """The component of ``x`` along ``u``."""
    return x - uniform.project_out(x, u)


def _unit(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True)


def _centred(x: Tensor) -> Tensor:
    return x - x.mean(-1, keepdim=True)


PROJECT_OUT = Exercise(
    uniform.project_out,
    (_LONG, (_X[0, 0], torch.ones(6, dtype=torch.float64))),
    {
        "the direction is not made a unit vector": Wrong(
            "Divide by its squared length: x − (x·u / u·u) u.", lambda x, u: x - (x @ u)[..., None] * u
        ),
        "you divide by the length of the direction only once": Wrong(
            "It comes in twice, through x·u and through u: divide by its square.",
            lambda x, u: x - (x @ u)[..., None] * u / u.norm(),
        ),
        "this is the component along the direction": Wrong("Return what is left of x without it.", _along),
        "the component is added": Wrong("Subtract it.", lambda x, u: x + _along(x, u)),
        "the component is subtracted twice": Wrong(
            "That mirrors x at the hyperplane; subtract it once.", lambda x, u: x - 2 * _along(x, u)
        ),
        "the component is subtracted as a number": Wrong(
            "Multiply it by the unit vector first.", lambda x, u: x - (x @ u / u.norm())[..., None]
        ),
        "the component has lost its sign": Wrong(
            "Take x·u without an absolute value or a length.",
            lambda x, u: x - (x @ u).abs()[..., None] * u / (u @ u),
        ),
        "the mean of the entries is subtracted": Wrong(
            "That is the component along (1, …, 1); use the direction that is given.", lambda x, u: _centred(x)
        ),
        "x is made a unit vector": Wrong(
            "Only the direction is; x keeps its length.", lambda x, u: uniform.project_out(_unit(x), u)
        ),
        "the result is made a unit vector": Wrong(
            "What is left of x keeps the length that it has.", lambda x, u: _unit(uniform.project_out(x, u))
        ),
        "the result is stretched to the length of x": Wrong(
            "A projection makes vectors shorter; leave it so.",
            lambda x, u: _unit(uniform.project_out(x, u)) * x.norm(dim=-1, keepdim=True),
        ),
        "one component is taken for all vectors": Wrong(
            "Take x·u vector by vector, over the last axis.", lambda x, u: x - (x @ u).mean() * u / (u @ u)
        ),
    },
)


def _cosine(x: Tensor, u: Tensor) -> Tensor:
    return x @ u / (x.norm(dim=-1) * u.norm())


def _by(cosine: Function) -> Function:
    """The angle whose cosine is taken to be ``cosine(x, u)``."""
    return lambda x, u: torch.rad2deg(torch.acos(cosine(x, u)))


_LENGTHS = "A cosine is x·u over both lengths."
ANGLE = Exercise(
    uniform.angle,
    (_LONG, _SHORT, (_X[0, 0], draw(6, seed=11))),
    {
        "the angle is in radians": Wrong("Return degrees: torch.rad2deg.", lambda x, u: torch.acos(_cosine(x, u))),
        "degrees are converted the wrong way round": Wrong(
            "An arc cosine is in radians: multiply by 180/π.", lambda x, u: torch.deg2rad(torch.acos(_cosine(x, u)))
        ),
        "this is the cosine": Wrong("Return the angle in degrees.", _cosine),
        "this is the cosine distance, 1 − cos": Wrong("Return the angle in degrees.", lambda x, u: 1 - _cosine(x, u)),
        "the absolute value folds angles above 90°": Wrong(
            "Keep the sign of x·u.", _by(lambda x, u: _cosine(x, u).abs())
        ),
        "the cosine is squared": Wrong(
            "Take the arc cosine of the cosine itself.", _by(lambda x, u: _cosine(x, u) ** 2)
        ),
        "this is the angle to the hyperplane": Wrong(
            "The one to the direction is 90° minus it: acos, not asin.", lambda x, u: 90 - uniform.angle(x, u)
        ),
        "this is the angle to the opposite direction": Wrong(
            "Mind the sign of x·u.", lambda x, u: uniform.angle(-x, u)
        ),
        "you do not divide by any length": Wrong(_LENGTHS, _by(lambda x, u: x @ u)),
        "you do not divide by the length of x": Wrong(_LENGTHS, _by(lambda x, u: x @ u / u.norm())),
        "you do not divide by the length of the direction": Wrong(_LENGTHS, _by(lambda x, u: x @ u / x.norm(dim=-1))),
        "the mean stands for the sum in x·u": Wrong(
            "Add up the products of the entries.", _by(lambda x, u: _cosine(x, u) / x.shape[-1])
        ),
        "one length is taken for all vectors": Wrong(
            "Take the length of x vector by vector: dim=-1.", _by(lambda x, u: x @ u / (x.norm() * u.norm()))
        ),
        "the means are subtracted first": Wrong(
            "That is the angle whose cosine is the correlation; leave x and u as they are.",
            lambda x, u: uniform.angle(_centred(x), _centred(u)),
        ),
        "the last axis is kept": Wrong(
            "Return one number for each vector, without keepdim.", lambda x, u: uniform.angle(x, u)[..., None]
        ),
    },
)


def _occupancy(h: Tensor, u: Tensor) -> Tensor:
    return len(u) * _cosine(h, u).square().mean()


_EACH = "Each vector counts alike, whatever its length: divide its product by its own length."
_ORDER = "Square the cosine of each vector, then take the mean."
OCCUPANCY = Exercise(
    _occupancy,
    (_LONG, (_X[0], torch.ones(6, dtype=torch.float64)), _SHORT),
    {
        "d is missing": Wrong("Multiply by d, so that chance gives 1.", lambda h, u: _occupancy(h, u) / len(u)),
        "√d stands for d": Wrong(
            "The null's mean square is 1/d: multiply by d.", lambda h, u: _occupancy(h, u) / len(u) ** 0.5
        ),
        "the cosine is not squared": Wrong(_ORDER, lambda h, u: len(u) * _cosine(h, u).mean()),
        "the mean of |cos| stands for that of cos²": Wrong(_ORDER, lambda h, u: len(u) * _cosine(h, u).abs().mean()),
        "the mean comes before the square": Wrong(_ORDER, lambda h, u: len(u) * _cosine(h, u).mean() ** 2),
        "the cosine is that of the mean angle": Wrong(
            _ORDER, lambda h, u: len(u) * torch.deg2rad(uniform.angle(h, u).mean()).cos() ** 2
        ),
        "the cosine is that of the mean vector": Wrong(
            _ORDER, lambda h, u: _occupancy(h.reshape(-1, len(u)).mean(0), u)
        ),
        "the root of the mean square is returned": Wrong(
            "Leave out the root.", lambda h, u: len(u) * _cosine(h, u).square().mean().sqrt()
        ),
        "long vectors count more than short ones": Wrong(
            _EACH, lambda h, u: len(u) * (h @ u).square().mean() / (h.square().sum(-1).mean() * (u @ u))
        ),
        "you do not divide by the lengths of the vectors": Wrong(
            _EACH, lambda h, u: len(u) * (h @ u).square().mean() / (u @ u)
        ),
        "the direction is not made a unit vector": Wrong(
            "Divide by its length as well.", lambda h, u: len(u) * (h @ u / h.norm(dim=-1)).square().mean()
        ),
        "the sum stands for the mean over vectors": Wrong(
            "Divide by the number of vectors.", lambda h, u: len(u) * _cosine(h, u).square().sum()
        ),
        "there is one number for each vector": Wrong(
            "Take the mean over all of them.", lambda h, u: len(u) * _cosine(h, u).square()
        ),
    },
)
