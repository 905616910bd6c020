"""The recorded race of the norms in pictures, bars over a copy and points under a roof; what a GPU took as a table."""

from __future__ import annotations

from collections.abc import Iterator

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from normgeom.bench.races import NORMS, PASSES, at_size
from normgeom.records import Record, recorded
from normgeom.view.style import COLORS, WIDTH, style, ticks_of_powers

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
    """Bars of each way's time over that of a copy, one thread, above the floor; and the figure's alt text.

    Args:
        race: the table of the record ``speed-norms``.
        rows: with ``d`` one of its sizes.

    Raises:
        ValueError: the race has no such size.
    """
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
    """Forward passes under the roof min(peak, bandwidth × operations per byte), one thread; and the alt text.

    Args:
        race: the table of the record ``speed-norms``; the bandwidth is that of its copy of the float32 input.
        peak: of the processor, in 10⁹ operations a second.
        rows: with ``d`` one of the race's sizes.

    Raises:
        ValueError: the race has no such size.
    """
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

    Returns:
        a row a time: ``over``, that of what it is divided by in ``ratio``, and, ``beside`` it, something else with its
        own ``ratio beside``; what was not measured is one row of missing values.  And the records that there are.
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
