"""Measurements of time, rounding errors and memory traffic."""

from __future__ import annotations

import math
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping

import pandas as pd
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from normgeom_lab.common.checks import Draws

Norm = Callable[[Tensor, Tensor], Tensor]  # of rows and a gain
Way = Callable[[Tensor], Tensor]  # to normalise rows


def in_turns(calls: dict[str, Callable[[], object]], rounds: int, fill: float = 0.0, kept: int = 0) -> pd.DataFrame:
    """Seconds per call: a row per round, a column per name.

    The order is drawn anew for every round, so that no call always follows the same other call and reuses its caches.
    In a round all run equally often: once, or as often as takes about ``fill`` seconds each. The last ``kept`` results
    are kept alive, so that no call writes to memory that the previous call has left in a cache.
    """
    results = deque(maxlen=kept)
    for call in calls.values():
        call()
    number = max(1, int(fill * len(calls) / sum(_seconds(call, 1, results) for call in calls.values())))
    names, seen, lots = list(calls), [], random.Random(0)
    for _ in range(rounds):
        seen.append({name: _seconds(calls[name], number, results) for name in lots.sample(names, len(names))})
    return pd.DataFrame(seen, columns=names)


def _seconds(call: Callable[[], object], number: int, results: deque) -> float:
    wait = torch.cuda.synchronize if torch.cuda.is_initialized() else lambda: None
    wait()
    start = time.perf_counter()
    for _ in range(number):
        results.append(call())
    wait()
    return (time.perf_counter() - start) / number


def unit_roundoff(dtype: torch.dtype) -> float:
    """u = 2⁻ᵖ for a format with p binary digits: rounding changes a number by a relative error of at most u."""
    return torch.finfo(dtype).eps / 2


def formats(dtypes: Iterable[torch.dtype]) -> pd.DataFrame:
    """Digits and range of floating-point formats, a row per format."""
    rows = {}
    for dtype in dtypes:
        unit, largest = unit_roundoff(dtype), torch.finfo(dtype).max
        rows[str(dtype).removeprefix("torch.")] = {
            "digits p": -round(math.log2(unit)),
            "unit roundoff u": unit,
            "largest": largest,
            "largest x with a finite x²": float(torch.tensor(math.sqrt(largest), dtype=dtype)),
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def entry_error(got: Tensor, exact: Tensor, above: float) -> float:
    """The largest relative error of the entries whose size is above ``above``, in units of ``got``'s roundoff."""
    counts = exact.abs() > above
    off = (got.double() - exact)[counts] / exact[counts]
    return float(off.abs().max()) / unit_roundoff(got.dtype)


def rms_error(got: Tensor, exact: Tensor) -> float:
    """The root mean square of the errors, divided by that of the entries of ``exact``."""
    return float((got.double() - exact.double()).norm() / exact.double().norm())


def errors_at_means(
    ways: Mapping[str, Way], truth: Way, means: Iterable[float], rows: int, d: int, draw: Draws
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Errors of ways to normalise float32 rows of standard deviation 1, at several means (claim-large-means).

    Returns: two frames with a row per mean and a column per way: the largest error of an entry in the rows without
    NaN, and the share of the rows that have a NaN.
    """
    off, lost = {}, {}
    for mean in map(float, means):
        x = (mean + draw(rows, d)).float()
        exact = truth(x.double())
        errors = pd.DataFrame({name: (way(x).double() - exact).abs().amax(-1).numpy() for name, way in ways.items()})
        off[mean], lost[mean] = errors.max(), errors.isna().mean()
    return pd.DataFrame(off).T, pd.DataFrame(lost).T


def octave_share(spread: float) -> float:
    """E[4^f] / spread² for a normal S of mean 0 and this standard deviation, with 2^f ≤ |S| < 2^(f+1).

    The variance of the rounding error of S is u²/3 times that, in units of spread² (the proof of prop-walk).
    """
    f = math.floor(math.log2(spread)) + torch.arange(-60, 60).double()  # the rest adds less than 4⁻⁶⁰
    low, high = (torch.erf(2 ** (f + k) / (spread * math.sqrt(2))) for k in (0, 1))
    return float((4**f * (high - low)).sum()) / spread**2


def gain_gradient(norm: Norm, x: Tensor, g: Tensor, threads: int) -> Tensor:
    """The gradient with respect to a gain of ones, ``(d,)``, on ``threads`` threads of torch (claim-gain-gradient)."""
    weight = torch.ones(x.shape[-1], dtype=x.dtype, requires_grad=True)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return torch.autograd.grad(norm(x, weight), weight, g)[0]
    finally:
        torch.set_num_threads(before)


def derivative_error(norm: Way, order: int, x: Tensor, direction: Tensor) -> float:
    """The relative distance of a derivative from a difference quotient of the lower one (claim-third-derivative).

    The first derivative is the gradient of the sum of the cubes of ``norm(x)``; each further one is the gradient of
    the sum of squares of the previous one.
    """
    step = 1e-5
    leaf = x.detach().clone().requires_grad_()
    slope = torch.autograd.grad(_tower(norm, order - 1, leaf), leaf)[0]
    above, below = (_tower(norm, order - 1, (x + s * direction).requires_grad_()) for s in (step, -step))
    quotient = (above - below).item() / (2 * step)
    return abs(float((slope * direction).sum()) / quotient - 1)


def _tower(norm: Way, order: int, x: Tensor) -> Tensor:
    value = norm(x).pow(3).sum()
    for _ in range(order):
        slope = torch.autograd.grad(value, x, create_graph=True)[0]
        value = slope.square().sum()
    return value


class _Traffic(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.rows: list[tuple[str, int, int]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if not func.is_view and "empty" not in name:
            sizes = [sum(t.nbytes for t in tree_leaves(of) if isinstance(t, Tensor)) for of in (args, result)]
            self.rows.append((name, *sizes))
        return result


def traffic(work: Callable[[], object]) -> pd.DataFrame:
    """The bytes that torch's operations read and write while ``work`` runs, one row per operation (eq-floor).

    Arguments and results count once, whatever a kernel does inside. Views and empty allocations move nothing.
    """
    with _Traffic() as seen:
        work()
    return pd.DataFrame(seen.rows, columns=["operation", "read", "written"])
