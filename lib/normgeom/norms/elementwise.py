"""Functions that replace a norm and act on each entry separately: no statistics, no coupling of coordinates."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from normgeom.norms.formula import affine, upcast
from normgeom.norms.functions import check_arguments, check_floating, check_size

Scalar = float | Tensor


def dyt(x: Tensor, alpha: Scalar, weight: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    r"""Dynamic tanh, :math:`\gamma\odot\tanh(\alpha x)+\beta` (eq-dyt).

    Args:
        x, weight, bias: as for :func:`normgeom.layer_norm`; the computation uses at least float32 and rounds once.
        alpha: α, a number or a floating-point tensor of one entry, in the inverse unit of ``x``.

    Returns:
        ``(..., d)`` in the dtype of ``x``.

    Raises:
        TypeError, ValueError: as in :func:`normgeom.layer_norm`, and for any other ``alpha``.

    Source: Zhu, Chen, He, LeCun and Liu (2025).

    Example:
        >>> import torch, normgeom as ng
        >>> ng.dyt(torch.tensor([-100.0, 0.0, 100.0]), 0.5)
        tensor([-1.,  0.,  1.])
    """
    check_arguments(x, weight, bias, 0.0)
    return affine(torch.tanh(_number("alpha", alpha) * upcast(x)), weight, bias).to(x.dtype)


def derf(
    x: Tensor, alpha: Scalar, shift: Scalar = 0.0, weight: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    r"""Dynamic erf, :math:`\gamma\odot\operatorname{erf}(\alpha x+s)+\beta` (eq-derf).

    Args:
        x, alpha, weight, bias: as for :func:`dyt`, which also describes the result and the errors.
        shift: s, a number or a tensor of one entry.

    Source: Chen, Lu, Zhu, Sun and Liu (2025).

    Example:
        >>> import torch, normgeom as ng
        >>> ng.derf(torch.tensor([-1.0, 99.0]), 0.5, shift=0.5)
        tensor([0., 1.])
    """
    check_arguments(x, weight, bias, 0.0)
    wide = upcast(x)
    return affine(torch.erf(_number("alpha", alpha) * wide + _number("shift", shift)), weight, bias).to(x.dtype)


def _number(name: str, value: Scalar) -> Scalar:
    """``value`` as a number or a tensor without axes, so that a product with it keeps the other factor's dtype."""
    if isinstance(value, (int, float)):
        return value
    check_floating(name, value)
    if value.numel() != 1:
        raise ValueError(f"{name}: expected one entry, got shape {tuple(value.shape)}")
    return value.reshape(())


class DyT(nn.Module):
    """:func:`dyt` as a module.  Its parameters have the authors' names and initial values: ``alpha`` ``(1,)`` is 0.5,
    ``weight`` ``(d,)`` is ones and ``bias`` ``(d,)`` is zeros.

    Raises:
        ValueError: ``d`` is not one positive size.

    Example:
        >>> import torch, normgeom as ng
        >>> ng.DyT(3)(torch.tensor([-200.0, 0.0, 200.0])).tolist()
        [-1.0, 0.0, 1.0]
    """

    def __init__(self, d: int):
        super().__init__()
        check_size(d)
        self.alpha = nn.Parameter(torch.full((1,), 0.5))
        self.weight = nn.Parameter(torch.ones(d))
        self.bias = nn.Parameter(torch.zeros(d))

    def forward(self, x: Tensor) -> Tensor:
        return dyt(x, self.alpha, self.weight, self.bias)


class Derf(DyT):
    """:func:`derf` as a module: :class:`DyT` with a ``shift`` ``(1,)``, which is initially 0.

    Example:
        >>> import normgeom as ng
        >>> [name for name, _ in ng.Derf(3).named_parameters()]
        ['alpha', 'weight', 'bias', 'shift']
    """

    def __init__(self, d: int):
        super().__init__(d)
        self.shift = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return derf(x, self.alpha, self.shift, self.weight, self.bias)
