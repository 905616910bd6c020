"""Questions to one module: is it a norm along the last axis of its input, with which gain, bias and ε."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from normgeom.norms.functions import layer_norm, rms_norm

_LARGE = 1e4  # the size of rows beside which no usual ε counts


class Found(NamedTuple):
    """What the outputs of a norm show: as in :class:`normgeom.NormSite`."""

    kind: str
    weight: Tensor
    bias: Tensor
    eps: float


@torch.no_grad()
def probe(module: nn.Module, shape: Sequence[int], token_axis: int | None) -> Found | None:
    """What a module is that takes inputs of ``shape``, if it is a norm of vectors along the last axis; else None."""
    *lead, d = shape
    if d < 2:
        return None
    # A gain may differ from head to head, but not from text to text or from position to position.
    few, one = ([*(n if axis in (0, token_axis) else size for axis, size in enumerate(lead)), d] for n in (4, 1))
    rows = _LARGE * torch.randn(few, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
    try:
        run = _plain_copy(module).forward  # past hooks
        base = run(rows)
    except Exception:
        return None  # it cannot be copied, or takes another shape or more arguments: it is more than a norm
    scale = float(base.abs().max())
    if _same(base, run(-rows), scale):
        return None
    kind = "layer" if _same(base, run(rows + 3 * _LARGE), scale) else "rms"
    norm = layer_norm if kind == "layer" else rms_norm
    unit = norm(1 - 2 * (torch.arange(d) % 2).float(), eps=0.0).expand(one)
    plus, minus = run(_LARGE * unit), run(-_LARGE * unit)
    weight, bias = (plus - minus) / 2 / unit, (plus + minus) / 2
    if not _same(base, norm(rows, eps=0.0) * weight + bias, scale):
        return None
    eps = _eps(module, run, weight * unit, bias, unit)
    return None if eps is None else Found(kind, _of_each_head(weight), _of_each_head(bias), eps)


def _plain_copy(module: nn.Module) -> nn.Module:
    """A float32 copy on the CPU in evaluation mode, without hooks; also of what accelerate keeps elsewhere."""
    if not hasattr(module, "_hf_hook"):
        copied = copy.deepcopy(module)
    else:
        from accelerate.hooks import remove_hook_from_module
        from accelerate.utils import align_module_device

        with align_module_device(module, "cpu"):
            copied = remove_hook_from_module(copy.deepcopy(module))
    for part in copied.modules():
        part._forward_hooks.clear()  # the user's
        part._forward_pre_hooks.clear()
    copied.to(device="cpu", dtype=torch.float32)
    copied.eval()
    return copied


def _same(a: Tensor, b: Tensor, scale: float) -> bool:
    return bool(torch.isfinite(a).all()) and torch.allclose(a, b, rtol=1e-3, atol=1e-4 * scale)


def _eps(
    module: nn.Module, run: Callable[[Tensor], Tensor], surface: Tensor, bias: Tensor, unit: Tensor
) -> float | None:
    """ε from how far short of ``surface`` small rows end; the exact number where an attribute holds it.

    None where they do not end there as ε makes them, as where only rows longer than a bound are shortened.
    """
    scales = torch.logspace(-8, 1, 73, dtype=torch.float32)
    outputs = run(scales.view(-1, *(1 for _ in unit.shape[1:])) * unit) - bias
    short, full = outputs.flatten(1).double(), surface.flatten().double()
    share = (short @ full / full.square().sum()).square()  # σ²/(σ² + ε)
    clearest = (share - 0.5).abs().clamp(max=0.49).argmin()  # without ε the first, where rounding weighs least
    squares = scales.double().square()
    measured = max(0.0, float(squares[clearest] * (1 / share[clearest] - 1)))
    if (share - squares / (squares + measured)).abs().max() > 0.2:  # ε outside the root: 0.12
        return None
    stated = [v for v in vars(module).values() if isinstance(v, float) and math.isclose(v, measured, rel_tol=0.01)]
    return stated[0] if stated else float(f"{measured:.2g}")


def _of_each_head(vector: Tensor) -> Tensor:
    """``(dim,)`` where it is the same for all heads, else without the leading axes of size one."""
    first = vector.flatten(0, -2)[0]
    if torch.allclose(vector, first):
        return first
    return vector.reshape(vector.shape[next(axis for axis, size in enumerate(vector.shape) if size > 1) :])
