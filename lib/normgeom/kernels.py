"""How the norms run in plain eager mode: torch's own kernel where it is the best there is, blocks of rows elsewhere.

A pass over memory costs more than the arithmetic on what it brings, so RMSNorm works on as many rows at a time as
fit in a cache, and keeps nothing but the output and a number a row.  The derivative is the closed form
(eq-products), not the record of these operations; where it will be differentiated again, :mod:`normgeom.formula`
computes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, bfloat16, float16, float32, float64, nn
from torch._C import _are_functorch_transforms_active, _is_tracing
from torch._C._functorch import is_legacy_batchedtensor as _is_batch
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling

from normgeom import formula

# Bytes that a block of rows touches: a call costs little beside them, a cache holds them.
BLOCK = 8_500_000
# From this |m|/s on, torch's LayerNorm loses more to the rounding of the mean than to all else.
FAR = 8.0
_layer_norm = torch.native_layer_norm
_layer_norm_backward = torch.ops.aten.native_layer_norm_backward.default
_ORDINARY = {Tensor, nn.Parameter}
_OPTIONAL = {*_ORDINARY, type(None)}
# The dtypes that run here, and those they are computed in; all others go to the formula.
_WIDE = {float16: float32, bfloat16: float32, float32: float32, float64: float64}


def normalize(x: object, gain: object, bias: object, eps: object, centered: bool) -> Tensor | None:
    """A norm's output where all is right beyond doubt, on the CPU, and in plain eager mode; else None.

    After a large tensor has been through the caches, every look at an argument costs microseconds: as little is looked
    at as will do.  ``centered`` is True for LayerNorm.
    """
    if _transformed() or type(x) not in _ORDINARY or type(gain) not in _OPTIONAL or type(bias) not in _OPTIONAL:
        return None
    wide = _WIDE.get(dtype := x.dtype)
    if not (wide and x.is_cpu and isinstance(eps, (float, int)) and eps >= 0):
        return None
    if centered and wide is dtype and (near := _if_near(x, gain, bias, eps)) is not None:
        return near
    size = x.shape[-1:]
    if not (size and x.numel() and _fits(gain, size) and _fits(bias, size)):
        return None
    asked = gain, bias
    gain = gain if gain is None or gain.dtype == wide else gain.to(wide)
    bias = bias if bias is None or bias.dtype == wide else bias.to(wide)
    refused = centered and wide is dtype and (gain is not asked[0] or bias is not asked[1])
    if refused and (near := _if_near(x, gain, bias, eps)) is not None:
        return near
    norm = _LayerNorm if centered else _RMSNorm
    if torch.is_grad_enabled():
        return norm.apply(x, gain, bias, eps)
    return norm.run(x, gain, bias, eps)[0]


def _fits(vector: Tensor | None, size: torch.Size) -> bool:
    return vector is None or (vector.is_floating_point() and vector.shape == size)


def on_cuda(x: Tensor, gain: Tensor | None, bias: Tensor | None, eps: float, centered: bool) -> Tensor | None:
    """What torch's kernels make of ordinary tensors of one dtype, and no bias in RMSNorm, on a GPU; else None."""
    given = [t for t in (x, gain, bias) if t is not None]
    if _transformed() or not all(type(t) in _ORDINARY and t.is_cuda and t.dtype == x.dtype for t in given):
        return None
    if centered:
        y = F.layer_norm(x, x.shape[-1:], gain, bias, eps)
        return _differentiable(y, eps) if y.requires_grad else y
    return F.rms_norm(x, x.shape[-1:], gain, eps) if bias is None else None


def _transformed() -> bool:
    """Whether something else than plain eager mode watches the operations.

    Forward mode is among it: a rule of ours would not nest, and torch's for layer_norm is wrong in torch 2.13.
    """
    # An export traces tensors of its own type.  The second is what torch asks before it applies an autograd function.
    traced = is_dynamo_compiling() or _are_functorch_transforms_active() or _is_tracing()
    return traced or forward_ad._current_level >= 0


def _if_near(x: Tensor, gain: Tensor | None, bias: Tensor | None, eps: float) -> Tensor | None:
    """What torch's LayerNorm makes of float32 or float64, or None: it refuses, or a mean is many times the spread."""
    try:
        y, mean, rate = _layer_norm(x, x.shape[-1:], gain, bias, eps)
        recorded = y.requires_grad  # and the mean with it
        ratio = mean * rate if recorded else mean.mul_(rate)
        furthest = ratio.abs_().max()
    except RuntimeError:  # a wrong shape, a gain or bias of another dtype, no rows; the next way meets all else too
        return None
    if not furthest.item() <= FAR:  # NaN is not
        return None
    return _differentiable(y, eps) if recorded else y


def _differentiable(y: Tensor, eps: float) -> Tensor:
    """``y`` of torch's LayerNorm, recorded, with derivatives right beyond the second (claim-third-derivative).

    A hook: torch's own record costs less than an autograd function written in Python.
    """
    y.grad_fn.register_hook(partial(_differentiate_again, eps))
    return y


def _differentiate_again(eps, by_inputs, by_output):
    """The closed form for torch's gradients by input, gain and bias, where these will be differentiated in turn."""
    if not torch.is_grad_enabled():
        return None
    node = next((g.grad_fn for g in by_inputs if g is not None and g.requires_grad), None)
    if node is None:
        return None
    # The node kept what torch's derivative was taken of; kept here, it would outlive a backward pass.
    found = formula.pull_back(by_output[0], node._saved_input, node._saved_weight, eps, centered=True)
    return tuple(g if g is None else f.to(g.dtype) for g, f in zip(by_inputs, found, strict=True))


class _Norm(torch.autograd.Function):
    """A norm on the CPU; gain and bias are in the wide dtype of ``x``, and their gradients are summed in it.

    No ``setup_context``: binding its arguments would take longer than a small norm, and inside torch.func, which asks
    for one, the formula runs.
    """

    @classmethod
    def forward(cls, ctx, x, gain, bias, eps):
        y, *statistics = cls.run(x, gain, bias, eps)
        ctx.eps = eps
        ctx.save_for_backward(x, gain, *statistics)
        ctx.set_materialize_grads(False)
        return y

    @classmethod
    def backward(cls, ctx, grad):
        if grad is None:
            return (None,) * 4
        x, gain, *statistics = ctx.saved_tensors
        wanted = ctx.needs_input_grad[:3]
        # batches are what autograd.grad(is_grads_batched=True) hands over
        if torch.is_grad_enabled() or _transformed() or _is_batch(grad):
            found = formula.pull_back(grad, x, gain, ctx.eps, cls.centered)
            return *(value if want else None for value, want in zip(found, wanted, strict=True)), None
        return *cls.back(grad, x, gain, *statistics, wanted), None


class _RMSNorm(_Norm):
    """In blocks, forward and back."""

    centered = False

    @staticmethod
    def run(x, gain, bias, eps):
        return _in_blocks(x, gain, bias, eps, centered=False)

    @staticmethod
    def back(grad, x, gain, rate, wanted):
        by_x, *others = _back_in_blocks(_rows(grad), _rows(x), gain, rate, False, wanted)
        return by_x.view(x.shape), *others


class _LayerNorm(_Norm):
    """Where torch's kernel and its record will not do: blocks in the rows whose mean is many times their spread, and in
    sixteen bits gradients by gain and bias that are not summed in them.
    """

    centered = True

    @staticmethod
    def run(x, gain, bias, eps):
        d, wide = x.shape[-1], formula.wide_dtype(x)
        if gain is None and x.dtype != wide:
            gain = torch.ones(d, dtype=wide)  # or torch would round the statistics to the dtype of x
        y, mean, rate = _layer_norm(x, (d,), gain, bias, eps)
        # NaN is far: torch's variance is that where squares overflow.
        far = ((mean * rate).flatten().abs_() <= FAR).logical_not_().nonzero().flatten()
        if len(far):
            _rows(y)[far], rate.view(-1, 1)[far] = _in_blocks(_rows(x)[far], gain, bias, eps, centered=True)
        return y, rate, mean, far

    @staticmethod
    def back(grad, x, gain, rate, mean, far, wanted):
        if not len(far):
            return _torchs_back(grad, x, gain, mean, rate, wanted)
        by_x, *others = _torchs_back(_rows(grad).index_fill(0, far, 0).view(x.shape), x, gain, mean, rate, wanted)
        rows = (_rows(t)[far] for t in (grad, x))
        _rows(by_x)[far], *more = _back_in_blocks(*rows, gain, rate.view(-1, 1)[far], True, wanted)
        return by_x, *(None if a is None else a + b for a, b in zip(others, more, strict=True))


def _torchs_back(grad, x, gain, mean, rate, wanted):
    """torch's kernel, block by block through the wide dtype where it would sum a gradient by the gain in 16 bits."""
    d, wide = x.shape[-1], rate.dtype
    given = gain if gain is not None else rate.new_ones(d)
    mask = [True, *wanted[1:]]
    if x.dtype == wide or not any(wanted[1:]):
        return _layer_norm_backward(grad, x, (d,), mean, rate, given, given, mask)
    by_x, totals = torch.empty_like(x, memory_format=torch.contiguous_format), [None, None]
    for gs, xs, out, m, scale, *room in _blocks(*map(_rows, (grad, x, by_x, mean, rate)), rooms=2, others=1):
        wide_gs, wide_xs = room[0].copy_(gs), room[1].copy_(xs)
        here, *more = _layer_norm_backward(wide_gs, wide_xs, (d,), m, scale, given, given, mask)
        out.copy_(here)
        totals = [b if a is None else a.add_(b) for a, b in zip(totals, more, strict=True)]
    return by_x, *totals


def _in_blocks(
    x: Tensor, gain: Tensor | None, bias: Tensor | None, eps: float, centered: bool
) -> tuple[Tensor, Tensor]:
    """``(y, rate)``: the output, in the shape and dtype of ``x``, and 1/s or 1/r, ``(rows, 1)``."""
    rows, wide, d = _rows(x), formula.wide_dtype(x), x.shape[-1]
    narrow = x.dtype != wide
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    rate = torch.empty(rows.shape[0], 1, dtype=wide)
    least = torch.scalar_tensor(eps, dtype=wide)
    for xs, ys, scale, *room in _blocks(rows, _rows(y), rate, rooms=int(centered or narrow)):
        start = _start(xs, room[0], centered) if room else xs
        torch.linalg.vector_norm(start, dim=-1, keepdim=True, out=scale)
        torch.addcmul(least, scale, scale, value=1 / d, out=scale).rsqrt_()
        result = torch.mul(start, scale, out=start if narrow else ys)
        if gain is not None:
            result.mul_(gain)
        if bias is not None:
            result.add_(bias)
        if narrow:
            ys.copy_(result)
    return y, rate


def _back_in_blocks(grad, x, gain, rate, centered, wanted):
    """Gradients by the rows ``x`` and, in the wide dtype, by gain and bias; with the ``rate`` of :func:`_in_blocks`."""
    d, wide = x.shape[-1], rate.dtype
    narrow = x.dtype != wide
    by_x = torch.empty_like(x, memory_format=torch.contiguous_format)
    by_bias, sums = torch.zeros(d, dtype=wide) if wanted[2] else None, None
    rooms = 1 + wanted[1] + (centered or narrow) + narrow
    for gs, xs, out, scale, *room in _blocks(grad, x, by_x, rate, rooms=rooms):
        start = _start(xs, room[0], centered) if centered or narrow else xs
        scaled, result = room[-1], room[1] if narrow else out
        gs = scaled.copy_(gs) if narrow else gs
        if by_bias is not None:
            by_bias += gs.sum(0)
        torch.mul(gs, scale, out=scaled)
        # Block on block: a sum over rows would hand half of them to another thread's cache, and the next pass back.
        if sums is not None:
            room[-2].addcmul_(scaled, start)
        elif wanted[1]:
            sums = torch.mul(scaled, start, out=room[-2])
        if gain is None:
            result.copy_(scaled)
        else:
            torch.mul(scaled, gain, out=result)
        product = torch.mul(result, start, out=scaled)
        result.addcmul_(start, _means(product).mul_(scale).mul_(scale), value=-1)
        if centered:
            result.sub_(_means(result))
        if narrow:
            out.copy_(result)
    return by_x, None if sums is None else sums.sum(0), by_bias


def _blocks(*matrices: Tensor, rooms: int, others: int = 0) -> Iterator[tuple[Tensor, ...]]:
    """As many rows of each matrix at a time as stay in a cache, and ``rooms`` wide scratch matrices of their size.

    ``others`` counts such matrices that the caller makes.
    """
    (rows, d), wide = matrices[0].shape, formula.wide_dtype(matrices[0])
    touched = sum([m.nbytes for m in matrices]) + (rooms + others) * rows * d * wide.itemsize
    number = -(-rows // max(1, BLOCK * rows // touched))
    size = -(-rows // number)
    number, rest = -(-rows // size), rows % size
    # Cutting takes as long as a norm of a few rows.
    cut = [m.chunk(number) for m in matrices] if number > 1 else [(m,) for m in matrices]
    for _ in range(rooms):
        room = torch.empty(size, d, dtype=wide)
        cut.append([room] * number if not rest else [*[room] * (number - 1), room[:rest]])
    return zip(*cut, strict=True)


def _rows(x: Tensor) -> Tensor:
    """``(rows, d)``, a view where there is one."""
    return x if x.dim() == 2 else x.reshape(-1, x.shape[-1])


def _start(xs: Tensor, room: Tensor, centered: bool) -> Tensor:
    """The rows whose root mean square is taken, in ``room`` and its dtype."""
    start = room.copy_(xs)
    if centered:
        for _ in range(2):  # as in formula.center
            start.sub_(_means(start))
    return start


def _means(rows: Tensor) -> Tensor:
    """``(rows, 1)``, each the same whatever the threads: torch shares out the sum of a single row among them."""
    return rows.mean(-1, keepdim=True) if rows.shape[0] != 1 else rows.expand(2, -1).mean(-1, keepdim=True)[:1]
