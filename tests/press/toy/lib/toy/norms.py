"""What takes the mean away.

And more that the heading of the page leaves out.
"""

from __future__ import annotations

import functools


def center(x: list[float], *, times: int = 1, tol: float = 1e-12) -> list[float]:
    r"""``x`` without its mean, :math:`x-\mu` (eq-mean, eq-short); never longer (thm-mean).

    Args:
        x: the numbers; see :class:`toy.Box`.
        times: how often.

    Returns:
        as many numbers.

    Raises:
        ValueError: ``times`` is negative.

    Source: nobody.
    """
    for _ in range(times):
        x = [entry - _mean(x) for entry in x]
    return x


class Box(tuple):
    """Numbers in a box (def-centred); a ``claim-no`` in code is no label.

    Attributes:
        size: how many fit.
    """

    size: int
    lid: str = "none"

    @functools.cached_property
    def full(self) -> bool:
        """Whether no more fit."""
        return True

    @classmethod
    def of(cls, *numbers: float, lid: str = "none") -> Box:
        """A box of these; :meth:`fill` adds more (ex-shorter)."""
        return cls(numbers)

    def fill(self, x: float) -> None:
        """Put ``x`` in."""

    def forward(self):
        pass

    def _shake(self):
        """Nobody's business."""


def _mean(x: list[float]) -> float:
    """The mean of eq-mean."""
    return sum(x) / len(x)
