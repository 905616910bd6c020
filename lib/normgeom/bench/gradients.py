"""Gradients as torch gives them: by a gain, whose terms are summed over all rows, and differentiated again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


def gain_gradient(norm: Callable[[Tensor, Tensor], Tensor], x: Tensor, g: Tensor, threads: int) -> Tensor:
    """The gradient by a gain of ones, ``(d,)``, with that many threads of torch (claim-gain-gradient).

    Args:
        norm: a function of the rows and the gain.
        x: rows ``(n, d)``; the gain has their dtype.
        g: the gradient at the output, shape and dtype of ``x``.

    Raises:
        ValueError: ``g`` is not like ``x``, or ``threads`` is below 1.
    """
    if g.shape != x.shape or g.dtype != x.dtype:
        raise ValueError(f"g: expected shape {tuple(x.shape)} and {x.dtype} as x, got {tuple(g.shape)} and {g.dtype}")
    if threads < 1:
        raise ValueError(f"threads: expected at least 1, got {threads}")
    weight = torch.ones(x.shape[-1], dtype=x.dtype, requires_grad=True)
    with _threads(threads):
        return torch.autograd.grad(norm(x, weight), weight, g)[0]


def derivative_error(
    norm: Callable[[Tensor], Tensor], order: int, x: Tensor, direction: Tensor, step: float = 1e-5
) -> float:
    """How far the derivative of that order is from a difference quotient of the one below it (claim-third-derivative).

    What is differentiated is the sum of the cubes of ``norm(x)``, and from then on the sum of squares of the last
    gradient.

    Args:
        norm: a function of rows that autograd differentiates.
        order: 1 for the gradient, and so on.
        x: rows ``(n, d)``, float64.
        direction: shape of ``x``: along it the derivative is taken.
        step: of the quotient, to both sides.

    Returns:
        the relative deviation.

    Raises:
        TypeError: ``x`` is not float64.
        ValueError: ``order`` is below 1, or ``direction`` has another shape than ``x``.
    """
    if x.dtype != torch.float64:
        raise TypeError(f"x: expected float64, where a quotient keeps digits, got {x.dtype}")
    if order < 1:
        raise ValueError(f"order: expected at least 1, got {order}")
    if direction.shape != x.shape:
        raise ValueError(f"direction: expected shape {tuple(x.shape)}, got {tuple(direction.shape)}")
    leaf = x.detach().clone().requires_grad_()
    slope = torch.autograd.grad(_tower(norm, order - 1, leaf), leaf)[0]
    above, below = (_tower(norm, order - 1, (x + s * direction).requires_grad_()) for s in (step, -step))
    quotient = (above - below).item() / (2 * step)
    return abs(float((slope * direction).sum()) / quotient - 1)


def _tower(norm: Callable[[Tensor], Tensor], order: int, x: Tensor) -> Tensor:
    value = norm(x).pow(3).sum()
    for _ in range(order):
        slope = torch.autograd.grad(value, x, create_graph=True)[0]
        value = slope.square().sum()
    return value


@contextmanager
def _threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
