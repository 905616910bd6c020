"""What a survey takes of the vectors at a norm: angles to fixed directions, lengths, and sums of both."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from normgeom.models.sites import NormSite

BINS = 720  # of 0.25 degrees; one more counts vectors without an angle
# Of each direction: the angle less 90 degrees, its square, cos² and |cos|.  Of each vector, behind these:
OF_VECTOR = ("length", "top_share", "drop_error", "with_drop_error", "tokens", "nonfinite", "zero")
_BLOCK = 2**17  # entries that are upcast together: on a CPU what its cache holds
_UNSEEN = torch.finfo(torch.float32).eps ** 2  # relative square of what may be rounding alone


class Meter:
    """One norm beside fixed directions of length 1: ``(2, k, d)`` float64, at its input and at its output.

    A direction of NaN gives no angles.
    """

    def __init__(self, site: NormSite, units: Tensor):
        gain, bias = site.weight.double(), site.bias.double()
        if site.kind != "layer" or gain.dim() > 1:  # no mean is subtracted, or each head has a gain
            gain = bias = torch.full((site.dim,), torch.nan, dtype=torch.float64)
        mean = torch.full((2, site.dim), 1 / site.dim, dtype=torch.float64)
        self.columns = torch.cat([units, torch.stack([mean, torch.stack([gain, bias])])], dim=1)
        of_gain = site.dim, site.eps, gain @ gain, gain @ bias, bias @ bias
        self.gain = torch.tensor(of_gain, dtype=torch.float64)

    def project(self, x_in: Tensor, x_out: Tensor, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """What is taken of the norm's vectors ``(..., d)`` while the model runs: see :func:`project`."""
        self.columns, self.gain = self.columns.to(device), self.gain.to(device)
        d = x_in.shape[-1]
        rows = max(1, _BLOCK // d if device.type == "cpu" else x_in.numel())
        blocks = zip(*(x.reshape(-1, d).split(rows) for x in (x_in, x_out)), strict=True)
        found = [project(torch.stack(block).to(device), self.columns) for block in blocks]
        return found[0] if len(found) == 1 else tuple(torch.cat(part, dim=-1) for part in zip(*found, strict=True))


def measure(meters: Sequence[Meter], projected: Sequence[tuple[Tensor, ...]], member: Tensor) -> tuple[Tensor, Tensor]:
    """Of what norms projected: sums over vectors, and where each angle counts in (side, direction, position, bin).

    ``member``, ``(2, n)`` float64, is 1 for the vectors at first positions of texts, and for the rest; padding is in
    neither.

    Returns ``(norm, 2, statistic, 2)`` float64, for in and out and for first and rest, and ``(norm, 2, k, n)`` int64.
    """
    products, length, largest = map(torch.stack, zip(*projected, strict=True))
    k = products.shape[2] - 2
    nonfinite, zero = ~length.isfinite(), length == 0
    length = length.masked_fill(nonfinite | zero | ~member.any(0), torch.nan)  # and all that is computed of it
    gain = torch.stack([meter.gain for meter in meters]).unsqueeze(2).unbind(1)
    output = *products[:, 1, k:].unbind(1), length[:, 1]
    error = drop_error(products[:, 0, k], length[:, 0], output, gain).unsqueeze(1).expand_as(length)
    cos = (products[:, :, :k] / length.unsqueeze(2)).clamp_(-1, 1)
    angle = cos.acos().rad2deg_()
    histogram = 2 * torch.arange(2 * k, device=member.device).view(2, k, 1) + member[1].long()
    bins = (angle * (BINS / 180)).clamp_(max=BINS - 1).nan_to_num_(BINS).long() + (BINS + 1) * histogram
    off, cos = angle.sub_(90).nan_to_num_(0), cos.nan_to_num_(0)
    of_vector = [length, (largest / length).square(), error, ~error.isnan(), ~length.isnan(), nonfinite, zero]
    values = off, off.square(), cos.square(), cos.abs(), torch.stack(of_vector, dim=2).nan_to_num_(0)
    return torch.cat([of @ member.T for of in values], dim=2), bins


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
