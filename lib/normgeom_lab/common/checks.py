"""What the chapters' checks share: a check of parameters, random cases, and deviations."""

from __future__ import annotations

import ast
import math
import sys
from collections.abc import Container

import torch
from torch import Tensor


def check_parameters(**parameters: tuple[object, object, Container | type]) -> bool:
    """Check a chapter's parameters before any work; return whether all have their defaults.

    Each parameter is ``name=(value, default, allowed)`` with ``allowed`` a type, or a container such as a ``range``.

    Raises:
        ValueError: a value is not of its default's type, or not in the container; or papermill was given a name that is
            none of these, for which it only warns.
    """
    cells = sys._getframe(1).f_globals.get("In", ())  # what this kernel has run; papermill's own cell begins as below
    injected = ast.parse("\n".join(cell for cell in cells if cell.startswith("# Parameters\n")))
    given = [node.id for node in ast.walk(injected) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    if unknown := [name for name in given if name not in parameters]:
        raise ValueError(f"parameters: expected some of {', '.join(parameters)}, got {', '.join(unknown)}")
    for name, (value, default, allowed) in parameters.items():
        of_kind = isinstance(allowed, type)
        if type(value) is not type(default) or not (of_kind or value in allowed):
            expected = allowed.__name__ if of_kind else f"a value in {allowed}"
            raise ValueError(f"parameter {name}: expected {expected}, got {value!r}")
    return all(value == default for value, default, _ in parameters.values())


class Draws:
    """Random cases for checks, all from one seed; float64 on the CPU.

    ``draw = Draws(seed)``, then ``draw(3, 5)`` is a ``(3, 5)`` tensor of standard normal entries.
    """

    def __init__(self, seed: int):
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def uniform(self, low: float, high: float) -> float:
        """A number between ``low`` and ``high``."""
        return low + (high - low) * float(torch.rand((), generator=self.generator, dtype=torch.float64))

    def eps(self, low: float = 1e-8, high: float = 1e-1) -> float:
        """A constant ε whose logarithm is uniform between those of ``low`` and ``high``."""
        return math.exp(self.uniform(math.log(low), math.log(high)))

    def gain(self, d: int, zeros: int = 0, repeats: int = 0) -> Tensor:
        """A shuffled gain ``(d,)`` of both signs: ``zeros`` zeros, ``repeats`` sizes of 2, the others from 1/2 to 2."""
        sizes = 0.5 + 1.5 * torch.rand(d, generator=self.generator, dtype=torch.float64)
        sizes[:repeats] = 2
        sizes[d - zeros :] = 0
        signs = torch.randint(2, (d,), generator=self.generator) * 2 - 1
        return (signs * sizes)[torch.randperm(d, generator=self.generator)]

    def rows(self, rows: int, d: int, low: float = 1e-4, high: float = 1e2) -> Tensor:
        """Vectors ``(rows, d)`` whose spreads run from ``low`` to ``high`` in equal ratios, with means of that size."""
        sizes = torch.logspace(math.log10(low), math.log10(high), rows, dtype=torch.float64)[:, None]
        return sizes * (self(rows, d) + self(rows, 1))

    def cases(
        self, rows: int, *sizes: int, zeros: int = 0, repeats: int = 0, low: float = 1e-4, high: float = 1e2
    ) -> list[tuple[Tensor, Tensor, Tensor, float]]:
        """For each size ``d``: vectors by :meth:`rows`, a :meth:`gain`, a bias ``(d,)`` and a constant :meth:`eps`."""
        return [(self.rows(rows, d, low, high), self.gain(d, zeros, repeats), self(d), self.eps()) for d in sizes]


def error(a: Tensor | float, b: Tensor | float) -> float:
    """The largest entry of |a − b|, in float64; shapes broadcast.  NaN if there is one."""
    return float((_float64(a) - _float64(b)).abs().max())


def relative(a: Tensor | float, b: Tensor | float) -> float:
    """:func:`error` in units of the largest entry of |b|."""
    return error(a, b) / error(b, 0)


def excess(a: Tensor | float, b: Tensor | float) -> float:
    """The largest amount by which an entry of ``a`` exceeds that of ``b``; 0 if none does.  Shapes broadcast."""
    return float((_float64(a) - _float64(b)).clamp_min(0).max())


def outside(low: float, high: float, values: Tensor | float) -> float:
    """The largest distance of values from the middle of an interval, over half its length: 1 at its ends."""
    return error(values, (low + high) / 2) / ((high - low) / 2)


def _float64(a: Tensor | float) -> Tensor:
    return torch.as_tensor(a).detach().to("cpu", torch.float64)
