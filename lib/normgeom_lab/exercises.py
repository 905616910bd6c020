"""Self-checks for the exercises: pass your function and learn which mistake it makes.

``exercises.layer_norm(mine)`` compares ``mine`` in float64 with the right function and, if they differ, with known
wrong ones. It prints what it found and returns whether ``mine`` is right.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from normgeom.geometry import secular
from normgeom.geometry.uniform import angle as angle_to
from normgeom.geometry.uniform import project_out as projected
from normgeom.norms.functions import layer_norm as ln
from normgeom.norms.functions import rms_norm as rms
from normgeom.norms.heads import head_norm as of_heads
from torch import Tensor

Function = Callable[..., Tensor]
RIGHT = "Right."


@dataclass(frozen=True)
class Exercise:
    """The right function, the arguments to try it on, and wrong functions by the hint that a reader gets."""

    right: Function
    probes: tuple[tuple, ...]
    mistakes: dict[str, Function]

    def __call__(self, mine: Function) -> bool:
        """Print a verdict on ``mine`` and return whether it is right."""
        message = self._judge(mine)
        print(message)
        return message == RIGHT

    def _judge(self, mine: Function) -> str:
        given = [[a.clone() if isinstance(a, Tensor) else a for a in probe] for probe in self.probes]
        try:
            got = [mine(*arguments) for arguments in given]
        except Exception as error:  # the reader's function may fail in any way, and that is what we report
            return f"Not yet: your function raised {type(error).__name__}: {error}"
        expected = [self.right(*probe) for probe in self.probes]
        for g in got:
            if not isinstance(g, Tensor):
                return f"Not yet: your function returned a {type(g).__name__}. Return a tensor."
        before, after = ([a for line in lists for a in line if isinstance(a, Tensor)] for lists in (self.probes, given))
        if not all(map(torch.equal, before, after)):
            return "Not yet: your function changes its arguments. Make new tensors; avoid += and functions like add_."
        if same(got, expected):
            return RIGHT
        for said, wrong in self.mistakes.items():
            if same(got, [wrong(*probe) for probe in self.probes]):
                return f"Not yet: {said}"
        for g, e in zip(got, expected, strict=True):
            if (g.shape, g.dtype) != (e.shape, e.dtype):
                found, wanted = (f"shape {tuple(t.shape)} in {t.dtype}" for t in (g, e))
                return f"Not yet: your function returned {found}, expected {wanted}."
        worst = max(float((g - e).abs().max()) for g, e in zip(got, expected, strict=True))
        return f"Not yet: off by up to {worst:.2g} on the probes; this is no mistake that this check knows."


def same(some: list[Tensor], others: list[Tensor]) -> bool:
    """Whether tensors agree in shape and dtype, and in their values up to rounding in float64."""
    pairs = list(zip(some, others, strict=True))
    alike = all((a.shape, a.dtype) == (b.shape, b.dtype) for a, b in pairs)
    return alike and all(torch.allclose(a, b, rtol=1e-7, atol=1e-9, equal_nan=True) for a, b in pairs)


def _draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _mean(v: Tensor) -> Tensor:
    return v.mean(-1, keepdim=True)


def _square(v: Tensor) -> Tensor:
    return _mean(v.square())


def _s(x: Tensor, eps: float) -> Tensor:
    """What LayerNorm divides by."""
    return (x.var(-1, correction=0, keepdim=True) + eps).sqrt()


# The norms over the last axis

X, SMALL = _draw(4, 5, 6, seed=0) + 0.7, 0.01 * _draw(4, 5, 6, seed=1) - 0.02
WEIGHT, BIAS, EPS = _draw(6, seed=2), _draw(6, seed=3), 1e-5
_NO_GAIN = "the gain γ is forgotten. Multiply by weight after the division."


def _wrong_scales(n: str, square: str, dividing_by: Callable[[Function], Function]) -> dict[str, Function]:
    """Norms that divide by something other than √(``square`` + ε), where ``square`` is a mean over ``n`` numbers."""
    return {
        f"ε stands outside the root. Use sqrt({square} + eps).": dividing_by(lambda v, eps: _square(v).sqrt() + eps),
        f"ε is forgotten. Use sqrt({square} + eps).": dividing_by(lambda v, eps: _square(v).sqrt()),
        f"the divisor is {n} − 1. Divide by {n}; in torch's var and std that is correction=0.": dividing_by(
            lambda v, eps: (_square(v) * v.shape[-1] / (v.shape[-1] - 1) + eps).sqrt()
        ),
        f"√{n} is missing. Divide by the root of the mean of {n} squares, not of their sum.": dividing_by(
            lambda v, eps: (v.square().sum(-1, keepdim=True) + eps).sqrt()
        ),
    }


def _by(scale: Function, center: bool = True) -> Function:
    """A norm that divides by ``scale(deviation, eps)``."""

    def norm(x, weight, bias, eps):
        deviation = x - _mean(x) if center else x
        return weight * deviation / scale(deviation, eps) + bias

    return norm


layer_norm = Exercise(  # mine(x, weight, bias, eps): over the last axis of x (..., d)
    ln,
    ((X, WEIGHT, BIAS, EPS), (SMALL, WEIGHT, BIAS, EPS)),
    {
        **_wrong_scales("d", "variance", _by),
        _NO_GAIN: lambda x, w, b, eps: ln(x, None, b, eps),
        "the bias is added before the gain. First multiply by weight, then add bias.": (
            lambda x, w, b, eps: w * (ln(x, eps=eps) + b)
        ),
        "the mean is not subtracted. This is RMSNorm; subtract the mean of each vector first.": rms,
        "the statistics are taken over the wrong axis. Use the last one: dim=-1.": (
            lambda x, w, b, eps: w * ln(x.movedim(0, -1), eps=eps).movedim(-1, 0) + b
        ),
    },
)
rms_norm = Exercise(  # mine(x, weight, eps): over the last axis of x (..., d)
    lambda x, w, eps: rms(x, w, eps=eps),
    ((X, WEIGHT, EPS), (SMALL, WEIGHT, EPS)),
    {
        **_wrong_scales("d", "mean of squares", lambda scale: lambda x, w, eps: _by(scale, False)(x, w, 0, eps)),
        _NO_GAIN: lambda x, w, eps: rms(x, eps=eps),
        "the gain is 1 + weight. Gemma's RMSNorm has that; multiply by weight itself.": (
            lambda x, w, eps: rms(x, w, eps=eps, unit_offset=True)
        ),
        "the mean is subtracted. This is LayerNorm; RMSNorm divides x as it is.": lambda x, w, eps: ln(x, w, eps=eps),
        "you divide by the spread around the mean. var and std subtract it; use the mean of the squares of x.": (
            lambda x, w, eps: w * x / _s(x, eps)
        ),
    },
)


# Batch norm

# As many positions as features, so that a gain along the wrong axis gives wrong numbers and no error.
_BATCH, _SMALL_SERIES = _draw(5, 6, seed=5) + 0.7, 0.01 * _draw(4, 6, 6, seed=6) - 0.02
_AXES = "Take them over axis 0 and, where there is one, axis 2."


def _rows(norm: Function) -> Function:
    """Apply ``norm`` to one row per feature: axis 1 comes first, and all other axes are flattened."""

    def batch_norm(x, weight, bias, eps):
        features = x.movedim(1, 0)
        normed = norm(features.flatten(1), weight[:, None], bias[:, None], eps)
        return normed.reshape(features.shape).movedim(0, 1)

    return batch_norm


def _by_position(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    along = (-1, *(1,) * (x.dim() - 2))
    normed = F.batch_norm(x.flatten(1), None, None, training=True, eps=eps).reshape(x.shape)
    return weight.reshape(along) * normed + bias.reshape(along)


batch_norm = Exercise(  # mine(x, weight, bias, eps): in training, by statistics of the batch; x is (N, C) or (N, C, T)
    lambda x, w, b, eps: F.batch_norm(x, None, None, w, b, training=True, eps=eps),
    ((_BATCH, WEIGHT, BIAS, EPS), (_SMALL_SERIES, WEIGHT, BIAS, EPS)),
    {
        **_wrong_scales("B", "variance", lambda scale: _rows(_by(scale))),
        "gain and bias run along the last axis. The features are axis 1: reshape weight and bias to (C, 1).": (
            lambda x, w, b, eps: w * F.batch_norm(x, None, None, training=True, eps=eps) + b
        ),
        f"the statistics are taken over the features. This is layer norm. {_AXES}": (
            lambda x, w, b, eps: ln(x.movedim(1, -1), w, b, eps).movedim(-1, 1)
        ),
        f"the positions are not averaged over. A feature has one mean for all of them. {_AXES}": _by_position,
        "this is inference with mean 0 and variance 1. In training the statistics are those of the batch.": (
            lambda x, w, b, eps: F.batch_norm(x, torch.zeros_like(w), torch.ones_like(w), w, b, eps=eps)
        ),
    },
)


# Directions: removing one, and measuring an angle and an occupancy

_LONG = (X, _draw(6, seed=4))
_ONES = (X[0], torch.ones(6, dtype=torch.float64))
# So short that their products are below 1: acos of an undivided product is then a number, not NaN.
_SHORT = (0.2 * X, 0.3 * _draw(6, seed=10))


def _cosine(x: Tensor, u: Tensor) -> Tensor:
    return x @ u / (x.norm(dim=-1) * u.norm())


def _degrees(cosine: Tensor) -> Tensor:
    return torch.rad2deg(torch.acos(cosine))


def _occupancy(h: Tensor, u: Tensor) -> Tensor:
    return len(u) * _cosine(h, u).square().mean()


project_out = Exercise(  # mine(x, direction): x (..., d) without its component along direction (d,)
    projected,
    (_LONG, (X[0, 0], _ONES[1])),
    {
        "the direction is not normalised. Divide by its squared length: x − (x·u / u·u) u.": (
            lambda x, u: x - (x @ u)[..., None] * u
        ),
        "this is the component along the direction. Return x without it.": lambda x, u: x - projected(x, u),
        "the component is added. Subtract it.": lambda x, u: 2 * x - projected(x, u),
        "the mean of the entries is subtracted. That is the component along (1, …, 1), not along the direction.": (
            lambda x, u: x - _mean(x)
        ),
    },
)
angle = Exercise(  # mine(x, direction): the angle in degrees, (...), between x (..., d) and direction (d,)
    angle_to,
    (_LONG, _SHORT, (X[0, 0], _draw(6, seed=11))),
    {
        "the angle is in radians. Return degrees: torch.rad2deg.": lambda x, u: torch.acos(_cosine(x, u)),
        "the absolute value folds angles above 90°. Keep the sign of x·u.": lambda x, u: _degrees(_cosine(x, u).abs()),
        "this is the angle to the hyperplane. The angle to the direction is 90° minus this one: use acos, not asin.": (
            lambda x, u: 90 - angle_to(x, u)
        ),
        "you do not divide by any length. A cosine is x·u divided by both lengths.": lambda x, u: _degrees(x @ u),
    },
)
occupancy = Exercise(  # mine(h, direction): the occupancy (eq-occupancy) of direction (d,) in h (..., d)
    _occupancy,
    (_LONG, _ONES, _SHORT),
    {
        "d is missing. Multiply by d, so that chance gives 1.": lambda h, u: _occupancy(h, u) / len(u),
        "the mean comes before the square. Square the cosine of each vector, then take the mean.": (
            lambda h, u: len(u) * _cosine(h, u).mean() ** 2
        ),
        "long vectors count more than short ones. Each vector must count equally, whatever its length: "
        "divide its product by its own length.": (
            lambda h, u: len(u) * (h @ u).square().mean() / (h.square().sum(-1).mean() * (u @ u))
        ),
        "there is one number for each vector. Take the mean over all.": lambda h, u: len(u) * _cosine(h, u).square(),
    },
)


# LayerNorm's derivative

_ROWS, _SMALL_ROWS = _draw(4, 6, seed=7) + 0.7, 0.01 * _draw(4, 6, seed=8) - 0.02
_GRAD = _draw(4, 6, seed=9)


def _jacobian(norm: Function) -> Function:
    return lambda x, weight, eps: torch.func.jacrev(lambda v: norm(v, weight, None, eps))(x)


def _vjp(norm: Function) -> Function:
    return lambda x, weight, grad, eps: torch.func.vjp(lambda v: norm(v, weight, None, eps), x)[1](grad)[0]


layer_norm_jacobian = Exercise(  # mine(x, weight, eps): the matrix (d, d) of ∂yᵢ/∂xⱼ at one vector x (d,)
    _jacobian(ln),
    ((_ROWS[0], WEIGHT, EPS), (_SMALL_ROWS[0], WEIGHT, EPS)),
    {
        "ε is forgotten. Put it into s, under the root.": lambda x, w, eps: _jacobian(ln)(x, w, 0.0),
        "ε is in 1/s but missing in n. n is (x − mean)/s, whose length is below √d; do not make it a unit vector.": (
            lambda x, w, eps: _jacobian(ln)(x, w, 0.0) * _s(x, 0.0) / _s(x, eps)
        ),
        "this is RMSNorm's Jacobian. Subtract the mean, in n and in the projector.": _jacobian(rms),
        "the term nnᵀ/d is forgotten. s depends on x too: subtract nnᵀ/d.": (
            lambda x, w, eps: w[:, None] * (torch.eye(len(x), dtype=x.dtype) - 1 / len(x)) / _s(x, eps)
        ),
        "γ multiplies the columns. This is the transpose; multiply row i by γᵢ: weight[:, None].": (
            lambda x, w, eps: _jacobian(ln)(x, w, eps).T
        ),
    },
)
layer_norm_vjp = Exercise(  # mine(x, weight, grad, eps): the gradient to x (..., d) from grad at the output
    _vjp(ln),
    ((_ROWS, WEIGHT, _GRAD, EPS), (_SMALL_ROWS, WEIGHT, _GRAD, EPS), (_ROWS[0], WEIGHT, _GRAD[0], EPS)),
    {
        "ε is forgotten. Put it into s, under the root.": lambda x, w, g, eps: _vjp(ln)(x, w, g, 0.0),
        "the mean of γ⊙g is not subtracted. The mean of x depends on x too: subtract the mean of γ⊙g.": (
            lambda x, w, g, eps: _vjp(ln)(x, w, g, eps) + _mean(w * g) / _s(x, eps)
        ),
        "this is RMSNorm's product. Subtract the mean from x and from γ⊙g.": _vjp(rms),
        "the part along n is not subtracted. s depends on x too: subtract n times the mean of n⊙γ⊙g.": (
            lambda x, w, g, eps: (w * g - _mean(w * g)) / _s(x, eps)
        ),
        "γ comes last. This is the product with J; with the transpose γ comes first: work with γ⊙g.": (
            lambda x, w, g, eps: w * _vjp(ln)(x, torch.ones_like(w), g, eps)
        ),
    },
)


# LayerNorm's input from its output

# Deviations on both sides of √ε, so that some n are long and some short; with a zero gain and without.
_LARGE_EPS, _SMALL_BIAS = 0.05, 0.1 * _draw(6, seed=31)
_FULL = _draw(6, seed=32)
_WITH_ZERO = _FULL.where(torch.arange(6) != 2, 0.0)
_SPREADS = _draw(4, 5, 6, seed=33) * torch.tensor([0.05, 0.2, 0.4, 0.8, 1.6], dtype=torch.float64)[:, None] + 0.5
_SUM = "The entries of n add up to 0: this one is minus the sum of the others."


def _deviation(n: Tensor, eps: float) -> Tensor:
    """The deviation from the mean that the norm turns into ``n``."""
    return n * (eps / (1 - _square(n))).sqrt()


def _recovered(formula: Function) -> Function:
    """An answer by ``formula(n, eps)`` for the right n, in which a missing entry is minus the sum of the others."""

    def answer(y, weight, bias, eps):
        others = ((y - bias) / weight).where(weight != 0, 0.0)
        return formula(others.where(weight != 0, -others.sum(-1, keepdim=True)), eps)

    return answer


recover = Exercise(  # mine(y, weight, bias, eps): x (..., d) minus its mean, from LayerNorm's y; one gain may be 0
    _recovered(_deviation),
    tuple(
        (ln(x, gain, _SMALL_BIAS, _LARGE_EPS), gain, _SMALL_BIAS, _LARGE_EPS)
        for x, gain in ((_SPREADS, _WITH_ZERO), (_SPREADS[0], _FULL), (_SPREADS[0, 1], _WITH_ZERO))
    ),
    {
        f"the entry with the zero gain is set to 0. {_SUM}": (
            lambda y, w, b, eps: _deviation(((y - b) / w).where(w != 0, 0.0), eps)
        ),
        f"you divide by the zero gain. 0/0 is NaN. {_SUM}": lambda y, w, b, eps: _deviation((y - b) / w, eps),
        "the bias β is not subtracted. LayerNorm adds β last, so subtract it first.": (
            lambda y, w, b, eps: _recovered(_deviation)(y, w, 0, eps)
        ),
        "σ is used instead of s. s² is ε/(1 − m), with m the mean of n², and x minus its mean is s·n.": (
            _recovered(lambda n, eps: n * (eps / (1 - _square(n)) - eps).sqrt())
        ),
    },
)


# The secular equation between neighbouring squares of gains

bisection = Exercise(  # mine(gain): the (d - 1,) eigenvalues of GΠG between the squares of gain (d,), ascending
    lambda gain: secular.eigvalsh(gain)[1:],
    ((_draw(6, seed=41).abs(),), (3 * _draw(9, seed=42).abs(),)),
    {
        "the gains are not squared. The poles are their squares.": lambda gain: secular.eigvalsh(gain.sqrt())[1:],
        "the eigenvalues descend. Return them in ascending order.": lambda gain: secular.eigvalsh(gain)[1:].flip(0),
        "0 is among the eigenvalues. There are d − 1 eigenvalues between the d squared gains; 0 lies below them all.": (
            secular.eigvalsh
        ),
        "these are the singular values of GΠ. Return the λ themselves, eigenvalues of GΠG.": (
            lambda gain: secular.eigvalsh(gain)[1:].sqrt()
        ),
    },
)


# Norms of heads, and a step on the sphere

_HEADS, _SMALL_HEADS = _draw(2, 4, 12, seed=20) + 0.5, 0.05 * _draw(2, 4, 12, seed=21)
_OF_HEADS = (3, _draw(4, seed=22), 1e-3)  # their number, a gain and ε


def _unit(x: Tensor) -> Tensor:
    return rms(x, eps=0.0)


head_norm = Exercise(  # mine(x, heads, weight, eps): RMSNorm of each of the heads in x (..., d), with one gain
    lambda x, h, w, eps: of_heads(x, h, w, eps=eps),
    ((_HEADS, *_OF_HEADS), (_SMALL_HEADS, *_OF_HEADS)),
    {
        "one norm spans all heads. OLMo 2 has that; take each head by itself.": (
            lambda x, h, w, eps: rms(x, w.repeat(h), eps=eps)
        ),
        "your heads are every H-th entry. A head consists of d/H consecutive entries.": (
            lambda x, h, w, eps: rms(x.unflatten(-1, (-1, h)).mT, w, eps=eps).mT.flatten(-2)
        ),
        "the mean of each head is subtracted. This is LayerNorm; divide the head as it is.": (
            lambda x, h, w, eps: ln(x.unflatten(-1, (h, -1)), w, eps=eps).flatten(-2)
        ),
        "ε is forgotten. Use sqrt(mean of squares + eps).": lambda x, h, w, eps: of_heads(x, h, w, eps=0.0),
    },
)
sphere_step = Exercise(  # mine(x, h, a): nGPT's step from x (..., d), of length √d, towards h; a is (d,)
    lambda x, h, a: _unit(x + a * (_unit(h) - x)),
    ((_unit(_draw(5, 6, seed=23)), 3 * _draw(5, 6, seed=24), torch.linspace(0.05, 0.6, 6, dtype=torch.float64)),),
    {
        "x is not subtracted. The step leads from x towards h: a times h − x.": lambda x, h, a: _unit(x + a * _unit(h)),
        "the branch's output is not normalised. Bring h to the sphere before you subtract x.": (
            lambda x, h, a: _unit(x + a * (h - x))
        ),
        "the result is not brought back to the sphere. Normalise it once more.": lambda x, h, a: x + a * (_unit(h) - x),
        "your vectors have length 1. Here they have length √d: divide by the root mean square.": (
            lambda x, h, a: _unit(x + a * (_unit(h) - x)) / x.shape[-1] ** 0.5
        ),
    },
)
