"""Questions to one module: is it a norm, over which axes of its input, with which gain, bias and ε."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from normgeom.norms.functions import layer_norm, rms_norm

_LARGE = 1e4  # of rows beside which no usual ε counts
Run = Callable[[Tensor], Tensor]


class Found(NamedTuple):
    """What the outputs of a norm show: as in :class:`normgeom.NormSite`."""

    kind: str
    weight: Tensor
    bias: Tensor
    eps: float


def plain_copy(module: nn.Module) -> nn.Module:
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
    return copied.to(device="cpu", dtype=torch.float32).eval()


def probe(
    copied: nn.Module, shape: Sequence[int], axes: Sequence[int], positions: Collection[int | None], module: nn.Module
) -> Found | None:
    """What a module is that is a norm over these axes of its input together, else None.

    Args:
        copied: the module, as :func:`plain_copy` makes it.
        shape: of its input.
        axes: those that its statistics are to be over.
        positions: axes that count positions, of the input with ``axes`` moved to the end.
        module: whose attributes may hold ε.
    """
    lead = [size for axis, size in enumerate(shape) if axis not in axes]
    sizes = [shape[axis] for axis in axes]
    d = math.prod(sizes)
    if not lead or d < 2:
        return None  # one scale for all that there is, or for each number
    # A gain may differ from head to head, but not from text to text or from position to position.
    few, one = ([*(n if k == 0 or k in positions else size for k, size in enumerate(lead)), d] for n in (4, 1))
    behind = range(-len(axes), 0)

    @torch.no_grad()
    def run(x: Tensor) -> Tensor:
        given = x.unflatten(-1, sizes).movedim(tuple(behind), tuple(axes))
        return copied.forward(given).movedim(tuple(axes), tuple(behind)).flatten(-len(axes))  # past hooks

    rows = _rows(few)
    try:
        base = run(rows)
    except Exception:
        return None  # it wants another shape or more arguments
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


@torch.no_grad()
def shared_axes(run: Run, shape: Sequence[int]) -> tuple[int, ...]:
    """The axes along which the entries of a large input of ``shape`` share the scale that its output has lost.

    Empty where the output keeps the scale, or loses the sign as well.
    """
    x = _rows(shape)
    try:
        base = run(x)
    except Exception:
        return ()  # not what it takes
    scale = float(base.abs().max())
    if not _same(base, run(2 * x), scale) or _same(base, run(-x), scale):
        return ()
    shared = []
    for axis, size in enumerate(shape):
        other = x.clone()
        other.narrow(axis, 1, size - 1).copy_(3 * x.narrow(axis, 1, size - 1).flip(axis))
        if not _same(base.select(axis, 0), run(other).select(axis, 0), scale):
            shared.append(axis)
    return tuple(shared)


def _rows(shape: Sequence[int]) -> Tensor:
    # float32 as the copy is, whatever the default is
    return _LARGE * torch.randn(tuple(shape), generator=torch.Generator().manual_seed(0), dtype=torch.float32)


def _same(a: Tensor, b: Tensor, scale: float) -> bool:
    return bool(torch.isfinite(a).all()) and torch.allclose(a, b, rtol=1e-3, atol=1e-4 * scale)


def _eps(module: nn.Module, run: Run, surface: Tensor, bias: Tensor, unit: Tensor) -> float | None:
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
