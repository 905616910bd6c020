"""The norms and their derivative as formulas of plain torch operations, each of which torch can differentiate again."""

from __future__ import annotations

import torch
from torch import Tensor, float32, float64


def upcast(x: Tensor) -> Tensor:
    """``x`` in the dtype in which statistics are computed: float64 if ``x`` is float64, else float32."""
    return x.to(wide_dtype(x))


def wide_dtype(x: Tensor) -> torch.dtype:
    """float64 if ``x`` is float64, else float32."""
    return float64 if x.dtype == float64 else float32


def center(x: Tensor) -> Tensor:
    """Πx over the last axis, in the dtype of ``x``."""
    once = x - x.mean(-1, keepdim=True)
    # The first mean carries a rounding error of the size of x; the second is as small as the spread of x.
    return once - once.mean(-1, keepdim=True)


def rstd(x: Tensor, eps: float) -> Tensor:
    """``(..., 1)``: 1/√(mean square + ε), the factor by which a norm multiplies ``x``, which may be centred."""
    return torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def affine(n: Tensor, gain: Tensor | None, bias: Tensor | None) -> Tensor:
    """γ⊙n + β in the dtype of ``n``; None means a gain of 1, or no bias."""
    n = n if gain is None else n * gain.to(n.dtype)
    return n if bias is None else n + bias.to(n.dtype)


def backward(grad: Tensor, x: Tensor, gain: Tensor | None, eps: float, centered: bool) -> tuple[Tensor, Tensor, Tensor]:
    r"""The gradients with respect to ``x``, gain and bias, given the gradient g with respect to the output:
    :math:`J^\top g`, :math:`\sum g\odot n` and :math:`\sum g`, summed over the rows (eq-products).

    ``gain`` and the last two results have the wide dtype of ``x``.
    """
    wide, grad = upcast(x), upcast(grad)
    wide = center(wide) if centered else wide
    scale = rstd(wide, eps)
    n, scaled = wide * scale, grad if gain is None else grad * gain
    by_x = scaled - n * (scaled * n).mean(-1, keepdim=True)
    if centered:
        by_x = by_x - scaled.mean(-1, keepdim=True)
    rows = x.numel() // x.shape[-1], x.shape[-1]
    return (by_x * scale).to(x.dtype), (grad * n).reshape(rows).sum(0), grad.reshape(rows).sum(0)
