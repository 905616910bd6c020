"""Norms of heads, and a step on the sphere, right and wrong."""

from __future__ import annotations

import torch
from torch import Tensor

from normgeom.exercises.judge import Exercise, Function, draw
from normgeom.norms.functions import layer_norm, rms_norm
from normgeom.norms.heads import head_norm

_HEADS, _EPS = 3, 1e-3
_X, _SMALL = draw(2, 4, 12, seed=20) + 0.5, 0.05 * draw(2, 4, 12, seed=21)
_WEIGHT = draw(4, seed=22)


def _in_heads(norm: Function) -> Function:
    """``norm(x, weight, eps)`` of each head by itself."""
    return lambda x, heads, weight, eps: norm(x.unflatten(-1, (heads, -1)), weight, eps).flatten(-2)


def _by(scale: Function) -> Function:
    return _in_heads(lambda x, weight, eps: weight * x / scale(x, eps))


def _square(x: Tensor) -> Tensor:
    return x.square().mean(-1, keepdim=True)


def _interleaved(x: Tensor, heads: int, weight: Tensor, eps: float) -> Tensor:
    return rms_norm(x.unflatten(-1, (-1, heads)).mT, weight, None, eps).mT.flatten(-2)


HEAD_NORM = Exercise(
    lambda x, heads, weight, eps: head_norm(x, heads, weight, eps=eps),
    ((_X, _HEADS, _WEIGHT, _EPS), (_SMALL, _HEADS, _WEIGHT, _EPS)),
    {
        "one norm spans all heads, as in OLMo 2; take each head by itself": lambda x, heads, weight, eps: rms_norm(
            x, weight.repeat(heads), None, eps
        ),
        "a head is a stretch of neighbours, not every H-th number": _interleaved,
        "the mean of each head is subtracted: this is LayerNorm": _in_heads(
            lambda x, weight, eps: layer_norm(x, weight, None, eps)
        ),
        "the gain is forgotten": _in_heads(lambda x, weight, eps: rms_norm(x, None, None, eps)),
        "ε is forgotten": _by(lambda x, eps: _square(x).sqrt()),
        "ε stands outside the root": _by(lambda x, eps: _square(x).sqrt() + eps),
        "you divide by the length; √m is missing": _by(lambda x, eps: (x.square().sum(-1, keepdim=True) + eps).sqrt()),
        "the root is forgotten": _by(lambda x, eps: _square(x) + eps),
        "the scale is the mean of all heads' scales": _by(
            lambda x, eps: (_square(x) + eps).sqrt().mean(-2, keepdim=True)
        ),
        "the statistics run over the heads; take them over each head's numbers": _by(
            lambda x, eps: (x.square().mean(-2, keepdim=True) + eps).sqrt()
        ),
    },
)


def _unit(x: Tensor) -> Tensor:
    return rms_norm(x, eps=0.0)


def _step(x: Tensor, h: Tensor, a: Tensor) -> Tensor:
    return _unit(x + a * (_unit(h) - x))


def _along(x: Tensor, h: Tensor, a: Tensor) -> Tensor:
    """The step with what h has across x alone."""
    h = _unit(h)
    return _unit(x + a * (h - x * (x * h).mean(-1, keepdim=True)))


_ON = _unit(draw(5, 6, seed=23))
_TO, _SIZES = 3 * draw(5, 6, seed=24), torch.linspace(0.05, 0.6, 6, dtype=torch.float64)

SPHERE_STEP = Exercise(
    _step,
    ((_ON, _TO, _SIZES),),
    {
        "x is not subtracted: a is the way towards h, from x": lambda x, h, a: _unit(x + a * _unit(h)),
        "the branch's output is not normalised": lambda x, h, a: _unit(x + a * (h - x)),
        "the result is not brought back to the sphere": lambda x, h, a: x + a * (_unit(h) - x),
        "vectors have length 1 in this answer; ours have √d": lambda x, h, a: _step(x, h, a) / x.shape[-1] ** 0.5,
        "a and 1 − a are exchanged": lambda x, h, a: _step(x, h, 1 - a),
        "the step is along the tangent, where eq-sphere goes straight to h": _along,
        "a is one number for each coordinate; its mean will not do": lambda x, h, a: _step(x, h, a.mean()),
        "the step leads away from h": lambda x, h, a: _unit(x - a * (_unit(h) - x)),
        "the mean is subtracted: this norm is RMSNorm's": lambda x, h, a: layer_norm(
            x + a * (layer_norm(h, eps=0.0) - x), eps=0.0
        ),
    },
)
