"""The numbers that a survey takes of each hidden vector, in float64 whatever the model computes in."""

from __future__ import annotations

import torch
from torch import Tensor

_BLOCK = {"cpu": 2**17}  # entries widened at once: on a CPU what its cache holds
_WHOLE = 2**27
_UNSEEN = torch.finfo(torch.float32).eps ** 2  # relative square of what may be rounding alone


def project(x: Tensor, columns: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Products with some directions, length and largest entry of each vector.

    Args:
        x: vectors ``(..., d)``, any floating dtype.
        columns: ``(k, d)`` float64 on the device of ``x``; on the CPU where that device has no float64.

    Returns:
        ``(products (k, n), length (n,), largest |entry| (n,))``, the leading axes of ``x`` flattened; the first two
        float64, the last, which is exact, in the dtype of ``x``.
    """
    rows = x.reshape(-1, x.shape[-1]).to(columns.device)
    size = max(1, _BLOCK.get(rows.device.type, _WHOLE) // rows.shape[-1])
    found = [_of_block(block, columns) for block in (rows.split(size) if len(rows) > size else (rows,))]
    return found[0] if len(found) == 1 else tuple(torch.cat(part, dim=-1) for part in zip(*found, strict=True))


def _of_block(rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    wide = rows.double()
    largest = torch.maximum(rows.amax(-1), rows.amin(-1).neg())
    return columns @ wide.T, torch.linalg.vector_norm(wide, dim=-1), largest


def drop_error(mean: Tensor, length: Tensor, output: tuple[Tensor, Tensor, Tensor], gain: tuple) -> Tensor:
    """How far a LayerNorm's output would move if it did not subtract the mean, relative to ‖γ⊙n‖ (eq-drop-error).

    Nothing is computed twice: with x = m·1 + s·n, the difference is γ⊙(n − x/r) = γ⊙((1 − s/r)n − (m/r)1).

    Args:
        mean, length: of the inputs x, ``(n,)``.
        output: of the outputs y, each ``(n,)``: products with γ and with β, and length.
        gain: of the norm: ``(d, ε, ‖γ‖², γ·β, ‖β‖²)``.

    Of several norms at once, all are ``(norms, n)``, those of ``gain`` ``(norms, 1)``.

    Returns:
        ``(n,)``; NaN where the output is β alone, or the input constant, to the rounding of float32.
    """
    d, eps, gain_square, gain_bias, bias_square = gain
    with_gain, with_bias, output_length = output
    square = output_length.square() - 2 * with_bias + bias_square  # ‖γ⊙n‖²
    seen = (square > _UNSEEN * (gain_square + bias_square)) & (length.square() > (1 + _UNSEEN) * d * mean.square())
    square = square.where(seen, torch.nan)
    r = (length.square() / d + eps).sqrt()
    s = (r.square() - mean.square()).sqrt()
    shrunk, shifted = mean.square() / (r * (r + s)), mean / r
    cross = (with_gain - gain_bias) / square
    error = shrunk.square() - 2 * shrunk * shifted * cross + shifted.square() * gain_square / square
    return error.clamp(min=0).sqrt()
