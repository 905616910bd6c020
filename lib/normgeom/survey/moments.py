"""Statistics that see each value once: moments that merge exactly, and a histogram for quantiles."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Moments:
    """Count, mean and sum of squared deviations of several streams at once, each ``(...)`` in float64.

    Two summaries merge by Chan's formula, so a stream cut into pieces gives the moments of the whole, to
    rounding.
    """

    count: Tensor
    mean: Tensor
    m2: Tensor

    @classmethod
    def zeros(cls, *shape: int, device: torch.device | str | None = None) -> Moments:
        """Nothing seen yet."""
        return cls(*(torch.zeros(shape, dtype=torch.float64, device=device) for _ in range(3)))

    @classmethod
    def of(cls, values: Tensor, keep: Tensor) -> Moments:
        """The moments of ``values`` ``(..., n)`` over the last axis, where ``keep`` (broadcast) is true."""
        values, keep = torch.broadcast_tensors(values, keep)
        values = torch.where(keep, values, 0).double()
        count = keep.sum(-1, dtype=torch.float64)
        mean = values.sum(-1) / count.clamp(min=1)
        deviations = (values - mean.unsqueeze(-1)).mul_(keep)
        return cls(count, mean, deviations.square_().sum(-1))

    def merged(self, other: Moments) -> Moments:
        """The summary of both streams together."""
        count = self.count + other.count
        share = other.count / count.clamp(min=1)
        delta = other.mean - self.mean
        return Moments(count, self.mean + share * delta, self.m2 + other.m2 + delta.square() * self.count * share)

    def std(self) -> Tensor:
        """The standard deviation, divisor n; NaN where nothing was seen."""
        return (self.m2 / self.count).sqrt()


def histogram(values: Tensor, keep: Tensor, low: float, high: float, bins: int) -> Tensor:
    """How many kept values of ``(..., n)`` fall into each of ``bins`` equal bins: ``(..., bins)`` int64."""
    values, keep = torch.broadcast_tensors(values, keep)
    index = (values - low).mul_(bins / (high - low)).nan_to_num_(0).long().clamp_(0, bins - 1)
    counts = torch.zeros(*values.shape[:-1], bins, dtype=torch.int64, device=values.device)
    return counts.scatter_add_(-1, index, keep.long())


def quantiles(counts: Tensor, low: float, high: float, q: Tensor) -> Tensor:
    """Quantiles ``(..., len(q))`` of a histogram ``(..., bins)``, linear inside a bin; NaN where it is empty."""
    total = counts.sum(-1, keepdim=True).double()
    cumulative = counts.cumsum(-1).double()
    target = (q.double() * total).clamp(
        min=torch.finfo(torch.float64).tiny
    )  # q = 0 is the first bin that holds anything
    bins = counts.shape[-1]
    index = torch.searchsorted(cumulative, target).clamp(max=bins - 1)
    inside = counts.gather(-1, index).double()
    before = cumulative.gather(-1, index) - inside
    position = index + (target - before) / inside
    return low + (high - low) / bins * torch.where(total > 0, position, torch.nan)
