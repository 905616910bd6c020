"""Norms of heads, and a step on the sphere, right and wrong."""

from __future__ import annotations

import torch
from normgeom.norms.functions import layer_norm, rms_norm
from normgeom.norms.heads import head_norm
from torch import Tensor

from normgeom_lab.exercises.judge import Exercise, Function, Wrong, draw

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


_SCALE = "Use sqrt(mean of squares + eps)."
HEAD_NORM = Exercise(
    lambda x, heads, weight, eps: head_norm(x, heads, weight, eps=eps),
    ((_X, _HEADS, _WEIGHT, _EPS), (_SMALL, _HEADS, _WEIGHT, _EPS)),
    {
        "one norm spans all heads": Wrong(
            "OLMo 2 has that; take each head by itself.",
            lambda x, heads, weight, eps: rms_norm(x, weight.repeat(heads), None, eps),
        ),
        "a head is every H-th number": Wrong("A head is a stretch of d/H neighbours.", _interleaved),
        "the mean of each head is subtracted": Wrong(
            "This is LayerNorm; divide the head as it is.",
            _in_heads(lambda x, weight, eps: layer_norm(x, weight, None, eps)),
        ),
        "the gain is forgotten": Wrong(
            "Multiply each head by weight.", _in_heads(lambda x, weight, eps: rms_norm(x, None, None, eps))
        ),
        "the gain is 1 + weight": Wrong(
            "Multiply by weight itself.", _in_heads(lambda x, weight, eps: rms_norm(x, 1 + weight, None, eps))
        ),
        "ε is forgotten": Wrong(_SCALE, _by(lambda x, eps: _square(x).sqrt())),
        "ε stands outside the root": Wrong(_SCALE, _by(lambda x, eps: _square(x).sqrt() + eps)),
        "√m is missing": Wrong(
            "You divide by the length of a head; use the mean of squares, not the sum.",
            _by(lambda x, eps: (x.square().sum(-1, keepdim=True) + eps).sqrt()),
        ),
        "the root is forgotten": Wrong(_SCALE, _by(lambda x, eps: _square(x) + eps)),
        "the scale is the mean of all heads' scales": Wrong(
            "Each head has its own.", _by(lambda x, eps: (_square(x) + eps).sqrt().mean(-2, keepdim=True))
        ),
        "the statistics run over the heads": Wrong(
            "Take them over the numbers of each head: dim=-1 after the split.",
            _by(lambda x, eps: (x.square().mean(-2, keepdim=True) + eps).sqrt()),
        ),
        "the heads keep an axis of their own": Wrong(
            "Join them again: flatten(-2).",
            lambda x, heads, weight, eps: rms_norm(x.unflatten(-1, (heads, -1)), weight, None, eps),
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
        "x is not subtracted": Wrong(
            "The step leads from x towards h: a times h − x.", lambda x, h, a: _unit(x + a * _unit(h))
        ),
        "the branch's output is not normalised": Wrong(
            "Bring h to the sphere before you subtract x.", lambda x, h, a: _unit(x + a * (h - x))
        ),
        "the result is not brought back to the sphere": Wrong(
            "Normalise it once more.", lambda x, h, a: x + a * (_unit(h) - x)
        ),
        "vectors have length 1": Wrong(
            "Here they have length √d: divide by the root mean square.",
            lambda x, h, a: _step(x, h, a) / x.shape[-1] ** 0.5,
        ),
        "h has length 1": Wrong(
            "It has length √d, as x has: divide by its root mean square.",
            lambda x, h, a: _unit(x + a * (_unit(h) / x.shape[-1] ** 0.5 - x)),
        ),
        "a and 1 − a are exchanged": Wrong("a is the share of h.", lambda x, h, a: _step(x, h, 1 - a)),
        "the step is along the tangent": Wrong("The step goes straight to h: a times h − x.", _along),
        "one number stands for a": Wrong("a has a number for each coordinate.", lambda x, h, a: _step(x, h, a.mean())),
        "the step leads away from h": Wrong(
            "Mind the sign: a times h − x is added.", lambda x, h, a: _unit(x - a * (_unit(h) - x))
        ),
        "the mean is subtracted": Wrong(
            "To normalise is to divide by the root mean square, no more.",
            lambda x, h, a: layer_norm(x + a * (layer_norm(h, eps=0.0) - x), eps=0.0),
        ),
    },
)
