"""LayerNorm's input from its output, as far as that goes, right and wrong."""

from __future__ import annotations

import torch
from normgeom.norms.functions import layer_norm
from torch import Tensor

from normgeom_lab.exercises.judge import Exercise, Function, Wrong, draw

# Deviations on both sides of √ε, so that n is long and short; a zero gain, and none.
_EPS, _BIAS = 0.05, 0.1 * draw(6, seed=31)
_FULL = draw(6, seed=32)
_WITH_ZERO = _FULL.where(torch.arange(6) != 2, 0.0)
_X = draw(4, 5, 6, seed=33) * torch.tensor([0.05, 0.2, 0.4, 0.8, 1.6], dtype=torch.float64)[:, None] + 0.5
_PROBES = tuple(
    (layer_norm(x, gain, _BIAS, _EPS), gain, _BIAS, _EPS)
    for x, gain in ((_X, _WITH_ZERO), (_X[0], _FULL), (_X[0, 1], _WITH_ZERO))
)


def _filled(n: Tensor, weight: Tensor, share: float = -1.0) -> Tensor:
    """``n`` with ``share`` times the sum of the others at a zero gain."""
    others = n.where(weight != 0, 0.0)
    return others.where(weight != 0, share * others.sum(-1, keepdim=True))


def _normalized(y: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return _filled((y - bias) / weight, weight)


def _square(n: Tensor) -> Tensor:
    return n.square().mean(-1, keepdim=True)


def _from(n: Tensor, eps: float) -> Tensor:
    """The deviation of which ``n`` is what the norm makes."""
    return n * (eps / (1 - _square(n))).sqrt()


def _by(formula: Function) -> Function:
    """An answer by ``formula`` from the right n and ε."""
    return lambda y, weight, bias, eps: formula(_normalized(y, weight, bias), eps)


def _scaled_too_early(y: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    n = _normalized(y, weight, bias)
    return n * (eps / (1 - _square(n.where(weight != 0, 0.0)))).sqrt()


_S = "s² is ε/(1 − m), with m the mean of n², and x less its mean is s·n."
_SUM = "The entries of n add up to 0: this one is minus the sum of the others."
RECOVER = Exercise(
    _by(_from),
    _PROBES,
    {
        "the entry behind the zero gain is set to 0": Wrong(
            _SUM, lambda y, w, b, eps: _from(_filled((y - b) / w, w, 0.0), eps)
        ),
        "the entry behind the zero gain has the wrong sign": Wrong(
            _SUM, lambda y, w, b, eps: _from(_filled((y - b) / w, w, 1.0), eps)
        ),
        "you divide by the zero gain": Wrong(f"0/0 is NaN. {_SUM}", lambda y, w, b, eps: _from((y - b) / w, eps)),
        "s is computed before the entry behind the zero gain is known": Wrong(
            "Complete n first: its mean square needs all entries.", _scaled_too_early
        ),
        "the bias β is not subtracted": Wrong(
            "LayerNorm adds β last, so take it away first.",
            lambda y, w, b, eps: _from(_normalized(y, w, torch.zeros_like(b)), eps),
        ),
        "the bias β is subtracted after the division": Wrong(
            "LayerNorm adds β last, so take it away first.",
            lambda y, w, b, eps: _from(_filled(y / w - b, w), eps),
        ),
        "you do not divide by the gain γ": Wrong(
            "y − β is γ⊙n; divide it by γ where γ is not 0.",
            lambda y, w, b, eps: _from(_filled(y - b, w), eps),
        ),
        "n is returned as it is": Wrong(_S, _by(lambda n, eps: n)),
        "σ stands for s": Wrong(_S, _by(lambda n, eps: n * (eps / (1 - _square(n)) - eps).sqrt())),
        "ε stands outside the root": Wrong(_S, _by(lambda n, eps: n * eps / (1 - _square(n)).sqrt())),
        "the root is forgotten": Wrong(_S, _by(lambda n, eps: n * eps / (1 - _square(n)))),
        "the fraction under the root stands on its head": Wrong(
            _S, _by(lambda n, eps: n * ((1 - _square(n)) / eps).sqrt())
        ),
        "the sum of squares stands for their mean": Wrong(
            f"Divide it by d. {_S}", _by(lambda n, eps: n * (eps / (1 - n.square().sum(-1, keepdim=True))).sqrt())
        ),
        "one s is taken for all vectors": Wrong(
            "Take the mean of n² vector by vector: dim=-1.",
            _by(lambda n, eps: n * (eps / (1 - n.square().mean())).sqrt()),
        ),
    },
)
