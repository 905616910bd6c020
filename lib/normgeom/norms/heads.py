"""Norms of queries, keys and values: every head of a vector is normalised separately."""

from __future__ import annotations

from numbers import Integral

from torch import Tensor, nn

from normgeom.norms.functions import LayerNorm, RMSNorm, check_arguments, check_floating, layer_norm, rms_norm


def head_norm(x: Tensor, heads: int, weight: Tensor | None = None, eps: float = 1e-6, centered: bool = False) -> Tensor:
    r"""Normalise each of ``heads`` equal parts of the last axis separately (eq-head-norm).

    For queries or keys with heads :math:`q_h` this is :math:`g\odot q_h/\sqrt{\overline{q_h^2}+\varepsilon}`, with the
    precision, derivatives and compilation of :func:`normgeom.rms_norm`.

    Args:
        x: ``(..., heads * size)``, floating point; the result has its shape and dtype.
        heads: the number of heads, which lie one after the other along the last axis.
        weight: the gain, ``(size,)``, the same for every head, as in Qwen 3 and Gemma 3; ones if None.
        eps: ε ≥ 0, inside the root.
        centered: if True, use :func:`normgeom.layer_norm`, which subtracts the mean of each head.

    Raises:
        TypeError, ValueError: as in :func:`normgeom.rms_norm`, and if ``heads`` does not divide the last axis.

    Sources: Henry et al. (2020), who scale to length 1; Dehghani et al. (2023).

    Example:
        >>> import torch, normgeom as ng
        >>> ng.head_norm(torch.tensor([3.0, -3.0, 0.5, 0.5]), heads=2, eps=0.0)
        tensor([ 1., -1.,  1.,  1.])
    """
    check_arguments(x, None, None, eps)
    norm = layer_norm if centered else rms_norm
    return norm(x.unflatten(-1, (heads, head_size(x.shape[-1], heads))), weight, None, eps).flatten(-2)


def head_size(d: int, heads: int) -> int:
    """The size of each of ``heads`` heads of ``d`` entries."""
    if not isinstance(heads, Integral) or heads < 1 or d < 1 or d % heads:
        raise ValueError(f"heads: expected a divisor of d = {d}, got {heads!r}")
    return d // heads


class HeadNorm(nn.Module):
    """:func:`head_norm` as a module, for ``heads`` heads in vectors of ``d`` entries.  Its submodule, a norm for one
    head, is found by :func:`normgeom.find_norms`: an RMSNorm or, if ``centered``, a LayerNorm with a bias.

    Raises:
        TypeError, ValueError: as in :func:`head_norm`, and if the last axis is not ``d``.

    Example:
        >>> import torch, normgeom as ng
        >>> norm = ng.HeadNorm(12, heads=3)
        >>> norm(torch.randn(2, 12)).shape, norm.norm.weight.shape
        (torch.Size([2, 12]), torch.Size([4]))
    """

    def __init__(self, d: int, heads: int, centered: bool = False, eps: float = 1e-6):
        super().__init__()
        self.d, self.heads = d, heads
        self.norm = (LayerNorm if centered else RMSNorm)(head_size(d, heads), eps=eps)

    def forward(self, x: Tensor) -> Tensor:
        check_floating("x", x)
        if x.shape[-1:] != (self.d,):  # unflatten would take every multiple of the number of heads
            raise ValueError(f"x: expected shape (..., {self.d}), got {tuple(x.shape)}")
        return self.norm(x.unflatten(-1, (self.heads, -1))).flatten(-2)
