"""Chapter 11: clocks, rounding errors, memory traffic, recorded times of norms, and figures with their alt texts."""

from __future__ import annotations

import math
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import product

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from normgeom.checks import Draws
from normgeom.records import Record, recorded
from normgeom.view.style import COLORS, WIDTH, style
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from normgeom_lab.common.axes import ticks_of_powers

Norm = Callable[[Tensor, Tensor], Tensor]  # of rows and a gain
Way = Callable[[Tensor], Tensor]  # to normalise rows


def in_turns(calls: dict[str, Callable[[], object]], rounds: int, fill: float = 0.0, kept: int = 0) -> pd.DataFrame:
    """Seconds per call: a row a round, a column a name.

    The order is drawn anew for every round, so that no call always meets the caches that the same other call left. In
    a round all run equally often: once, or as often as fills about ``fill`` seconds each. The last ``kept`` results are
    kept alive, so that no call writes to memory of the call before, which may still be in a cache.
    """
    results = deque(maxlen=kept)
    for call in calls.values():
        call()
    number = max(1, int(fill * len(calls) / sum(_seconds(call, 1, results) for call in calls.values())))
    names, seen, lots = list(calls), [], random.Random(0)
    for _ in range(rounds):
        seen.append({name: _seconds(calls[name], number, results) for name in lots.sample(names, len(names))})
    return pd.DataFrame(seen, columns=names)


def time_over_copy(norms: Mapping[str, Way], x: Tensor, rounds: int) -> pd.Series:
    """Time of each norm of ``x`` over that of a copy of ``x``: medians over rounds in which all run in turns."""
    calls = {name: partial(norm, x) for name, norm in norms.items()}
    seconds = in_turns({"copy": lambda: torch.empty_like(x).copy_(x), **calls}, rounds, fill=0.01)
    return seconds[list(norms)].div(seconds["copy"], axis=0).median()


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
    """Digits and range of floating-point formats, a row a format."""
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
    """The root mean square of the errors over that of the entries of ``exact``."""
    return float((got.double() - exact.double()).norm() / exact.double().norm())


def errors_at_means(
    ways: Mapping[str, Way], truth: Way, means: Iterable[float], rows: int, d: int, draw: Draws
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Ways to normalise float32 rows of standard deviation 1, at several means of the rows (claim-large-means).

    Returns: two frames with a row a mean and a column a way: the largest error of an entry in the rows without NaN,
    and the share of the rows that have a NaN.
    """
    off, lost = {}, {}
    for mean in map(float, means):
        x = (mean + draw(rows, d)).float()
        exact = truth(x.double())
        errors = pd.DataFrame({name: (way(x).double() - exact).abs().amax(-1).numpy() for name, way in ways.items()})
        off[mean], lost[mean] = errors.max(), errors.isna().mean()
    return pd.DataFrame(off).T, pd.DataFrame(lost).T


def ladder(
    norms: Mapping[str, tuple[Norm, Norm]],
    dtypes: Iterable[torch.dtype],
    means: Iterable[float],
    rows: int,
    d: int,
    draw: Draws,
) -> pd.DataFrame:
    """Errors of norms and of their gradients by the input, in each format (claim-ladder-norms).

    ``norms`` are pairs of a norm and of what it should compute. All get the same Gaussian rows of standard deviation 1,
    gains 1 ± 0.2 and standard normal gradients, drawn in float64 and rounded to the format.

    Returns: the largest error of an entry over the largest entry of its row, in units of u; a row for each
    ``(norm, "values" or "gradient")``, a column for each format and mean.
    """
    columns = {}
    for dtype, mean in product(dtypes, means):
        x, g = mean + draw(rows, d), draw(rows, d)
        case = [t.to(dtype) for t in (x, 1 + 0.2 * draw(d), g)]
        column = columns[str(dtype).removeprefix("torch."), f"{mean:g}σ"] = {}
        for name, (norm, truth) in norms.items():
            exact = _both(truth, *(t.double() for t in case))
            for what, got, true in zip(("values", "gradient"), _both(norm, *case), exact, strict=True):
                off = (got.double() - true).abs().amax(-1) / true.abs().amax(-1)
                column[name, what] = float(off.max()) / unit_roundoff(dtype)
    return pd.DataFrame(columns).rename_axis(["norm", "what"])


def _both(norm: Norm, x: Tensor, weight: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    x = x.clone().requires_grad_()
    y = norm(x, weight)
    return y.detach(), torch.autograd.grad(y, x, g)[0]


def rounded_walks(walks: np.ndarray, digits: int) -> np.ndarray:
    """The running totals of the rows of ``walks``, from 0 on, each rounded to ``digits`` binary digits (prop-walk).

    Ties go to the even significand; exponents have no limit.
    """
    totals = [np.zeros(len(walks))]
    for step in walks.T:
        significand, exponent = np.frexp(totals[-1] + step)
        totals.append(np.ldexp(np.rint(significand * 2**digits), exponent - digits))
    return np.stack(totals, axis=1)


def octave_share(spread: float) -> float:
    """E[4^f] / spread² for a normal S of mean 0 and this standard deviation, with 2^f ≤ |S| < 2^(f+1).

    The variance of the rounding error of S is u²/3 times that, in units of spread² (the proof of prop-walk).
    """
    f = math.floor(math.log2(spread)) + torch.arange(-60, 60).double()  # the rest adds less than 4⁻⁶⁰
    low, high = (torch.erf(2 ** (f + k) / (spread * math.sqrt(2))) for k in (0, 1))
    return float((4**f * (high - low)).sum()) / spread**2


def gain_gradient(norm: Norm, x: Tensor, g: Tensor, threads: int) -> Tensor:
    """The gradient by a gain of ones, ``(d,)``, on ``threads`` threads of torch (claim-gain-gradient)."""
    weight = torch.ones(x.shape[-1], dtype=x.dtype, requires_grad=True)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return torch.autograd.grad(norm(x, weight), weight, g)[0]
    finally:
        torch.set_num_threads(before)


def derivative_error(norm: Way, order: int, x: Tensor, direction: Tensor) -> float:
    """The relative distance of a derivative from a difference quotient of the one below it (claim-third-derivative).

    The first is the gradient of the sum of the cubes of ``norm(x)``, each further one that of the sum of squares of
    the gradient before.
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
    """The bytes that torch's operations read and write while ``work`` runs, a row an operation (eq-floor).

    Arguments and results count once, whatever a kernel does inside. Views and empty allocations move nothing.
    """
    with _Traffic() as seen:
        work()
    return pd.DataFrame(seen.rows, columns=["operation", "read", "written"])


def peak_bytes(work: Callable[[], object]) -> int:
    """The most bytes of CPU memory that the tensors made by ``work``, its result among them, hold at once."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        kept = work()
    events = [event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = highest = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        highest = max(highest, held)
    del kept
    return highest


def saved_bytes(work: Callable[[], object]) -> int:
    """The bytes that autograd keeps for a backward pass through what ``work`` computes; shared memory counts once."""
    seen: dict[int, Tensor] = {}

    def keep(t: Tensor) -> Tensor:
        seen[t.untyped_storage().data_ptr()] = t
        return t

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        kept = work()
    del kept
    return sum(t.untyped_storage().nbytes() for t in seen.values())


# Recorded times, ``race``: a row for each size, number of threads, format, pass, norm and way to compute it.

NORMS = {"layer": "LayerNorm", "rms": "RMSNorm"}
PASSES = {False: "forward", True: "forward and back"}
Sizes = Iterable[tuple[int, int]]  # rows and features


def at_size(race: pd.DataFrame, rows: int, d: int, threads: int = 1) -> pd.DataFrame:
    """The rows of one size and number of threads, without those of the copy."""
    return race[(race.rows == rows) & (race.d == d) & (race.threads == threads) & (race.norm != "copy")]


def _in_words(race: pd.DataFrame, rows: int, d: int) -> pd.DataFrame:
    found = at_size(race, rows, d)
    return found.assign(**{"norm": found.norm.map(NORMS), "pass": found.backward.map(PASSES)})


def costs(race: pd.DataFrame, sizes: Sizes) -> pd.DataFrame:
    """Time over that of a copy, one thread: a row a size, norm and way, a column a pass and dtype."""
    index = ["norm", "way", "pass", "dtype"]
    parts = {f"{rows} × {d}": _in_words(race, rows, d).set_index(index).over_copy for rows, d in sizes}
    return pd.concat(parts, names=["rows × features"]).unstack(["pass", "dtype"])


def speedups(race: pd.DataFrame, rows: int, d: int, way: str) -> pd.DataFrame:
    """torch's time over that of ``way``, one thread: a row a norm, a column a pass and dtype."""
    found = _in_words(race, rows, d).query("way == @way").set_index(["norm", "pass", "dtype"])
    return found.torch_over_this.unstack(["pass", "dtype"])


def least_speedups(race: pd.DataFrame, sizes: Sizes, way: str) -> pd.DataFrame:
    """The smallest ratio, over sizes and runs, of torch's time to that of ``way`` (claim-norm-speed).

    Returns: a row for each ``(norm, dtype, backward)``, columns "1 thread" and "2 threads".
    """
    found = pd.concat([at_size(race, *size, threads) for size in sizes for threads in (1, 2)])
    least = found[found.way == way].groupby(["norm", "dtype", "backward", "threads"]).worst.min()
    return least.unstack("threads").set_axis(["1 thread", "2 threads"], axis=1)


def layer_over_rms(race: pd.DataFrame, sizes: Sizes, layer: str, rms: str) -> pd.DataFrame:
    """Time of LayerNorm by one way over that of RMSNorm by another, one thread (claim-mean-cost).

    Returns: a row for each ``(pass, dtype)``, a column a size.
    """
    columns = {}
    for rows, d in sizes:
        found = _in_words(race, rows, d).set_index(["pass", "dtype"])
        whose = ("LayerNorm", layer), ("RMSNorm", rms)
        of_layer, of_rms = (found[(found.norm == norm) & (found.way == way)].seconds for norm, way in whose)
        columns[f"{rows} × {d}"] = of_layer / of_rms
    return pd.DataFrame(columns)


def walk(walks: np.ndarray, digits: int, law: Callable[[int, float], float]) -> tuple[Figure, str]:
    """Random walks with totals rounded to ``digits`` binary digits, and their errors in the law's band (prop-walk)."""
    exact = np.pad(np.cumsum(walks, axis=1), ((0, 0), (1, 0)))
    rounded = rounded_walks(walks, digits)
    off, at = rounded - exact, np.unique(np.linspace(0, walks.shape[1], 81).astype(int))
    band = np.array([k**0.5 * law(k, 2.0**-digits) for k in at])
    inside = int((abs(off[:, -1]) <= band[-1]).sum())
    with style():
        figure, (top, below) = plt.subplots(2, 1, figsize=(5, 4.2), sharex=True)
        top.plot(exact[0], color=COLORS["null"], lw=3, label="exact")
        top.plot(rounded[0], color=COLORS["uniform"], lw=1.2, label=f"{digits} digits")
        top.set(ylabel="running total", ylim=(exact[0].min() - 25, exact[0].max() + 25))
        top.legend(loc="upper left", ncols=2)
        below.fill_between(at, -band, band, color=COLORS["random_a"], alpha=0.25, lw=0)
        below.plot(at, off[:, at].T, color=COLORS["null"], lw=0.7)
        below.plot(at, off[0, at], color=COLORS["uniform"], lw=1.6)
        below.set(ylabel="error", xlabel="terms added", ylim=(-3.5 * band[-1], 3.5 * band[-1]))
        below.set_title(f"{inside} of {len(walks)} errors end within ±{band[-1]:.2g}")
    return figure, (
        f"A random walk of {walks.shape[1]} steps and the same walk with totals rounded to {digits} digits; at the end "
        f"they are {abs(off[0, -1]):.2g} apart. Below, the errors of {len(walks)} such walks: {inside} end within the "
        f"band of the law, {band[-1]:.2g} to either side."
    )


def errors_over_means(off: pd.DataFrame, unit: float) -> tuple[Figure, str]:
    """Largest errors against the mean of the rows, a line a way, beside u times the mean and its square."""
    means = off.index.to_numpy()
    words = []
    with style():
        figure, axes = plt.subplots(figsize=(WIDTH, 3.4))
        for (way, errors), marker in zip(off.items(), "xs^o", strict=False):
            axes.loglog(means, errors, marker=marker, label=way)  # a gap where each row has a NaN
            (first, start), *_, (last, end) = errors.dropna().items()
            words.append(f"{way} from {start:.0e} at mean {first:g} to {end:.0e} at {last:g}")
        for power, shown in ((1, means), (2, means[means <= 1e4])):
            axes.loglog(shown, unit * shown**power, "--", color=COLORS["null"], lw=1)
        axes.set(xlabel="mean of the rows / standard deviation", ylabel="largest error", ylim=(1e-8, 100))
        ticks_of_powers(axes.xaxis, axes.yaxis, most=6)
        figure.legend(loc="outside upper center", ncols=2)
    return figure, f"Errors against means, double logarithmic: {'; '.join(words)}."


WAYS = {  # color, hatch and marker; "compiled" is normgeom's function under torch.compile
    "normgeom": ("#0072B2", "", "o"),
    "compiled": ("#009E73", "//", "s"),
    "torch": ("#D55E00", "..", "x"),
    "transformers": ("#CC79A7", "xx", "+"),
}
BYTES = {"float32": 4, "bfloat16": 2}  # per entry
OPERATIONS = {"layer": 7, "rms": 4}  # per entry, forward
FLOORS = {False: 1, True: 2.5}  # in copies, without and with the backward pass (eq-floor)


def ways_over_copy(race: pd.DataFrame, rows: int, d: int) -> tuple[Figure, str]:
    """Bars of each way's time over that of a copy, one thread, with the floor (eq-floor)."""
    ticks, groups = [1, 3, 10, 30], list(product(NORMS, BYTES))
    bars = at_size(race, rows, d).set_index(["norm", "dtype", "backward", "way"]).over_copy
    with style():
        figure, panels = plt.subplots(2, 1, figsize=(WIDTH, 5.2), sharex=True, sharey=True)
        for axes, backward in zip(panels, PASSES, strict=True):
            of_pass = bars.xs(backward, level="backward")
            for k, (way, (color, hatch, _)) in enumerate(WAYS.items()):
                at = [i for i, group in enumerate(groups) if (*group, way) in of_pass.index]
                heights, places = [of_pass[(*groups[i], way)] for i in at], [i + 0.2 * (k - 1.5) for i in at]
                axes.bar(places, heights, 0.19, color=color, hatch=hatch, label=way, edgecolor="white")
            axes.set_yscale("log")
            axes.set_yticks(ticks, map(str, ticks))
            axes.minorticks_off()
            axes.set_xticks(range(len(groups)), [f"{NORMS[norm]}\n{dtype}" for norm, dtype in groups])
            axes.grid(axis="x", visible=False)
            axes.axhline(FLOORS[backward], ls="--", color=COLORS["ink"], lw=1)
            axes.set_title(PASSES[backward])
            axes.set_ylabel("time / time of a copy")
        figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=4)
    words = [
        f"{name} in {dtype}, {how}, {bars[norm, dtype, backward, 'normgeom']:.1f} against "
        f"{bars[norm, dtype, backward, 'torch']:.1f}"
        for backward, how in PASSES.items()
        for norm, name in NORMS.items()
        for dtype in BYTES
    ]
    return figure, f"Bars of time over a copy, logarithmic; normgeom against torch: {'; '.join(words)}."


def roofline(race: pd.DataFrame, peak: float, rows: int, d: int) -> tuple[Figure, str]:
    """Forward passes under the roof min(peak, bandwidth × operations per byte), one thread."""
    points = at_size(race, rows, d).query("not backward")
    work = points.norm.map(OPERATIONS)
    points = points.assign(
        intensity=work / (2 * points["dtype"].map(BYTES)), rate=work * rows * d / points.seconds / 1e9
    )
    copy = race.query("norm == 'copy' and dtype == 'float32' and threads == 1 and rows == @rows and d == @d")
    bandwidth = 2 * BYTES["float32"] * rows * d / copy.seconds.iloc[0] / 1e9  # read and written, 10⁹ bytes a second
    intensity = np.logspace(-1, 2, 100)
    with style():
        figure, axes = plt.subplots(figsize=(WIDTH, 3.4))
        axes.loglog(intensity, np.minimum(intensity * bandwidth, peak), color=COLORS["ink"], lw=2)
        for way, (color, _, marker) in WAYS.items():
            own = points[points.way == way]
            axes.loglog(own.intensity, own.rate, marker, color=color, ms=7, label=way)
        axes.axvspan(points.intensity.min() * 0.9, points.intensity.max() * 1.1, color=COLORS["null"], alpha=0.15, lw=0)
        axes.set(xlabel="operations per byte", ylabel="10⁹ operations a second")
        ticks_of_powers(axes.xaxis, axes.yaxis)
        axes.legend(loc="lower right")
    of_rms = points[(points.norm == "rms") & (points["dtype"] == "float32")].set_index("way")
    share = of_rms.rate / (of_rms.intensity * bandwidth).clip(upper=peak)
    reached = ", ".join(f"{share[way]:.0%} with {way}" for way in ("normgeom", "compiled", "torch"))
    return figure, (
        f"A roof that rises to {peak / bandwidth:.1f} operations per byte and is flat beyond, at {peak:.0f} billion "
        f"operations a second. The norms stand between {points.intensity.min():.2g} and {points.intensity.max():.3g}. "
        f"RMSNorm in float32 reaches of the roof {reached}."
    )


_ON_GPU = {  # by record: what it is of, the names of its rows, a way of each, and another beside it
    "speed-norms-cuda": ("norms", "{norm}, {dtype}, {pass}, {rows} × {d}", "normgeom", "torch"),
    "speed-survey-cuda": ("surveys", "Survey of {model}, {texts} × {length}", "Survey", "output_hidden_states"),
    "speed-converted-cuda": (
        "conversion",
        "{model} converted to RMSNorm, {batch} × {length}",
        "converted",
        "no norms",
    ),
}
_OVER = {"normgeom": "a copy", "Survey": "the bare pass", "converted": "unconverted"}  # what times are divided by


def on_gpu() -> tuple[pd.DataFrame, list[Record]]:
    """What is recorded of a GPU, and the records themselves: norms at the largest size, surveys, conversion to RMSNorm.

    Returns: a row a time with its ``ratio`` to the time ``over``, and the same of something ``beside`` it; a row of
    missing values for a record that does not exist.
    """
    rows, found = {}, []
    for name, (what, title, way, other) in _ON_GPU.items():
        try:
            of = recorded(name)
        except ValueError:
            rows[what] = (None, np.nan, None, np.nan)
            continue
        found.append(of)
        race = of.table
        if "norm" in race:
            largest = race.loc[(race.rows * race.d).idxmax()]
            race = _in_words(race, largest.rows, largest.d).rename(columns={"over_copy": "ratio"})
        for row, cell in race.groupby([title.format(**row) for row in race.to_dict("records")], sort=False):
            ratio = cell.set_index("way").ratio
            rows[row] = (_OVER[way], ratio[way], "torch's own" if other == "torch" else other, ratio[other])
    columns = ["over", "ratio", "beside", "ratio beside"]
    return pd.DataFrame.from_dict(rows, orient="index", columns=columns), found
