"""How the norms run in plain eager mode.

- LayerNorm uses torch's kernel, unless the mean of a row is many times its standard deviation.  This is checked only
  where the check costs little: for large inputs on a CPU.
- RMSNorm of a large input on a CPU runs in blocks of rows, each of which stays in a cache between operations.
- Every other RMSNorm uses torch's own function.

:func:`layer_norm` and :func:`rms_norm` return None if none of this applies.  Then :mod:`normgeom.norms.functions`
checks the arguments and computes the formula, with the same result up to rounding, so this file may be deleted.  It
uses private names of torch; if one is missing, the import fails, and the formula does all the work.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, _fused_rms_norm, nn
from torch._C import _are_functorch_transforms_active
from torch._C._functorch import is_legacy_batchedtensor
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling

from normgeom.norms import formula

if not hasattr(forward_ad, "_current_level"):
    raise ImportError("torch.autograd.forward_ad has no _current_level")

# From this many entries on, a look at the means takes less than a twentieth of the time of torch's LayerNorm.
LOOK = 300_000
# From this |mean|/s on, torch's LayerNorm loses more to the rounding of the mean than to everything else.
FAR = 8.0
# From this many entries on, blocks of rows are faster than torch's RMSNorm.
LARGE = 1 << 18
# Entries in a block: a call of an operation costs little in comparison, and a cache holds the block and its scratch.
BLOCK = 1 << 18
# What torch and Python raise for arguments that a kernel does not take.  Looking at each argument before the call would
# take a tenth of the time of a small norm.
REFUSALS = (AttributeError, IndexError, RuntimeError, TypeError)


def layer_norm(x: Tensor, gain: Tensor | None, bias: Tensor | None, eps: float) -> Tensor | None:
    """LayerNorm, or None if the formula has to compute it."""
    if not _eager(eps):
        return None
    try:
        if x.is_cpu and 0 < x.numel() < LOOK:
            y = torch.layer_norm(x, (x.shape[-1],), gain, bias, eps)
        else:  # under autocast torch.layer_norm of a GPU gives float32
            y, mean, rstd = torch.native_layer_norm(x, (x.shape[-1],), gain, bias, eps)
            if x.is_cpu:
                least, most = (mean.detach() * rstd.detach()).aminmax()
                if not (_plain(x) and least.item() >= -FAR and most.item() <= FAR):
                    return None  # a mean is far from 0, or NaN
    except REFUSALS:
        return None
    if not y.requires_grad:
        return y
    if y.is_cpu and y.dtype.itemsize < 4:  # torch would sum the gradients of gain and bias in 16 bits
        y = layer_norm(*(None if t is None else formula.upcast(t) for t in (x, gain, bias)), eps)
        return None if y is None else y.to(x.dtype)
    y.grad_fn.register_hook(partial(_differentiate_again, eps))
    return y


def rms_norm(x: Tensor, gain: Tensor | None, bias: Tensor | None, eps: float) -> Tensor | None:
    """RMSNorm, or None if the formula has to compute it."""
    if not _eager(eps):
        return None
    try:
        if x.is_cpu and x.numel() >= LARGE:
            return _rms_norm_of_many_rows(x, gain, bias, eps)
        size = (x.shape[-1],)
        if bias is not None or not x.numel() or (gain is not None and (gain.dtype != x.dtype or gain.shape != size)):
            return None
        if x.is_cpu:  # what torch.rms_norm calls after checks that take a tenth of the time of a small norm
            return _fused_rms_norm(x, size, gain, eps)[0]
        return torch.rms_norm(x, size, gain, eps).to(x.dtype)
    except REFUSALS:
        return None


def _eager(eps: float) -> bool:
    """Whether torch runs in plain eager mode, without compilation, ``torch.func`` or forward mode."""
    if is_dynamo_compiling() or _are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return False
    return type(eps) is float and eps >= 0


def _plain(*given: Tensor) -> bool:
    """Whether these are plain floating-point tensors, not of a subclass, and torch is not tracing."""
    return not torch.jit.is_tracing() and all(
        type(t) in (Tensor, nn.Parameter) and t.is_floating_point() for t in given
    )


def _differentiate_again(eps: float, by_inputs: tuple, by_output: tuple) -> tuple | None:
    """A hook on LayerNorm's backward pass: it returns the formula's gradients if these will be differentiated again.

    torch's own gradients are wrong from the third derivative on (claim-third-derivative).  A hook costs less than an
    autograd function in Python.
    """
    node = next((g.grad_fn for g in by_inputs if g is not None and g.requires_grad), None)
    if node is None or not torch.is_grad_enabled():
        return None
    # The node keeps the input and the weight.  A reference from here would outlive the backward pass.
    found = formula.backward(by_output[0], node._saved_input, node._saved_weight, eps, centered=True)
    return tuple(None if g is None else f.to(g.dtype) for g, f in zip(by_inputs, found, strict=True))


def _rms_norm_of_many_rows(x: Tensor, gain: Tensor | None, bias: Tensor | None, eps: float) -> Tensor | None:
    affine = [t for t in (gain, bias) if t is not None]
    if not _plain(x, *affine) or any(t.shape != x.shape[-1:] for t in affine):
        return None
    wide = formula.wide_dtype(x)
    return _InBlocks.apply(x, None if gain is None else gain.to(wide), None if bias is None else bias.to(wide), eps)


class _InBlocks(torch.autograd.Function):
    """RMSNorm; gain, bias and their gradients have the wide dtype of ``x``."""

    @staticmethod
    def forward(ctx, x, gain, bias, eps):
        rows = x.reshape(-1, x.shape[-1])
        y = torch.empty_like(rows, memory_format=torch.contiguous_format)
        rstd = torch.empty(len(rows), 1, dtype=formula.wide_dtype(x))
        for xs, ys, scale in _blocks(rows, y, rstd):
            wide = formula.upcast(xs)
            torch.linalg.vector_norm(wide, dim=-1, keepdim=True, out=scale)
            scale.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
            result = torch.mul(wide, scale, out=ys if wide is xs else wide)
            if gain is not None:
                result *= gain
            if bias is not None:
                result += bias
            if result is not ys:
                ys.copy_(result)
        ctx.eps, ctx.has_bias = eps, bias is not None
        ctx.save_for_backward(x, gain, rstd)
        ctx.set_materialize_grads(False)
        return y.view(x.shape)

    @staticmethod
    def backward(ctx, grad):
        if grad is None:
            return None, None, None, None
        x, gain, rstd = ctx.saved_tensors
        # Batches are what autograd.grad(is_grads_batched=True) passes.
        if torch.is_grad_enabled() or forward_ad._current_level >= 0 or is_legacy_batchedtensor(grad):
            by_x, by_gain, by_bias = formula.backward(grad, x, gain, ctx.eps, centered=False)
        else:
            by_x, by_gain = _gradients(grad, x, gain, rstd)
            by_bias = grad.reshape(-1, x.shape[-1]).sum(0, dtype=rstd.dtype) if ctx.has_bias else None
        return by_x, None if gain is None else by_gain, by_bias if ctx.has_bias else None, None


def _gradients(grad: Tensor, x: Tensor, gain: Tensor | None, rstd: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients with respect to input and gain of RMSNorm, computed in blocks (eq-products)."""
    rows, grads = x.reshape(-1, x.shape[-1]), grad.reshape(-1, x.shape[-1])
    by_x = torch.empty_like(rows, memory_format=torch.contiguous_format)
    # Blocks are added up, and rows once at the end: with two threads a sum over rows is slow.
    products = torch.zeros(_block_rows(rows), x.shape[-1], dtype=rstd.dtype)
    for xs, gs, out, scale in _blocks(rows, grads, by_x, rstd):
        wide = formula.upcast(xs)
        scaled = formula.upcast(gs) * scale
        products[: len(xs)].addcmul_(scaled, wide)
        if gain is not None:
            scaled *= gain
        along = (scaled * wide).mean(-1, keepdim=True) * scale * scale
        out.copy_(scaled.addcmul_(wide, along, value=-1))
    return by_x.view(x.shape), products.sum(0)


def _blocks(*matrices: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The next block of rows of each matrix in turn."""
    rows = _block_rows(matrices[0])
    return zip(*(matrix.split(rows) for matrix in matrices), strict=True)


def _block_rows(matrix: Tensor) -> int:
    return max(1, min(len(matrix), BLOCK // matrix.shape[1]))
