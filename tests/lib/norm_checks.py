"""What a correct norm passes and each known wrong one fails: checks that take the norm as an argument.

A check is called as ``check(norm, truth)``.  ``norm`` is the function under test, with the signature of
``normgeom.layer_norm`` or ``normgeom.rms_norm``; ``truth`` is torch's own function behind that signature, used in
float64 only.  A check returns None or raises, and its message names the likely mistakes.  ``test_mutants.py`` turns
them on a zoo of wrong norms.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

Norm = Callable[..., Tensor]


def true_layer_norm(x: Tensor, weight=None, bias=None, eps: float = 1e-5) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps)


def true_rms_norm(x: Tensor, weight=None, bias=None, eps: float = 1e-6) -> Tensor:
    y = F.rms_norm(x, x.shape[-1:], weight, eps)
    return y if bias is None else y + bias


def draw(*shape: int, seed: int = 0, scale: float = 1.0, mean: float = 0.0, dtype=torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (mean + scale * torch.randn(shape, generator=generator, dtype=torch.float64)).to(dtype)


def close(got: Tensor, expected: Tensor, tol: float, what: str, suspects: str) -> None:
    """Both finite, of one shape, and nowhere further apart than ``tol``."""
    assert got.shape == expected.shape, f"{what}: shape {tuple(got.shape)}, expected {tuple(expected.shape)}"
    off = (got.detach().double() - expected.detach().double()).abs()
    worst = float(off.max()) if off.numel() else 0.0
    assert worst <= tol, f"{what}: off by {worst:.1e}, allowed {tol:.0e}. {suspects}"


def rounding(expected: Tensor, dtype: torch.dtype, terms: int | None = None) -> float:
    """What rounding may move an entry by, from the formats and the sizes alone; an upper bound for any processor.

    The result is rounded to ``dtype``, the gain perhaps too.  What comes before has at least float32's precision: some
    eight operations in a row, and sums of ``terms`` entries (a row's, if None), whose error grows like a walk of that
    many steps in whatever order a processor adds.  All of it is relative to the largest entry.
    """
    terms = expected.shape[-1] if terms is None else terms
    wide = torch.finfo(torch.promote_types(dtype, torch.float32)).eps
    largest = max(1.0, float(expected.detach().abs().max()))
    return largest * (2 * torch.finfo(dtype).eps + (8 + math.sqrt(terms)) * wide)


def ulps(a: Tensor, b: Tensor) -> int:
    """The largest distance between two tensors of one 16-bit dtype, in representable numbers."""

    def ordered(t: Tensor) -> Tensor:
        bits = t.contiguous().view(torch.int16).int()
        return torch.where(bits < 0, -(bits & 0x7FFF), bits)

    return int((ordered(a) - ordered(b)).abs().max())


def values(norm: Norm, truth: Norm) -> None:
    x = torch.cat([draw(3, 4, 8, mean=0.7), draw(1, 4, 8, seed=1, scale=3.0, mean=-5.0)])
    close(
        norm(x, eps=1e-5),
        truth(x, eps=1e-5),
        1e-12,
        "values",
        "Unbiased variance (d−1)? Wrong axis? Mean of the whole batch? Absolute deviation instead of the root mean "
        "square? Missing √d (norm instead of RMS)? Mean not subtracted, or subtracted where it should stay? "
        "Gain 1 + weight without a weight?",
    )


def values_at_small_spread(norm: Norm, truth: Norm) -> None:
    for scale in (1e-4, 3e-3, 0.1):
        x = draw(5, 16, scale=scale)
        close(
            norm(x, eps=1e-5),
            truth(x, eps=1e-5),
            1e-12,
            f"values at spread {scale}",
            "ε outside the root? ε missing? ε multiplied? ε squared? Variance clamped at ε?",
        )


def default_epsilon(norm: Norm, truth: Norm) -> None:
    got, expected = (inspect.signature(function).parameters["eps"].default for function in (norm, truth))
    assert got == expected, f"default of eps: {got}, expected {expected}. Wrong default of ε?"


def affine(norm: Norm, truth: Norm) -> None:
    x, weight, bias = draw(2, 3, 8), draw(8, seed=1), draw(8, seed=2)
    suspects = {
        (weight, None): "γ forgotten? Gain 1 + γ? γ applied before the statistics?",
        (None, bias): "β forgotten? β subtracted?",
        (weight, bias): "β before γ?",
    }
    for (w, b), suspect in suspects.items():
        close(norm(x, w, b, 1e-5), truth(x, w, b, 1e-5), 1e-12, "values with an affine part", suspect)


def input_untouched(norm: Norm, truth: Norm) -> None:
    x = draw(4, 8)
    before = x.clone()
    norm(x)
    assert torch.equal(x, before), "the input has changed. In-place arithmetic?"


def constant_rows(norm: Norm, truth: Norm) -> None:
    bias = draw(10, seed=2, dtype=torch.float32)
    x = torch.tensor([0.0, 0.1, -3.3, 7e5])[:, None].expand(4, 10).contiguous()
    if truth is true_rms_norm:
        x = x[:1]
    got = norm(x, draw(10, dtype=torch.float32), bias, 1e-5)
    assert torch.equal(got, bias.expand_as(got)), "constant rows must give β exactly. ε missing? One mean only?"


def huge_mean(norm: Norm, truth: Norm) -> None:
    for mean in (1e3, 1e5, 1e6):
        x = draw(400, 768, mean=mean, dtype=torch.float32)  # so large that the means are looked at
        expected = truth(x.double(), eps=1e-5)
        close(
            norm(x, eps=1e-5),
            expected,
            rounding(expected, torch.float32),
            f"float32 at mean {mean:.0e}",
            "E[x²]−E[x]² for the variance? The mean's own rounding left in (one mean only)?",
        )


def low_precision(norm: Norm, truth: Norm) -> None:
    for dtype in (torch.bfloat16, torch.float16):
        x = draw(16, 256, mean=0.5, dtype=dtype)
        weight, bias = draw(256, seed=1, dtype=dtype), draw(256, seed=2, dtype=dtype)
        got = norm(x, weight, bias, 1e-5)
        assert got.dtype == dtype, f"{dtype} in, {got.dtype} out. Not cast back?"
        expected = truth(x.double(), weight.double(), bias.double(), 1e-5).to(dtype)
        # beside a zero crossing one rounding is many representable numbers
        clear = expected.abs() > 1e-2
        off = ulps(got[clear], expected[clear])
        assert off <= 1, f"{dtype}: off by {off} ulp, one allowed. Statistics in the input's dtype? Rounded twice?"


# Of input, gain and bias; None where there is none.
MIXED = [
    (torch.bfloat16, torch.float32, torch.float32),
    (torch.bfloat16, torch.float32, torch.bfloat16),
    (torch.bfloat16, torch.bfloat16, torch.float32),
    (torch.bfloat16, None, torch.float32),
    (torch.float16, torch.float32, None),
    (torch.float16, torch.bfloat16, torch.float64),
    (torch.float32, torch.bfloat16, torch.float16),
    (torch.float32, torch.float64, None),
    (torch.float64, torch.float32, torch.bfloat16),
]


def mixed(dtypes: tuple) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Input, gain and bias of these dtypes."""
    gain, bias = (None if t is None else draw(256, seed=i, dtype=t) for i, t in enumerate(dtypes[1:], 1))
    return draw(16, 256, mean=0.5, dtype=dtypes[0]), gain, bias


def misrounded(got: Tensor, exact: Tensor) -> float:
    """The share of entries that are not the exact ones, rounded once.

    Float32's error moves an entry of sixteen bits over the middle between two numbers once in some thousand times.
    """
    return float((got != exact.to(got.dtype)).double().mean())


def mixed_dtypes(norm: Norm, truth: Norm) -> None:
    for dtypes in MIXED:
        x, gain, bias = mixed(dtypes)
        got = norm(x, gain, bias, 1e-5)
        assert got.dtype == x.dtype, f"{dtypes}: {got.dtype} out. Promoted to the gain's dtype?"
        exact = truth(*(None if t is None else t.double() for t in (x, gain, bias)), 1e-5)
        close(got, exact, rounding(exact, x.dtype), f"{dtypes}", "A gain or bias left out?")
        off = misrounded(got, exact) if x.dtype.itemsize == 2 else 0.0
        assert off < 0.01, f"{dtypes}: {off:.0%} of the entries are off. Rounded before the gain or the bias?"


def first_derivatives(norm: Norm, truth: Norm) -> None:
    cotangent = draw(3, 8, seed=3)
    results = []
    for function in (norm, truth):
        inputs = [draw(3, 8), draw(8, seed=1), draw(8, seed=2)]
        for t in inputs:
            t.requires_grad_()
        results.append(torch.autograd.grad(function(*inputs, 1e-2), inputs, cotangent))
    for name, got, expected in zip(("x", "weight", "bias"), *results, strict=True):
        close(got, expected, 1e-12, f"derivative by {name}", "Detached statistics? ε missing in the backward pass?")


def second_derivatives(norm: Norm, truth: Norm) -> None:
    results = []
    for function in (norm, truth):
        x, weight = draw(3, 8).requires_grad_(), draw(8, seed=1).requires_grad_()
        (first,) = torch.autograd.grad((function(x, weight, None, 1e-2) ** 3).sum(), x, create_graph=True)
        results.append(torch.autograd.grad((first * draw(3, 8, seed=4)).sum(), [x, weight]))
    for name, got, expected in zip(("x", "weight"), *results, strict=True):
        close(got, expected, 1e-11, f"second derivative by x and {name}", "No double backward?")


def higher_derivatives(norm: Norm, truth: Norm) -> None:
    """Not among :data:`CHECKS`: torch's LayerNorm, the truth of the others, fails it (claim-third-derivative)."""
    gain, bias = draw(6, seed=1, dtype=torch.float32), draw(6, seed=2, dtype=torch.float32)

    def unrolled(x):
        c = x if truth is true_rms_norm else x - x.mean(-1, keepdim=True)
        return c / (c.square().mean(-1, keepdim=True) + 1e-5).sqrt() * gain.double() + bias.double()

    def slopes(function):
        x = draw(3, 6).requires_grad_()
        value = function(x).pow(3).sum()
        for _ in range(4):
            (found,) = torch.autograd.grad(value, x, create_graph=True)
            value = found.square().mean()
            yield found.detach()

    both = zip(slopes(lambda x: norm(x, gain, bias, 1e-5)), slopes(unrolled), strict=True)
    for order, (got, right) in enumerate(both, 1):
        scale = right.abs().max()
        close(got / scale, right / scale, 1e-11, f"derivative {order}", "A statistic held fixed?")


CHECKS = (
    values,
    values_at_small_spread,
    default_epsilon,
    affine,
    input_untouched,
    constant_rows,
    huge_mean,
    low_precision,
    mixed_dtypes,
    first_derivatives,
    second_derivatives,
)
