"""The uniform vector, projections and angles: what LayerNorm does before it divides."""

from __future__ import annotations

import torch
from torch import Tensor

from normgeom.norms.formula import upcast
from normgeom.norms.functions import check_floating


def uniform_vector(d: int, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Tensor:
    """The uniform vector (1, …, 1), ``(d,)``, of length √d (def-uniform-vector).

    Raises:
        ValueError: ``d`` is below 1.

    Source: Riechers (2024).

    Example:
        >>> import normgeom as ng
        >>> float(ng.uniform_vector(16).norm())
        4.0
    """
    if d < 1:
        raise ValueError(f"d: expected at least 1, got {d}")
    return torch.ones(d, dtype=dtype, device=device)


def project_out(x: Tensor, direction: Tensor) -> Tensor:
    """``x`` without its component along ``direction``, in the dtype of ``x`` (eq-projection).

    Args:
        x: ``(..., d)``, floating point.
        direction: ``(d,)``, floating point, of any nonzero length; a zero direction gives NaN.

    Raises:
        TypeError: ``x`` or ``direction`` is not floating point.
        ValueError: the last dimensions differ.

    Example:
        >>> import torch, normgeom as ng
        >>> ng.project_out(torch.tensor([1.0, 2.0, 6.0]), ng.uniform_vector(3)).round()  # less its mean
        tensor([-2., -1.,  3.])
    """
    wide, unit = _operands(x, direction)
    for _ in range(2):  # the second pass removes the rounding error of the first, which grows with x
        wide = wide - (wide @ unit).unsqueeze(-1) * unit
    return wide.to(x.dtype)


def angle(x: Tensor, direction: Tensor) -> Tensor:
    """The angle between ``x`` and ``direction`` in degrees, 0 to 180, ``(...)`` in at least float32 (eq-angle).

    The formula is atan2(‖x_⊥‖, x·u), which stays accurate near 0 and 180 degrees, where an arc cosine loses half of
    the digits.  For the zero vector the result is NaN.  Arguments and errors are those of :func:`project_out`.

    Example:
        >>> import torch, normgeom as ng
        >>> ng.angle(torch.tensor([[1.0, 1.0], [0.0, 3.0], [1.0, -1.0]]), ng.uniform_vector(2)).round()
        tensor([ 0., 45., 90.])
    """
    wide, unit = _operands(x, direction)
    wide = wide / wide.abs().amax(-1, keepdim=True)  # 0/0 for the zero vector; no square under- or overflows
    across = torch.linalg.vector_norm(project_out(wide, unit), dim=-1)
    return torch.rad2deg(torch.atan2(across, wide @ unit))


def _operands(x: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
    """``x`` in the wide dtype, and the unit vector along ``direction`` in the same dtype."""
    check_floating("x", x)
    check_floating("direction", direction)
    if direction.dim() != 1 or x.shape[-1:] != direction.shape:
        expected, got = tuple(x.shape[-1:]), tuple(direction.shape)
        raise ValueError(f"direction: expected shape {expected}, the last dimension of x, got {got}")
    wide = upcast(x)
    direction = direction.to(wide.dtype)
    direction = direction / direction.abs().amax()
    return wide, direction / torch.linalg.vector_norm(direction)
