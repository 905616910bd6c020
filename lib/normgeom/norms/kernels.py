"""How the norms run in plain eager mode: torch's own kernels, or RMSNorm in blocks of rows where that is faster.

Results are those of the formula up to rounding, so that this file may be deleted.  It uses private names of torch:
where one is gone, this cannot be imported, and the formula does the work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn
from torch._C import _are_functorch_transforms_active as _in_torch_func
from torch._C import _is_tracing
from torch._C._functorch import is_legacy_batchedtensor
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling as _compiles

from normgeom.norms import formula

if not hasattr(forward_ad, "_current_level"):
    raise ImportError("torch.autograd.forward_ad has no _current_level")

# From this many entries on, a look at the means takes less than a twentieth of the time of torch's LayerNorm.
LOOK = 300_000
# From this |m|/s on, torch's LayerNorm loses more to the rounding of the mean than to all else.
FAR = 8.0
# From this many entries on, blocks of rows are faster than torch's RMSNorm.
LARGE = 1 << 18
# Bytes that a block of rows touches: a call costs little beside them, and a cache holds them.
BLOCK = 8_500_000
_layer_norm = torch.layer_norm
_rms_norm = getattr(torch, "_fused_rms_norm", None) or (lambda *given: (torch.rms_norm(*given),))  # checks take a tenth
_ORDINARY = {Tensor, nn.Parameter}
_NATIVE = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
_REFUSALS = (AttributeError, IndexError, RuntimeError, TypeError)


def layer_norm(x: Tensor, gain: Tensor | None, bias: Tensor | None, eps: float) -> Tensor | None:
    """LayerNorm by torch's kernel; None where it cannot do it, or a mean is many times the spread.

    Each look at an argument takes a hundredth of the time of a small norm, so torch is asked first.
    """
    try:
        if type(eps) is not float or not eps >= 0 or _compiles() or _in_torch_func() or forward_ad._current_level >= 0:
            return None
        if 0 < x.numel() < LOOK and x.is_cpu:
            y = _layer_norm(x, (x.shape[-1],), gain, bias, eps)
        elif _is_tracing() or not x.numel():
            return None
        else:
            y, mean, rstd = torch.native_layer_norm(x, x.shape[-1:], gain, bias, eps)
            if x.is_cpu and not _near(mean.detach(), rstd.detach()):
                return None
    except _REFUSALS:
        return _widened(layer_norm, x, gain, bias, eps)
    if not y.requires_grad:
        return y
    if y.is_cpu and y.dtype.itemsize < 4:  # gradients by gain and bias would be summed in sixteen bits
        return _widened(layer_norm, x, gain, bias, eps)
    # A hook, since torch's own record costs less than an autograd function written in Python.
    y.grad_fn.register_hook(partial(_differentiate_again, eps))
    return y


def rms_norm(x: Tensor, gain: Tensor | None, bias: Tensor | None, eps: float) -> Tensor | None:
    """RMSNorm by torch's kernel, or in blocks of rows if there are many on a CPU; None where neither can do it."""
    try:
        if _compiles() or _in_torch_func() or _is_tracing() or forward_ad._current_level >= 0:
            return None
        entries, size = x.numel(), x.shape[-1:]
        if type(eps) is not float or not eps >= 0 or not entries or not size or x.dtype not in _NATIVE:
            return None
        if bias is None and (gain is None or (gain.dtype is x.dtype and gain.shape == size)):
            if entries < LARGE and x.is_cpu:
                return _rms_norm(x, size, gain, eps)[0]
            if not x.is_cpu:
                return torch.rms_norm(x, size, gain, eps).to(x.dtype)
    except _REFUSALS:
        return None
    if not x.is_cpu:
        return None if bias is not None else _widened(rms_norm, x, gain, bias, eps)
    given = [t for t in (x, gain, bias) if t is not None]
    if entries < LARGE or not _ordinary(given) or any(t.shape != size for t in given[1:]):
        return None
    wide = formula.wide_dtype(x)
    gain, bias = (None if t is None else t.to(wide) for t in (gain, bias))
    if torch.is_grad_enabled() and any(t.requires_grad for t in given):
        return _InBlocks.apply(x, gain, bias, eps)
    return _forward(x, gain, bias, eps)[0]


def _near(mean: Tensor, rstd: Tensor) -> bool:
    """Whether all |m|/s are at most FAR; NaN are not."""
    ratio = mean * rstd
    # The root of the sum of squares is not below the largest, and found sooner.
    return torch.linalg.vector_norm(ratio).item() <= FAR or ratio.abs().max().item() <= FAR


def _widened(norm: Callable, x: Tensor, gain: Tensor | None, bias: Tensor | None, eps: float) -> Tensor | None:
    """A norm of tensors in the wide dtype of ``x``, rounded once; None if they are in it already, or are no tensors."""
    given = [t for t in (x, gain, bias) if t is not None]
    if not _ordinary(given) or all(t.dtype == (wide := formula.wide_dtype(given[0])) for t in given):
        return None
    y = norm(*(None if t is None else t.to(wide) for t in (x, gain, bias)), eps)
    return None if y is None else y.to(x.dtype)


def _ordinary(given: list) -> bool:
    return all(type(t) in _ORDINARY and t.is_floating_point() for t in given)


def _differentiate_again(eps, by_inputs, by_output):
    """The formula for torch's gradients of LayerNorm by input, gain and bias, where these will be differentiated in
    turn: torch's own are wrong from the third derivative on (claim-third-derivative).
    """
    if not torch.is_grad_enabled():
        return None
    node = next((g.grad_fn for g in by_inputs if g is not None and g.requires_grad), None)
    if node is None:
        return None
    # The node kept what torch's derivative was taken of; kept here, it would outlive a backward pass.
    found = formula.backward(by_output[0], node._saved_input, node._saved_weight, eps, centered=True)
    return tuple(g if g is None else f.to(g.dtype) for g, f in zip(by_inputs, found, strict=True))


class _InBlocks(torch.autograd.Function):
    """RMSNorm; gain and bias are in the wide dtype of ``x``, and their gradients are summed in it.

    No ``setup_context``, which only torch.func asks for: inside it the formula runs.
    """

    @staticmethod
    def forward(ctx, x, gain, bias, eps):
        y, rstd = _forward(x, gain, bias, eps)
        ctx.eps = eps
        ctx.save_for_backward(x, gain, rstd)
        ctx.set_materialize_grads(False)
        return y

    @staticmethod
    def backward(ctx, grad):
        if grad is None:
            return (None,) * 4
        x, gain, rstd = ctx.saved_tensors
        wanted = ctx.needs_input_grad[:3]
        # batches are what autograd.grad(is_grads_batched=True) hands over
        if torch.is_grad_enabled() or forward_ad._current_level >= 0 or is_legacy_batchedtensor(grad):
            found = formula.backward(grad, x, gain, ctx.eps, centered=False)
            return *(value if want else None for value, want in zip(found, wanted, strict=True)), None
        return *_backward(grad, x, gain, rstd, wanted), None


def _forward(x: Tensor, gain: Tensor | None, bias: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    """The output, in the shape and dtype of ``x``, and 1/r, ``(rows, 1)``."""
    rows, wide, d = _rows(x), formula.wide_dtype(x), x.shape[-1]
    narrow = x.dtype != wide
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    rstd = torch.empty(rows.shape[0], 1, dtype=wide)
    least = torch.scalar_tensor(eps, dtype=wide)
    for xs, ys, scale, *room in row_blocks(rows, _rows(y), rstd, rooms=int(narrow)):
        start = room[0].copy_(xs) if narrow else xs
        torch.linalg.vector_norm(start, dim=-1, keepdim=True, out=scale)
        torch.addcmul(least, scale, scale, value=1 / d, out=scale).rsqrt_()
        result = torch.mul(start, scale, out=start if narrow else ys)
        if gain is not None:
            result.mul_(gain)
        if bias is not None:
            result.add_(bias)
        if narrow:
            ys.copy_(result)
    return y, rstd


def _backward(grad: Tensor, x: Tensor, gain: Tensor | None, rstd: Tensor, wanted: tuple[bool, ...]):
    """Gradients by ``x`` and, in the wide dtype, by gain and bias (eq-products)."""
    d, wide = x.shape[-1], rstd.dtype
    narrow = x.dtype != wide
    by_x = torch.empty_like(x, memory_format=torch.contiguous_format)
    by_bias, products = torch.zeros(d, dtype=wide) if wanted[2] else None, None
    for gs, xs, out, scale, *room in row_blocks(*map(_rows, (grad, x, by_x)), rstd, rooms=1 + wanted[1] + 2 * narrow):
        scaled, result = room[0], room[-1] if narrow else out
        start = room[1].copy_(xs) if narrow else xs
        gs = scaled.copy_(gs) if narrow else gs
        if by_bias is not None:
            by_bias += gs.sum(0)
        torch.mul(gs, scale, out=scaled)
        # Products are added block by block: summing over rows would move half of them between the threads' caches.
        if products is not None:
            room[1 + narrow].addcmul_(scaled, start)
        elif wanted[1]:
            products = torch.mul(scaled, start, out=room[1 + narrow])
        if gain is None:
            result.copy_(scaled)
        else:
            torch.mul(scaled, gain, out=result)
        product = torch.mul(result, start, out=scaled)
        result.addcmul_(start, product.mean(-1, keepdim=True).mul_(scale).mul_(scale), value=-1)
        if narrow:
            out.copy_(result)
    return by_x, None if products is None else products.sum(0), by_bias


def row_blocks(*matrices: Tensor, rooms: int) -> Iterator[tuple[Tensor, ...]]:
    """As many rows of each matrix at a time as stay in a cache, and ``rooms`` wide scratch matrices of their size."""
    (rows, d), wide = matrices[0].shape, formula.wide_dtype(matrices[0])
    touched = sum(m.nbytes for m in matrices) + rooms * rows * d * wide.itemsize
    # The number of blocks, rounded up, and with it blocks of nearly one size.
    size = -(-rows // -(-rows // max(1, BLOCK * rows // touched)))
    number, rest = -(-rows // size), rows % size
    # Cutting takes as long as a norm of a few rows.
    pieces = [m.chunk(number) for m in matrices] if number > 1 else [(m,) for m in matrices]
    for _ in range(rooms):
        room = torch.empty(size, d, dtype=wide)
        pieces.append([room] * (number - 1) + [room[:rest] if rest else room])
    return zip(*pieces, strict=True)


def _rows(x: Tensor) -> Tensor:
    """``(rows, d)``, a view where there is one."""
    return x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
