"""Self-checks for the exercises: give your function and hear which mistake it makes.

``exercises.layer_norm(mine)`` compares ``mine`` with the right function and, where it differs, with known wrong ones,
each under the name of its mistake.  It prints what it found and returns whether ``mine`` is right.  Everything is tried
in float64, on the GPU where there is one; ``device`` asks for another place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from normgeom.geometry import secular
from normgeom.geometry.uniform import angle as angle_to
from normgeom.geometry.uniform import project_out as projected
from normgeom.norms.functions import layer_norm as ln
from normgeom.norms.functions import rms_norm as rms
from normgeom.norms.heads import head_norm as of_heads
from torch import Tensor

Function = Callable[..., Tensor]
RIGHT = "Right."
SINGLE = 1e-5  # relative: what computing in float32 may leave of a right result


@dataclass(frozen=True)
class Exercise:
    """A self-check: what it asks for, the right function, what to try it on, and mistakes with advice and function."""

    asks: str
    right: Function
    probes: tuple[tuple, ...]
    mistakes: dict[str, tuple[str, Function]]

    def __call__(self, mine: Function, device: torch.device | str | None = None) -> bool:
        """Print what is to be said of ``mine`` and return whether it is right."""
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        probes = [[a.to(device) if isinstance(a, Tensor) else a for a in probe] for probe in self.probes]
        given = [[a.clone() if isinstance(a, Tensor) else a for a in probe] for probe in probes]
        try:
            got = [mine(*arguments) for arguments in given]
        except Exception as error:  # the reader's function may fail in any way, and that is what we report
            message = f"Not yet: your function raised {type(error).__name__}: {error}"
        else:
            message = next(self._messages(got, given, probes))
        print(message)
        return message == RIGHT

    def _messages(self, got: list, given: list, probes: list) -> Iterator[str]:
        """All that could be said, the most telling first."""
        expected = [self.right(*probe) for probe in probes]
        for g in got:
            if not isinstance(g, Tensor):
                yield f"Not yet: your function returned a {type(g).__name__}. Return a tensor."
        before, after = ([a for line in lists for a in line if isinstance(a, Tensor)] for lists in (probes, given))
        if not all(map(torch.equal, before, after)):
            yield "Not yet: your function changes what it is given. Make new tensors, without += and functions in …_."
        if same(got, expected):
            yield RIGHT
        for mistake, (advice, wrong) in self.mistakes.items():
            if same(got, [wrong(*probe) for probe in probes]):
                yield f"Not yet: {mistake}. {advice}"
        for g, e in zip(got, expected, strict=True):
            if g.shape != e.shape:
                yield f"Not yet: your function returned shape {tuple(g.shape)}, expected {tuple(e.shape)}."
            if _kind(g) != _kind(e):
                yield f"Not yet: your function returned {g.dtype} on {g.device}, expected {e.dtype} on {e.device}."
        worst = max(float((g - e).abs().max()) for g, e in zip(got, expected, strict=True))
        if same(got, expected, rtol=SINGLE, atol=SINGLE):
            yield f"Not yet, but off by {worst:.2g} alone. Is a part of it computed in float32?"
        yield f"Not yet, and no mistake that this check knows: off by up to {worst:.2g} on its probes."


def same(some: list[Tensor], others: list[Tensor], rtol: float = 1e-7, atol: float = 1e-9) -> bool:
    """Whether two lists of tensors have the same kinds and shapes, and agree but for rounding in float64."""
    pairs = list(zip(some, others, strict=True))
    alike = all(_kind(a) == _kind(b) for a, b in pairs)
    return alike and all(torch.allclose(a, b, rtol=rtol, atol=atol, equal_nan=True) for a, b in pairs)


def _kind(a: Tensor) -> tuple:
    return a.shape, a.dtype, a.device


def _draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _mean(v: Tensor) -> Tensor:
    return v.mean(-1, keepdim=True)


def _square(v: Tensor) -> Tensor:
    return _mean(v.square())


# The norms over the last axis

X, SMALL = _draw(4, 5, 6, seed=0) + 0.7, 0.01 * _draw(4, 5, 6, seed=1) - 0.02
WEIGHT, BIAS, EPS = _draw(6, seed=2), _draw(6, seed=3), 1e-5
GAIN, LAST = "Multiply by weight once the division is done.", "Use the last one: dim=-1."


def _wrong_scales(count: str, square: str, of: Function) -> dict[str, tuple[str, Function]]:
    """``of(scale)``, a norm, for what one may wrongly divide by in place of √(``square`` + ε) of ``count`` numbers."""
    under = f"Use sqrt({square} + eps)."
    return {
        "ε stands outside the root": (under, of(lambda v, eps: _square(v).sqrt() + eps)),
        "ε is forgotten": (under, of(lambda v, eps: _square(v).sqrt())),
        f"the divisor is {count} − 1": (
            f"Divide by {count}; in torch's var and std that is correction=0.",
            of(lambda v, eps: (_square(v) * v.shape[-1] / (v.shape[-1] - 1) + eps).sqrt()),
        ),
        "the root is forgotten": (f"You divide by the {square}. {under}", of(lambda v, eps: _square(v) + eps)),
        f"√{count} is missing": (
            f"You divide by the length of {count} numbers; use the mean of their squares, not the sum.",
            of(lambda v, eps: (v.square().sum(-1, keepdim=True) + eps).sqrt()),
        ),
    }


def _by(scale: Function, center: bool = True) -> Function:
    """A norm that divides by ``scale(deviation, eps)``; gain and bias in the right order."""

    def norm(x, weight, *rest):
        bias, eps = (rest[0], rest[1]) if len(rest) == 2 else (0.0, rest[0])
        deviation = x - _mean(x) if center else x
        return weight * deviation / scale(deviation, eps) + bias

    return norm


def _scale(v: Tensor, eps: float) -> Tensor:
    return (_square(v) + eps).sqrt()


layer_norm = Exercise(
    "mine(x, weight, bias, eps): LayerNorm over the last axis of x (..., d).",
    ln,
    ((X, WEIGHT, BIAS, EPS), (SMALL, WEIGHT, BIAS, EPS)),
    {
        **_wrong_scales("d", "variance", _by),
        "the gain γ is forgotten": (GAIN, lambda x, w, b, eps: ln(x, None, b, eps)),
        "the gain γ comes before the norm": (GAIN, lambda x, w, b, eps: ln(w * x, eps=eps) + b),
        "the bias is added before the gain": (
            "First multiply by weight, then add bias.",
            lambda x, w, b, eps: w * (ln(x, eps=eps) + b),
        ),
        "the mean is not subtracted": (
            "This is RMSNorm; subtract the mean of each vector first.",
            lambda x, w, b, eps: rms(x, w, b, eps),
        ),
        "only the mean is divided": (
            "Brackets are missing: (x − mean) / s.",
            lambda x, w, b, eps: w * (x - _mean(x) / _scale(x - _mean(x), eps)) + b,
        ),
        "the statistics run over the wrong axis": (
            LAST,
            lambda x, w, b, eps: w * ln(x.movedim(0, -1), eps=eps).movedim(-1, 0) + b,
        ),
    },
)
rms_norm = Exercise(
    "mine(x, weight, eps): RMSNorm over the last axis of x (..., d).",
    lambda x, w, eps: rms(x, w, eps=eps),
    ((X, WEIGHT, EPS), (SMALL, WEIGHT, EPS)),
    {
        **_wrong_scales("d", "mean of squares", lambda scale: _by(scale, center=False)),
        "the gain γ is forgotten": (GAIN, lambda x, w, eps: rms(x, eps=eps)),
        "the gain is 1 + weight": (
            "Gemma's RMSNorm has that; multiply by weight itself.",
            lambda x, w, eps: rms(x, w, eps=eps, unit_offset=True),
        ),
        "the mean is subtracted": (
            "This is LayerNorm; RMSNorm divides x as it is.",
            lambda x, w, eps: ln(x, w, eps=eps),
        ),
        "the spread is that of x less its mean": (
            "var and std subtract the mean; use the mean of the squares of x.",
            lambda x, w, eps: w * x / _scale(x - _mean(x), eps),
        ),
        "the statistics run over the wrong axis": (
            LAST,
            lambda x, w, eps: w * rms(x.movedim(0, -1), eps=eps).movedim(-1, 0),
        ),
    },
)


# Batch norm

# As many positions as features, so that a gain along the wrong axis is a wrong number and no error.
_BATCH, _SMALL_SERIES = _draw(5, 6, seed=5) + 0.7, 0.01 * _draw(4, 6, 6, seed=6) - 0.02
_AXES = "Take them over axis 0 and, where there is one, axis 2."


def _rows(norm: Function) -> Function:
    """``norm`` of rows, one a feature: axis 1 first, all other axes as one."""

    def batch_norm(x, weight, bias, eps):
        features = x.movedim(1, 0)
        normed = norm(features.flatten(1), weight[:, None], bias[:, None], eps)
        return normed.reshape(features.shape).movedim(0, 1)

    return batch_norm


def _affine(n: Tensor, weight: Tensor, bias: Tensor | float) -> Tensor:
    return (weight * n.movedim(1, -1) + bias).movedim(-1, 1)


def _over(*axes: int) -> Function:
    """Statistics over ``axes``, each as far as ``x`` has it; gain and bias along axis 1."""

    def norm(x, weight, bias, eps):
        kept = [axis for axis in axes if axis < x.dim()]
        deviation = x - x.mean(kept, keepdim=True)
        return _affine(deviation / (deviation.square().mean(kept, keepdim=True) + eps).sqrt(), weight, bias)

    return norm


batch_norm = Exercise(
    "mine(x, weight, bias, eps): batch norm in training, with statistics of the batch alone; x is (N, C) or (N, C, T).",
    _over(0, 2),
    ((_BATCH, WEIGHT, BIAS, EPS), (_SMALL_SERIES, WEIGHT, BIAS, EPS)),
    {
        **_wrong_scales("B", "variance", lambda scale: _rows(_by(scale))),
        "gain and bias run along the last axis": (
            "The features are axis 1: reshape weight and bias to (C, 1) where there are positions.",
            lambda x, w, b, eps: w * _over(0, 2)(x, torch.ones_like(w), torch.zeros_like(b), eps) + b,
        ),
        "the statistics run over the features": (f"This is layer norm. {_AXES}", _over(1)),
        "the statistics run over all axes but the first": (f"This is group norm with one group. {_AXES}", _over(1, 2)),
        "the statistics are those of the whole tensor": (f"Each feature has its own. {_AXES}", _over(0, 1, 2)),
        "the positions are not averaged over": (f"A feature has one mean for all of them. {_AXES}", _over(0)),
        "this is inference with untrained averages, mean 0 and variance 1": (
            "In training the statistics are those of the batch.",
            lambda x, w, b, eps: _affine(x / (1 + eps) ** 0.5, w, b),
        ),
    },
)


# Directions: removing one, and measuring an angle and an occupancy

_LONG = (X, _draw(6, seed=4))
_ONES = (X[0], torch.ones(6, dtype=torch.float64))
# So short that a product of them is below 1: an arc cosine of what is no cosine is then a number.
_SHORT = (0.2 * X, 0.3 * _draw(6, seed=10))
_EACH = "Each vector counts alike, whatever its length: divide its product by its own length."
_ORDER = "Square the cosine of each vector, then take the mean."


def _cosine(x: Tensor, u: Tensor) -> Tensor:
    return x @ u / (x.norm(dim=-1) * u.norm())


def _degrees(cosine: Tensor) -> Tensor:
    return torch.rad2deg(torch.acos(cosine))


def _occupancy(h: Tensor, u: Tensor) -> Tensor:
    return len(u) * _cosine(h, u).square().mean()


project_out = Exercise(
    "mine(x, direction): x (..., d) without its component along direction (d,).",
    projected,
    (_LONG, (X[0, 0], _ONES[1])),
    {
        "the direction is not made a unit vector": (
            "Divide by its squared length: x − (x·u / u·u) u.",
            lambda x, u: x - (x @ u)[..., None] * u,
        ),
        "you divide by the length of the direction only once": (
            "It comes in twice, through x·u and through u: divide by its square.",
            lambda x, u: x - (x @ u)[..., None] * u / u.norm(),
        ),
        "this is the component along the direction": (
            "Return what is left of x without it.",
            lambda x, u: x - projected(x, u),
        ),
        "the component is added": ("Subtract it.", lambda x, u: 2 * x - projected(x, u)),
        "the component is subtracted twice": (
            "That mirrors x at the hyperplane; subtract it once.",
            lambda x, u: 2 * projected(x, u) - x,
        ),
        "the mean of the entries is subtracted": (
            "That is the component along (1, …, 1); use the direction that is given.",
            lambda x, u: x - _mean(x),
        ),
    },
)
angle = Exercise(
    "mine(x, direction): the angle in degrees, (...), between x (..., d) and direction (d,).",
    angle_to,
    (_LONG, _SHORT, (X[0, 0], _draw(6, seed=11))),
    {
        "the angle is in radians": ("Return degrees: torch.rad2deg.", lambda x, u: torch.acos(_cosine(x, u))),
        "degrees are converted the wrong way round": (
            "An arc cosine is in radians: multiply by 180/π.",
            lambda x, u: torch.deg2rad(torch.acos(_cosine(x, u))),
        ),
        "this is the cosine": ("Return the angle in degrees.", _cosine),
        "the absolute value folds angles above 90°": (
            "Keep the sign of x·u.",
            lambda x, u: _degrees(_cosine(x, u).abs()),
        ),
        "this is the angle to the hyperplane": (
            "The one to the direction is 90° minus it: acos, not asin.",
            lambda x, u: 90 - angle_to(x, u),
        ),
        "you do not divide by any length": ("A cosine is x·u over both lengths.", lambda x, u: _degrees(x @ u)),
        "the last axis is kept": (
            "Return one number for each vector, without keepdim.",
            lambda x, u: angle_to(x, u)[..., None],
        ),
    },
)
occupancy = Exercise(
    "mine(h, direction): the occupancy (eq-occupancy) of direction (d,) in h (..., d).",
    _occupancy,
    (_LONG, _ONES, _SHORT),
    {
        "d is missing": ("Multiply by d, so that chance gives 1.", lambda h, u: _occupancy(h, u) / len(u)),
        "the cosine is not squared": (_ORDER, lambda h, u: len(u) * _cosine(h, u).mean()),
        "the mean comes before the square": (_ORDER, lambda h, u: len(u) * _cosine(h, u).mean() ** 2),
        "long vectors count more than short ones": (
            _EACH,
            lambda h, u: len(u) * (h @ u).square().mean() / (h.square().sum(-1).mean() * (u @ u)),
        ),
        "you do not divide by the lengths of the vectors": (
            _EACH,
            lambda h, u: len(u) * (h @ u).square().mean() / (u @ u),
        ),
        "there is one number for each vector": (
            "Take the mean over all of them.",
            lambda h, u: len(u) * _cosine(h, u).square(),
        ),
    },
)


# LayerNorm's derivative

_ROWS, _SMALL_ROWS = _draw(4, 6, seed=7) + 0.7, 0.01 * _draw(4, 6, seed=8) - 0.02
_GRAD = _draw(4, 6, seed=9)
_DEPENDS = "s depends on x too: subtract nnᵀ/d."
_FIRST = "With the transpose γ comes first: work with γ⊙g."
_IN_N = "n is (x − mean)/s, whose length is below √d; do not make it a unit vector."


def _normalized(x: Tensor, eps: float, center: bool = True) -> tuple[Tensor, Tensor]:
    """What the derivative is made of: n and s."""
    deviation = x - _mean(x) if center else x
    return deviation / _scale(deviation, eps), _scale(deviation, eps)


def _jacobian(formula: Function, center: bool = True) -> Function:
    """A matrix by ``formula`` from γ as a column, I, Π, nnᵀ/d and s."""

    def jacobian(x, weight, eps):
        n, s = _normalized(x, eps, center)
        identity = torch.eye(len(x), dtype=x.dtype, device=x.device)
        return formula(weight[:, None], identity, identity - 1 / len(x), torch.outer(n, n) / len(x), s)

    return jacobian


def _vjp(formula: Function, center: bool = True) -> Function:
    """A product by ``formula`` from the gradient g, γ⊙g, n and s."""
    return lambda x, weight, grad, eps: formula(grad, weight * grad, *_normalized(x, eps, center))


_right_jacobian = _jacobian(lambda gain, one, pi, nn, s: gain * (pi - nn) / s)
_right_vjp = _vjp(lambda g, h, n, s: (h - _mean(h) - n * _mean(n * h)) / s)
layer_norm_jacobian = Exercise(
    "mine(x, weight, eps): the matrix (d, d) of ∂yᵢ/∂xⱼ of LayerNorm at one vector x (d,).",
    _right_jacobian,
    ((_ROWS[0], WEIGHT, EPS), (_SMALL_ROWS[0], WEIGHT, EPS)),
    {
        "ε is forgotten": ("Put it into s, under the root.", lambda x, w, eps: _right_jacobian(x, w, 0.0)),
        "ε is in 1/s but missing in n": (
            _IN_N,
            _jacobian(lambda gain, one, pi, nn, s: gain * (pi - nn / nn.trace()) / s),
        ),
        "I stands for the projector Π": (
            "The mean depends on x too: take 1/d from each entry of I.",
            _jacobian(lambda gain, one, pi, nn, s: gain * (one - nn) / s),
        ),
        "this is RMSNorm's Jacobian": (
            "Subtract the mean, in n and in the projector.",
            _jacobian(lambda gain, one, pi, nn, s: gain * (one - nn) / s, center=False),
        ),
        "the term nnᵀ/d is forgotten": (_DEPENDS, _jacobian(lambda gain, one, pi, nn, s: gain * pi / s)),
        "γ multiplies the columns": (
            "This is the transpose; multiply row i by γᵢ: weight[:, None].",
            _jacobian(lambda gain, one, pi, nn, s: (pi - nn) * gain.T / s),
        ),
    },
)
layer_norm_vjp = Exercise(
    "mine(x, weight, grad, eps): LayerNorm's gradient to x (..., d) from grad at its output.",
    _right_vjp,
    ((_ROWS, WEIGHT, _GRAD, EPS), (_SMALL_ROWS, WEIGHT, _GRAD, EPS), (_ROWS[0], WEIGHT, _GRAD[0], EPS)),
    {
        "ε is forgotten": ("Put it into s, under the root.", lambda x, w, g, eps: _right_vjp(x, w, g, 0.0)),
        "ε is in 1/s but missing in n": (
            _IN_N,
            _vjp(lambda g, h, n, s: (h - _mean(h) - n * _mean(n * h) / _square(n)) / s),
        ),
        "the mean of γ⊙g is not subtracted": (
            "The mean of x depends on x too: subtract it.",
            _vjp(lambda g, h, n, s: (h - n * _mean(n * h)) / s),
        ),
        "this is RMSNorm's product": (
            "Subtract the mean, of x and of γ⊙g.",
            _vjp(lambda g, h, n, s: (h - n * _mean(n * h)) / s, center=False),
        ),
        "the part along n is not subtracted": (
            "s depends on x too: subtract n times the mean of n⊙γ⊙g.",
            _vjp(lambda g, h, n, s: (h - _mean(h)) / s),
        ),
        "the gain γ is forgotten": (_FIRST, _vjp(lambda g, h, n, s: (g - _mean(g) - n * _mean(n * g)) / s)),
        "γ comes last": (
            f"This is the product with J. {_FIRST}",
            lambda x, w, g, eps: w * _right_vjp(x, torch.ones_like(w), g, eps),
        ),
    },
)


# LayerNorm's input from its output

# Deviations on both sides of √ε, so that n is long and short; a zero gain, and none.
_LARGE_EPS, _SMALL_BIAS = 0.05, 0.1 * _draw(6, seed=31)
_FULL = _draw(6, seed=32)
_WITH_ZERO = _FULL.where(torch.arange(6) != 2, 0.0)
_SPREADS = _draw(4, 5, 6, seed=33) * torch.tensor([0.05, 0.2, 0.4, 0.8, 1.6], dtype=torch.float64)[:, None] + 0.5
_SUM = "The entries of n add up to 0: this one is minus the sum of the others."
_S = "s² is ε/(1 − m), with m the mean of n², and x less its mean is s·n."


def _filled(n: Tensor, weight: Tensor, share: float = -1.0) -> Tensor:
    """``n`` with ``share`` times the sum of the others at a zero gain."""
    others = n.where(weight != 0, 0.0)
    return others.where(weight != 0, share * others.sum(-1, keepdim=True))


def _deviation(n: Tensor, eps: float) -> Tensor:
    """The deviation of which ``n`` is what the norm makes."""
    return n * (eps / (1 - _square(n))).sqrt()


def _recovered(formula: Function) -> Function:
    """An answer by ``formula`` from the right n and ε."""
    return lambda y, weight, bias, eps: formula(_filled((y - bias) / weight, weight), eps)


recover = Exercise(
    "mine(y, weight, bias, eps): x less its mean, (..., d), from LayerNorm's output y, ε > 0; at most one gain is 0.",
    _recovered(_deviation),
    tuple(
        (ln(x, gain, _SMALL_BIAS, _LARGE_EPS), gain, _SMALL_BIAS, _LARGE_EPS)
        for x, gain in ((_SPREADS, _WITH_ZERO), (_SPREADS[0], _FULL), (_SPREADS[0, 1], _WITH_ZERO))
    ),
    {
        "the entry behind the zero gain is set to 0": (
            _SUM,
            lambda y, w, b, eps: _deviation(_filled((y - b) / w, w, 0.0), eps),
        ),
        "the entry behind the zero gain has the wrong sign": (
            _SUM,
            lambda y, w, b, eps: _deviation(_filled((y - b) / w, w, 1.0), eps),
        ),
        "you divide by the zero gain": (f"0/0 is NaN. {_SUM}", lambda y, w, b, eps: _deviation((y - b) / w, eps)),
        "the bias β is not subtracted": (
            "LayerNorm adds β last, so take it away first.",
            lambda y, w, b, eps: _deviation(_filled(y / w, w), eps),
        ),
        "n is returned as it is": (_S, _recovered(lambda n, eps: n)),
        "σ stands for s": (_S, _recovered(lambda n, eps: n * (eps / (1 - _square(n)) - eps).sqrt())),
        "the sum of squares stands for their mean": (
            f"Divide it by d. {_S}",
            _recovered(lambda n, eps: n * (eps / (1 - n.square().sum(-1, keepdim=True))).sqrt()),
        ),
    },
)


# The secular equation between neighbouring squares of gains


def _bisected(poles: Tensor, upper: bool = True) -> Tensor:
    """Where Σ 1/(poles − t) is 0 between neighbours; without ``upper`` the wrong half is kept each time."""
    low, high = poles[:-1].clone(), poles[1:].clone()
    for _ in range(80):  # after which a bracket is as narrow as float64 can tell
        middle = (low + high) / 2
        above = (1 / (poles - middle[:, None])).sum(-1) > 0
        low, high = torch.where(above == upper, low, middle), torch.where(above == upper, middle, high)
    return (low + high) / 2


def _squares(gain: Tensor) -> Tensor:
    return gain.square().sort().values


def _roots(gain: Tensor) -> Tensor:
    return secular.eigvalsh(gain)[1:]


bisection = Exercise(
    "mine(gain): the (d - 1,) eigenvalues of GΠG between neighbouring squares of gain (d,), ascending.",
    _roots,
    ((_draw(6, seed=41),), (3 * _draw(9, seed=42),)),
    {
        "the gains are not squared": (
            "The poles are the squares of the gains.",
            lambda gain: _bisected(gain.sort().values),
        ),
        "the squares are not sorted": (
            "A bracket lies between neighbours: sort first.",
            lambda gain: _bisected(gain**2),
        ),
        "the wrong half of each bracket is kept": (
            "The sum grows from −∞ to ∞ between two poles: where it is positive, the root lies below.",
            lambda gain: _bisected(_squares(gain), upper=False),
        ),
        "0 is among the eigenvalues": (
            "Between d squares lie d − 1 eigenvalues; 0 lies below all of them.",
            secular.eigvalsh,
        ),
        "the eigenvalues descend": ("Return them in ascending order.", lambda gain: _roots(gain).flip(0)),
        "these are the singular values of GΠ": (
            "Return the λ themselves, eigenvalues of GΠG.",
            lambda gain: _roots(gain).sqrt(),
        ),
    },
)


# Norms of heads, and a step on the sphere

_H_EPS = 1e-3
_HEADS, _SMALL_HEADS = _draw(2, 4, 12, seed=20) + 0.5, 0.05 * _draw(2, 4, 12, seed=21)
_H_WEIGHT = _draw(4, seed=22)


def _unit(x: Tensor) -> Tensor:
    return rms(x, eps=0.0)


_ON = _unit(_draw(5, 6, seed=23))


def _in_heads(norm: Function) -> Function:
    """``norm(x, weight, eps)`` of each head by itself."""
    return lambda x, heads, weight, eps: norm(x.unflatten(-1, (heads, -1)), weight, eps).flatten(-2)


head_norm = Exercise(
    "mine(x, heads, weight, eps): RMSNorm of each of heads parts of x (..., d), by one gain.",
    lambda x, heads, weight, eps: of_heads(x, heads, weight, eps=eps),
    ((_HEADS, 3, _H_WEIGHT, _H_EPS), (_SMALL_HEADS, 3, _H_WEIGHT, _H_EPS)),
    {
        "one norm spans all heads": (
            "OLMo 2 has that; take each head by itself.",
            lambda x, heads, weight, eps: rms(x, weight.repeat(heads), None, eps),
        ),
        "a head is every H-th number": (
            "A head is a stretch of d/H neighbours.",
            lambda x, heads, weight, eps: rms(x.unflatten(-1, (-1, heads)).mT, weight, None, eps).mT.flatten(-2),
        ),
        "the mean of each head is subtracted": (
            "This is LayerNorm; divide the head as it is.",
            _in_heads(lambda x, weight, eps: ln(x, weight, None, eps)),
        ),
        "the gain is forgotten": (
            "Multiply each head by weight.",
            _in_heads(lambda x, weight, eps: rms(x, None, None, eps)),
        ),
        "ε is forgotten": (
            "Use sqrt(mean of squares + eps).",
            _in_heads(lambda x, weight, eps: weight * x / _square(x).sqrt()),
        ),
        "the heads keep an axis of their own": (
            "Join them again: flatten(-2).",
            lambda x, heads, weight, eps: rms(x.unflatten(-1, (heads, -1)), weight, None, eps),
        ),
    },
)
sphere_step = Exercise(
    "mine(x, h, a): nGPT's step from x (..., d), of length √d, towards h; a is (d,).",
    lambda x, h, a: _unit(x + a * (_unit(h) - x)),
    ((_ON, 3 * _draw(5, 6, seed=24), torch.linspace(0.05, 0.6, 6, dtype=torch.float64)),),
    {
        "x is not subtracted": (
            "The step leads from x towards h: a times h − x.",
            lambda x, h, a: _unit(x + a * _unit(h)),
        ),
        "the branch's output is not normalised": (
            "Bring h to the sphere before you subtract x.",
            lambda x, h, a: _unit(x + a * (h - x)),
        ),
        "the result is not brought back to the sphere": (
            "Normalise it once more.",
            lambda x, h, a: x + a * (_unit(h) - x),
        ),
        "vectors have length 1": (
            "Here they have length √d: divide by the root mean square.",
            lambda x, h, a: _unit(x + a * (_unit(h) - x)) / x.shape[-1] ** 0.5,
        ),
        "a and 1 − a are exchanged": ("a is the share of h.", lambda x, h, a: _unit(x + (1 - a) * (_unit(h) - x))),
        "the mean is subtracted": (
            "To normalise is to divide by the root mean square, no more.",
            lambda x, h, a: ln(x + a * (ln(h, eps=0.0) - x), eps=0.0),
        ),
    },
)

GRADERS = {name: value for name, value in list(globals().items()) if isinstance(value, Exercise)}
