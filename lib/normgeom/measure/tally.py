"""What a survey remembers of one norm, and which rows of the norm's input it counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass, fields

import torch
from torch import Tensor

from normgeom.measure.moments import Moments, histogram, quantiles

SIDES = ("in", "out")
POSITIONS = ("first", "rest")
STATISTICS = ("angle", "cos2", "abs_cos", "norm")
BIN_DEGREES = 0.25
_BINS = dict(low=0.0, high=180.0, bins=int(180 / BIN_DEGREES))


@dataclass
class Tally:
    """Sums of fixed size, whatever number of rows they have seen.

    Attributes:
        count, mean, m2: moments, ``(side, position, statistic, direction)`` float64.
        counts: histogram of the angle, ``(side, position, direction, bin)`` int64.
        excluded: rows without an angle, ``(side, 2)`` int64: with NaN or Inf, and of length zero.
    """

    count: Tensor
    mean: Tensor
    m2: Tensor
    counts: Tensor
    excluded: Tensor

    @classmethod
    def empty(cls, directions: int) -> Tally:
        """Nothing seen yet, on the CPU."""
        lead = len(SIDES), len(POSITIONS)
        moments = Moments.zeros(*lead, len(STATISTICS), directions)
        counts = torch.zeros(*lead, directions, _BINS["bins"], dtype=torch.int64)
        return cls(*astuple(moments), counts, torch.zeros(len(SIDES), 2, dtype=torch.int64))

    @classmethod
    def of(cls, sides: list[tuple[Tensor, Tensor]], valid: Tensor, first: Tensor) -> Tally:
        """One batch: for each side the cosines ``(direction, n)`` and lengths ``(n,)`` of its rows.

        ``valid`` ``(n,)`` says which rows count at all, ``first`` which of them stand first in a text.
        """
        if valid.device.type == "mps":  # no float64 there
            valid, first, sides = valid.cpu(), first.cpu(), [(c.cpu(), n.cpu()) for c, n in sides]
        return cls(*(torch.stack(field) for field in zip(*(_side(*s, valid, first) for s in sides), strict=True)))

    @property
    def moments(self) -> Moments:
        return Moments(self.count, self.mean, self.m2)

    def map(self, change: Callable[[Tensor], Tensor]) -> Tally:
        """``change`` applied to every field."""
        return Tally(*(change(getattr(self, field.name)) for field in fields(self)))

    def merged(self, other: Tally) -> Tally:
        """Both together, on the device of ``other``."""
        mine = self.map(lambda field: field.to(other.counts.device))
        moments = mine.moments.merged(other.moments)
        return Tally(*astuple(moments), mine.counts + other.counts, mine.excluded + other.excluded)

    def by_position(self) -> dict[str, Tally]:
        """``first``, ``rest`` and ``all`` apart, the position axis gone; ``excluded`` is not split."""
        parts = {name: self.map(lambda field, k=k: field[:, k]) for k, name in enumerate(POSITIONS)}
        return {**parts, "all": parts["first"].merged(parts["rest"])}

    def angle_quantiles(self, q: list[float]) -> Tensor:
        """Quantiles of the angle in degrees, the last axis of the result."""
        return quantiles(self.counts, _BINS["low"], _BINS["high"], torch.tensor(q, dtype=torch.float64))


def _side(cos: Tensor, norm: Tensor, valid: Tensor, first: Tensor) -> tuple[Tensor, ...]:
    angle = torch.rad2deg(torch.acos(cos.clamp(-1, 1)))
    measurable = valid & torch.isfinite(norm) & (norm > 0)
    keep = torch.stack([measurable & first, measurable & ~first])
    moments = Moments.of(torch.stack([angle, cos.square(), cos.abs(), norm.expand_as(cos)]), keep[:, None, None])
    excluded = torch.stack([(valid & ~torch.isfinite(norm)).sum(), (valid & (norm == 0)).sum()])
    return *astuple(moments), histogram(angle, keep[:, None], **_BINS), excluded


def measured_rows(
    shape: torch.Size, token_axis: int | None, mask: Tensor | None, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Which rows of a norm's input ``(..., d)`` count, and which of them stand first in a text.

    ``mask`` ``(batch, length)`` marks tokens that are not padding; None, or a mask of another length (a decoder
    beside its encoder), counts every row.  Both results are flat, ``(rows,)`` bool.
    """
    lead = shape[:-1]
    valid = torch.ones(lead, dtype=torch.bool, device=device)
    first = torch.zeros(lead, dtype=torch.bool, device=device)
    mask = None if mask is None else mask.to(device).bool()
    if token_axis is None:
        if mask is not None and mask.numel() == valid.numel():
            valid = mask.reshape(lead)
    elif mask is None or mask.shape != (lead[0], lead[token_axis]):
        first.select(token_axis, 0).fill_(True)
    else:
        view = [1] * len(lead)
        view[0], view[token_axis] = mask.shape
        starts = mask & (mask.cumsum(-1) == 1)
        valid, first = mask.view(view).expand(lead), starts.view(view).expand(lead)
    return valid.flatten(), first.flatten()
