"""Rows on which wrong norms fail, with outputs and gradients to many digits and the error that a right norm may have.

``python -m experiments.conformance`` writes figures/data/conformance.json; the page appendix/conformance explains how
to use it and derives the bounds.  The experiment below tries kernels on these rows.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import product

import mpmath
import normgeom as ng
import torch
import torch.nn.functional as F
from normgeom.records import FOLDER
from torch import Tensor
from torch.func import functional_call
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.t5.modeling_t5 import T5LayerNorm

from experiments.registry import experiment

PATH = FOLDER / "conformance.json"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
EPS = 2.0**-17  # exact in all three formats
GAIN = (1.5, -0.25, 0.75, 2.0, 0.5, -1.25, 1.0, 0.0625)
BIAS = (0.5, -2.0, 0.0, 0.125, 1.0, -0.25, 3.0, -0.5)
UPSTREAM = (1.0, 0.5, -1.5, 0.25, 2.0, -0.75, 0.125, 1.25)
SPREAD = (0.5, -1.25, 2.0, -0.75, 1.5, 0.25, -1.75, 0.375, 1.125, -0.5, 0.875, -2.25, 0.625, -0.125, 1.0, -1.625)
UNIT, LEAST = 2.0**-24, 2.0**-149  # unit roundoff and smallest number of float32, in which statistics are computed
ABOUT = (
    "Norms that are hard to compute, and their gradients. For 'layer', y = gain * (x - m) / sqrt(mean((x - m)^2) + "
    "eps) + bias, where m is the mean of x; for 'rms', y = gain * x / sqrt(mean(x^2) + eps). A row x has 'length' "
    "entries: its 'entries', repeated. Gain and bias (1 and 0 if affine is false), upstream, answers and bounds are "
    "repeated too. Compute y in the row's dtype, in which all given numbers are exact, and the gradients of "
    "sum(upstream * y) with respect to x and gain. The error of a right norm is at most the bound, in each entry of "
    "'output', 'x' and 'gain'; 'twice' bounds the output's error if the normalised row is rounded before the gain."
)


def along(entries: Sequence[float], length: int) -> tuple[float, ...]:
    """Repeat some entries until a row has ``length`` entries."""
    return tuple(entries[i % len(entries)] for i in range(length))


def exactly(numbers: Iterable[float]) -> Tensor:
    return torch.tensor([*numbers], dtype=torch.float64)


def parameters(d: int, applied: bool) -> tuple[tuple[float, ...], ...]:
    """Return gain, bias, and the gradient with respect to the output, each with ``d`` entries."""
    gain, bias = (GAIN, BIAS) if applied else ([1.0], [0.0])
    return along(gain, d), along(bias, d), along(UPSTREAM, d)


def rows(dtype: str) -> dict[str, dict]:
    """Return rows by name, exact in ``dtype``.  Long rows repeat 16 entries, so that their answers repeat as well."""
    info = torch.finfo(DTYPES[dtype])
    mean = 4096.0 if dtype == "float32" else 256.0
    most = 2.0**14 if dtype == "float16" else 2.0**60  # the squares of entries of twice this size are finite in float32
    made = {
        "ordinary": SPREAD,
        "odd": SPREAD[:7],
        "one entry": [3.0],
        "large mean": [mean + 8 * t for t in SPREAD[:7]],
        "one massive entry": [*SPREAD[:5], 30000.0, *SPREAD[6:]],
        "tiny": [2.0**-14 * t for t in SPREAD[:7]],
        "huge": [most * t for t in SPREAD[:7]],
        "subnormal": [info.smallest_normal / 16 * t for t in SPREAD[:7]],
        "equal entries": [3.3] * 7,
        "zeros": [0.0] * 3,
        "long": SPREAD,
        "large sum": [4 * t for t in SPREAD],  # the sum of squares exceeds the largest float16
        "long and odd": [30.0, *SPREAD[1:]],  # the last entry is large
    }
    lengths = {"long": 4096, "large sum": 4096, "long and odd": 1025}
    held = {name: exactly(row).to(DTYPES[dtype]).tolist() for name, row in made.items()}
    return {name: dict(entries=row, length=lengths.get(name, len(row))) for name, row in held.items()}


@cache
def answers(norm: str, x: tuple[float, ...], applied: bool) -> dict[str, list[mpmath.mpf]]:
    """Return output and gradients, and the numbers for their bounds: normalised row n, w = gain · upstream, scale s."""
    layer, (gain, bias, upstream) = norm == "layer", parameters(len(x), applied)

    def mean(values: Iterable) -> mpmath.mpf:
        return mpmath.fsum(values) / len(x)

    with mpmath.workdps(80):
        m = mean(x) if layer else mpmath.mpf(0)
        s = mpmath.sqrt(mean((v - m) ** 2 for v in x) + EPS)
        n = [(v - m) / s for v in x]
        w = [g * mpmath.mpf(u) for g, u in zip(gain, upstream, strict=True)]
        a, c = mean(w) if layer else 0, mean(p * t for p, t in zip(w, n, strict=True))
        return dict(
            output=[g * t + (b if layer else 0) for g, t, b in zip(gain, n, bias, strict=True)],
            x=[(p - a - c * t) / s for p, t in zip(w, n, strict=True)],
            gain=[u * t for u, t in zip(upstream, n, strict=True)],
            n=n,
            w=w,
            s=[s],
        )


def bounds(norm: str, x: tuple[float, ...], applied: bool, dtype: str) -> dict[str, list[float]]:
    """Return error bounds for outputs and gradients of a right norm (prop-conformance, prop-conformance-gradient)."""
    d, layer, info = len(x), norm == "layer", torch.finfo(DTYPES[dtype])
    exact = {key: exactly(map(float, some)).abs() for key, some in answers(norm, x, applied).items()}
    gain, bias, upstream, x = (exactly(some).abs() for some in (*parameters(d, applied), x))
    n, w, s, last = exact["n"], exact["w"], exact["s"], info.eps / 2
    moved = (UNIT * x.sum() + LEAST) / s * layer  # from the rounding of the mean
    scale = moved + (d / 2 + 10) * UNIT
    off, mean_w, mean_wn = moved + scale * n, w.mean() * layer, (w * n).mean()
    output = gain * off + 2 * UNIT * (gain * n + bias * layer) + last * exact["output"]
    slope = (3 * scale + (d + 6) * UNIT) * (w + mean_w + n * mean_wn) + moved * (mean_wn + n * mean_w)
    found = dict(
        output=output,
        twice=output + last * gain * n,
        x=slope / s + last * exact["x"],
        gain=upstream * off + (UNIT + last) * exact["gain"],
    )
    return {key: (1.02 * bound + 2 * info.smallest_normal * info.eps).tolist() for key, bound in found.items()}


def vectors() -> dict:
    """Return the content of the file."""
    given, cases = {dtype: rows(dtype) for dtype in DTYPES}, []
    for dtype, norm, applied in product(DTYPES, ("layer", "rms"), (False, True)):
        for name, row in given[dtype].items():
            x, first = along(**row), slice(len(row["entries"]))
            exact, allowed = answers(norm, x, applied), bounds(norm, x, applied, dtype)
            digits = {key: [mpmath.nstr(y, 30) for y in exact[key][first]] for key in ("output", "x", "gain")}
            short = {key: [float(f"{b:.2e}") for b in bound[first]] for key, bound in allowed.items()}
            cases.append(dict(dtype=dtype, row=name, norm=norm, affine=applied, answers=digits, bounds=short))
    return dict(about=ABOUT, eps=EPS, gain=GAIN, bias=BIAS, upstream=UPSTREAM, rows=given, cases=cases)


def of(kind: type, stored: Callable[[Tensor], Tensor] = lambda gain: gain) -> Callable:
    """Return the norm that a class of transformers computes, as a function of row, gain and bias."""
    return lambda x, gain, bias: functional_call(kind(len(x), eps=EPS), {"weight": stored(gain)}, x)


def two_moments(x: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
    wide = x.float()
    m = wide.mean()
    return ((wide - m) * torch.rsqrt(wide.square().mean() - m * m + EPS) * gain + bias).to(x.dtype)


def outside_the_root(x: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
    wide = x.float()
    return (wide / (wide.square().mean().sqrt() + EPS) * gain).to(x.dtype)


def partial_sums(x: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
    """RMSNorm in the row's dtype, with the sum of squares rounded after every addition."""
    total = torch.zeros((), dtype=x.dtype)
    for square in x * x:
        total = total + square
    return x * torch.rsqrt(total / len(x) + EPS) * gain


# The kernels: which norm each computes, and a function of row, gain and bias.  The last four are known to be wrong.
KERNELS: dict[str, tuple[str, Callable]] = {
    "ng.layer_norm": ("layer", lambda x, gain, bias: ng.layer_norm(x, gain, bias, EPS)),
    "F.layer_norm": ("layer", lambda x, gain, bias: F.layer_norm(x, x.shape[-1:], gain, bias, EPS)),
    "ng.rms_norm": ("rms", lambda x, gain, bias: ng.rms_norm(x, gain, eps=EPS)),
    "F.rms_norm": ("rms", lambda x, gain, bias: F.rms_norm(x, x.shape[-1:], gain, EPS)),
    "LlamaRMSNorm": ("rms", of(LlamaRMSNorm)),
    "T5LayerNorm": ("rms", of(T5LayerNorm)),
    "Gemma3RMSNorm": ("rms", of(Gemma3RMSNorm, lambda gain: gain - 1)),
    "mean of squares − square of mean": ("layer", two_moments),
    "ε outside the root": ("rms", outside_the_root),
    "statistics in the row's dtype": ("rms", lambda x, gain, bias: x * torch.rsqrt((x * x).mean() + EPS) * gain),
    "partial sums in the row's dtype": ("rms", partial_sums),
}


def tried(norm: str, kernel: Callable, dtype: str, part: str, given: dict) -> Iterator[tuple[str, float]]:
    """Yield for each case its row and the largest ratio of error to bound, infinite for NaN; ``part`` says of what."""
    for case in given["cases"]:
        if (case["norm"], case["dtype"]) == (norm, dtype):
            x = along(**given["rows"][dtype][case["row"]])
            numbers = (x, *parameters(len(x), case["affine"]))
            x, gain, bias, upstream = (exactly(some).to(DTYPES[dtype]) for some in numbers)
            answer = [float(y) for y in case["answers"]["output" if part == "twice" else part]]
            exact, allowed = (exactly(along(some, len(x))) for some in (answer, case["bounds"][part]))
            got = output = kernel(x.requires_grad_(), gain.requires_grad_(), bias)
            if part in ("x", "gain"):
                (got,) = torch.autograd.grad(output, x if part == "x" else gain, upstream)
            ratio = (got.detach().double() - exact).abs() / allowed
            yield case["row"], float(ratio.nan_to_num(math.inf, math.inf).max())


@experiment(
    "conformance-kernels",
    "Kernels tried on the rows of conformance.json. part: output, or the gradient with respect to the row (x) or "
    "gain; twice: output, with the bound for two roundings. cases: how many; failed: how many have an error above the "
    "bound. worst, row: largest ratio of error to bound, and its row; failing: all rows with an error above the bound.",
    dict(kernel=tuple(KERNELS), dtype=tuple(DTYPES), part=("output", "twice", "x", "gain")),
    minutes=1,
    seed="none, nothing is random",
)
def kernels(kernel: str, dtype: str, part: str) -> dict:
    found = list(tried(*KERNELS[kernel], dtype, part, json.loads(PATH.read_text("utf-8"))))
    failed = [row for row, ratio in found if ratio > 1]
    worst, row = max((ratio, row) for row, ratio in found)
    rows_failed = ", ".join(dict.fromkeys(failed)) or "none"
    return dict(cases=len(found), failed=len(failed), worst=float(f"{worst:.3g}"), row=row, failing=rows_failed)


if __name__ == "__main__":
    PATH.write_text(json.dumps(vectors(), ensure_ascii=False, separators=(",", ":")) + "\n", "utf-8")
