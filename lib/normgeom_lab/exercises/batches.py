"""Batch norm in training, right and wrong."""

from __future__ import annotations

from normgeom.norms import functions
from torch import Tensor

from normgeom_lab.exercises.forward import BIAS, EPS, GAIN, WEIGHT, by, mean_square, wrong_scales
from normgeom_lab.exercises.judge import Exercise, Function, Wrong, draw


def _rows(norm: Function) -> Function:
    """``norm`` of rows, one a feature: axis 1 first, all other axes as one."""

    def batch_norm(x, weight, bias, eps):
        features = x.movedim(1, 0)
        normed = norm(features.flatten(1), weight[:, None], bias[:, None], eps)
        return normed.reshape(features.shape).movedim(0, 1)

    return batch_norm


def _affine(n: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return (weight * n.movedim(1, -1) + bias).movedim(-1, 1)


def _over(*axes: int) -> Function:
    """Statistics over ``axes``, each as far as ``x`` has it; gain and bias along axis 1."""

    def norm(x, weight, bias, eps):
        kept = [axis for axis in axes if axis < x.dim()]
        deviation = x - x.mean(kept, keepdim=True)
        return _affine(deviation / (deviation.square().mean(kept, keepdim=True) + eps).sqrt(), weight, bias)

    return norm


def _plain(x: Tensor, eps: float) -> Tensor:
    """Batch norm without gain and bias."""
    return _rows(lambda rows, w, b, eps: functions.layer_norm(rows, eps=eps))(x, WEIGHT, BIAS, eps)


# As many positions as features, so that a gain along the wrong axis is a wrong number and no error.
_BATCH, _SMALL_SERIES = draw(5, 6, seed=5) + 0.7, 0.01 * draw(4, 6, 6, seed=6) - 0.02
_AXES = "Take them over axis 0 and, where there is one, axis 2."
BATCH_NORM = Exercise(
    _over(0, 2),
    ((_BATCH, WEIGHT, BIAS, EPS), (_SMALL_SERIES, WEIGHT, BIAS, EPS)),
    {
        **wrong_scales("B", "variance", lambda scale: _rows(by(scale))),
        "the gain γ is forgotten": Wrong(GAIN, lambda x, w, b, eps: _affine(_plain(x, eps), 1.0, b)),
        "the bias β is forgotten": Wrong("Add bias last.", lambda x, w, b, eps: _affine(_plain(x, eps), w, 0.0)),
        "the bias is added before the gain": Wrong(
            "First multiply by weight, then add bias.", lambda x, w, b, eps: _affine(_plain(x, eps), w, w * b)
        ),
        "gain and bias run along the last axis": Wrong(
            "The features are axis 1: reshape weight and bias to (C, 1) where there are positions.",
            lambda x, w, b, eps: w * _plain(x, eps) + b,
        ),
        "the mean is not subtracted": Wrong(
            "Subtract the mean of each feature first.",
            _rows(by(lambda v, eps: (mean_square(v) + eps).sqrt(), center=False)),
        ),
        "the statistics run over the features": Wrong(f"This is layer norm. {_AXES}", _over(1)),
        "the statistics run over all axes but the first": Wrong(
            f"This is group norm with one group. {_AXES}", _over(1, 2)
        ),
        "the statistics run over the last axis": Wrong(_AXES, lambda x, w, b, eps: _over(x.dim() - 1)(x, w, b, eps)),
        "the statistics are those of the whole tensor": Wrong(f"Each feature has its own. {_AXES}", _over(0, 1, 2)),
        "the positions are not averaged over": Wrong(f"A feature has one mean for all of them. {_AXES}", _over(0)),
        "this is inference with untrained averages, mean 0 and variance 1": Wrong(
            "In training the statistics are those of the batch.",
            lambda x, w, b, eps: _affine(x / (1 + eps) ** 0.5, w, b),
        ),
    },
)
