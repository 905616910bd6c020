"""The secular equation between neighbouring squares of gains, solved right and wrong."""

from __future__ import annotations

import torch
from normgeom.geometry import secular
from torch import Tensor

from normgeom_lab.exercises.judge import Exercise, Function, Wrong, draw

STEPS = 80  # after which a bracket is as narrow as float64 can tell


def _bisected(poles: Tensor, share: Tensor | float = 1.0, upper: bool = True) -> Tensor:
    """Where Σ share/(poles − t) is 0 between neighbours; without ``upper`` the wrong half is kept each time."""
    low, high = poles[:-1].clone(), poles[1:].clone()
    for _ in range(STEPS):
        middle = (low + high) / 2
        above = (share / (poles - middle[:, None])).sum(-1) > 0
        low, high = torch.where(above == upper, low, middle), torch.where(above == upper, middle, high)
    return (low + high) / 2


def _roots(gain: Tensor) -> Tensor:
    return secular.eigvalsh(gain)[1:]


def _squares(gain: Tensor) -> Tensor:
    return gain.square().sort().values


def _by(formula: Function) -> Function:
    """An answer by ``formula`` from the right eigenvalues and d."""
    return lambda gain: formula(_roots(gain), len(gain))


_EIGENVALUES = "Return the λ themselves, eigenvalues of GΠG."
BISECTION = Exercise(
    _roots,
    ((draw(6, seed=41),), (3 * draw(9, seed=42),)),
    {
        "the gains are not squared": Wrong(
            "The poles are the squares of the gains.", lambda gain: _bisected(gain.sort().values)
        ),
        "the poles are the sizes of the gains": Wrong(
            "The poles are the squares of the gains.", lambda gain: _bisected(gain.abs().sort().values)
        ),
        "the squares are not sorted": Wrong(
            "A bracket lies between neighbours: sort first.", lambda gain: _bisected(gain**2)
        ),
        "the wrong half of each bracket is kept": Wrong(
            "The sum grows from −∞ to ∞ between two poles: where it is positive, the root lies below.",
            lambda gain: _bisected(_squares(gain), upper=False),
        ),
        "these are the middles of the brackets": Wrong(
            "Halve again and again, towards the change of sign.",
            lambda gain: (_squares(gain)[:-1] + _squares(gain)[1:]) / 2,
        ),
        "the squares of the gains stand above the fractions": Wrong(
            "Above each fraction stands uᵢ², here the same for all.",
            lambda gain: _bisected(_squares(gain), _squares(gain)),
        ),
        "0 is among the eigenvalues": Wrong(
            "Between d squares lie d − 1 eigenvalues; 0 lies below all of them.", secular.eigvalsh
        ),
        "the eigenvalues descend": Wrong("Return them in ascending order.", _by(lambda found, d: found.flip(0))),
        "these are the singular values of GΠ": Wrong(_EIGENVALUES, _by(lambda found, d: found.sqrt())),
        "these are the semi-axes": Wrong(_EIGENVALUES, _by(lambda found, d: (d * found).sqrt())),
        "these are the squares of the semi-axes": Wrong(_EIGENVALUES, _by(lambda found, d: d * found)),
    },
)
