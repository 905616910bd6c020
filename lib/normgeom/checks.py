"""The verdict on a statement of the book and on a near miss."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

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
        >>> ng.verify("the mean", abs((1 + 2) / 2 - 1.5), {"the sum": abs(1 + 2 - 1.5)})
        the mean: error ≤ 1e-12; with the sum 2
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
