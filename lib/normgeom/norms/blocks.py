"""The norms on a CPU, block of rows by block of rows, forward and back.

A pass over memory costs more than the arithmetic on what it brings, so as many rows are worked on at a time as fit in
a cache, and nothing is kept but the output and a number a row.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from normgeom.norms import formula

# Bytes that a block of rows touches: a call costs little beside them, a cache holds them.
BLOCK = 8_500_000


def forward(x: Tensor, gain: Tensor | None, bias: Tensor | None, eps: float, centered: bool) -> tuple[Tensor, Tensor]:
    """``(y, rate)``: the output, in the shape and dtype of ``x``, and 1/s or 1/r, ``(rows, 1)``."""
    rows, wide, d = rows_of(x), formula.wide_dtype(x), x.shape[-1]
    narrow = x.dtype != wide
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    rate = torch.empty(rows.shape[0], 1, dtype=wide)
    least = torch.scalar_tensor(eps, dtype=wide)
    for xs, ys, scale, *room in cut(rows, rows_of(y), rate, rooms=int(centered or narrow)):
        start = _start(xs, room[0], centered) if room else xs
        torch.linalg.vector_norm(start, dim=-1, keepdim=True, out=scale)
        torch.addcmul(least, scale, scale, value=1 / d, out=scale).rsqrt_()
        result = torch.mul(start, scale, out=start if narrow else ys)
        if gain is not None:
            result.mul_(gain)
        if bias is not None:
            result.add_(bias)
        if narrow:
            ys.copy_(result)
    return y, rate


def backward(grad, x, gain, rate, centered, wanted):
    """Gradients by the rows ``x`` and, in the wide dtype, by gain and bias; with the ``rate`` of :func:`forward`."""
    d, wide = x.shape[-1], rate.dtype
    narrow = x.dtype != wide
    by_x = torch.empty_like(x, memory_format=torch.contiguous_format)
    by_bias, sums = torch.zeros(d, dtype=wide) if wanted[2] else None, None
    rooms = 1 + wanted[1] + (centered or narrow) + narrow
    for gs, xs, out, scale, *room in cut(grad, x, by_x, rate, rooms=rooms):
        start = _start(xs, room[0], centered) if centered or narrow else xs
        scaled, result = room[-1], room[1] if narrow else out
        gs = scaled.copy_(gs) if narrow else gs
        if by_bias is not None:
            by_bias += gs.sum(0)
        torch.mul(gs, scale, out=scaled)
        # Block on block: a sum over rows would hand half of them to another thread's cache, and the next pass back.
        if sums is not None:
            room[-2].addcmul_(scaled, start)
        elif wanted[1]:
            sums = torch.mul(scaled, start, out=room[-2])
        if gain is None:
            result.copy_(scaled)
        else:
            torch.mul(scaled, gain, out=result)
        product = torch.mul(result, start, out=scaled)
        result.addcmul_(start, _means(product).mul_(scale).mul_(scale), value=-1)
        if centered:
            result.sub_(_means(result))
        if narrow:
            out.copy_(result)
    return by_x, None if sums is None else sums.sum(0), by_bias


def cut(*matrices: Tensor, rooms: int, others: int = 0) -> Iterator[tuple[Tensor, ...]]:
    """As many rows of each matrix at a time as stay in a cache, and ``rooms`` wide scratch matrices of their size.

    ``others`` counts such matrices that the caller makes.
    """
    (rows, d), wide = matrices[0].shape, formula.wide_dtype(matrices[0])
    touched = sum([m.nbytes for m in matrices]) + (rooms + others) * rows * d * wide.itemsize
    number = -(-rows // max(1, BLOCK * rows // touched))
    size = -(-rows // number)
    number, rest = -(-rows // size), rows % size
    # Cutting takes as long as a norm of a few rows.
    pieces = [m.chunk(number) for m in matrices] if number > 1 else [(m,) for m in matrices]
    for _ in range(rooms):
        room = torch.empty(size, d, dtype=wide)
        pieces.append([room] * (number - 1) + [room[:rest] if rest else room])
    return zip(*pieces, strict=True)


def rows_of(x: Tensor) -> Tensor:
    """``(rows, d)``, a view where there is one."""
    return x if x.dim() == 2 else x.reshape(-1, x.shape[-1])


def _start(xs: Tensor, room: Tensor, centered: bool) -> Tensor:
    """The rows whose root mean square is taken, in ``room`` and its dtype."""
    start = room.copy_(xs)
    if centered:
        for _ in range(2):  # as in formula.center
            start.sub_(_means(start))
    return start


def _means(rows: Tensor) -> Tensor:
    """``(rows, 1)``, each the same whatever the threads: torch shares out the sum of a single row among them."""
    return rows.mean(-1, keepdim=True) if rows.shape[0] != 1 else rows.expand(2, -1).mean(-1, keepdim=True)[:1]
