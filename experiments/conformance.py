"""Rows that break norms, with answers to thirty digits and the error that a right norm may have; kernels tried on them.

``python -m experiments.conformance`` writes figures/data/conformance.json; the page appendix/conformance says how to
use it, and derives the bound.
"""

import json
import math
from collections.abc import Callable, Iterator

import mpmath
import normgeom as ng
import torch
import torch.nn.functional as F
from normgeom.records import FOLDER
from torch import Tensor
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.t5.modeling_t5 import T5LayerNorm

from experiments.registry import experiment

PATH = FOLDER / "conformance.json"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
EPS = 2.0**-17  # all three hold it
GAIN = (1.5, -0.25, 0.75, 2.0, 0.5, -1.25, 1.0, 0.0625)
BIAS = (0.5, -2.0, 0.0, 0.125, 1.0, -0.25, 3.0, -0.5)
SPREAD = (0.5, -1.25, 2.0, -0.75, 1.5, 0.25, -1.75, 0.375, 1.125, -0.5, 0.875, -2.25, 0.625, -0.125, 1.0, -1.625)
DIGITS, UNIT = 30, 2.0**-24  # unit: of statistics in float32
ABOUT = (
    "Norms of rows that are hard to compute. y = gain * (x - m) / sqrt(mean((x - m)^2) + eps) + bias for 'layer', "
    "m the mean of x; y = gain * x / sqrt(mean(x^2) + eps) for 'rms'. Take the entries of a row as they are (its dtype "
    "holds them), gain and bias cyclically (or 1 and 0 where affine is false), and compute y in the row's dtype. "
    "A right norm is off by at most the bound, entry by entry. Answers are decimal strings."
)


def rows(dtype: str) -> dict[str, list[float]]:
    """Rows by name, of numbers that ``dtype`` holds."""
    info = torch.finfo(DTYPES[dtype])
    mean = 4096.0 if dtype == "float32" else 256.0
    most = 2.0**14 if dtype == "float16" else 2.0**60  # the squares of twice that are finite in float32
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
    }
    return {name: torch.tensor(row, dtype=torch.float64).to(DTYPES[dtype]).tolist() for name, row in made.items()}


def affine(d: int, applied: bool) -> tuple[list[float], list[float]]:
    """Gain and bias of ``d`` entries."""
    return ([part[i % 8] for i in range(d)] if applied else [fill] * d for part, fill in ((GAIN, 1.0), (BIAS, 0.0)))


def answers(norm: str, x: list[float], applied: bool) -> list[mpmath.mpf]:
    gain, bias = affine(len(x), applied)
    with mpmath.workdps(80):
        x = [mpmath.mpf(v) for v in x]
        m = mpmath.fsum(x) / len(x) if norm == "layer" else mpmath.mpf(0)
        s = mpmath.sqrt(mpmath.fsum((v - m) ** 2 for v in x) / len(x) + EPS)
        return [g * (v - m) / s + (b if norm == "layer" else 0) for g, v, b in zip(gain, x, bias, strict=True)]


def bounds(norm: str, x: list[float], applied: bool, dtype: str) -> list[float]:
    """How far each output of a right norm may be off: the page derives it (prop-conformance)."""
    d, info, (gain, bias) = len(x), torch.finfo(DTYPES[dtype]), affine(len(x), applied)
    layer = norm == "layer"
    m = math.fsum(x) / d if layer else 0.0
    s = math.sqrt(math.fsum((v - m) ** 2 for v in x) / d + EPS)
    moved = d * UNIT * math.fsum(map(abs, x)) / d if layer else 0.0  # of the mean, from its sum
    found = []
    for y, v, g, b in zip(answers(norm, x, applied), x, gain, bias, strict=True):
        n, b = abs(v - m) / s, abs(b) if layer else 0.0
        off = (1 + n) * moved / s + (d / 2 + 10) * UNIT * n
        off = 1.01 * abs(g) * off + 2 * UNIT * (abs(g) * n + b)
        found.append(off + info.eps / 2 * (abs(float(y)) + off) + info.smallest_normal * info.eps)
    return found


def vectors() -> dict:
    """What the file holds."""
    cases = []
    for dtype in DTYPES:
        for name, x in rows(dtype).items():
            for norm in ("layer", "rms"):
                for applied in (False, True):
                    exact = [mpmath.nstr(y, DIGITS, strip_zeros=True) for y in answers(norm, x, applied)]
                    allowed = [float(f"{1.01 * t:.2e}") for t in bounds(norm, x, applied, dtype)]
                    cases.append(dict(dtype=dtype, row=name, norm=norm, affine=applied, answers=exact, bounds=allowed))
    given = {dtype: rows(dtype) for dtype in DTYPES}
    return dict(about=ABOUT, eps=EPS, gain=GAIN, bias=BIAS, rows=given, cases=cases)


def of(kind: type, stored: Callable[[Tensor], Tensor] = lambda gain: gain) -> Callable:
    """The norm that a class of transformers computes."""

    def norm(x: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
        module = kind(x.shape[-1], eps=EPS).to(x.dtype)
        module.weight.data = stored(gain)
        return module(x).detach()

    return norm


def two_moments(x: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
    wide = x.float()
    m = wide.mean()
    return ((wide - m) * torch.rsqrt(wide.square().mean() - m * m + EPS) * gain + bias).to(x.dtype)


def outside_the_root(x: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
    wide = x.float()
    return (wide / (wide.square().mean().sqrt() + EPS) * gain).to(x.dtype)


# What is tried: the norm, and a function of row, gain and bias.  The last three are known to be wrong.
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
}


def tried(norm: str, kernel: Callable, dtype: str, given: dict) -> Iterator[tuple[str, bool, float]]:
    """Row, affine or not, and the largest error over its bound, infinite for NaN, of each case."""
    for case in given["cases"]:
        if (case["norm"], case["dtype"]) == (norm, dtype):
            x = torch.tensor(given["rows"][dtype][case["row"]], dtype=DTYPES[dtype])
            gain, bias = (torch.tensor(part).to(x) for part in affine(len(x), case["affine"]))
            exact, allowed = (
                torch.tensor([float(v) for v in case[key]], dtype=torch.float64) for key in ("answers", "bounds")
            )
            ratio = (kernel(x, gain, bias).double() - exact).abs() / allowed
            yield case["row"], case["affine"], float(ratio.nan_to_num(math.inf).max())


@experiment(
    "conformance-kernels",
    "Kernels on the rows of conformance.json: how many cases each computes, how many with an error above the bound, "
    "the largest error over its bound, the row of that, and all rows that fail.",
    dict(kernel=tuple(KERNELS), dtype=tuple(DTYPES)),
    minutes=1,
    seed="none",
)
def kernels(kernel: str, dtype: str) -> dict:
    found = list(tried(*KERNELS[kernel], dtype, json.loads(PATH.read_text("utf-8"))))
    failed = [row for row, _, ratio in found if ratio > 1]
    worst, row = max((ratio, row) for row, _, ratio in found)
    rows_failed = ", ".join(dict.fromkeys(failed)) or "none"
    return dict(cases=len(found), failed=len(failed), worst=float(f"{worst:.3g}"), row=row, failing=rows_failed)


if __name__ == "__main__":
    PATH.write_text(json.dumps(vectors(), ensure_ascii=False, separators=(",", ":")) + "\n", "utf-8")
