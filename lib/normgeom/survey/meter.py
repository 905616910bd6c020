"""What a survey takes of the vectors at one norm, and the sums of fixed size that it keeps of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from normgeom.models.sites import NormSite
from normgeom.survey.passes import device_of_sums

BINS = 720  # of 0.25 degrees
_BLOCK = 2**17  # entries that are upcast together: on a CPU what its cache holds
_UNSEEN = torch.finfo(torch.float32).eps ** 2  # relative square of what may be rounding alone


@dataclass
class Tally:
    """Sums over rows.

    Attributes:
        count, mean, m2: number, mean and sum of squared deviations, ``(side, statistic, position)`` float64.  The
            statistics are the angle, cos² and ∣cos∣, each for all directions; then length, share of the largest entry
            and drop error.  The positions are the first of a text, and the rest.
        counts: histogram of the angle, ``(side, direction, position, bin)`` int64.
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
        moments = torch.zeros(3, 2, 3 * directions + 3, 2, dtype=torch.float64)
        counts = torch.zeros(2, directions, 2, BINS, dtype=torch.int64)
        return cls(*moments, counts, torch.zeros(2, 2, dtype=torch.int64))

    @classmethod
    def of(cls, cos: Tensor, of_vector: Tensor, positions: Tensor) -> Tally:
        """Of cosines ``(side, direction, n)``, and ``(side, 3, n)`` statistics of the vectors, the first their length.

        ``positions``, ``(2, n)`` bool, are the rows that stand first in a text, and the rest.
        """
        k, length, counted, member = cos.shape[1], of_vector[:, 0], positions.any(0), positions.double()
        angle = torch.rad2deg(torch.acos(cos.clamp(-1, 1)))
        values = torch.cat([angle, cos.square(), cos.abs(), of_vector], dim=1)
        finite = torch.isfinite(length)
        keep = (finite & (length > 0)).unsqueeze(1) & ~torch.isnan(values)
        values, kept = values.where(keep, 0), keep.double()
        count = kept @ member.T
        mean = values @ member.T / count.clamp(min=1)
        m2 = ((values - mean @ member) * kept).square() @ member.T
        bins = (values[:, :k] * (BINS / 180)).long().clamp(max=BINS - 1) + BINS * positions[1]
        counts = torch.zeros(2, k, 2 * BINS, dtype=torch.int64, device=cos.device)
        counts.scatter_add_(-1, bins, (keep[:, :k] & counted).long())
        excluded = torch.stack([~finite, length == 0], dim=1) & counted
        return cls(count, mean, m2, counts.unflatten(-1, (2, BINS)), excluded.sum(-1))

    def merged(self, other: Tally) -> Tally:
        """Both together, by Chan's formula, on the device of ``other``."""
        mine = self.to(other.counts.device)
        count = mine.count + other.count
        share, delta = other.count / count.clamp(min=1), other.mean - mine.mean
        m2 = mine.m2 + other.m2 + delta.square() * mine.count * share
        return Tally(count, mine.mean + share * delta, m2, mine.counts + other.counts, mine.excluded + other.excluded)

    def to(self, device: torch.device | str) -> Tally:
        return Tally(*(tensor.to(device) for tensor in vars(self).values()))

    def at(self, position: int) -> Tally:
        """Of one position, that axis gone; ``excluded`` is not split."""
        moments = (moment[..., position] for moment in (self.count, self.mean, self.m2))
        return Tally(*moments, self.counts[..., position, :], self.excluded)


def quantiles(counts: Tensor, low: float, high: float, q: Tensor) -> Tensor:
    """Quantiles ``(..., len(q))`` of a histogram ``(..., bins)``, linear inside a bin; NaN where it is empty."""
    total = counts.sum(-1, keepdim=True).double()
    cumulative = counts.cumsum(-1).double()
    target = (q.double() * total).clamp(min=torch.finfo(torch.float64).tiny)  # q = 0: the first bin that holds any
    bins = counts.shape[-1]
    index = torch.searchsorted(cumulative, target).clamp(max=bins - 1)
    inside = counts.gather(-1, index).double()
    before = cumulative.gather(-1, index) - inside
    position = index + (target - before) / inside
    return low + (high - low) / bins * torch.where(total > 0, position, torch.nan)


class Meter:
    """One norm beside fixed directions of length 1: ``units_in`` and ``units_out``, each ``(k, d)`` float64."""

    def __init__(self, site: NormSite, units_in: Tensor, units_out: Tensor):
        known = site.kind == "layer" and site.weight.dim() == 1  # else no mean is subtracted, or each head has a gain
        both = torch.stack([site.weight, site.bias]) if known else torch.full((2, site.dim), torch.nan)
        both = both.double()
        (gain_square, gain_bias), (_, bias_square) = (both @ both.T).tolist()
        self._gain = site.dim, site.eps, gain_square, gain_bias, bias_square
        self._in = torch.cat([units_in, torch.full((1, site.dim), 1 / site.dim, dtype=torch.float64)])
        self._out = torch.cat([units_out, both])

    def measure(self, x_in: Tensor, x_out: Tensor, positions: Tensor) -> Tally:
        """Of the vectors before and after the norm, ``(..., d)``."""
        device = device_of_sums(x_in)
        self._in, self._out = self._in.to(device), self._out.to(device)
        products_in, length_in, largest_in = project(x_in, self._in)
        products_out, length_out, largest_out = project(x_out, self._out)
        error = drop_error(products_in[-1], length_in, (*products_out[-2:], length_out), self._gain)
        length, largest = torch.stack([length_in, length_out]), torch.stack([largest_in, largest_out])
        cos = torch.stack([products_in[:-1], products_out[:-2]]) / length.unsqueeze(1)
        top_share = (largest / length).square()
        return Tally.of(cos, torch.stack([length, top_share, error.expand_as(length)], dim=1), positions)


def project(x: Tensor, columns: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of vectors ``(..., d)``: products with ``columns`` ``(k, d)``, length and largest ∣entry∣ of each.

    Returns ``(k, n)``, ``(n,)`` and ``(n,)``; the first two float64, the last, which is exact, in the dtype of ``x``.
    """
    rows = x.reshape(-1, x.shape[-1]).to(columns.device)
    blocks = rows.split(max(1, _BLOCK // rows.shape[-1])) if rows.is_cpu else [rows]
    found = []
    for block in blocks:
        wide = block.double()
        found.append((columns @ wide.T, torch.linalg.vector_norm(wide, dim=-1), block.abs().amax(-1)))
    return found[0] if len(found) == 1 else tuple(torch.cat(part, dim=-1) for part in zip(*found, strict=True))


def drop_error(mean: Tensor, length: Tensor, output: Sequence[Tensor], gain: Sequence[float]) -> Tensor:
    """How far a LayerNorm's output would move if it did not subtract the mean, relative to ‖γ⊙n‖ (eq-drop-error).

    With x = m·1 + s·n, the output moves by γ⊙(n − x/r) = γ⊙((1 − s/r)n − (m/r)1).

    Args:
        mean, length: of the inputs x, ``(n,)``.
        output: of the outputs y, each ``(n,)``: products with γ and with β, and length.
        gain: of the norm: ``(d, ε, ‖γ‖², γ·β, ‖β‖²)``.

    Returns ``(n,)``; NaN where the output is β alone, or the input constant, to the rounding of float32.
    """
    d, eps, gain_square, gain_bias, bias_square = gain
    with_gain, with_bias, output_length = output
    square = output_length.square() - 2 * with_bias + bias_square  # ‖γ⊙n‖²
    mean_square, x_square = mean.square(), length.square() / d
    seen = (square > _UNSEEN * (gain_square + bias_square)) & (x_square > (1 + _UNSEEN) * mean_square)
    square = square.where(seen, torch.nan)
    r_square = x_square + eps
    r, s = r_square.sqrt(), (r_square - mean_square).sqrt()
    shrunk, shifted = mean_square / (r_square + r * s), mean / r  # 1 − s/r, without cancellation, and m/r
    cross = (with_gain - gain_bias) / square
    error = shrunk.square() - 2 * shrunk * shifted * cross + shifted.square() * gain_square / square
    return error.clamp(min=0).sqrt()
