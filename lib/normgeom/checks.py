"""The book's two guards: a statement beside a near miss, and the parameters of a chapter."""

from __future__ import annotations

import math
from collections.abc import Container


def verify(
    label: str,
    holds: float,
    breaks: float,
    tol: float = 1e-12,
    wrong: str = "a near miss",
    asserts: bool = True,
) -> None:
    """Assert that a statement holds and that the check could have told if it did not.

    Args:
        label: the statement's label in the book, ``eq-…``, ``thm-…``, ``claim-…``.
        holds: the deviation of the statement, at most ``tol``.
        breaks: the deviation of a near miss, a plausible wrong version, above ``tol``.
        tol: the line between the two, in the same units.
        wrong: what was changed in the wrong version; printed.
        asserts: for measured claims, whether the chapter runs at its default parameters.  Where it does not, a
            ``claim-`` is reported and nothing is raised; any other label asserts always.

    Prints one line, rounded so that it does not change with the machine.

    Raises:
        ValueError: ``tol`` is not positive and finite.
        AssertionError: ``holds`` is above ``tol`` (or NaN), or ``breaks`` is not.
    """
    holds, breaks = float(holds), float(breaks)
    if not 0 < tol < math.inf:
        raise ValueError(f"tol: expected a positive number, got {tol}")
    if label.startswith("claim-") and not asserts:
        print(
            f"{label}: reported, not asserted (parameters differ from the defaults): "
            f"deviation {holds:.2g}, bound {tol:g}; with {wrong} {breaks:.2g}"
        )
        return
    if not holds <= tol:
        raise AssertionError(f"{label}: deviation {holds:.3g} is above {tol:g}: the statement does not hold")
    if not breaks > tol:
        raise AssertionError(
            f"{label}: with {wrong} the deviation is {breaks:.3g}, not above {tol:g}: "
            "the check cannot tell the statement from its wrong version"
        )

    # A measured number differs from machine to machine; on which side of the line it lies does not.
    measured = label.startswith("claim-")
    shown = f"> {tol:g}" if measured else f"{breaks:.1g}"
    print(f"{label}: {'value' if measured else 'error'} ≤ {tol:g}; with {wrong} {shown}")


def check_parameters(**parameters: tuple[object, object, Container | type]) -> bool:
    """Check a chapter's parameters before any work; say whether all stand at their defaults.

    Each parameter is ``name=(value, default, allowed)`` with ``allowed`` a type, or a container such as a
    ``range``, a set of choices or an :class:`Interval`.

    Raises:
        TypeError: a value is not of the type allowed.
        ValueError: a value is not in the container allowed.
    """
    for name, (value, _, allowed) in parameters.items():
        if not _is_allowed(value, allowed):
            error, words = (
                (TypeError, allowed.__name__) if isinstance(allowed, type) else (ValueError, f"a value in {allowed}")
            )
            raise error(f"parameter {name}: expected {words}, got {value!r}")
    return all(value == default for value, default, _ in parameters.values())


def _is_allowed(value: object, allowed: Container | type) -> bool:
    if isinstance(allowed, type):
        return isinstance(value, allowed) and (allowed is bool or not isinstance(value, bool))
    if isinstance(allowed, range):
        return type(value) is int and value in allowed
    try:
        return not isinstance(value, bool) and value in allowed
    except TypeError:  # unhashable, beside a set
        return False


class Interval:
    """The numbers from ``low`` to ``high``, both included; prints as ``[low, high]``."""

    def __init__(self, low: float, high: float):
        self.low, self.high = low, high

    def __contains__(self, value: object) -> bool:
        return isinstance(value, (int, float)) and self.low <= value <= self.high

    def __repr__(self) -> str:
        return f"[{self.low:g}, {self.high:g}]"
