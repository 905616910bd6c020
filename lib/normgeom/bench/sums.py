"""Long sums in a format of few digits: running totals that are rounded at every step."""

from __future__ import annotations

import math
from collections.abc import Iterable

# Octaves on either side of a total's spread; what lies beyond adds less than 4⁻⁶⁰.
_OCTAVES = 60


def rounded(number: float, digits: int) -> float:
    """The nearest number with a significand of ``digits`` binary digits, of two the even one; no limit to exponents.

    Raises:
        ValueError: ``digits`` is not between 1 and 53.
    """
    if not 1 <= digits <= 53:
        raise ValueError(f"digits: expected 1 to 53 binary digits, got {digits}")
    significand, exponent = math.frexp(number)
    return math.ldexp(round(significand * 2**digits), exponent - digits)


def rounded_walk(steps: Iterable[float], digits: int) -> list[float]:
    """The running totals of ``steps``, from 0 on, each rounded to ``digits`` binary digits (prop-walk).

    Returns:
        one number more than there are steps.

    Raises:
        ValueError: ``digits`` is not between 1 and 53; with 53 the totals are those of float64.
    """
    totals = [rounded(0.0, digits)]
    for step in steps:
        totals.append(rounded(totals[-1] + step, digits))
    return totals


def octave_share(spread: float) -> float:
    """E[4^f] / spread² for a normal number of mean 0 and standard deviation ``spread``, in the octave [2^f, 2^(f+1)).

    The variance of its rounding error is u²/3 times that, in units of spread² (the proof of prop-walk).

    Raises:
        ValueError: ``spread`` is not positive and finite.
    """
    if not 0 < spread < math.inf:
        raise ValueError(f"spread: expected a positive number, got {spread}")
    middle, total = math.floor(math.log2(spread)), 0.0
    for f in range(middle - _OCTAVES, middle + _OCTAVES):
        low, high = (math.erf(2.0 ** (f + k) / (spread * math.sqrt(2))) for k in (0, 1))
        total += 4.0**f * (high - low)
    return total / spread**2
