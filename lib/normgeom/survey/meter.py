"""The statistics that a survey keeps of the vectors at a norm: sums of angles to fixed directions and of lengths."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from normgeom.models.sites import NormSite

# For each direction: the angle minus 90 degrees, its square, cos² and |cos|.  Then, for each vector:
OF_VECTOR = ("length", "drop_error", "with_drop_error", "tokens", "nonfinite")
_BLOCK = 2**17  # entries that are upcast together: on a CPU what its cache holds
_UNSEEN = torch.finfo(torch.float32).eps ** 2  # squared relative size up to which a value may be rounding error


class Meter:
    """One norm with fixed directions of length 1, ``(k, d)`` float64; a direction that is NaN gives sums of NaN."""

    def __init__(self, site: NormSite, units: Tensor):
        gain, bias = site.weight.double(), site.bias.double()
        if site.kind != "layer" or gain.dim() > 1:  # no mean is subtracted, or each head has a gain
            gain = bias = torch.full((site.dim,), torch.nan, dtype=torch.float64)
        mean = torch.full((2, site.dim), 1 / site.dim, dtype=torch.float64)
        self.columns = torch.cat([units.expand(2, -1, -1), torch.stack([mean, torch.stack([gain, bias])])], dim=1)
        self.gain = site.dim, site.eps, float(gain @ gain), float(gain @ bias), float(bias @ bias)

    def sums(self, x_in: Tensor, x_out: Tensor, member: Tensor) -> Tensor:
        """Sums over the norm's vectors ``(..., d)``: ``(2, statistic, 2)``, in and out, first positions and rest.

        ``member``, ``(2, n)`` float64, is 1 in row 0 for vectors at first positions, and in row 1 for the rest.
        """
        self.columns = self.columns.to(member.device)
        products, length = self._project(x_in, x_out)
        k = products.shape[1] - 2
        finite = length.isfinite()
        counted = finite & (length > 0)
        length = length.where(counted, torch.nan)
        cos = (products[:, :k] / length.unsqueeze(1)).clamp_(-1, 1)
        off = cos.acos().rad2deg_().sub_(90)
        of_direction = [off, off.square(), cos.square(), cos.abs()]
        error = drop_error(products[0, k], length[0], (products[1, k], products[1, k + 1], length[1]), self.gain)
        error = error.expand_as(length)
        of_vector = torch.stack([length, error, ~error.isnan(), counted, ~finite], dim=1).nan_to_num_(0)
        values = torch.cat([*of_direction, of_vector], dim=1)
        values[:, : 4 * k].masked_fill_(~counted.unsqueeze(1), 0)
        return values @ member.T

    def _project(self, *both: Tensor) -> tuple[Tensor, Tensor]:
        """Products of the vectors with the columns, ``(2, k + 2, n)``, and their lengths, ``(2, n)``, in float64."""
        device, d = self.columns.device, self.columns.shape[-1]
        rows = max(1, _BLOCK // d) if device.type == "cpu" else both[0].numel()
        products, lengths = [], []
        for block in zip(*(x.reshape(-1, d).split(rows) for x in both), strict=True):
            wide = torch.empty(2, *block[0].shape, dtype=torch.float64, device=device)
            for side, x in zip(wide, block, strict=True):
                side.copy_(x)  # in one pass; stacking first would need two
            products.append(self.columns @ wide.mT)
            lengths.append(torch.linalg.vector_norm(wide, dim=-1))
        return torch.cat(products, dim=-1), torch.cat(lengths, dim=-1)


def drop_error(mean: Tensor, length: Tensor, output: Sequence[Tensor], gain: Sequence[float]) -> Tensor:
    """The change of a LayerNorm's output if the mean were not subtracted, relative to ‖γ⊙n‖ (eq-drop-error).

    With x = m·1 + s·n, the output changes by γ⊙(n − x/r) = γ⊙((1 − s/r)n − (m/r)1).

    Args:
        mean, length: of the inputs x, ``(n,)``.
        output: of the outputs y, each ``(n,)``: products with γ and with β, and length.
        gain: of the norm: ``(d, ε, ‖γ‖², γ·β, ‖β‖²)``.

    Returns ``(n,)``; NaN if, up to the rounding of float32, the output is β or the input is constant.
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
