"""Functions that stand in a norm's place and take each entry by itself: no statistic, no coupling of coordinates."""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Integral
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from normgeom.norms.formula import upcast
from normgeom.norms.functions import check_arguments, check_floating

if TYPE_CHECKING:
    from jaxtyping import Float

    Rows = Float[Tensor, "*batch d"]
    Vector = Float[Tensor, "d"]
    Scalar = float | Float[Tensor, ""]


def dyt(x: Rows, alpha: Scalar, weight: Vector | None = None, bias: Vector | None = None) -> Rows:
    r"""Dynamic tanh, :math:`\gamma\odot\tanh(\alpha x)+\beta` (eq-dyt).

    Computed in at least float32 and rounded once; plain torch operations, so that ``torch.func``, forward mode, every
    derivative and ``torch.compile(fullgraph=True)`` work.

    Args:
        x: ``(..., d)``, floating point.
        alpha: α, a number or a tensor of one entry; in the inverse unit of ``x``.
        weight: the gain γ, ``(d,)``; ones if None.
        bias: the bias β, ``(d,)``; zeros if None.

    Returns:
        ``(..., d)`` in the dtype of ``x``.

    Raises:
        TypeError: ``x``, ``weight`` or ``bias`` is not a floating-point tensor, or ``alpha`` neither that nor a number.
        ValueError: a wrong last dimension, or ``alpha`` of more than one entry.

    Source: Zhu, Chen, He, LeCun and Liu (2025).
    """
    return _squashed(torch.tanh, x, alpha, 0.0, weight, bias)


def derf(x: Rows, alpha: Scalar, shift: Scalar = 0.0, weight: Vector | None = None, bias: Vector | None = None) -> Rows:
    r"""Dynamic erf, :math:`\gamma\odot\operatorname{erf}(\alpha x+s)+\beta` (eq-derf).

    Args:
        x, alpha, weight, bias: as for :func:`dyt`; what holds there holds here.
        shift: s, a number or a tensor of one entry.

    Returns:
        ``(..., d)`` in the dtype of ``x``.

    Raises:
        TypeError, ValueError: as :func:`dyt`.

    Source: Chen, Lu, Zhu, Sun and Liu (2025).
    """
    return _squashed(torch.erf, x, alpha, shift, weight, bias)


def _squashed(
    function: Callable[[Tensor], Tensor],
    x: Tensor,
    alpha: float | Tensor,
    shift: float | Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
) -> Tensor:
    check_arguments(x, weight, bias, 0.0)
    for name, value in (("alpha", alpha), ("shift", shift)):
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            continue
        check_floating(name, value)
        if value.numel() != 1:
            raise ValueError(f"{name}: expected one entry, got shape {tuple(value.shape)}")
    wide = upcast(x)
    alpha, shift = (v.to(wide.dtype).reshape(()) if isinstance(v, Tensor) else v for v in (alpha, shift))
    output = function(alpha * wide + shift)
    if weight is not None:
        output = output * weight.to(wide.dtype)
    if bias is not None:
        output = output + bias.to(wide.dtype)
    return output.to(x.dtype)


class DyT(nn.Module):
    """:func:`dyt` as a module; names and first values of its parameters are the authors': no norm.

    Args:
        d: size of the last axis.
        alpha: α at first, one number for the layer.
        bias: whether there is a β; their language models have none.

    Raises:
        ValueError: ``d`` is not one positive size, or ``alpha`` no finite number.
    """

    def __init__(self, d: int, alpha: float = 0.5, bias: bool = True):
        super().__init__()
        if not isinstance(d, Integral) or isinstance(d, bool) or d < 1:
            raise ValueError(f"d: expected one positive size, got {d!r}")
        if not isinstance(alpha, (int, float)) or not math.isfinite(alpha):
            raise ValueError(f"alpha: expected a finite number, got {alpha!r}")
        self.alpha = nn.Parameter(torch.full((1,), float(alpha)))
        self.weight = nn.Parameter(torch.ones(d))
        self.bias = nn.Parameter(torch.zeros(d)) if bias else None

    def forward(self, x: Rows) -> Rows:
        return dyt(x, self.alpha, self.weight, self.bias)


class Derf(DyT):
    """:func:`derf` as a module: :class:`DyT` with a shift s, 0 at first."""

    def __init__(self, d: int, alpha: float = 0.5, bias: bool = True):
        super().__init__(d, alpha, bias)
        self.shift = nn.Parameter(torch.zeros(1))

    def forward(self, x: Rows) -> Rows:
        return derf(x, self.alpha, self.shift, self.weight, self.bias)
