"""Pictures of the recorded race of the norms: bars over a copy, and points under a roof."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from normgeom.bench.races import NORMS, PASSES, at_size
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
