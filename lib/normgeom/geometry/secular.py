r"""Eigenvalues and eigenvectors of :math:`G(I-(1-\delta)uu^\top)G`, G = diag(gain), in O(d²) time (eq-secular).

With ``u`` = 1/√d and δ = 0 the matrix is GΠG, whose eigenvalues are the squared semi-axes of LayerNorm's image over d
(thm-critical-points).  The same matrix with other ``u`` and δ gives the singular values of the norms' Jacobians
(thm-jacobian-spectrum).  Its eigenvalues λ solve

.. math:: \frac{\delta}{0-\lambda}+\sum_i\frac{(1-\delta)\,u_i^2}{\gamma_i^2-\lambda}=0,

a sum of simple poles with positive weights: between two neighbouring poles it rises from −∞ to +∞, so there is one
root.  Each root is kept as its nearest pole and an offset, because eigenvectors need its distance from the poles, which
subtracting would lose.  Nothing is merged by a tolerance: equal squares are one pole, a coordinate without gain or
without weight is an eigenvector by itself, and whatever is left has its root strictly between two poles.

Sources: Golub (1973) for the equation; Li (1993) for the rational step; Gu and Eisenstat (1994) for the eigenvectors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from normgeom.norms import check_floating

__all__ = ["eigh", "eigvalsh"]

# The (roots, poles) table is worked through in blocks of rows: on a CPU they must fit its cache.
BLOCK_BYTES = {"cpu": 1 << 20}
BLOCK_BYTES_ELSEWHERE = 1 << 28
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
        to weights recomputed from the eigenvalues.  In each, the first entry of at least half the largest size is
        positive.

    Raises:
        TypeError, ValueError: as :func:`eigvalsh`; ``largest`` is not between 0 and d.
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
    scale = power_of_two_near(gain)
    gain = gain / scale
    gain = gain.where(gain.abs() >= SMALLEST_GAIN, 0.0)
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
        origins, offsets = _roots(problem.squares, problem.weights)
        keep = len(problem.squares)
        return torch.cat([zero, origins])[:keep], torch.cat([zero, offsets])[:keep]
    return _roots(torch.cat([zero, problem.squares]), torch.cat([zero + problem.weight_at_zero, problem.weights]))


def _roots(poles: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """The root of Σ weights/(poles − x) between each two neighbours of ``poles``, as nearest pole and offset."""
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
    """Σ weights/(poles − x) and Σ weights/(poles − x)² at x = poles[nearest] + offsets, the nearest pole left out.

    Its own term is −weight/offset; next to a pole it is so large that nothing of the others would survive in the sum.
    """
    value, slope = torch.empty_like(offsets), torch.empty_like(offsets)
    for rows in _blocks(len(offsets), poles):
        inverse = (poles - poles[nearest[rows], None]).sub_(offsets[rows, None]).reciprocal_()
        inverse.scatter_(1, nearest[rows, None], 0.0)
        torch.mv(inverse, weights, out=value[rows])
        torch.mv(inverse.square_(), weights, out=slope[rows])
    return value, slope


def _rational_step(weight: Tensor, near: Tensor, far: Tensor, rest: Tensor, slope: Tensor) -> Tensor:
    """The η with weight/(near − η) + a + b/(far − η) = 0, where a and b give ``rest`` and its ``slope`` at η = 0.

    ``near`` and ``far`` are the poles seen from the present point; ``weight`` is the near pole's own.
    """
    # Multiplied out it is a η² − p η + q = 0; b = slope·far² is put in by hand where it would cancel.
    own = rest * near + weight
    a, p, q = rest - slope * far, own + rest * far - slope * near * far, own * far
    root = (p * p - 4 * a * q).clamp_min(0).sqrt()
    step = torch.where(p > 0, 2 * q / (p + root), (p - root) / (2 * a))
    in_range = (near.abs() > 2.0**-500) & slope.isfinite() & ((q != 0) | (own == 0))
    return torch.where(in_range, step, torch.nan)


def _between(low: Tensor, high: Tensor) -> Tensor:
    """A point inside the bracket, halfway in order of magnitude, since offsets span hundreds of these."""
    middle = low.sign() * low.abs().sqrt() * high.abs().sqrt()
    return torch.where(middle == 0, (low + high) * 2.0**-30, middle)


def _vectors(problem: _Problem, origins: Tensor, offsets: Tensor, chosen: Tensor) -> Tensor:
    """Row j: the eigenvector of the eigenvalue ``_all_values(...)[chosen[j]]``; unit length."""
    m, d = len(problem.squares), len(problem.gain)
    vectors = problem.gain.new_zeros(len(chosen), d)
    solved, again, alone = (
        torch.nonzero((chosen >= start) & (chosen < stop)).squeeze(1)
        for start, stop in ((0, m), (m, len(problem.active)), (len(problem.active), d))
    )
    vectors[alone, problem.alone[chosen[alone] - len(problem.active)]] = 1.0

    z = _recomputed(problem.squares, origins, offsets)
    share = problem.gain[problem.active] * problem.u[problem.active]
    share = share / _group_norm(share, problem.pole, m)[problem.pole]
    for rows in _blocks(len(solved), problem.gain):
        which = chosen[solved[rows]]
        row = z / (problem.squares - origins[which, None]).sub_(offsets[which, None])
        row = row / torch.linalg.vector_norm(row, dim=1, keepdim=True)
        vectors[solved[rows, None], problem.active] = row[:, problem.pole] * share

    # At a shared pole, what is orthogonal to `share` keeps the pole: the other columns of a reflection that turns the
    # group's first axis to `share`.
    first = problem.repeats.cumsum(0) - problem.repeats
    mirror = share.clone()
    mirror[first] += torch.where(share[first] < 0, -1.0, 1.0).to(share)
    mirror = mirror / _group_norm(mirror, problem.pole, m)[problem.pole]
    others = torch.ones_like(share, dtype=torch.bool)
    others[first] = False
    others = torch.nonzero(others).squeeze(1)
    for rows in _blocks(len(again), problem.gain):
        which = others[chosen[again[rows]] - m]
        same = problem.pole == problem.pole[which, None]
        row = torch.where(same, -2 * mirror[which, None] * mirror, 0.0)
        row[torch.arange(len(which)), which] += 1
        vectors[again[rows, None], problem.active] = row
    return _signed(vectors)


def _recomputed(squares: Tensor, origins: Tensor, offsets: Tensor) -> Tensor:
    """The z > 0 for which the computed numbers are the exact eigenvalues of diag(squares) − zzᵀ (Löwner's formula)."""
    z = torch.empty_like(squares)
    index = torch.arange(len(squares), device=squares.device)
    for rows in _blocks(len(squares), squares):
        to_roots = (origins - squares[rows, None]).add_(offsets)
        to_poles = squares - squares[rows, None]
        to_poles[torch.arange(len(to_poles)), index[rows]] = -1.0
        z[rows] = (to_roots / to_poles).prod(dim=1).sqrt()
    return z


def _group_norm(values: Tensor, group: Tensor, groups: int) -> Tensor:
    return values.new_zeros(groups).index_add_(0, group, values**2).sqrt()


def _signed(vectors: Tensor) -> Tensor:
    for rows in _blocks(len(vectors), vectors):
        size = vectors[rows].abs()
        first = (size >= size.amax(1, keepdim=True) / 2).byte().argmax(1, keepdim=True)
        vectors[rows] *= torch.where(vectors[rows].gather(1, first) < 0, -1.0, 1.0)
    return vectors


def _blocks(rows: int, columns: Tensor) -> Iterator[slice]:
    """Slices of ``rows`` rows such that a block of them with a column for each of ``columns`` fits the budget."""
    budget = BLOCK_BYTES.get(columns.device.type, BLOCK_BYTES_ELSEWHERE)
    step = max(8, budget // (8 * max(1, columns.shape[-1])))
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))


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


def power_of_two_near(v: Tensor) -> float:
    """The power of two at or just below the largest size in ``v``: dividing by it rounds nothing, and squares fit."""
    return math.ldexp(1.0, math.frexp(float(v.abs().max()))[1] - 1)
