"""What a survey takes of the vectors at one norm, and the sums of fixed size that it keeps of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from normgeom.models.sites import NormSite

BINS = 720  # of 0.25 degrees
# Of each vector, behind what is taken for each direction: angle, cos² and ∣cos∣.  A drop error may be missing, and
# vectors that are not finite or are zero count nowhere else.
OF_VECTOR = ("length", "top_share", "drop_error", "with_drop_error", "zero", "rows", "tokens")
_BLOCK = 2**17  # entries that are upcast together: on a CPU what its cache holds
_UNSEEN = torch.finfo(torch.float32).eps ** 2  # relative square of what may be rounding alone


@dataclass
class Tally:
    """Sums over vectors, on one device; the sides are in and out, the positions the first of a text, and the rest.

    Attributes:
        sums: float64 ``(norm, side, statistic, position)``.  The statistics are the angle in degrees for each
            direction, then cos² for each, then ∣cos∣, then :data:`OF_VECTOR`.
        squares: of the angle's deviations from its mean, float64 ``(norm, side, direction, position)``.
        bins: how many angles are in each bin, int64: first those that do not count, then
            ``(norm, side, direction, position, bin)`` in one axis.
    """

    sums: Tensor
    squares: Tensor
    bins: Tensor

    @classmethod
    def empty(cls, norms: int, directions: int) -> Tally:
        sums = torch.zeros(norms, 2, 3 * directions + len(OF_VECTOR), 2, dtype=torch.float64)
        squares = torch.zeros(norms, 2, directions, 2, dtype=torch.float64)
        return cls(sums, squares, torch.zeros(norms * 4 * directions * BINS + 1, dtype=torch.int64))

    @property
    def counts(self) -> Tensor:
        return self.bins[1:].view(*self.squares.shape, BINS)

    def excluded(self) -> Tensor:
        """How many vectors have no angle, int64 ``(norm, side, 2)`` on the CPU: with NaN or Inf, and of length zero."""
        zero, rows, tokens = self.sums[:, :, -3:].sum(-1).long().cpu().unbind(-1)
        return torch.stack([rows - zero - tokens, zero], dim=-1)

    def to(self, device: torch.device | str) -> Tally:
        return Tally(*(tensor.to(device) for tensor in vars(self).values()))


def merged(sums: Tensor, squares: Tensor, more: Tensor, more_squares: Tensor) -> tuple[Tensor, Tensor]:
    """Both :class:`Tally`'s sums, of vectors that are not the same, and squares, by Chan's formula."""
    k, here, there = squares.shape[-2], sums[..., -1:, :], more[..., -1:, :]
    apart = more[..., :k, :] / there.clamp(min=1) - sums[..., :k, :] / here.clamp(min=1)
    between = apart.square() * (here * there / (here + there).clamp(min=1))
    return sums + more, squares + more_squares + between


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


def chosen(of_norms: Tensor, numbers: Sequence[int]) -> Tensor:
    """``of_norms[numbers]``; a GPU would wait for a list of numbers."""
    return torch.stack([of_norms[i] for i in numbers])


class Meter:
    """Norms beside fixed directions of length 1: for each norm ``units``, ``(2, k, d)`` float64, in and out."""

    def __init__(self, sites: Sequence[NormSite], units: Sequence[Tensor]):
        self._columns, gains = [], []
        for site, of_site in zip(sites, units, strict=True):
            gain, bias = site.weight.double(), site.bias.double()
            if site.kind != "layer" or gain.dim() > 1:  # no mean is subtracted, or each head has a gain
                gain = bias = torch.full((site.dim,), torch.nan, dtype=torch.float64)
            mean = torch.full((2, site.dim), 1 / site.dim, dtype=torch.float64)
            self._columns.append(torch.cat([of_site, torch.stack([mean, torch.stack([gain, bias])])], dim=1))
            gains.append((site.dim, site.eps, float(gain @ gain), float(gain @ bias), float(bias @ bias)))
        self._gains = torch.tensor(gains, dtype=torch.float64).unsqueeze(2)
        self._known = torch.stack([of_site.isfinite().all(-1, keepdim=True) for of_site in units])
        k = self._known.shape[2]
        self._first_bin = 1 + 2 * BINS * torch.arange(2 * k * len(sites)).view(-1, 2, k, 1)

    def project(self, number: int, x_in: Tensor, x_out: Tensor, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """What is taken of vectors at a norm, ``(..., d)``, while the model runs: see :func:`project`."""
        columns = self._columns[number] = self._columns[number].to(device)
        rows = max(1, _BLOCK // x_in.shape[-1] if device.type == "cpu" else x_in.numel())
        blocks = zip(*(x.reshape(-1, x.shape[-1]).split(rows) for x in (x_in, x_out)), strict=True)
        found = [project(torch.stack(block).to(device), columns) for block in blocks]
        return found[0] if len(found) == 1 else tuple(torch.cat(part, dim=-1) for part in zip(*found, strict=True))

    def measure(
        self, numbers: Sequence[int], projected: Sequence[tuple[Tensor, ...]], member: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Of some norms, what :meth:`project` gave: sums and squares as in :class:`Tally`, and the bin of each angle.

        ``member``, ``(2, n)`` float64, is 1 for rows that stand first in a text, and for the rest.
        """
        self._gains, self._known, self._first_bin = (
            tensor.to(member.device) for tensor in (self._gains, self._known, self._first_bin)
        )
        gains, known, first_bin = (chosen(tensor, numbers) for tensor in (self._gains, self._known, self._first_bin))
        k = known.shape[2]
        products, length, largest = map(torch.stack, zip(*projected, strict=True))
        keep, outputs = (length > 0) & (length < torch.inf), (*products[:, 1, k:].unbind(1), length[:, 1])
        error = drop_error(products[:, 0, k], length[:, 0], outputs, gains.unbind(1)).unsqueeze(1)
        of_vector = torch.stack([length, (largest / length).square(), error.expand_as(length)], dim=2)
        with_error = ~error.isnan() & keep
        values = length.new_empty(len(numbers), 2, 3 * k + len(OF_VECTOR), length.shape[-1])
        angle, cos, abs_cos, rest = values.split([k, k, k, len(OF_VECTOR)], dim=2)
        torch.div(products[:, :, :k], length.unsqueeze(2), out=cos).nan_to_num_(0).clamp_(-1, 1)
        torch.acos(cos, out=angle).rad2deg_().mul_(keep.unsqueeze(2))
        torch.abs(cos, out=abs_cos)
        cos.square_()
        rest[:, :, :3] = of_vector.nan_to_num_(0, 0).mul_(keep.unsqueeze(2))
        rest[:, :, 3], rest[:, :, 4], rest[:, :, 5], rest[:, :, 6] = with_error, length == 0, 1, keep
        counted = (keep & member.any(0)).unsqueeze(2) & known
        first = first_bin + (BINS * member[1]).long()
        bins = (angle * (BINS / 180)).long().clamp_(max=BINS - 1).add_(first).mul_(counted)
        sums = values @ member.T
        mean = sums[:, :, :k] / sums[:, :, -1:].clamp(min=1)
        squares = (angle - mean @ member).square_() @ (keep.unsqueeze(2) * member).mT
        return sums, squares, bins


def project(x: Tensor, columns: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of vectors ``(..., n, d)``: products with ``columns`` ``(..., k, d)``, length and largest ∣entry∣ of each.

    Returns ``(..., k, n)``, ``(..., n)`` and ``(..., n)``; the first two float64, the last in the dtype of ``x``.
    """
    wide = x.double()
    return columns @ wide.mT, torch.linalg.vector_norm(wide, dim=-1), x.abs().amax(-1)


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
