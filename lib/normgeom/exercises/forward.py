"""The norms themselves, right and wrong."""

from __future__ import annotations

from torch import Tensor

from normgeom.exercises.judge import Exercise, Function, draw
from normgeom.norms import functions

_X, _SMALL = draw(4, 5, 6, seed=0) + 0.7, 0.01 * draw(4, 5, 6, seed=1) - 0.02
_WEIGHT, _BIAS, _EPS = draw(6, seed=2), draw(6, seed=3), 1e-5


def _mean_square(v: Tensor) -> Tensor:
    return v.square().mean(-1, keepdim=True)


def _wrong_scales(count: str) -> dict[str, Function]:
    """What to divide by in place of √(variance + ε) over the last axis, of ``count`` numbers."""
    return {
        "ε stands outside the root; use sqrt(variance + eps)": lambda v, eps: _mean_square(v).sqrt() + eps,
        "ε is forgotten": lambda v, eps: _mean_square(v).sqrt(),
        f"the divisor is {count} − 1; use {count}": lambda v, eps: (
            _mean_square(v) * v.shape[-1] / (v.shape[-1] - 1) + eps
        ).sqrt(),
        "the root is forgotten: you divide by the variance": lambda v, eps: _mean_square(v) + eps,
        f"you divide by the length; √{count} is missing": lambda v, eps: (
            v.square().sum(-1, keepdim=True) + eps
        ).sqrt(),
        "ε is squared": lambda v, eps: (_mean_square(v) + eps**2).sqrt(),
        "the mean of |x| stands for the root of the mean of x²": lambda v, eps: v.abs().mean(-1, keepdim=True) + eps,
    }


def _by(scale: Function, center: bool = True) -> Function:
    """A norm that divides by ``scale(deviation, eps)``; gain and bias in the right order."""

    def norm(x, weight, *rest):
        bias, eps = (rest[0], rest[1]) if len(rest) == 2 else (0.0, rest[0])
        deviation = x - x.mean(-1, keepdim=True) if center else x
        return weight * deviation / scale(deviation, eps) + bias

    return norm


LAYER_NORM = Exercise(
    functions.layer_norm,
    ((_X, _WEIGHT, _BIAS, _EPS), (_SMALL, _WEIGHT, _BIAS, _EPS)),
    {
        **{mistake: _by(scale) for mistake, scale in _wrong_scales("d").items()},
        "the gain γ is forgotten": lambda x, w, b, eps: functions.layer_norm(x, None, b, eps),
        "the bias β is forgotten": lambda x, w, b, eps: functions.layer_norm(x, w, None, eps),
        "the bias is added before the gain": lambda x, w, b, eps: w * (functions.layer_norm(x, eps=eps) + b),
        "the mean is not subtracted: this is RMSNorm": lambda x, w, b, eps: functions.rms_norm(x, w, b, eps),
        "the statistics run over the wrong axis; use the last": lambda x, w, b, eps: (
            w * functions.layer_norm(x.movedim(0, -1), eps=eps).movedim(-1, 0) + b
        ),
        "the statistics are those of the whole tensor; take them vector by vector": lambda x, w, b, eps: (
            w * functions.layer_norm(x.flatten(), eps=eps).reshape(x.shape) + b
        ),
    },
)
RMS_NORM = Exercise(
    lambda x, w, eps: functions.rms_norm(x, w, eps=eps),
    ((_X, _WEIGHT, _EPS), (_SMALL, _WEIGHT, _EPS)),
    {
        **{mistake: _by(scale, center=False) for mistake, scale in _wrong_scales("d").items()},
        "the gain γ is forgotten": lambda x, w, eps: functions.rms_norm(x, eps=eps),
        "the mean is subtracted: this is LayerNorm": lambda x, w, eps: functions.layer_norm(x, w, eps=eps),
        "the gain is 1 + weight; use the weight": lambda x, w, eps: functions.rms_norm(x, w, eps=eps, unit_offset=True),
        "the statistics run over the wrong axis; use the last": lambda x, w, eps: (
            w * functions.rms_norm(x.movedim(0, -1), eps=eps).movedim(-1, 0)
        ),
    },
)


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
    return _rows(lambda rows, w, b, eps: functions.layer_norm(rows, eps=eps))(x, _WEIGHT, _BIAS, eps)


# As many positions as features, so that a gain along the wrong axis is a wrong number and no error.
_BATCH, _SMALL_SERIES = draw(5, 6, seed=5) + 0.7, 0.01 * draw(4, 6, 6, seed=6) - 0.02
BATCH_NORM = Exercise(
    _over(0, 2),
    ((_BATCH, _WEIGHT, _BIAS, _EPS), (_SMALL_SERIES, _WEIGHT, _BIAS, _EPS)),
    {
        **{mistake: _rows(_by(scale)) for mistake, scale in _wrong_scales("B").items()},
        "the gain γ is forgotten": lambda x, w, b, eps: _affine(_plain(x, eps), 1.0, b),
        "the bias β is forgotten": lambda x, w, b, eps: _affine(_plain(x, eps), w, 0.0),
        "the bias is added before the gain": lambda x, w, b, eps: _affine(_plain(x, eps), w, w * b),
        "gain and bias run along the last axis; the features are axis 1": lambda x, w, b, eps: w * _plain(x, eps) + b,
        "the mean is not subtracted": _rows(_by(lambda v, eps: (_mean_square(v) + eps).sqrt(), center=False)),
        "the statistics run over the features: this is layer norm": _over(1),
        "the statistics run over all axes but the first: this is group norm with one group": _over(1, 2),
        "the statistics run over the last axis; they belong to axis 0 and the positions": lambda x, w, b, eps: _over(
            x.dim() - 1
        )(x, w, b, eps),
        "the statistics are those of the whole tensor; take them feature by feature": _over(0, 1, 2),
        "the positions are not averaged over; take the statistics over examples and positions": _over(0),
        "this is inference with untrained averages, mean 0 and variance 1; use the batch's own": lambda x, w, b, eps: (
            _affine(x / (1 + eps) ** 0.5, w, b)
        ),
    },
)
