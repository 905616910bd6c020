r"""Eigenvalues and eigenvectors of :math:`G(I-(1-\delta)uu^\top)G`, G = diag(gain), in O(d²) time (eq-secular).

With ``u`` = 1/√d and δ = 0 the matrix is GΠG, whose eigenvalues are the squared semi-axes of LayerNorm's image over d
(thm-critical-points).  The same matrix with other ``u`` and δ gives the singular values of the norms' Jacobians
(thm-jacobian-spectrum).  Its eigenvalues λ solve

.. math:: \frac{\delta}{0-\lambda}+\sum_i\frac{(1-\delta)\,u_i^2}{\gamma_i^2-\lambda}=0,

a sum of simple poles with positive weights, with one root between two neighbours (:mod:`normgeom.geometry.poles`).
Nothing is merged by a tolerance: equal squares are one pole, a coordinate without gain or
without weight is an eigenvector by itself, and whatever is left has its root strictly between two poles.

Sources: Golub (1973) for the equation; Gu and Eisenstat (1994) for the eigenvectors.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from normgeom.geometry.poles import blocks, roots
from normgeom.norms.functions import check_floating

__all__ = ["eigh", "eigvalsh"]

# Smaller ones, relative to the largest, would leave the range of float64 when an offset multiplies their squares.
SMALLEST_GAIN, SMALLEST_ENTRY = 2.0**-320, 2.0**-160


def eigvalsh(gain: Tensor, u: Tensor | None = None, deficit: float = 0.0) -> Tensor:
    r"""All eigenvalues of :math:`G(I-(1-\delta)uu^\top)G`, ascending, in O(d²) time and O(d) memory (eq-secular).

    Args:
        gain: γ, ``(d,)``, floating point, finite, of any sign; zeros and repeats are allowed.
        u: ``(d,)``, of any length but zero, used as a unit vector; the uniform vector if None.
        deficit: δ, from 0 to 1.  It is the argument because 1 − δ would round away what a small eigenvalue is made of.

    Returns:
        ``(d,)`` in float64, on the device of ``gain`` (on the CPU where that has no float64).  Each eigenvalue is
        accurate to a few units in its last place, if it is above 1e-300 of the largest squared gain.  Gains below 1e-96
        of the largest, and entries below 1e-48 in a unit ``u``, count as zero; squares beyond 1e308 are infinite.

    Raises:
        TypeError: ``gain`` or ``u`` is not a floating-point tensor.
        ValueError: a wrong shape, an empty or non-finite ``gain`` or ``u``, a zero ``u``, a ``deficit`` outside [0, 1].

    Source: Golub (1973).

    Example:
        >>> import torch, normgeom as ng
        >>> ng.secular.eigvalsh(torch.tensor([2.0, 2.0, 2.0]))  # 4Π: 0 along the uniform vector, 4 across it
        tensor([0., 4., 4.], dtype=torch.float64)
    """
    problem = _reduce(gain, u, deficit)
    values = _all_values(problem, sum(_eigenvalues(problem)))
    return values.sort().values * problem.scale * problem.scale


def eigh(
    gain: Tensor, u: Tensor | None = None, deficit: float = 0.0, largest: int | None = None
) -> tuple[Tensor, Tensor]:
    r"""Eigenvalues, ascending, and eigenvectors of :math:`G(I-(1-\delta)uu^\top)G` in O(d²) time (eq-secular-vectors).

    Args:
        gain, u, deficit: as in :func:`eigvalsh`.
        largest: how many eigenpairs to return, those of the largest eigenvalues; all if None.

    Returns:
        ``(k,)`` and ``(d, k)`` in float64.  Columns are orthonormal to rounding even in clusters, because they belong
        to a direction recomputed from the eigenvalues.  In each, the first entry of at least half the largest size is
        positive.

    Raises:
        TypeError, ValueError: as :func:`eigvalsh`; ``largest`` is not between 0 and d.

    Source: Gu and Eisenstat (1994).

    Example:
        >>> import torch, normgeom as ng
        >>> gain = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
        >>> values, vectors = ng.secular.eigh(gain, largest=2)
        >>> matrix = torch.diag(gain**2) - torch.outer(gain, gain) / 3
        >>> torch.allclose(matrix @ vectors, vectors * values)
        True
    """
    problem = _reduce(gain, u, deficit)
    d = len(problem.gain)
    count = d if largest is None else largest
    if not 0 <= count <= d:
        raise ValueError(f"largest: expected 0 to {d}, the dimension of gain, got {largest}")
    origins, offsets = _eigenvalues(problem)
    values = _all_values(problem, origins + offsets)
    order = values.argsort(stable=True)[d - count :]
    vectors = _vectors(problem, origins, offsets, order)
    return values[order] * problem.scale * problem.scale, vectors.T


@dataclass(frozen=True)
class _Problem:
    """What is left to solve: distinct poles above zero with their weights, and the pole at zero.

    ``gain`` ``(d,)`` is divided by ``scale``.  ``active`` ``(a,)`` are the coordinates with gain and weight, by rising
    square; ``pole`` ``(a,)`` says to which of ``squares`` ``(m,)`` each belongs, ``repeats`` ``(m,)`` how many share
    it.  The other coordinates, ``alone``, are eigenvectors by themselves.
    """

    gain: Tensor
    u: Tensor
    scale: float
    active: Tensor
    alone: Tensor
    pole: Tensor
    repeats: Tensor
    squares: Tensor
    weights: Tensor
    weight_at_zero: float


def _reduce(gain: Tensor, u: Tensor | None, deficit: float) -> _Problem:
    gain = double_vector("gain", gain)
    u = torch.ones_like(gain) if u is None else double_vector("u", u).to(gain.device)
    if u.shape != gain.shape:
        raise ValueError(f"u: expected shape {tuple(gain.shape)}, that of gain, got {tuple(u.shape)}")
    if not u.any():
        raise ValueError("u: expected a direction, got the zero vector")
    if not 0 <= deficit <= 1:
        raise ValueError(f"deficit: expected a number from 0 to 1, got {deficit}")
    scale, gain = scaled(gain)
    u = u / u.abs().max()
    u = u / torch.linalg.vector_norm(u)
    square, weight = gain**2, (1 - deficit) * u**2
    is_active = (gain != 0) & (u.abs() >= SMALLEST_ENTRY) & (weight > 0)
    active = torch.nonzero(is_active).squeeze(1)
    active = active[square[active].argsort(stable=True)]
    squares, pole, repeats = torch.unique_consecutive(square[active], return_inverse=True, return_counts=True)
    return _Problem(
        gain=gain,
        u=u,
        scale=scale,
        active=active,
        alone=torch.nonzero(~is_active).squeeze(1),
        pole=pole,
        repeats=repeats,
        squares=squares,
        weights=torch.zeros_like(squares).index_add_(0, pole, weight[active]),
        weight_at_zero=deficit + float(weight[gain == 0].sum()),
    )


def _all_values(problem: _Problem, solved: Tensor) -> Tensor:
    """Solved eigenvalues, then a square for each further coordinate at its pole, then the coordinates alone."""
    again = problem.squares.repeat_interleave(problem.repeats - 1)
    return torch.cat([solved, again, problem.gain[problem.alone] ** 2])


def _eigenvalues(problem: _Problem) -> tuple[Tensor, Tensor]:
    """The m eigenvalues that belong to the m squares, each as (origin, offset); ascending."""
    zero = problem.squares.new_zeros(1)
    if problem.weight_at_zero == 0:
        # Without a pole at zero, zero itself is the smallest eigenvalue.
        origins, offsets = roots(problem.squares, problem.weights)
        keep = len(problem.squares)
        return torch.cat([zero, origins])[:keep], torch.cat([zero, offsets])[:keep]
    return roots(torch.cat([zero, problem.squares]), torch.cat([zero + problem.weight_at_zero, problem.weights]))


def _vectors(problem: _Problem, origins: Tensor, offsets: Tensor, chosen: Tensor) -> Tensor:
    """Row j: the eigenvector of the eigenvalue ``_all_values(...)[chosen[j]]``; unit length."""
    m, a = len(problem.squares), len(problem.active)
    vectors = problem.gain.new_zeros(len(chosen), len(problem.gain))
    is_solved, is_alone = chosen < m, chosen >= a
    vectors[torch.nonzero(is_alone).squeeze(1), problem.alone[chosen[is_alone] - a]] = 1.0
    # The unit vector of γu within each group of coordinates at one pole.
    share = problem.gain[problem.active] * problem.u[problem.active]
    share = share / _group_norm(share, problem.pole, m)[problem.pole]
    for places, rows_of in (
        (torch.nonzero(is_solved).squeeze(1), _solved_vectors(problem, origins, offsets, share)),
        (torch.nonzero(~is_solved & ~is_alone).squeeze(1), _repeated_vectors(problem, share)),
    ):
        for rows in blocks(len(places), problem.gain):
            vectors[places[rows, None], problem.active] = rows_of(chosen[places[rows]])
    return _signed(vectors)


def _solved_vectors(problem: _Problem, origins: Tensor, offsets: Tensor, share: Tensor) -> Callable[[Tensor], Tensor]:
    """A function from numbers of roots to their eigenvectors: z over the distances from the poles, shared out."""
    z = _recomputed(problem.squares, origins, offsets)

    def rows_of(which: Tensor) -> Tensor:
        row = z / (problem.squares - origins[which, None]).sub_(offsets[which, None])
        row = row / torch.linalg.vector_norm(row, dim=1, keepdim=True)
        return row[:, problem.pole] * share

    return rows_of


def _repeated_vectors(problem: _Problem, share: Tensor) -> Callable[[Tensor], Tensor]:
    """The same for the further eigenvalues at a shared pole, whose eigenvectors are orthogonal to ``share``: the other
    columns of a reflection that turns the first axis of the group to ``share``.
    """
    m = len(problem.squares)
    first = problem.repeats.cumsum(0) - problem.repeats
    mirror = share.clone()
    mirror[first] += torch.where(share[first] < 0, -1.0, 1.0).to(share)
    mirror = mirror / _group_norm(mirror, problem.pole, m)[problem.pole]
    others = torch.ones_like(share, dtype=torch.bool)
    others[first] = False
    others = torch.nonzero(others).squeeze(1)

    def rows_of(which: Tensor) -> Tensor:
        which = others[which - m]
        same = problem.pole == problem.pole[which, None]
        row = torch.where(same, -2 * mirror[which, None] * mirror, 0.0)
        row[torch.arange(len(which)), which] += 1
        return row

    return rows_of


def _recomputed(squares: Tensor, origins: Tensor, offsets: Tensor) -> Tensor:
    """The z > 0 for which the computed numbers are the exact eigenvalues of diag(squares) − zzᵀ (Löwner's formula)."""
    z = torch.empty_like(squares)
    index = torch.arange(len(squares), device=squares.device)
    for rows in blocks(len(squares), squares):
        to_roots = (origins - squares[rows, None]).add_(offsets)
        to_poles = squares - squares[rows, None]
        to_poles[torch.arange(len(to_poles)), index[rows]] = -1.0
        z[rows] = (to_roots / to_poles).prod(dim=1).sqrt()
    return z


def _group_norm(values: Tensor, group: Tensor, groups: int) -> Tensor:
    return values.new_zeros(groups).index_add_(0, group, values**2).sqrt()


def _signed(vectors: Tensor) -> Tensor:
    for rows in blocks(len(vectors), vectors):
        size = vectors[rows].abs()
        first = (size >= size.amax(1, keepdim=True) / 2).byte().argmax(1, keepdim=True)
        vectors[rows] *= torch.where(vectors[rows].gather(1, first) < 0, -1.0, 1.0)
    return vectors


def double_vector(name: str, v: Tensor) -> Tensor:
    """``v`` in float64, on the CPU where its device has none; an error that names the argument unless it is a
    finite floating-point vector.
    """
    check_floating(name, v)
    if v.dim() != 1 or v.numel() == 0:
        raise ValueError(f"{name}: expected shape (d,) with d ≥ 1, got {tuple(v.shape)}")
    if not v.isfinite().all():
        raise ValueError(f"{name}: expected finite numbers, got {int((~v.isfinite()).sum())} that are NaN or infinite")
    return v.detach().to("cpu" if v.device.type == "mps" else v.device).double()


def scaled(gain: Tensor) -> tuple[float, Tensor]:
    """The power of two at or just below the largest gain, and the gains over it, the negligible ones as zeros.

    Dividing by it rounds nothing, and the squares fit.
    """
    scale = math.ldexp(1.0, math.frexp(float(gain.abs().max()))[1] - 1)
    gain = gain / scale
    return scale, gain.where(gain.abs() >= SMALLEST_GAIN, 0.0)
