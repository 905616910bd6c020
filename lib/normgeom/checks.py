"""What checks of the book share: cases drawn at random, deviations, and the verdict on a statement and a near miss."""

from __future__ import annotations

import ast
import math
import sys
from collections.abc import Container, Iterable, Mapping

import torch
from torch import Tensor

Deviations = float | Iterable[float] | Mapping[str, float]

verdicts: list[tuple[str, float, float, float]] = []  # label, holds, breaks and tol of each verify, not rounded


def verify(
    label: str,
    holds: Deviations,
    breaks: Deviations,
    tol: float = 1e-12,
    wrong: str | None = None,
    asserts: bool = True,
) -> None:
    """Assert that a statement holds and that the check rejects a near miss; print one line.

    Args:
        label: the statement's label in the book, ``eq-…``, ``thm-…``, ``claim-…``.
        holds: the deviation of the statement, which must be at most ``tol``; if there are several, the largest counts.
        breaks: the deviation of a near miss, a plausible wrong version, which must be above ``tol``; if there are
            several, the smallest counts.  A mapping gives each near miss its name.
        tol: the bound that separates the two, in the same units.
        wrong: what was changed in the wrong version; by default the names in ``breaks``.
        asserts: whether the chapter runs with its default parameters.  If it does not, a measured ``claim-`` is only
            reported and raises nothing; other labels always assert.

    Raises:
        ValueError: ``tol`` is not positive and finite, or ``holds`` or ``breaks`` is empty.
        AssertionError: ``holds`` is above ``tol`` (or NaN), or ``breaks`` is not.

    Example:
        >>> import normgeom as ng
        >>> ng.verify("eq-mean-vector", abs((1 + 2) / 2 - 1.5), {"the sum": abs(1 + 2 - 1.5)})
        eq-mean-vector: error ≤ 1e-12; with the sum 2
    """
    if wrong is None:
        *most, last = breaks if isinstance(breaks, Mapping) and breaks else ["a near miss"]
        wrong = f"{', '.join(most)}, or {last}" if most else last
    holds, breaks = _extreme("holds", holds, max), _extreme("breaks", breaks, min)
    if not 0 < tol < math.inf:
        raise ValueError(f"tol: expected a positive number, got {tol}")
    verdicts.append((label, holds, breaks, tol))
    claim = label.startswith("claim-")
    if claim and not asserts:
        said = f"reported, not asserted (parameters differ from the defaults): deviation {holds:.2g}, bound {tol:g}"
        print(f"{label}: {said}; with {wrong} {breaks:.2g}")
        return
    if not holds <= tol:
        raise AssertionError(f"{label}: deviation {holds:.3g} is above {tol:g}: the statement does not hold")
    if not breaks > tol:
        raise AssertionError(
            f"{label}: with {wrong} the deviation is {breaks:.3g}, not above {tol:g}: "
            "the check cannot tell the statement from its wrong version"
        )
    if claim:
        print(f"{label}: value {holds:.2g} ≤ {tol:g}; with {wrong} {breaks:.2g}")
    else:  # rounded so that it does not change with the machine
        print(f"{label}: error ≤ {tol:g}; with {wrong} {breaks:.1g}")


def _extreme(name: str, deviations: Deviations, of) -> float:
    """The largest or smallest of some deviations; NaN if one of them is NaN."""
    if isinstance(deviations, Mapping):
        deviations = deviations.values()
    if isinstance(deviations, Tensor):
        deviations = deviations.flatten()
    values = [float(v) for v in deviations] if isinstance(deviations, Iterable) else [float(deviations)]
    if not values:
        raise ValueError(f"{name}: expected a deviation, got none: nothing was compared")
    return next((v for v in values if math.isnan(v)), of(values))


def error(a: Tensor | float, b: Tensor | float) -> float:
    """The largest entry of |a − b|, in float64; shapes broadcast.  NaN where there is one."""
    return float((_float64(a) - _float64(b)).abs().max())


def relative(a: Tensor | float, b: Tensor | float) -> float:
    """:func:`error` in units of the largest entry of |b|."""
    return error(a, b) / error(b, 0)


def excess(a: Tensor | float, b: Tensor | float) -> float:
    """By how much an entry of ``a`` is above that of ``b`` at most; 0 where none is.  Shapes broadcast."""
    return float((_float64(a) - _float64(b)).clamp_min(0).max())


def outside(low: float, high: float, values: Tensor | float) -> float:
    """How far the farthest of some values is from the middle of an interval, over half its length: 1 at its ends."""
    return error(values, (low + high) / 2) / ((high - low) / 2)


def _float64(a: Tensor | float) -> Tensor:
    return torch.as_tensor(a).detach().to("cpu", torch.float64)


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
        """A gain ``(d,)`` of both signs, shuffled: so many zeros, so many entries of size 2, others from 1/2 to 2."""
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
        """For each size ``d`` vectors :meth:`rows`, a gain :meth:`gain`, a bias ``(d,)`` and a constant :meth:`eps`."""
        return [(self.rows(rows, d, low, high), self.gain(d, zeros, repeats), self(d), self.eps()) for d in sizes]


def check_parameters(**parameters: tuple[object, object, Container | type]) -> bool:
    """Check a chapter's parameters before any work; say whether all stand at their defaults.

    Each parameter is ``name=(value, default, allowed)`` with ``allowed`` a type, or a container such as a ``range``.

    Raises:
        ValueError: a value is not of its default's type, or not in the container; or papermill was given a name that is
            none of these, for which it only warns.

    Example:
        >>> import normgeom as ng
        >>> d, corpus = 1024, "stdlib"
        >>> ng.check_parameters(d=(d, 768, range(8, 4097)), corpus=(corpus, "stdlib", str))
        False
    """
    cells = sys._getframe(1).f_globals.get("In", ())  # what this kernel has run; papermill's own cell begins like this
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
