"""Chapter 11: rounding errors, memory traffic, races of norms, and pictures."""

from __future__ import annotations

import math
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from normgeom.checks import Draws
from normgeom.records import Record, recorded
from normgeom.view.style import COLORS, WIDTH, style, ticks_of_powers
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Norm = Callable[[Tensor, Tensor], Tensor]  # of rows and a gain


def in_turns(calls: dict[str, Callable[[], object]], rounds: int, fill: float = 0.0, kept: int = 0) -> pd.DataFrame:
    """Seconds a call, one row a round, one column a name; the order is drawn anew for every round.

    So nobody always runs after the same other, in the caches and the memory that it left.  All run twice before.  In a
    round each runs as often as all others, without a break: once, or as often as fills about ``fill`` seconds each.
    The last ``kept`` results stay where they are, so that no call writes over the memory of the call before, which
    would still be in a cache or not by the whims of the allocator.
    """
    results = deque(maxlen=kept)
    for call in calls.values():
        call()
    number = max(1, int(fill * len(calls) / sum(_seconds(call, 1, results) for call in calls.values())))
    names, seen, lots = list(calls), [], random.Random(0)
    for _ in range(rounds):
        seen.append({name: _seconds(calls[name], number, results) for name in lots.sample(names, len(names))})
    return pd.DataFrame(seen, columns=names)


def time_over_copy(norms: Mapping[str, Callable[[Tensor], object]], x: Tensor, rounds: int) -> pd.Series:
    """Time of each norm of ``x`` over that of a copy of ``x``: medians of rounds in which all run in turns."""
    calls = {name: partial(norm, x) for name, norm in norms.items()}
    seconds = in_turns({"copy": lambda: torch.empty_like(x).copy_(x), **calls}, rounds, fill=0.01)
    return seconds[list(norms)].div(seconds["copy"], axis=0).median()


def _seconds(call: Callable[[], object], number: int, results: deque) -> float:
    _finish()
    start = time.perf_counter()
    for _ in range(number):
        results.append(call())
    _finish()
    return (time.perf_counter() - start) / number


def _finish() -> None:
    """Wait for what a GPU still has to do."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def unit_roundoff(dtype: torch.dtype) -> float:
    """u = 2⁻ᵖ for a format whose significands have p binary digits: rounding moves a number by u times it at most."""
    return torch.finfo(dtype).eps / 2


def formats(dtypes: Iterable[torch.dtype]) -> pd.DataFrame:
    """Digits and range of floating-point formats: a row a format, named as in torch."""
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


def entry_error(got: Tensor, exact: Tensor, above: float = 0.0) -> float:
    """The largest relative error of an entry, in units of the unit roundoff of ``got``'s format."""
    counts = exact.abs() > above
    off = (got.double() - exact)[counts] / exact[counts]
    return float(off.abs().max()) / unit_roundoff(got.dtype)


def rms_error(got: Tensor, exact: Tensor) -> float:
    """The root mean square of the entries' errors over that of the entries of ``exact``, in float64."""
    return float((got.double() - exact.double()).norm() / exact.double().norm())


def errors_at_means(
    ways: Mapping[str, Callable[[Tensor], Tensor]],
    truth: Callable[[Tensor], Tensor],
    means: Iterable[float],
    rows: int,
    d: int,
    draw: Draws,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Ways to normalise, in float32, at Gaussian rows of standard deviation 1 and ever larger mean (claim-large-means).

    Returns: two frames with a row a mean and a column a way: the largest error of an entry, among rows without NaN
    (NaN where there is no such row), and the share of the rows that have a NaN.
    """
    means = [float(mean) for mean in means]
    off, lost = ({name: [] for name in ways} for _ in range(2))
    for mean in means:
        x = (mean + draw(rows, d)).float()
        exact = truth(x.double())
        for name, way in ways.items():
            error = (way(x).double() - exact).abs().amax(-1)
            whole = ~error.isnan()
            off[name].append(float(error[whole].max()) if whole.any() else float("nan"))
            lost[name].append(1 - float(whole.double().mean()))
    index = pd.Index(means, name="mean")
    return pd.DataFrame(off, index), pd.DataFrame(lost, index)


def ladder(
    norms: Mapping[str, tuple[Norm, Norm]],
    dtypes: Iterable[torch.dtype],
    means: Iterable[float],
    rows: int,
    d: int,
    draw: Draws,
) -> pd.DataFrame:
    """How right norms and their gradients are in each format, in units of its unit roundoff (claim-ladder-norms).

    Rows are Gaussian of standard deviation 1, gains normal around 1 with a spread of 0.2, gradients at the output
    standard normal; all are drawn in float64 and rounded to the format, and all norms get the same.

    Returns: the largest error of an entry over the largest entry of its row, in units of u. The rows of the frame are
    ``(norm, "values" or "gradient")``, the gradient that by the input; its columns are ``(format, mean)``, such as
    ``("bfloat16", "30σ")``.
    """
    units, means = {dtype: unit_roundoff(dtype) for dtype in dtypes}, list(means)
    columns = {}
    for dtype, unit in units.items():
        for mean in means:
            x, g = mean + draw(rows, d), draw(rows, d)
            case = [t.to(dtype) for t in (x, 1 + 0.2 * draw(d), g)]
            exact = {truth: _both(truth, *(t.double() for t in case)) for _, truth in norms.values()}
            column = {}
            for name, (norm, truth) in norms.items():
                for what, got, true in zip(("values", "gradient"), _both(norm, *case), exact[truth], strict=True):
                    off = (got.double() - true).abs().amax(-1) / true.abs().amax(-1)
                    column[name, what] = float(off.max()) / unit
            columns[str(dtype).removeprefix("torch."), f"{mean:g}σ"] = column
    return pd.DataFrame(columns).rename_axis(["norm", "what"])


def _both(norm: Norm, x: Tensor, weight: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    x = x.clone().requires_grad_()
    y = norm(x, weight)
    return y.detach(), torch.autograd.grad(y, x, g)[0]


# Octaves on either side of a total's spread; what lies beyond adds less than 4⁻⁶⁰.
_OCTAVES = 60


def rounded(number: float, digits: int) -> float:
    """The nearest number with a significand of ``digits`` binary digits, of two the even one; no limit to exponents."""
    significand, exponent = math.frexp(number)
    return math.ldexp(round(significand * 2**digits), exponent - digits)


def rounded_walk(steps: Iterable[float], digits: int) -> list[float]:
    """The running totals of ``steps``, from 0 on, each rounded to ``digits`` binary digits (prop-walk).

    Returns: one number more than there are steps.
    """
    totals = [rounded(0.0, digits)]
    for step in steps:
        totals.append(rounded(totals[-1] + step, digits))
    return totals


def octave_share(spread: float) -> float:
    """E[4^f] / spread² for a normal number of mean 0 and standard deviation ``spread``, in the octave [2^f, 2^(f+1)).

    The variance of its rounding error is u²/3 times that, in units of spread² (the proof of prop-walk).
    """
    middle, total = math.floor(math.log2(spread)), 0.0
    for f in range(middle - _OCTAVES, middle + _OCTAVES):
        low, high = (math.erf(2.0 ** (f + k) / (spread * math.sqrt(2))) for k in (0, 1))
        total += 4.0**f * (high - low)
    return total / spread**2


def gain_gradient(norm: Callable[[Tensor, Tensor], Tensor], x: Tensor, g: Tensor, threads: int) -> Tensor:
    """The gradient by a gain of ones, ``(d,)``, with that many threads of torch (claim-gain-gradient)."""
    weight = torch.ones(x.shape[-1], dtype=x.dtype, requires_grad=True)
    with _threads(threads):
        return torch.autograd.grad(norm(x, weight), weight, g)[0]


def derivative_error(
    norm: Callable[[Tensor], Tensor], order: int, x: Tensor, direction: Tensor, step: float = 1e-5
) -> float:
    """How far the derivative of that order is from a difference quotient of the one below it (claim-third-derivative).

    What is differentiated is the sum of the cubes of ``norm(x)``, and from then on the sum of squares of the last
    gradient.

    Returns: the relative deviation.
    """
    leaf = x.detach().clone().requires_grad_()
    slope = torch.autograd.grad(_tower(norm, order - 1, leaf), leaf)[0]
    above, below = (_tower(norm, order - 1, (x + s * direction).requires_grad_()) for s in (step, -step))
    quotient = (above - below).item() / (2 * step)
    return abs(float((slope * direction).sum()) / quotient - 1)


def _tower(norm: Callable[[Tensor], Tensor], order: int, x: Tensor) -> Tensor:
    value = norm(x).pow(3).sum()
    for _ in range(order):
        slope = torch.autograd.grad(value, x, create_graph=True)[0]
        value = slope.square().sum()
    return value


@contextmanager
def _threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def traffic(work: Callable[[], object]) -> pd.DataFrame:
    """The bytes that the operations of torch read and write while ``work`` runs (eq-floor).

    Returns: One row an operation, in order: ``operation`` (its name in torch), ``read`` and ``written`` in bytes.
    What an operation that is one kernel does inside is not seen; whether bytes come from memory or from a cache is
    not known. An entry that is expanded counts once; views and empty allocations move nothing and have no row.
    """
    with _Traffic() as seen:
        work()
    return pd.DataFrame(seen.rows, columns=["operation", "read", "written"])


def peak_bytes(work: Callable[[], object]) -> int:
    """The most bytes of CPU memory that tensors made while ``work`` runs, its result among them, hold at once."""
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
    """The bytes that autograd keeps for a backward pass through what ``work`` computes, each memory counted once.

    Leaves that stay alive anyway, an input or a gain, count where a backward pass needs them.
    """
    seen: dict[int, Tensor] = {}

    def note(t: Tensor) -> Tensor:
        seen[t.untyped_storage().data_ptr()] = t
        return t

    with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        kept = work()
    del kept
    return sum(t.untyped_storage().nbytes() for t in seen.values())


class _Traffic(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.rows: list[tuple[str, int, int]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        schema = func._schema
        view = any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)
        name = schema.name.removeprefix("aten::")
        if not view and "empty" not in name:
            # an argument that is written in place is in the result too; one named out is not read
            read = [kwargs[a.name] for a in schema.arguments if not a.is_out and a.name in (kwargs or {})] + list(args)
            self.rows.append((name, _bytes(read), _bytes(result)))
        return result


def _bytes(values: object) -> int:
    tensors = [t for t in tree_leaves(values) if isinstance(t, Tensor)]
    return sum(t.element_size() * _distinct(t) for t in tensors)


def _distinct(t: Tensor) -> int:
    return int(torch.Size(n if step else min(n, 1) for n, step in zip(t.shape, t.stride(), strict=True)).numel())


NORMS = {"layer": "LayerNorm", "rms": "RMSNorm"}

PASSES = {False: "forward", True: "forward and back"}

Sizes = Iterable[tuple[int, int]]


def at_size(race: pd.DataFrame, rows: int, d: int, threads: int = 1) -> pd.DataFrame:
    """The rows of one size and number of threads, without the copy."""
    found = race[(race.rows == rows) & (race.d == d) & (race.threads == threads) & (race.norm != "copy")]
    return found


def costs(race: pd.DataFrame, sizes: Sizes) -> pd.DataFrame:
    """Time over that of a copy with one thread: a row a size, norm and way, a column a pass and dtype."""
    parts = {f"{rows} × {d}": _in_words(at_size(race, rows, d)) for rows, d in sizes}
    long = pd.concat(parts, names=["rows × features"])
    return (
        long.set_index(["norm", "way", "pass", "dtype"], append=True).droplevel(1).over_copy.unstack(["pass", "dtype"])
    )


def speedups(race: pd.DataFrame, rows: int, d: int, way: str) -> pd.DataFrame:
    """torch's time over that of a way, with one thread: a row a norm, a column a pass and dtype."""
    found = _of_way(_in_words(at_size(race, rows, d)), way)
    return found.set_index(["norm", "pass", "dtype"]).torch_over_this.unstack(["pass", "dtype"])


def least_speedups(race: pd.DataFrame, sizes: Sizes, way: str) -> pd.DataFrame:
    """The smallest ratio, over sizes and runs, of torch's time to that of a way (claim-norm-speed).

    Returns: a row for each ``(norm, dtype, backward)`` in which the way ran, named as in the race; columns "1 thread"
    and "2 threads".
    """
    sizes = list(sizes)
    found = _of_way(pd.concat([at_size(race, *size, threads) for size in sizes for threads in (1, 2)]), way)
    least = found.groupby(["norm", "dtype", "backward", "threads"]).worst.min().unstack("threads")
    return least.set_axis(["1 thread", "2 threads"], axis=1)


def layer_over_rms(race: pd.DataFrame, sizes: Sizes, layer: str, rms: str) -> pd.DataFrame:
    """Time of LayerNorm the one way over that of RMSNorm the other, with one thread (claim-mean-cost).

    Returns: a row for each ``(pass, dtype)`` in words, a column a size.
    """
    columns = {}
    for rows, d in sizes:
        found = _in_words(at_size(race, rows, d)).set_index(["pass", "dtype"])
        times = [
            _of_way(found[found.norm == NORMS[norm]], way).seconds for norm, way in (("layer", layer), ("rms", rms))
        ]
        columns[f"{rows} × {d}"] = times[0] / times[1]
    return pd.DataFrame(columns)


def _of_way(found: pd.DataFrame, way: str) -> pd.DataFrame:
    return found[found.way == way]


def _in_words(found: pd.DataFrame) -> pd.DataFrame:
    return found.assign(**{"norm": found.norm.map(NORMS), "pass": found.backward.map(PASSES)})


def walk(walks: np.ndarray, digits: int, law: Callable[[int, float], float]) -> tuple[Figure, str]:
    """Random walks whose totals are rounded to ``digits`` binary digits; their errors in the law's band (prop-walk).

    Returns: the figure and its alt text.
    """
    exact = np.pad(np.cumsum(walks, axis=1), ((0, 0), (1, 0)))
    rounded = np.array([rounded_walk(steps, digits) for steps in walks.tolist()])
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
    """Largest errors against the mean of the rows, a line a way, over what rounding promises; and the alt text."""
    markers = "xs^o"
    means = off.index.to_numpy()
    with style():
        figure, axes = plt.subplots(figsize=(WIDTH, 3.4))
        for way, marker in zip(off, markers, strict=False):
            axes.loglog(means, off[way], marker=marker, label=way)  # a gap where no row is left
        for power, shown in ((1, means), (2, means[means <= 1e4])):
            axes.loglog(shown, unit * shown**power, "--", color=COLORS["null"], lw=1)
        axes.set(xlabel="mean of the rows / standard deviation", ylabel="largest error", ylim=(1e-8, 100))
        ticks_of_powers(axes.xaxis, axes.yaxis, most=6)
        figure.legend(loc="outside upper center", ncols=2)
    words = []
    for way, errors in off.items():
        seen = errors.dropna()
        words.append(
            f"{way} from {seen.iloc[0]:.0e} at mean {seen.index[0]:g} to {seen.iloc[-1]:.0e} at {seen.index[-1]:g}"
        )
    return figure, f"Errors against means, double logarithmic: {'; '.join(words)}."


# Whose function: color, hatch and marker.  "compiled" is normgeom's, compiled.
WAYS = {
    "normgeom": ("#0072B2", "", "o"),
    "compiled": ("#009E73", "//", "s"),
    "torch": ("#D55E00", "..", "x"),
    "transformers": ("#CC79A7", "xx", "+"),
}

BYTES = {"float32": 4, "bfloat16": 2}  # of an entry

OPERATIONS = {"layer": 7, "rms": 4}  # for an entry, forward

FLOORS = {False: 1, True: 2.5}  # in copies, forward and with the backward pass (eq-floor)


def ways_over_copy(race: pd.DataFrame, rows: int, d: int) -> tuple[Figure, str]:
    """Bars of each way's time over that of a copy, one thread, above the floor; and the figure's alt text."""
    bars = at_size(race, rows, d).set_index(["norm", "dtype", "backward", "way"]).over_copy
    with style():
        figure, panels = plt.subplots(2, 1, figsize=(WIDTH, 5.2), sharex=True, sharey=True)
        for axes, backward in zip(panels, PASSES, strict=True):
            _bars(axes, bars.xs(backward, level="backward"))
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


def _bars(axes: Axes, bars: pd.Series) -> None:
    groups = [(norm, dtype) for norm in NORMS for dtype in BYTES]
    for k, (way, (color, hatch, _)) in enumerate(WAYS.items()):
        at = [i for i, group in enumerate(groups) if (*group, way) in bars.index]
        heights = [bars[(*groups[i], way)] for i in at]
        places = [i + 0.2 * (k - 1.5) for i in at]
        axes.bar(places, heights, 0.19, color=color, hatch=hatch, label=way, edgecolor="white")
    ticks = [1, 3, 10, 30]
    axes.set_yscale("log")
    axes.set_yticks(ticks, map(str, ticks))
    axes.minorticks_off()
    axes.set_xticks(range(len(groups)), [f"{NORMS[norm]}\n{dtype}" for norm, dtype in groups])
    axes.grid(axis="x", visible=False)


def roofline(race: pd.DataFrame, peak: float, rows: int, d: int) -> tuple[Figure, str]:
    """Forward passes under the roof min(peak, bandwidth × operations per byte), one thread; and the alt text."""
    points = at_size(race, rows, d).query("not backward")
    points = points.assign(
        intensity=[OPERATIONS[p.norm] / (2 * BYTES[p.dtype]) for p in points.itertuples()],
        rate=[OPERATIONS[p.norm] * rows * d / p.seconds / 1e9 for p in points.itertuples()],
    )
    bandwidth = _bandwidth(race, rows, d)
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
    share = (points.rate / (points.intensity * bandwidth).clip(upper=peak)).set_axis(
        pd.MultiIndex.from_frame(points[["norm", "dtype", "way"]])
    )
    reached = ", ".join(f"{share['rms', 'float32', way]:.0%} with {way}" for way in ("normgeom", "compiled", "torch"))
    return figure, (
        f"A roof that rises to {peak / bandwidth:.1f} operations per byte and is flat beyond, at {peak:.0f} billion "
        f"operations a second. The norms stand between {points.intensity.min():.2g} and {points.intensity.max():.3g}. "
        f"RMSNorm in float32 reaches of the roof {reached}."
    )


def _bandwidth(race: pd.DataFrame, rows: int, d: int) -> float:
    """What a copy of a float32 tensor of that size moved, read and written, with one thread, in 10⁹ bytes a second."""
    copy = race.query("norm == 'copy' and dtype == 'float32' and threads == 1 and rows == @rows and d == @d")
    return 2 * BYTES["float32"] * rows * d / copy.seconds.iloc[0] / 1e9


def on_gpu() -> tuple[pd.DataFrame, list[Record]]:
    """What is recorded of a GPU: the norms at the largest size, surveys, and conversion to RMSNorm.

    Returns: a row a time: ``over``, that of what it is divided by in ``ratio``, and, ``beside`` it, something else
    with its own ``ratio beside``; what was not measured is one row of missing values. And the records that there are.
    """
    rows, found = {}, []
    for name, (what, rows_of) in _ON_GPU.items():
        try:
            of = recorded(name)
        except ValueError:
            rows[what] = (None, np.nan, None, np.nan)
            continue
        found.append(of)
        rows |= dict(rows_of(of.table))
    columns = ["over", "ratio", "beside", "ratio beside"]
    return pd.DataFrame.from_dict(rows, orient="index", columns=columns), found


Row = tuple[str, tuple[str, float, str, float]]


def _norms_on_gpu(race: pd.DataFrame) -> Iterator[Row]:
    largest = race.loc[(race.rows * race.d).idxmax()]
    cells = at_size(race, largest.rows, largest.d).groupby(["norm", "dtype", "backward"], sort=False)
    for (norm, dtype, backward), cell in cells:
        time = cell.set_index("way").over_copy
        what = f"{NORMS[norm]}, {dtype}, {PASSES[backward]}, {largest.rows} × {largest.d}"
        yield what, ("a copy", time["normgeom"], "torch's own", time["torch"])


def _surveys_on_gpu(race: pd.DataFrame) -> Iterator[Row]:
    for (model, texts, length), cell in race.groupby(["model", "texts", "length"], sort=False):
        time = cell.set_index("way").ratio
        beside = "output_hidden_states"
        yield f"Survey of {model}, {texts} × {length}", ("the bare pass", time["Survey"], beside, time[beside])


def _conversion_on_gpu(race: pd.DataFrame) -> Iterator[Row]:
    for (model, texts, length), cell in race.groupby(["model", "batch", "length"], sort=False):
        time = cell.set_index("way").ratio
        what = f"{model} converted to RMSNorm, {texts} × {length}"
        yield what, ("unconverted", time["converted"], "no norms", time["no norms"])


# Records that programs write only where there is a GPU, what they are of, and their rows.
_ON_GPU = {
    "speed-norms-cuda": ("norms", _norms_on_gpu),
    "speed-survey-cuda": ("surveys", _surveys_on_gpu),
    "speed-converted-cuda": ("conversion", _conversion_on_gpu),
}
