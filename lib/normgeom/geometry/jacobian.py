"""The Jacobian of a norm at given vectors: products in O(d), the matrix, and its singular values in O(d²)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from normgeom.geometry import secular
from normgeom.norms.formula import center, rstd, upcast
from normgeom.norms.functions import check_arguments, check_floating


class NormJacobian:
    r"""The derivative of LayerNorm or RMSNorm with respect to its input, including ε.

    LayerNorm has :math:`J=\frac1sG(\Pi-\frac1dnn^\top)` with :math:`s=\sqrt{\sigma^2+\varepsilon}`, :math:`n=\Pi x/s`
    (eq-ln-jacobian); RMSNorm has :math:`J=\frac1rG(I-\frac1dnn^\top)` with :math:`r=\sqrt{\overline{x^2}+\varepsilon}`,
    :math:`n=x/r` (eq-rms-jacobian).  If s or r is 0, which requires ``eps=0``, no derivative exists, and results are
    NaN.

    Args:
        x: ``(..., d)``, floating point; each row has its own Jacobian.
        weight: the gain γ, ``(d,)``; ones if None.  (Gemma's gain is ``1 + weight``.)
        eps: ε ≥ 0, inside the root.
        centered: True for LayerNorm, False for RMSNorm.

    Raises:
        TypeError, ValueError: as in :func:`normgeom.layer_norm`.

    n and γ/s are computed once, at construction: after changing ``x`` or ``weight`` in place, make a new object.
    Squares leave the range of float32 as in the norms.  Singular values are computed in float64, whose range squares
    leave for entries beyond 1e154 or, with ``eps=0``, below 1e-154.

    Example:
        >>> import torch, normgeom as ng
        >>> x = torch.tensor([0.0, 2.0, 0.0, 2.0])  # mean 1, variance 1
        >>> jacobian = ng.NormJacobian(x, eps=0.0)
        >>> jacobian.matvec(x), jacobian.matvec(torch.ones(4)), jacobian.singular_values()
        (tensor([0., 0., 0., 0.]), tensor([0., 0., 0., 0.]), tensor([1., 1., 0., 0.], dtype=torch.float64))
    """

    def __init__(self, x: Tensor, weight: Tensor | None = None, eps: float = 1e-5, centered: bool = True):
        check_arguments(x, weight, None, eps)
        self.x, self.weight, self.eps, self.centered = x, weight, eps, centered
        wide = upcast(x)
        self._n, slope = self._statistics(wide)
        self._slope = slope.expand_as(wide) if weight is None else slope * weight.to(wide.dtype)

    @classmethod
    def of(cls, site: object, x: Tensor) -> NormJacobian:
        """The Jacobian of ``site``, one of ``ng.find_norms(model)``, at its input ``x`` ``(..., d)``.

        Raises:
            TypeError, ValueError: ``x`` is not an input of a norm of ``site.dim`` features, or each head has its own
                gain.
        """
        check_floating("x", x)
        return cls(x, site.weight.to(x.device), site.eps, site.kind == "layer")

    def matvec(self, v: Tensor) -> Tensor:
        r"""The directional derivative of the output: :math:`Jv`, in O(d) (eq-products).

        Args:
            v: ``(..., d)``, floating point; its leading dimensions broadcast with those of ``x``.

        Returns:
            ``(..., d)`` in the dtype of ``x``, computed in at least float32 by plain torch operations, so that you can
            differentiate it with respect to ``x``, ``weight`` and ``v``, also in ``torch.func``.

        Raises:
            TypeError: ``v`` is not a floating-point tensor.
            ValueError: ``v`` does not broadcast with ``x``.
        """
        return (self._slope * self._project(self._widened(v))).to(self.x.dtype)

    def rmatvec(self, v: Tensor) -> Tensor:
        r"""The gradient that backpropagation passes on: :math:`J^\top v`, in O(d) (eq-products).

        The argument, the result and the errors are those of :meth:`matvec`.
        """
        return self._project(self._slope * self._widened(v)).to(self.x.dtype)

    def dense(self) -> Tensor:
        """The Jacobian matrices, ``(..., d, d)`` in the dtype of ``x``: row i is the derivative of output i."""
        d = self.x.shape[-1]
        start = torch.eye(d, dtype=self._n.dtype, device=self._n.device) - (1 / d if self.centered else 0)
        projected = start - self._n.unsqueeze(-1) * self._n.unsqueeze(-2) / d
        return (self._slope.unsqueeze(-1) * projected).to(self.x.dtype)

    @torch.no_grad()
    def singular_values(self) -> Tensor:
        r"""The singular values, ``(..., d)``, descending, in float64, without gradient (thm-jacobian-spectrum).

        :math:`JJ^\top` is a diagonal matrix minus one of rank one for RMSNorm and of rank two for LayerNorm.  So there
        is one secular equation per row, and for LayerNorm another one that all rows share; the time is O(d²) per row.
        The smallest value, often far below the rounding error of the largest, keeps its relative accuracy (down to
        1e-150 of the largest gain over s).  A row that is not finite gives NaN.  ``torch.func.vmap`` does not work
        here, since rows are already batched.

        Raises:
            ValueError: ``weight`` is not finite.
        """
        device = "cpu" if self.x.device.type == "mps" else self.x.device
        x = self.x.to(device).double()
        gain = x.new_ones(x.shape[-1]) if self.weight is None else self.weight.to(x)
        _, slope = self._statistics(x)
        deficit = (self.eps * slope.square()).square().clamp_max(1)
        scale, gain = secular.scaled(gain)
        rows = x.reshape(-1, x.shape[-1])
        poles = gain
        if self.centered:
            poles, rows = _centred(gain, rows)
        squares = [_squares(poles, row, delta) for row, delta in zip(rows, deficit.flatten().tolist(), strict=True)]
        values = torch.stack(squares) if squares else x
        return values.reshape(x.shape).flip(-1).sqrt() * scale * slope

    def _statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """n and 1/s (or 1/r) in the dtype of ``x``, computed as in the norms."""
        x = center(x) if self.centered else x
        scale = rstd(x, self.eps)
        return x * scale, scale

    def _project(self, v: Tensor) -> Tensor:
        """(Π − nnᵀ/d)v or (I − nnᵀ/d)v; the matrix is symmetric."""
        if self.centered:
            v = torch.sub(v, v.sum(-1, keepdim=True), alpha=1 / v.shape[-1])
        return torch.addcmul(v, self._n, torch.linalg.vecdot(self._n, v).unsqueeze(-1), value=-1 / v.shape[-1])

    def _widened(self, v: Tensor) -> Tensor:
        check_floating("v", v)
        expected, got = tuple(self.x.shape), tuple(v.shape)
        pairs = zip(reversed(expected), reversed(got), strict=False)
        if got[-1:] != expected[-1:] or any(a != b and 1 not in (a, b) for a, b in pairs):
            raise ValueError(f"v: expected a shape that broadcasts with {expected}, that of x, got {got}")
        return v.to(self._n.dtype)


def _centred(gain: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    r"""The singular values √λ of GΠ, and the coordinates of each centred row in its right singular vectors.

    With :math:`G\Pi G=Q\Lambda Q^\top` these vectors are :math:`\sqrt{\lambda_i}\,G^{-1}q_i`.  They are constant over
    the zero gains and orthogonal to 1.  So instead of centring a row we may shift it along 1: by minus its mean over
    the zero gains or, if there are none, by the limit of that mean.  Then nothing cancels at small gains.
    """
    values, axes = secular.eigh(gain)
    roots = values.clamp_min(0).sqrt()
    zero = gain == 0
    share = (gain.abs().min() / gain).square().nan_to_num(nan=1.0)
    shifted = rows - (rows @ share / share.sum())[:, None]
    coordinates = roots * ((shifted / gain).masked_fill(zero, 0) @ axes)
    coordinates[:, 0] = shifted[:, zero].norm(dim=-1)  # what G erases; it belongs to λ = 0, which is always there
    return roots, coordinates


def _squares(poles: Tensor, direction: Tensor, deficit: float) -> Tensor:
    """The eigenvalues of s²JJᵀ (or r²JJᵀ), ascending; NaN if s or r is 0 or x is not finite."""
    if math.isnan(deficit) or not direction.isfinite().all():
        return torch.full_like(poles, torch.nan)
    # If the direction is zero, the deficit is 1, and any direction gives the same.
    return secular.eigvalsh(poles, direction if direction.any() else None, deficit)
