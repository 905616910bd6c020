"""A zoo of wrong norms: mistakes that teaching code and kernels really make, each under its name.

``LAYER_NORMS`` and ``RMS_NORMS`` map a mistake to ``(function, word)``: the function has the signature of the right
one, and ``word`` is what the message of a check that kills it must contain.
"""

from __future__ import annotations

import torch
from torch import Tensor


def _affine(n: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    n = n if weight is None else n * weight
    return n if bias is None else n + bias


def _mean(x: Tensor) -> Tensor:
    return x.mean(-1, keepdim=True)


def _twice_centered(x: Tensor) -> Tensor:
    x = x - _mean(x)
    return x - _mean(x)


def _norm(x, weight=None, bias=None, eps=None, *, center, scale, affine=_affine):
    """Centre and divide by ``scale(centred, ε)`` in at least float32: only the given part is wrong."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    gain, shift = (None if t is None else t.to(wide.dtype) for t in (weight, bias))
    centered = center(wide)
    return affine(centered / scale(centered, eps), gain, shift).to(x.dtype)


def _build(default_eps, **parts):
    def norm(x, weight=None, bias=None, eps=default_eps):
        return _norm(x, weight, bias, eps, **parts)

    return norm


def _root(c: Tensor, eps: float) -> Tensor:
    return (_mean(c.square()) + eps).sqrt()


# the scale is wrong; the argument is the centred vector (RMSNorm: the vector) and ε
_WRONG_SCALES = {
    "ε outside the root": (lambda c, eps: _mean(c.square()).sqrt() + eps, "ε outside the root"),
    "no ε": (lambda c, eps: _mean(c.square()).sqrt(), "ε missing"),
    "ε multiplied": (lambda c, eps: (_mean(c.square()) * (1 + eps)).sqrt(), "ε multiplied"),
    "ε squared": (lambda c, eps: (_mean(c.square()) + eps**2).sqrt(), "ε squared"),
    "variance clamped at ε": (lambda c, eps: _mean(c.square()).clamp(min=eps).sqrt(), "clamped"),
    "unbiased variance": (
        lambda c, eps: (c.square().sum(-1, keepdim=True) / (c.shape[-1] - 1) + eps).sqrt(),
        "Unbiased variance (d−1)",
    ),
    "absolute deviation": (lambda c, eps: (_mean(c.abs()).square() + eps).sqrt(), "Absolute deviation"),
    "norm instead of RMS": (lambda c, eps: (c.square().sum(-1, keepdim=True) + eps).sqrt(), "Missing √d"),
    "detached statistics": (lambda c, eps: _root(c, eps).detach(), "Detached statistics"),
    "spread of the whole batch": (lambda c, eps: (c.square().mean() + eps).sqrt(), "Mean of the whole batch"),
}

_WRONG_AFFINES = {
    "γ forgotten": (lambda n, w, b: _affine(n, None, b), "γ forgotten"),
    "β forgotten": (lambda n, w, b: _affine(n, w, None), "β forgotten"),
    "β before γ": (lambda n, w, b: _affine(_affine(n, None, b), w, None), "β before γ"),
    "gain 1 + γ": (lambda n, w, b: _affine(n, None if w is None else 1 + w, b), "Gain 1 + γ"),
    "β subtracted": (lambda n, w, b: _affine(n, w, None if b is None else -b), "β subtracted"),
}


def _raw_variance(x, weight=None, bias=None, eps=1e-5):
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    scale = (_mean(wide.square()) - _mean(wide).square() + eps).sqrt()
    gain, shift = (None if t is None else t.to(wide.dtype) for t in (weight, bias))
    return _affine((wide - _mean(wide)) / scale, gain, shift).to(x.dtype)


def _same_dtype(x, weight=None, bias=None, eps=None, *, center):
    """Statistics in the dtype of the input."""
    c = center(x)
    return _affine(c / _root(c, eps), weight, bias)


def _rounded_twice(x, weight=None, bias=None, eps=None, *, center):
    """Cast back before the gain, as several models do."""
    c = center(x.to(torch.promote_types(x.dtype, torch.float32)))
    return _affine((c / _root(c, eps)).to(x.dtype), weight, bias)


def _not_cast_back(x, weight=None, bias=None, eps=None, *, center):
    c = center(x.to(torch.promote_types(x.dtype, torch.float32)))
    return _affine(c / _root(c, eps), weight, bias)


def _first_axis(x, weight=None, bias=None, eps=None, *, center):
    """The statistics of axis 1, as if the input were always (batch, d)."""
    c = center(x.transpose(1, -1)) if x.dim() > 1 else center(x)
    n = c / _root(c, eps)
    return _affine(n.transpose(1, -1) if x.dim() > 1 else n, weight, bias)


def _in_place(x, weight=None, bias=None, eps=None, *, center):
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    c = center(wide)
    n = wide.copy_(c / _root(c, eps)) if not wide.requires_grad else c / _root(c, eps)
    return _affine(n, weight, bias).to(x.dtype)


def _gain_first(x, weight=None, bias=None, eps=None, *, center):
    c = center(x if weight is None else x * weight)
    return _affine(c / _root(c, eps), None, bias)


class _Once(torch.autograd.Function):
    """Right values and gradients, saved outside of the graph: the second derivative is lost in silence."""

    @staticmethod
    def forward(ctx, c, eps):
        scale = _root(c, eps)
        ctx.n, ctx.scale = c / scale, scale
        return ctx.n

    @staticmethod
    def backward(ctx, grad):
        return (grad - ctx.n * _mean(grad * ctx.n)) / ctx.scale, None


def _no_double_backward(x, weight=None, bias=None, eps=None, *, center):
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    gain, shift = (None if t is None else t.to(wide.dtype) for t in (weight, bias))
    return _affine(_Once.apply(center(wide), eps), gain, shift).to(x.dtype)


_WRONG_PATHS = {
    "statistics in the input's dtype": (_same_dtype, "Statistics in the input's dtype"),
    "rounded twice": (_rounded_twice, "Rounded twice"),
    "not cast back": (_not_cast_back, "Not cast back"),
    "wrong axis": (_first_axis, "Wrong axis"),
    "in place": (_in_place, "In-place"),
    "γ before the statistics": (_gain_first, "γ applied before"),
    "no double backward": (_no_double_backward, "No double backward"),
}


def _zoo(default_eps: float, center) -> dict:
    zoo = {}
    for name, (scale, word) in _WRONG_SCALES.items():
        zoo[name] = _build(default_eps, center=center, scale=scale), word
    for name, (affine, word) in _WRONG_AFFINES.items():
        zoo[name] = _build(default_eps, center=center, scale=_root, affine=affine), word
    for name, (path, word) in _WRONG_PATHS.items():

        def norm(x, weight=None, bias=None, eps=default_eps, _path=path):
            return _path(x, weight, bias, eps, center=center)

        zoo[name] = norm, word
    return zoo


def _as_it_is(x: Tensor) -> Tensor:
    return x


LAYER_NORMS = {
    **_zoo(1e-5, _twice_centered),
    "E[x²]−E[x]²": (_raw_variance, "E[x²]−E[x]²"),
    "one mean only": (_build(1e-5, center=lambda x: x - _mean(x), scale=_root), "one mean only"),
    "mean not subtracted": (_build(1e-5, center=_as_it_is, scale=_root), "Mean not subtracted"),
    "mean of the whole batch": (_build(1e-5, center=lambda x: x - x.mean(), scale=_root), "Mean of the whole batch"),
    "wrong default ε": (_build(1e-6, center=_twice_centered, scale=_root), "Wrong default of ε"),
}

RMS_NORMS = {
    **_zoo(1e-6, _as_it_is),
    "RMS over centred x": (_build(1e-6, center=_twice_centered, scale=_root), "subtracted where it should stay"),
    "wrong default ε": (_build(1e-5, center=_as_it_is, scale=_root), "Wrong default of ε"),
}
