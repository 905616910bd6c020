"""The roots of a sum of simple poles with positive weights, Σ weights/(poles − x), all at once in O(d²) time.

Between two neighbouring poles the sum rises from −∞ to +∞, so there is one root.  Each is kept as its nearest pole and
an offset, because eigenvectors need its distance from the poles, which subtracting would lose.

Source: Li (1993) for the rational step.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

# The (roots, poles) table is worked through in blocks of rows: on a CPU they must fit its cache.
BLOCK_BYTES = {"cpu": 1 << 20}
BLOCK_BYTES_ELSEWHERE = 1 << 28


def roots(poles: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
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
    for rows in blocks(len(offsets), poles):
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


def blocks(rows: int, columns: Tensor) -> Iterator[slice]:
    """Slices of ``rows`` rows such that a block of them with a column for each of ``columns`` fits the budget."""
    budget = BLOCK_BYTES.get(columns.device.type, BLOCK_BYTES_ELSEWHERE)
    step = max(8, budget // (8 * max(1, columns.shape[-1])))
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))
