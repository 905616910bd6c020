"""The norms over the last axis, right and wrong."""

from __future__ import annotations

from normgeom.norms import functions
from torch import Tensor

from normgeom_lab.exercises.judge import Exercise, Function, Wrong, draw

X, SMALL = draw(4, 5, 6, seed=0) + 0.7, 0.01 * draw(4, 5, 6, seed=1) - 0.02
WEIGHT, BIAS, EPS = draw(6, seed=2), draw(6, seed=3), 1e-5


def mean_square(v: Tensor) -> Tensor:
    return v.square().mean(-1, keepdim=True)


def wrong_scales(count: str, square: str, of: Function) -> dict[str, Wrong]:
    """``of(scale)``, a norm, for what one may wrongly divide by in place of √(``square`` + ε) of ``count`` numbers."""
    under = f"sqrt({square} + eps)"
    scales = {
        "ε stands outside the root": (f"Use {under}.", lambda v, eps: mean_square(v).sqrt() + eps),
        "ε is forgotten": (f"Use {under}.", lambda v, eps: mean_square(v).sqrt()),
        "ε is squared": (f"Use {under}.", lambda v, eps: (mean_square(v) + eps**2).sqrt()),
        f"the divisor is {count} − 1": (
            f"Divide by {count}; in torch's var and std that is correction=0.",
            lambda v, eps: (mean_square(v) * v.shape[-1] / (v.shape[-1] - 1) + eps).sqrt(),
        ),
        "the root is forgotten": (f"You divide by the {square}; use {under}.", lambda v, eps: mean_square(v) + eps),
        f"√{count} is missing": (
            f"You divide by the length of {count} numbers; use the mean of their squares, not the sum.",
            lambda v, eps: (v.square().sum(-1, keepdim=True) + eps).sqrt(),
        ),
        "the mean of |x| stands for the root of the mean of x²": (
            "Square, take the mean, then the root.",
            lambda v, eps: v.abs().mean(-1, keepdim=True) + eps,
        ),
    }
    return {mistake: Wrong(advice, of(scale)) for mistake, (advice, scale) in scales.items()}


def by(scale: Function, center: bool = True) -> Function:
    """A norm that divides by ``scale(deviation, eps)``; gain and bias in the right order."""

    def norm(x, weight, *rest):
        bias, eps = (rest[0], rest[1]) if len(rest) == 2 else (0.0, rest[0])
        deviation = x - x.mean(-1, keepdim=True) if center else x
        return weight * deviation / scale(deviation, eps) + bias

    return norm


def _scale(v: Tensor, eps: float) -> Tensor:
    return (mean_square(v) + eps).sqrt()


GAIN = "Multiply by weight once the division is done."
LAYER_NORM = Exercise(
    functions.layer_norm,
    ((X, WEIGHT, BIAS, EPS), (SMALL, WEIGHT, BIAS, EPS)),
    {
        **wrong_scales("d", "variance", by),
        "the gain γ is forgotten": Wrong(GAIN, lambda x, w, b, eps: functions.layer_norm(x, None, b, eps)),
        "the gain γ comes before the norm": Wrong(GAIN, lambda x, w, b, eps: functions.layer_norm(w * x, eps=eps) + b),
        "the bias β is forgotten": Wrong("Add bias last.", lambda x, w, b, eps: functions.layer_norm(x, w, None, eps)),
        "the bias is added before the gain": Wrong(
            "First multiply by weight, then add bias.", lambda x, w, b, eps: w * (functions.layer_norm(x, eps=eps) + b)
        ),
        "the mean is not subtracted": Wrong(
            "This is RMSNorm; subtract the mean of each vector first.",
            lambda x, w, b, eps: functions.rms_norm(x, w, b, eps),
        ),
        "the spread is that of x before the mean is subtracted": Wrong(
            "Take the mean of the squares of x − mean.",
            lambda x, w, b, eps: w * (x - x.mean(-1, keepdim=True)) / _scale(x, eps) + b,
        ),
        "only the mean is divided": Wrong(
            "Brackets are missing: (x − mean) / s.",
            lambda x, w, b, eps: w * (x - x.mean(-1, keepdim=True) / _scale(x - x.mean(-1, keepdim=True), eps)) + b,
        ),
        "the statistics run over the wrong axis": Wrong(
            "Use the last one: dim=-1.",
            lambda x, w, b, eps: w * functions.layer_norm(x.movedim(0, -1), eps=eps).movedim(-1, 0) + b,
        ),
        "the statistics are those of the whole tensor": Wrong(
            "Take them vector by vector: dim=-1.",
            lambda x, w, b, eps: w * functions.layer_norm(x.flatten(), eps=eps).reshape(x.shape) + b,
        ),
    },
)
RMS_NORM = Exercise(
    lambda x, w, eps: functions.rms_norm(x, w, eps=eps),
    ((X, WEIGHT, EPS), (SMALL, WEIGHT, EPS)),
    {
        **wrong_scales("d", "mean of squares", lambda scale: by(scale, center=False)),
        "the gain γ is forgotten": Wrong(GAIN, lambda x, w, eps: functions.rms_norm(x, eps=eps)),
        "the gain γ comes before the norm": Wrong(GAIN, lambda x, w, eps: functions.rms_norm(w * x, eps=eps)),
        "the gain is 1 + weight": Wrong(
            "Gemma's RMSNorm has that; multiply by weight itself.",
            lambda x, w, eps: functions.rms_norm(x, w, eps=eps, unit_offset=True),
        ),
        "the mean is subtracted": Wrong(
            "This is LayerNorm; RMSNorm divides x as it is.", lambda x, w, eps: functions.layer_norm(x, w, eps=eps)
        ),
        "the spread is that of x less its mean": Wrong(
            "var and std subtract the mean; use the mean of the squares of x.",
            lambda x, w, eps: w * x / _scale(x - x.mean(-1, keepdim=True), eps),
        ),
        "the statistics run over the wrong axis": Wrong(
            "Use the last one: dim=-1.",
            lambda x, w, eps: w * functions.rms_norm(x.movedim(0, -1), eps=eps).movedim(-1, 0),
        ),
        "the statistics are those of the whole tensor": Wrong(
            "Take them vector by vector: dim=-1.",
            lambda x, w, eps: w * functions.rms_norm(x.flatten(), eps=eps).reshape(x.shape),
        ),
    },
)
