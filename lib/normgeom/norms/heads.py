"""Norms of queries, keys and values: every head of a vector is normalised by itself."""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from normgeom.norms.formula import upcast
from normgeom.norms.functions import LayerNorm, RMSNorm, check_floating, layer_norm, rms_norm

if TYPE_CHECKING:
    from jaxtyping import Float

    Rows = Float[Tensor, "*batch d"]
    Gain = Float[Tensor, "size"]


def head_norm(x: Rows, heads: int, weight: Gain | None = None, eps: float = 1e-6, centered: bool = False) -> Rows:
    r"""Each of ``heads`` equal stretches of the last axis normalised by itself (eq-head-norm).

    Of queries or keys with heads :math:`q_h` it makes :math:`g\odot q_h/\sqrt{\overline{q_h^2}+\varepsilon}`, by
    :func:`normgeom.rms_norm`, whose precision, derivatives and compilation it has.

    Args:
        x: ``(..., heads * size)``, floating point.
        heads: how many; the stretches are in order.
        weight: the gain, ``(size,)``, the same for every head, as in Qwen 3 and Gemma 3; ones if None.
        eps: ε ≥ 0, inside the root.
        centered: :func:`normgeom.layer_norm` instead: the mean of each head is subtracted.

    Returns:
        as ``x``, in its dtype.

    Raises:
        TypeError: ``x`` or ``weight`` is not a floating-point tensor, or ``heads`` not an integer.
        ValueError: ``heads`` do not divide the last axis, a gain of another size, or ``eps`` negative or NaN.

    Sources: Henry et al. (2020), who scale to length 1; Dehghani et al. (2023).

    Example:
        >>> import torch, normgeom as ng
        >>> ng.head_norm(torch.tensor([3.0, -3.0, 0.5, 0.5]), heads=2, eps=0.0)
        tensor([ 1., -1.,  1.,  1.])
    """
    _check_rows(x)
    size = _head_size(x.shape[-1], heads)
    norm = layer_norm if centered else rms_norm
    return norm(x.unflatten(-1, (heads, size)), weight, None, eps).flatten(-2)


def _check_rows(x: Tensor, d: int | None = None) -> None:
    check_floating("x", x)
    if not x.dim() or not x.shape[-1] or d not in (None, x.shape[-1]):
        raise ValueError(f"x: expected shape (..., {d or 'd'}){'' if d else ' with d >= 1'}, got {tuple(x.shape)}")


def _head_size(d: int, heads: int) -> int:
    if not isinstance(heads, Integral) or isinstance(heads, bool):
        raise TypeError(f"heads: expected an integer, got {type(heads).__name__}")
    if heads < 1 or d < 1 or d % heads:
        raise ValueError(f"heads: expected a divisor of d = {d}, got {heads}")
    return d // heads


class HeadNorm(nn.Module):
    """:func:`head_norm` as a module, with a norm of one head inside, which :func:`normgeom.find_norms` finds.

    Args:
        d: size of the last axis.
        heads: how many.
        centered: LayerNorm's, which has a bias, instead of RMSNorm's.
        eps: ε.

    Raises:
        TypeError, ValueError: as :func:`head_norm`.

    Example:
        >>> import torch, normgeom as ng
        >>> norm = ng.HeadNorm(12, heads=3)
        >>> norm(torch.randn(2, 12)).shape, norm.norm.weight.shape
        (torch.Size([2, 12]), torch.Size([4]))
    """

    def __init__(self, d: int, heads: int, centered: bool = False, eps: float = 1e-6):
        super().__init__()
        self.d, self.heads = d, heads
        self.norm = (LayerNorm if centered else RMSNorm)(_head_size(d, heads), eps=eps)

    def forward(self, x: Rows) -> Rows:
        _check_rows(x, self.d)
        return self.norm(x.unflatten(-1, (self.heads, -1))).flatten(-2)


class HeadGain(nn.Module):
    """RMSNorm of each head with a gain for each number of each head, ones at first, as nGPT's s_qk is parametrised.

    The gain is ``weight / scale``, and ``weight`` begins at ``scale``: Adam, whose steps do not know the size of what
    they move, changes the gain by its rate over ``scale``.

    Source: Loshchilov et al. (2025), whose queries and keys share one of these.
    """

    def __init__(self, d: int, heads: int, scale: float):
        super().__init__()
        self.d, self.heads, self.factor = d, heads, 1.0 / scale
        self.norm = RMSNorm(_head_size(d, heads), eps=0.0, elementwise_affine=False)
        self.weight = nn.Parameter(torch.full((d,), scale))

    def forward(self, x: Rows) -> Rows:
        _check_rows(x, self.d)
        wide = upcast(x)
        normed = self.norm(wide.unflatten(-1, (self.heads, -1))).flatten(-2)
        return (normed * (self.factor * self.weight.to(wide.dtype))).to(x.dtype)
