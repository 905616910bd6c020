"""LayerNorm's derivative, as a matrix and as a product with a gradient, right and wrong."""

from __future__ import annotations

import torch
from torch import Tensor

from normgeom_lab.exercises.judge import Exercise, Function, Wrong, draw

_EPS, _WEIGHT = 1e-5, draw(6, seed=2)
_X, _SMALL = draw(4, 6, seed=7) + 0.7, 0.01 * draw(4, 6, seed=8) - 0.02
_GRAD = draw(4, 6, seed=9)


def _mean(v: Tensor) -> Tensor:
    return v.mean(-1, keepdim=True)


def _normalized(x: Tensor, eps: float, center: bool = True) -> tuple[Tensor, Tensor]:
    """What the derivative is made of: n and s."""
    deviation = x - _mean(x) if center else x
    s = (_mean(deviation.square()) + eps).sqrt()
    return deviation / s, s


def _jacobian(formula: Function, center: bool = True) -> Function:
    """A matrix by ``formula`` from γ as a column, I, Π, nnᵀ/d and s."""

    def jacobian(x, weight, eps):
        n, s = _normalized(x, eps, center)
        identity = torch.eye(len(x), dtype=x.dtype, device=x.device)
        return formula(weight[:, None], identity, identity - 1 / len(x), torch.outer(n, n) / len(x), s)

    return jacobian


_right_jacobian = _jacobian(lambda gain, one, pi, nn, s: gain * (pi - nn) / s)
_DEPENDS = "s depends on x too: subtract nnᵀ/d."
LAYER_NORM_JACOBIAN = Exercise(
    _right_jacobian,
    ((_X[0], _WEIGHT, _EPS), (_SMALL[0], _WEIGHT, _EPS)),
    {
        "ε is forgotten": Wrong("Put it into s, under the root.", lambda x, w, eps: _right_jacobian(x, w, 0.0)),
        "ε is in 1/s but missing in n": Wrong(
            "n is (x − mean)/s, whose length is below √d; do not make it a unit vector.",
            _jacobian(lambda gain, one, pi, nn, s: gain * (pi - nn / nn.trace()) / s),
        ),
        "I stands for the projector Π": Wrong(
            "The mean depends on x too: take 1/d from each entry of I.",
            _jacobian(lambda gain, one, pi, nn, s: gain * (one - nn) / s),
        ),
        "this is RMSNorm's Jacobian": Wrong(
            "Subtract the mean, in n and in the projector.",
            _jacobian(lambda gain, one, pi, nn, s: gain * (one - nn) / s, center=False),
        ),
        "nnᵀ is not divided by d": Wrong(
            "Use nnᵀ/d.", _jacobian(lambda gain, one, pi, nn, s: gain * (pi - len(nn) * nn) / s)
        ),
        "the term nnᵀ/d is forgotten": Wrong(_DEPENDS, _jacobian(lambda gain, one, pi, nn, s: gain * pi / s)),
        "nnᵀ/d has the wrong sign": Wrong(_DEPENDS, _jacobian(lambda gain, one, pi, nn, s: gain * (pi + nn) / s)),
        "1/s is forgotten": Wrong("Divide by s.", _jacobian(lambda gain, one, pi, nn, s: gain * (pi - nn))),
        "you divide by the variance": Wrong(
            "Divide by its root, s.", _jacobian(lambda gain, one, pi, nn, s: gain * (pi - nn) / s**2)
        ),
        "the gain γ is forgotten": Wrong(
            "Multiply row i by γᵢ.", _jacobian(lambda gain, one, pi, nn, s: (pi - nn) / s)
        ),
        "γ multiplies the columns": Wrong(
            "This is the transpose; multiply row i by γᵢ: weight[:, None].",
            _jacobian(lambda gain, one, pi, nn, s: (pi - nn) * gain.T / s),
        ),
        "γ multiplies rows and columns": Wrong(
            "Multiply the rows alone.", _jacobian(lambda gain, one, pi, nn, s: gain * (pi - nn) * gain.T / s)
        ),
    },
)


def _vjp(formula: Function, center: bool = True) -> Function:
    """A product by ``formula`` from the gradient g, γ⊙g, n and s."""

    def vjp(x, weight, grad, eps):
        return formula(grad, weight * grad, *_normalized(x, eps, center))

    return vjp


_right_vjp = _vjp(lambda g, h, n, s: (h - _mean(h) - n * _mean(n * h)) / s)
_FIRST = "With the transpose γ comes first: work with γ⊙g."
_ALONG = "s depends on x too: subtract n times the mean of n⊙γ⊙g."
LAYER_NORM_VJP = Exercise(
    _right_vjp,
    ((_X, _WEIGHT, _GRAD, _EPS), (_SMALL, _WEIGHT, _GRAD, _EPS), (_X[0], _WEIGHT, _GRAD[0], _EPS)),
    {
        "ε is forgotten": Wrong("Put it into s, under the root.", lambda x, w, g, eps: _right_vjp(x, w, g, 0.0)),
        "ε is in 1/s but missing in n": Wrong(
            "n is (x − mean)/s, whose length is below √d; do not make it a unit vector.",
            _vjp(lambda g, h, n, s: (h - _mean(h) - n * _mean(n * h) / _mean(n * n)) / s),
        ),
        "the mean of γ⊙g is not subtracted": Wrong(
            "The mean of x depends on x too: subtract it.", _vjp(lambda g, h, n, s: (h - n * _mean(n * h)) / s)
        ),
        "this is RMSNorm's product": Wrong(
            "Subtract the mean, of x and of γ⊙g.",
            _vjp(lambda g, h, n, s: (h - n * _mean(n * h)) / s, center=False),
        ),
        "nᵀ(γ⊙g) is not divided by d": Wrong(
            "Use the mean of n⊙γ⊙g, not the sum.",
            _vjp(lambda g, h, n, s: (h - _mean(h) - n * (n * h).sum(-1, keepdim=True)) / s),
        ),
        "the part along n is not subtracted": Wrong(_ALONG, _vjp(lambda g, h, n, s: (h - _mean(h)) / s)),
        "the part along n has the wrong sign": Wrong(
            _ALONG, _vjp(lambda g, h, n, s: (h - _mean(h) + n * _mean(n * h)) / s)
        ),
        "the part along n is that of g": Wrong(_FIRST, _vjp(lambda g, h, n, s: (h - _mean(h) - n * _mean(n * g)) / s)),
        "the mean is that of g": Wrong(_FIRST, _vjp(lambda g, h, n, s: (h - _mean(g) - n * _mean(n * h)) / s)),
        "the gain γ is forgotten": Wrong(_FIRST, _vjp(lambda g, h, n, s: (g - _mean(g) - n * _mean(n * g)) / s)),
        "γ comes last": Wrong(
            f"This is the product with J. {_FIRST}", lambda x, w, g, eps: w * _right_vjp(x, torch.ones_like(w), g, eps)
        ),
        "the centred vector stands for n": Wrong(
            "Divide it by s.", _vjp(lambda g, h, n, s: (h - _mean(h) - s * n * _mean(s * n * h)) / s)
        ),
        "1/s is forgotten": Wrong("Divide by s.", _vjp(lambda g, h, n, s: h - _mean(h) - n * _mean(n * h))),
        "the means run over the whole tensor": Wrong(
            "Take them vector by vector: dim=-1.", _vjp(lambda g, h, n, s: (h - h.mean() - n * (n * h).mean()) / s)
        ),
    },
)
