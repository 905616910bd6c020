"""Self-checks for the exercises: give your function and hear which mistake it makes.

A function under test is compared with the right one and, where it differs, with a list of known wrong ones, each under
the name of its mistake.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from normgeom import norms
from normgeom.geometry import uniform

Function = Callable[..., Tensor]


@dataclass(frozen=True)
class Exercise:
    """The right function, what to try it on, and the wrong functions by the name of their mistake."""

    right: Function
    probes: tuple[tuple, ...]
    mistakes: dict[str, Function]


def layer_norm(mine: Function, device: torch.device | str | None = None) -> bool:
    """Judge ``mine(x, weight, bias, eps)``: LayerNorm over the last axis of ``x`` ``(..., d)``."""
    return _judge(mine, _LAYER_NORM, device)


def rms_norm(mine: Function, device: torch.device | str | None = None) -> bool:
    """Judge ``mine(x, weight, eps)``: RMSNorm over the last axis of ``x`` ``(..., d)``."""
    return _judge(mine, _RMS_NORM, device)


def project_out(mine: Function, device: torch.device | str | None = None) -> bool:
    """Judge ``mine(x, direction)``: ``x`` ``(..., d)`` without its component along ``direction`` ``(d,)``."""
    return _judge(mine, _PROJECT_OUT, device)


def angle(mine: Function, device: torch.device | str | None = None) -> bool:
    """Judge ``mine(x, direction)``: the angle in degrees, ``(...)``, between ``x`` and ``direction`` ``(d,)``."""
    return _judge(mine, _ANGLE, device)


def _judge(mine: Function, exercise: Exercise, device: torch.device | str | None) -> bool:
    """Print one sentence and say whether ``mine`` is right; tried on the GPU where there is one."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    probes = [[a.to(device) if isinstance(a, Tensor) else a for a in probe] for probe in exercise.probes]
    message = _message(mine, exercise, probes)
    print(message)
    return message == "Right."


def _message(mine: Function, exercise: Exercise, probes: list) -> str:
    expected = [exercise.right(*probe) for probe in probes]
    try:
        got = [mine(*(a.clone() if isinstance(a, Tensor) else a for a in probe)) for probe in probes]
    except Exception as error:  # the reader's function may fail in any way, and that is what we report
        return f"Not yet: your function raised {type(error).__name__}: {error}"
    for g, e in zip(got, expected, strict=True):
        if not isinstance(g, Tensor):
            return f"Not yet: your function returned a {type(g).__name__}; return a tensor."
        if g.shape != e.shape:
            return f"Not yet: your function returned shape {tuple(g.shape)}, expected {tuple(e.shape)}."
    if _same(got, expected):
        return "Right."
    for mistake, wrong in exercise.mistakes.items():
        if _same(got, [wrong(*probe) for probe in probes]):
            return f"Not yet: {mistake}."
    worst = max(float((g - e).abs().max()) for g, e in zip(got, expected, strict=True))
    return f"Not yet, and no mistake that this check knows: off by up to {worst:.2g} on its probes."


def _same(some: list[Tensor], others: list[Tensor]) -> bool:
    return all(torch.allclose(a, b, rtol=1e-7, atol=1e-9) for a, b in zip(some, others, strict=True))


def _draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _by(scale: Function, center: bool = True) -> Function:
    """A norm that divides by ``scale(deviation, eps)``; gain and bias in the right order."""

    def norm(x, weight, *rest):
        bias, eps = (rest[0], rest[1]) if len(rest) == 2 else (0.0, rest[0])
        deviation = x - x.mean(-1, keepdim=True) if center else x
        return weight * deviation / scale(deviation, eps) + bias

    return norm


def _mean_square(v: Tensor) -> Tensor:
    return v.square().mean(-1, keepdim=True)


_SCALES = {
    "ε stands outside the root; use sqrt(variance + eps)": lambda v, eps: _mean_square(v).sqrt() + eps,
    "ε is forgotten": lambda v, eps: _mean_square(v).sqrt(),
    "the divisor is d − 1; use d": lambda v, eps: (_mean_square(v) * v.shape[-1] / (v.shape[-1] - 1) + eps).sqrt(),
    "the root is forgotten: you divide by the variance": lambda v, eps: _mean_square(v) + eps,
    "you divide by the length; √d is missing": lambda v, eps: (v.square().sum(-1, keepdim=True) + eps).sqrt(),
    "ε is squared": lambda v, eps: (_mean_square(v) + eps**2).sqrt(),
    "the mean of |x| stands for the root of the mean of x²": lambda v, eps: v.abs().mean(-1, keepdim=True) + eps,
}
_X, _SMALL = _draw(4, 5, 6, seed=0) + 0.7, 0.01 * _draw(4, 5, 6, seed=1) - 0.02
_WEIGHT, _BIAS, _EPS = _draw(6, seed=2), _draw(6, seed=3), 1e-5

_LAYER_NORM = Exercise(
    norms.layer_norm,
    ((_X, _WEIGHT, _BIAS, _EPS), (_SMALL, _WEIGHT, _BIAS, _EPS)),
    {
        **{mistake: _by(scale) for mistake, scale in _SCALES.items()},
        "the gain γ is forgotten": lambda x, w, b, eps: norms.layer_norm(x, None, b, eps),
        "the bias β is forgotten": lambda x, w, b, eps: norms.layer_norm(x, w, None, eps),
        "the bias is added before the gain": lambda x, w, b, eps: w * (norms.layer_norm(x, eps=eps) + b),
        "the mean is not subtracted: this is RMSNorm": lambda x, w, b, eps: norms.rms_norm(x, w, b, eps),
        "the statistics run over the wrong axis; use the last": lambda x, w, b, eps: (
            w * norms.layer_norm(x.movedim(0, -1), eps=eps).movedim(-1, 0) + b
        ),
        "the statistics are those of the whole tensor; take them vector by vector": lambda x, w, b, eps: (
            w * norms.layer_norm(x.flatten(), eps=eps).reshape(x.shape) + b
        ),
    },
)
_RMS_NORM = Exercise(
    lambda x, w, eps: norms.rms_norm(x, w, eps=eps),
    ((_X, _WEIGHT, _EPS), (_SMALL, _WEIGHT, _EPS)),
    {
        **{mistake: _by(scale, center=False) for mistake, scale in _SCALES.items()},
        "the gain γ is forgotten": lambda x, w, eps: norms.rms_norm(x, eps=eps),
        "the mean is subtracted: this is LayerNorm": lambda x, w, eps: norms.layer_norm(x, w, eps=eps),
        "the gain is 1 + weight; use the weight": lambda x, w, eps: norms.rms_norm(x, w, eps=eps, unit_offset=True),
        "the statistics run over the wrong axis; use the last": lambda x, w, eps: (
            w * norms.rms_norm(x.movedim(0, -1), eps=eps).movedim(-1, 0)
        ),
    },
)
_DIRECTIONS = ((_X, _draw(6, seed=4)), (_X[0, 0], torch.ones(6, dtype=torch.float64)))
_PROJECT_OUT = Exercise(
    uniform.project_out,
    _DIRECTIONS,
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


def _cosine(x: Tensor, u: Tensor) -> Tensor:
    return x @ u / (x.norm(dim=-1) * u.norm())


_ANGLE = Exercise(
    uniform.angle,
    _DIRECTIONS,
    {
        "the angle is in radians; return degrees": lambda x, u: torch.acos(_cosine(x, u)),
        "this is the cosine; return the angle in degrees": _cosine,
        "the absolute value folds angles above 90°": lambda x, u: torch.rad2deg(torch.acos(_cosine(x, u).abs())),
        "this is the angle to the hyperplane: 90° minus the one asked for": lambda x, u: 90 - uniform.angle(x, u),
    },
)
