"""What a survey remembers of one norm, and which rows of the norm's input it counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from normgeom.survey.devices import fetched, sent
from normgeom.survey.moments import Moments, histogram, quantiles

SIDES = ("in", "out")
POSITIONS = ("first", "rest")
OF_ANGLE = ("angle", "cos2", "abs_cos")
OF_VECTOR = ("norm", "top_share", "drop_error")
BIN_DEGREES = 0.25
_BINS = dict(low=0.0, high=180.0, bins=int(180 / BIN_DEGREES))


@dataclass
class Tally:
    """Sums of fixed size, whatever number of rows they have seen.

    Attributes:
        count, mean, m2: moments, ``(side, position, statistic)`` float64: the statistics :data:`OF_ANGLE`, each for
            all directions, then those of :data:`OF_VECTOR`.
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
        moments = Moments.zeros(*lead, len(OF_ANGLE) * directions + len(OF_VECTOR))
        counts = torch.zeros(*lead, directions, _BINS["bins"], dtype=torch.int64)
        return cls(*vars(moments).values(), counts, torch.zeros(len(SIDES), 2, dtype=torch.int64))

    @classmethod
    def of(cls, cos: Tensor, of_vector: Tensor, parts: tuple[Tensor, Tensor]) -> Tally:
        """One batch: the cosines ``(…, side, direction, n)`` and :data:`OF_VECTOR` ``(…, side, 3, n)`` of its rows.

        ``parts`` are the indices of the rows that stand first in a text and of the rest, as :func:`rows` gives them.
        Leading axes, of several norms, stay in front of every field.
        """
        angle, directions = torch.rad2deg(torch.acos(cos.clamp(-1, 1))), cos.shape[-2]
        values, norm = torch.cat([angle, cos.square(), cos.abs(), of_vector], dim=-2), of_vector[..., 0, :]
        measurable = torch.isfinite(norm) & (norm > 0)
        moments, counts = [], []
        for part in parts:
            chosen = values[..., part]
            keep = measurable[..., None, part] & torch.isfinite(chosen)
            moments.append(Moments.of(chosen, keep))
            counts.append(histogram(chosen[..., :directions, :], keep[..., :directions, :], **_BINS))
        valid = norm[..., torch.cat(parts)]
        excluded = torch.stack([(~torch.isfinite(valid)).sum(-1), (valid == 0).sum(-1)], dim=-1)
        fields = (torch.stack(field, dim=-2) for field in zip(*(vars(part).values() for part in moments), strict=True))
        return cls(*fields, torch.stack(counts, dim=-3), excluded)

    @property
    def moments(self) -> Moments:
        return Moments(self.count, self.mean, self.m2)

    def map(self, change: Callable[[Tensor], Tensor]) -> Tally:
        """``change`` applied to every field."""
        return Tally(*(change(getattr(self, field.name)) for field in fields(self)))

    def merged(self, other: Tally) -> Tally:
        """Both together, on the device of ``other``."""
        mine = self.map(lambda field: sent(field, other.counts.device))
        moments = mine.moments.merged(other.moments)
        return Tally(*vars(moments).values(), mine.counts + other.counts, mine.excluded + other.excluded)

    def by_position(self) -> dict[str, Tally]:
        """``first``, ``rest`` and ``all`` apart, the position axis gone; ``excluded`` is not split."""
        parts = {name: self.map(lambda field, k=k: field[:, k]) for k, name in enumerate(POSITIONS)}
        return {**parts, "all": parts["first"].merged(parts["rest"])}

    def angle_quantiles(self, q: list[float]) -> Tensor:
        """Quantiles of the angle in degrees, the last axis of the result."""
        return quantiles(self.counts, _BINS["low"], _BINS["high"], torch.tensor(q, dtype=torch.float64))


def apart(tally: Tally) -> list[Tally]:
    """Those of several norms, which stand together along a leading axis."""
    return [Tally(*of_one) for of_one in zip(*(getattr(tally, field.name) for field in fields(tally)), strict=True)]


def together(tallies: Sequence[Tally]) -> Tally:
    """Those of several norms with the same number of directions, along a leading axis."""
    return Tally(*(torch.stack([getattr(tally, field.name) for tally in tallies]) for field in fields(Tally)))


def on_cpu(tallies: Sequence[Tally]) -> list[Tally]:
    """The same, fetched together."""
    of_each = len(fields(Tally))
    found = fetched([getattr(tally, field.name) for tally in tallies for field in fields(Tally)])
    return [Tally(*found[i : i + of_each]) for i in range(0, len(found), of_each)]


def merged_each(pairs: Mapping[int, tuple[Tally, Tally]]) -> dict[int, Tally]:
    """The tallies of each pair as one; all pairs of one shape and device at once."""
    alike: dict[tuple, list[int]] = {}
    for i, (mine, other) in pairs.items():
        alike.setdefault((mine.counts.shape, mine.counts.device, other.counts.device), []).append(i)
    found = {}
    for group in alike.values():
        mine, others = (together(part) for part in zip(*(pairs[i] for i in group), strict=True))
        found |= zip(group, apart(mine.merged(others)), strict=True)
    return found


def rows(lead: torch.Size, token_axis: int | None, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Which rows of a norm's input ``(*lead, d)`` count: indices of those that stand first in a text, and of the rest.

    Args:
        lead: the input's shape without its last axis.
        token_axis: as in :class:`normgeom.NormSite`.
        mask: ``(batch, length)`` on the CPU, true for tokens that are not padding; None counts every row.

    Raises:
        ValueError: there is padding, and the input's shape does not show which rows it is.
    """
    valid, first = torch.ones(lead, dtype=torch.bool), torch.zeros(lead, dtype=torch.bool)
    batch_axis = 1 if token_axis == 0 else 0
    if token_axis is not None and mask is not None and mask.shape == (lead[batch_axis], lead[token_axis]):
        view = [1] * len(lead)
        view[batch_axis], view[token_axis] = mask.shape
        valid, first = (
            (marked.T if token_axis == 0 else marked).reshape(view).expand(lead)
            for marked in (mask, mask & (mask.cumsum(-1) == 1))
        )
    elif token_axis is None and mask is not None and mask.numel() == lead[0]:
        valid = mask.reshape(-1, *[1] * (len(lead) - 1)).expand(lead)
    elif mask is not None and not mask.all():
        shape = ", ".join(map(str, lead))
        raise ValueError(f"an input of shape ({shape}, d) does not show which of its rows are padding")
    elif token_axis is not None:
        first.select(token_axis, 0).fill_(True)
    kept, first = valid.flatten(), first.flatten()
    return first.nonzero().flatten(), (kept & ~first).nonzero().flatten()
