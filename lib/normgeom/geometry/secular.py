r"""Eigenvalues and eigenvectors of :math:`G(I-(1-\delta)uu^\top)G`, G = diag(gain), in O(d²) time (eq-secular).

With ``u`` = 1/√d and δ = 0 the matrix is GΠG, whose eigenvalues are the squared semi-axes of LayerNorm's image over d
(thm-critical-points).  The same matrix with other ``u`` and δ gives the singular values of the norms' Jacobians
(thm-jacobian-spectrum).  Its eigenvalues λ solve

.. math:: \frac{\delta}{0-\lambda}+\sum_i\frac{(1-\delta)\,u_i^2}{\gamma_i^2-\lambda}=0,

a sum of simple poles with positive weights, which has one root between two neighbouring poles.  No tolerance merges
poles: only equal squares share one.

Sources: Golub (1973) for the equation; Li (1993) for the rational step; Gu and Eisenstat (1994) for the eigenvectors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from normgeom.norms.functions import check_floating

__all__ = ["eigh", "eigvalsh"]

# Smaller ones, relative to the largest, would leave the range of float64 when an offset multiplies their squares.
SMALLEST_GAIN, SMALLEST_ENTRY = 2.0**-320, 2.0**-160
# Tables of (roots, poles) are computed in blocks of rows: on a CPU they must fit its cache.
BLOCK_BYTES, BLOCK_BYTES_ELSEWHERE = 1 << 20, 1 << 28


def eigvalsh(gain: Tensor, u: Tensor | None = None, deficit: float = 0.0) -> Tensor:
    r"""All eigenvalues of :math:`G(I-(1-\delta)uu^\top)G`, ascending, in O(d²) time and O(d) memory (eq-secular).

    Args:
        gain: γ, ``(d,)``, floating point, finite, of any sign; zeros and repeats are allowed.
        u: ``(d,)``, a nonzero vector, which is scaled to length 1; the uniform vector if None.
        deficit: δ, from 0 to 1.  The argument is δ because rounding 1 − δ would spoil small eigenvalues.

    Returns:
        ``(d,)`` in float64, on the device of ``gain`` (on the CPU if that device has no float64).  Each eigenvalue
        above 1e-300 of the largest squared gain is accurate to a few units in its last place.  Gains below 1e-96 of the
        largest, and entries below 1e-48 in a unit ``u``, count as zero; squares beyond 1e308 are infinite.

    Raises:
        TypeError: ``gain`` or ``u`` is not a floating-point tensor.
        ValueError: ``gain`` or ``u`` has a wrong shape, is empty or is not finite; ``u`` is zero; or ``deficit`` is
            outside [0, 1].

    Source: Golub (1973).

    Example:
        >>> import torch, normgeom as ng
        >>> ng.secular.eigvalsh(torch.tensor([2.0, 2.0, 2.0]))  # 4Π: 0 along the uniform vector, 4 across it
        tensor([0., 4., 4.], dtype=torch.float64)
    """
    solved = _Solved(gain, u, deficit)
    return solved.values.sort().values * solved.scale * solved.scale


def eigh(
    gain: Tensor, u: Tensor | None = None, deficit: float = 0.0, largest: int | None = None
) -> tuple[Tensor, Tensor]:
    r"""Eigenvalues, ascending, and eigenvectors of :math:`G(I-(1-\delta)uu^\top)G` in O(d²) time (eq-secular-vectors).

    Args:
        gain, u, deficit: as in :func:`eigvalsh`, which also lists their errors.
        largest: return this many eigenpairs, those with the largest eigenvalues; all if None.

    Returns:
        ``(k,)`` and ``(d, k)`` in float64.  Columns are orthonormal up to rounding even in clusters, because they are
        computed from a direction that is recomputed from the eigenvalues.  In each column, the first entry that is at
        least half as large as the largest is positive.

    Raises:
        ValueError: ``largest`` is not between 0 and d.

    Source: Gu and Eisenstat (1994).

    Example:
        >>> import torch, normgeom as ng
        >>> gain = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
        >>> values, vectors = ng.secular.eigh(gain, largest=2)
        >>> matrix = torch.diag(gain**2) - torch.outer(gain, gain) / 3
        >>> torch.allclose(matrix @ vectors, vectors * values)
        True
    """
    solved = _Solved(gain, u, deficit)
    d = len(solved.values)
    count = d if largest is None else largest
    if not 0 <= count <= d:
        raise ValueError(f"largest: expected 0 to {d}, the dimension of gain, got {largest}")
    order = solved.values.argsort(stable=True)[d - count :]
    return solved.values[order] * solved.scale * solved.scale, solved.vectors(order).T


class _Solved:
    """The eigenvalues, in units of ``scale`` squared, and their eigenvectors.

    Coordinates with nonzero gain and weight and the same squared gain share a pole.  A reflection of these coordinates
    maps the first of them to ``share``, the unit vector along their part of γu.  The first coordinates belong to the
    roots between the poles.  Every other coordinate, reflected in the same way, is an eigenvector, and its squared gain
    is the eigenvalue.
    """

    def __init__(self, gain: Tensor, u: Tensor | None, deficit: float):
        gain = double_vector("gain", gain)
        u = torch.ones_like(gain) if u is None else double_vector("u", u).to(gain.device)
        if u.shape != gain.shape:
            raise ValueError(f"u: expected shape {tuple(gain.shape)}, that of gain, got {tuple(u.shape)}")
        if not u.any():
            raise ValueError("u: expected a direction, got the zero vector")
        if not 0 <= deficit <= 1:
            raise ValueError(f"deficit: expected a number from 0 to 1, got {deficit}")
        self.scale, gain = scaled(gain)
        u = u / u.abs().max()
        u = u / torch.linalg.vector_norm(u)
        square = gain**2
        weight = (1 - deficit) * u**2
        active = torch.nonzero((gain != 0) & (u.abs() >= SMALLEST_ENTRY) & (weight > 0)).squeeze(1)
        active = active[square[active].argsort(stable=True)]
        self.poles, pole, repeats = torch.unique_consecutive(square[active], return_inverse=True, return_counts=True)
        weights = torch.zeros_like(self.poles).index_add_(0, pole, weight[active])
        zero = square.new_zeros(1)
        weight_at_zero = zero + deficit + weight[gain == 0].sum()
        if weight_at_zero > 0:
            self.origins, self.offsets = roots(torch.cat([zero, self.poles]), torch.cat([weight_at_zero, weights]))
        else:  # without a pole at zero, zero itself is the smallest eigenvalue
            origins, offsets = roots(self.poles, weights)
            self.origins, self.offsets = torch.cat([zero, origins]), torch.cat([zero, offsets])
        first = repeats.cumsum(0) - repeats
        self.others = torch.ones_like(square).index_fill_(0, active[first], 0).nonzero().squeeze(1)
        self.values = torch.cat([self.origins + self.offsets, square[self.others]])
        # Of every coordinate, 0 where it is not active: its pole, its share, and its entry of the reflection's vector.
        share = _unit_groups((gain * u)[active], pole)
        mirror = share.clone()
        mirror[first] += torch.where(share[first] < 0, -1.0, 1.0).to(mirror)
        self.pole = torch.zeros_like(square, dtype=torch.int64).index_copy_(0, active, pole)
        self.share = torch.zeros_like(square).index_copy_(0, active, share)
        self.mirror = torch.zeros_like(square).index_copy_(0, active, _unit_groups(mirror, pole))

    def vectors(self, chosen: Tensor) -> Tensor:
        """Row j: the eigenvector of ``values[chosen[j]]``, of unit length."""
        m = len(self.poles)
        vectors = self.share.new_zeros(len(chosen), len(self.share))
        z = self._recomputed()
        solved = (chosen < m).nonzero().squeeze(1)
        for part in blocks(len(solved), vectors):
            rows = solved[part]
            root = chosen[rows, None]
            row = z / (self.poles - self.origins[root]).sub_(self.offsets[root])
            row = row / torch.linalg.vector_norm(row, dim=1, keepdim=True)
            vectors[rows] = row[:, self.pole] * self.share
        others = (chosen >= m).nonzero().squeeze(1)
        for part in blocks(len(others), vectors):
            rows = others[part]
            place = self.others[chosen[rows] - m]
            vectors[rows, place] = 1.0
            same = self.pole == self.pole[place, None]
            vectors[rows] -= torch.where(same, 2 * self.mirror[place, None] * self.mirror, 0.0)
        for rows in blocks(len(vectors), vectors):
            size = vectors[rows].abs()
            first = (size >= size.amax(1, keepdim=True) / 2).byte().argmax(1, keepdim=True)
            vectors[rows] *= torch.where(vectors[rows].gather(1, first) < 0, -1.0, 1.0)
        return vectors

    def _recomputed(self) -> Tensor:
        """The z > 0 for which the computed roots are the exact eigenvalues of diag(poles) − zzᵀ (Löwner's formula)."""
        z = torch.empty_like(self.poles)
        for rows in blocks(len(z), z):
            to_roots = (self.origins - self.poles[rows, None]).add_(self.offsets)
            to_poles = self.poles - self.poles[rows, None]
            to_poles[:, rows].fill_diagonal_(-1.0)
            z[rows] = (to_roots / to_poles).prod(dim=1).sqrt()
        return z


def _unit_groups(values: Tensor, group: Tensor) -> Tensor:
    """``values`` divided by the length of the vector of all values in the same group."""
    return values / torch.zeros_like(values).index_add_(0, group, values**2).sqrt()[group]


def roots(poles: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """The root of Σ weights/(poles − x) between each two neighbours of ``poles``, as nearest pole and offset from it.

    Eigenvectors need the distances of a root from the poles, which would be inaccurate after a subtraction.
    """
    half = poles.diff() / 2
    index = torch.arange(len(half), device=poles.device)
    rest, slope = _without_nearest(poles, weights, index, half)
    left, right = weights[:-1] / half, weights[1:] / half
    # The sum rises, so its sign in the middle says which half the root is in.
    from_left = rest >= left
    near, far = torch.where(from_left, index, index + 1), torch.where(from_left, index + 1, index)
    rest = torch.where(from_left, rest, rest - left - right)
    slope = torch.where(from_left, slope, slope + (left - right) / half).clamp_min(0)
    # From here on x = origin + offset; the root is between 0 and the middle, and the far pole at twice the middle.
    origins, far_offsets = poles[near], poles[far] - poles[near]
    offsets = far_offsets / 2
    low, high = offsets.clamp_max(0), offsets.clamp_min(0)
    todo = index
    while todo.numel():
        offset, weight = offsets[todo], weights[near[todo]]
        new = offset + _rational_step(weight, -offset, far_offsets[todo] - offset, rest, slope)
        inside = ((new > low[todo]) & (new < high[todo])) | (new == offset)
        new = torch.where(inside, new, _between(low[todo], high[todo]))
        offsets[todo] = new
        # A rational step's error is about its square, so after one of 1e-9 nothing is left to gain.
        moves = (new - offset).abs() > torch.where(inside, 1e-9, 4e-16) * new.abs()
        todo, new, weight = todo[moves], new[moves], weight[moves]
        rest, slope = _without_nearest(poles, weights, near[todo], new)
        value = rest - weight / new
        low[todo] = torch.where(value <= 0, new, low[todo])
        high[todo] = torch.where(value >= 0, new, high[todo])
    return origins, offsets


def _without_nearest(poles: Tensor, weights: Tensor, nearest: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
    """Σ weights/(poles − x) and Σ weights/(poles − x)² at x = poles[nearest] + offsets, without the nearest pole.

    The omitted term is −weight/offset; near a pole it is so large that rounding would remove the others from the sum.
    """
    value, slope = torch.empty_like(offsets), torch.empty_like(offsets)
    for rows in blocks(len(offsets), poles):
        inverse = (poles - poles[nearest[rows], None]).sub_(offsets[rows, None]).reciprocal_()
        inverse.scatter_(1, nearest[rows, None], 0.0)
        torch.mv(inverse, weights, out=value[rows])
        torch.mv(inverse.square_(), weights, out=slope[rows])
    return value, slope


def _rational_step(weight: Tensor, near: Tensor, far: Tensor, rest: Tensor, slope: Tensor) -> Tensor:
    """The η with weight/(near − η) + a + b/(far − η) = 0, where a and b give ``rest`` and its ``slope`` at η = 0.

    ``near`` and ``far`` are the poles relative to the present point; ``weight`` is that of the near pole.
    """
    # Multiplied out it is a η² − p η + q = 0; b = slope·far² is put in by hand where it would cancel.
    own = rest * near + weight
    a, p, q = rest - slope * far, own + rest * far - slope * near * far, own * far
    root = (p * p - 4 * a * q).clamp_min(0).sqrt()
    step = torch.where(p > 0, 2 * q / (p + root), (p - root) / (2 * a))
    in_range = (near.abs() > 2.0**-500) & slope.isfinite() & ((q != 0) | (own == 0))
    return torch.where(in_range, step, torch.nan)


def _between(low: Tensor, high: Tensor) -> Tensor:
    """A point inside the bracket, halfway in order of magnitude, because offsets span hundreds of orders."""
    middle = low.sign() * low.abs().sqrt() * high.abs().sqrt()
    return torch.where(middle == 0, (low + high) * 2.0**-30, middle)


def blocks(rows: int, columns: Tensor) -> Iterator[slice]:
    """Slices of ``rows`` rows such that a block of them, with one column for each of ``columns``, fits the budget."""
    budget = BLOCK_BYTES if columns.is_cpu else BLOCK_BYTES_ELSEWHERE
    step = max(8, budget // (8 * max(1, columns.shape[-1])))
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))


def double_vector(name: str, v: Tensor) -> Tensor:
    """``v`` in float64, on the CPU if its device has no float64; an error unless it is a finite vector."""
    check_floating(name, v)
    if v.dim() != 1 or v.numel() == 0:
        raise ValueError(f"{name}: expected shape (d,) with d ≥ 1, got {tuple(v.shape)}")
    if not v.isfinite().all():
        raise ValueError(f"{name}: expected finite numbers, got {int((~v.isfinite()).sum())} that are NaN or infinite")
    return v.detach().to("cpu" if v.device.type == "mps" else v.device).double()


def scaled(gain: Tensor) -> tuple[float, Tensor]:
    """The power of two at or just below the largest gain, and the gains divided by it, with negligible ones set to 0.

    The division causes no rounding, and the squares of the quotients stay in range.
    """
    scale = math.ldexp(1.0, math.frexp(float(gain.abs().max()))[1] - 1)
    gain = gain / scale
    return scale, gain.where(gain.abs() >= SMALLEST_GAIN, 0.0)
