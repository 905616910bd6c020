"""How the norms run in plain eager mode: torch's own kernel where it is the best there is, elsewhere blocks of rows
(:mod:`normgeom.norms.blocks`).

The derivative is the closed form (eq-products), not the record of operations; where it will be differentiated again,
:mod:`normgeom.norms.formula` computes it.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, bfloat16, float16, float32, float64, nn
from torch._C import _are_functorch_transforms_active, _is_tracing
from torch._C._functorch import is_legacy_batchedtensor as _is_batch
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling

from normgeom.norms import blocks, formula
from normgeom.norms.blocks import rows_of

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
    """What :func:`fused` makes of ordinary tensors on a GPU, in plain eager mode; else None."""
    given = [t for t in (x, gain, bias) if t is not None]
    if _transformed() or not all(type(t) in _ORDINARY and t.is_cuda for t in given):
        return None
    return fused(x, gain, bias, eps, centered)


def fused(x: Tensor, gain: Tensor | None, bias: Tensor | None, eps: float, centered: bool) -> Tensor:
    """A norm by torch's fused kernel, rounded once; the host waits for no result.

    The kernel takes one dtype and adds no bias to RMSNorm.  Whatever else is asked for, it gets wide arguments, and
    its result is rounded behind it: three kernels for an input in sixteen bits, four with that bias, where the formula
    takes seven and more.  The compiler would make one of them, but needs triton, and seconds for each new shape.
    """
    alike = x.dtype in _WIDE and all(t is None or t.dtype == x.dtype for t in (gain, bias))
    start = x if alike and (centered or bias is None) else formula.widen(x)
    gain, bias = (None if t is None else t.to(start.dtype) for t in (gain, bias))
    if centered:
        y = F.layer_norm(start, x.shape[-1:], gain, bias, eps)
        return (_differentiable(y, eps) if y.requires_grad else y).to(x.dtype)
    y = F.rms_norm(start, x.shape[-1:], gain, eps)
    return (y if bias is None else y + bias).to(x.dtype)


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
        return blocks.forward(x, gain, bias, eps, centered=False)

    @staticmethod
    def back(grad, x, gain, rate, wanted):
        by_x, *others = blocks.backward(rows_of(grad), rows_of(x), gain, rate, False, wanted)
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
            rows_of(y)[far], rate.view(-1, 1)[far] = blocks.forward(rows_of(x)[far], gain, bias, eps, centered=True)
        return y, rate, mean, far

    @staticmethod
    def back(grad, x, gain, rate, mean, far, wanted):
        if not len(far):
            return _torchs_back(grad, x, gain, mean, rate, wanted)
        by_x, *others = _torchs_back(rows_of(grad).index_fill(0, far, 0).view(x.shape), x, gain, mean, rate, wanted)
        rows = (rows_of(t)[far] for t in (grad, x))
        rows_of(by_x)[far], *more = blocks.backward(*rows, gain, rate.view(-1, 1)[far], True, wanted)
        return by_x, *(None if a is None else a + b for a, b in zip(others, more, strict=True))


def _torchs_back(grad, x, gain, mean, rate, wanted):
    """torch's kernel, block by block through the wide dtype where it would sum a gradient by the gain in 16 bits."""
    d, wide = x.shape[-1], rate.dtype
    given = gain if gain is not None else rate.new_ones(d)
    mask = [True, *wanted[1:]]
    if x.dtype == wide or not any(wanted[1:]):
        return _layer_norm_backward(grad, x, (d,), mean, rate, given, given, mask)
    by_x, totals = torch.empty_like(x, memory_format=torch.contiguous_format), [None, None]
    for gs, xs, out, m, scale, *room in blocks.cut(*map(rows_of, (grad, x, by_x, mean, rate)), rooms=2, others=1):
        wide_gs, wide_xs = room[0].copy_(gs), room[1].copy_(xs)
        here, *more = _layer_norm_backward(wide_gs, wide_xs, (d,), m, scale, given, given, mask)
        out.copy_(here)
        totals = [b if a is None else a.add_(b) for a, b in zip(totals, more, strict=True)]
    return by_x, *totals
