"""Recorded times of norms as tables, and figures with their alt texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from normgeom.records import Record, recorded
from normgeom.view.style import COLORS, WIDTH, style

from normgeom_lab.common.axes import label_ends, ticks_of_powers
from normgeom_lab.precision.experiments import rounded_walks

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
        for power, shown in ((1, means), (2, means[means <= 1e3])):
            axes.loglog(shown, unit * shown**power, "--", color=COLORS["null"], lw=1)
        axes.set(xlabel="mean of the rows / standard deviation", ylabel="largest error", ylim=(1e-8, 100))
        ticks_of_powers(axes.xaxis, axes.yaxis, most=6)
        label_ends(axes)
    return figure, f"Errors against means, double logarithmic: {'; '.join(words)}."


STACKS = {"SmolLM2-135M-Instruct": "SmolLM2", "gemma-3-270m": "Gemma 3", "whisper-base": "Whisper, encoder"}
STATISTICS = {"sum": "partial sums rounded", "statistics": "results rounded"}


def predicted(found: pd.DataFrame, way: str) -> pd.Series:
    """The error that prop-drift predicts: its coherent and its random part, added as squares."""
    return np.hypot(found[f"coherent_{way}"], found[f"random_{way}"])


def drift(found: pd.DataFrame) -> tuple[Figure, str]:
    """The stream's relative error by block with rounded statistics, measured and predicted; a panel a model."""
    words, looks = [], {"sum": (COLORS["random_a"], "s"), "statistics": (COLORS["uniform"], "o")}
    with style():
        figure, panels = plt.subplots(len(STACKS), 1, figsize=(WIDTH, 6), sharey=True)
        for axis, (model, title) in zip(panels, STACKS.items(), strict=True):
            rows = found[found.model == model]
            for way, (color, marker) in looks.items():
                law = predicted(rows, way)
                axis.semilogy(rows.block, rows[way], marker, color=color)
                axis.semilogy(rows.block, law, color=color, lw=1.2)
                if axis is panels[0]:
                    axis.text(1, 1.8 * rows[way].iloc[0], STATISTICS[way], color=color)
                words.append(
                    f"{title}, {STATISTICS[way]}: {rows[way].iloc[0]:.2g} after the first block and "
                    f"{rows[way].iloc[-1]:.2g} after the last norm, predicted {law.iloc[0]:.2g} and {law.iloc[-1]:.2g}"
                )
            axis.set_title(title)
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
            ticks_of_powers(axis.yaxis)
        panels[-1].set_xlabel("block (last: the final norm)")
        figure.supylabel("relative error of the stream")
    return figure, f"Errors by block, logarithmic. {'; '.join(words)}."


def formats_drift(found: pd.DataFrame) -> pd.DataFrame:
    """Of statistics in each format the error after the last norm, and measured over predicted errors of all blocks."""
    found = found.replace({"model": STACKS}).assign(ratio=found.measured / found.predicted)
    groups = found.groupby(["model", "format"], sort=False)
    columns = {"error after the last norm": groups.measured.last().map("{:.1e}".format)}
    columns |= {"measured / predicted": groups.ratio.median(), "least": groups.ratio.min()}
    return pd.DataFrame(columns | {"largest": groups.ratio.max()})


def quantised_forms(by_form: pd.DataFrame, ends: pd.DataFrame) -> pd.DataFrame:
    """What quantising the outputs of norms does, a row a model and form; ``ends`` has the divergences."""
    words = {"measured": "error", "ratio_q50": "error / predicted", "kl": "KL"}
    rows = by_form.merge(ends, how="left", on=["model", "form", "bits"]).replace({"model": STACKS})
    shown = rows.pivot(index=["model", "form"], columns="bits", values=["crest", *words])
    shown = shown.drop(columns=("crest", 4)).rename(columns=words | {"crest": "κ"})
    shown.columns = [f"{name}, {bits} bits" if name != "κ" else name for name, bits in shown.columns]
    return shown.sort_index(axis=1, key=lambda c: c.str[-6:], ascending=False, kind="stable")


ROUNDED = {  # of the record published-rounding-end, by format: ways in words
    "bfloat16": {
        "statistics": "statistics: results rounded",
        "sum": "statistics: partial sums rounded",
        "output": "result rounded once",
        "twice": "Llama's order: rounded before and after the gain",
        "gain": "gain (in Gemma, 1 + w) rounded",
        "bfloat16 model, output": "whole model, statistics in float32",
        "bfloat16 model, statistics": "whole model, including the statistics",
    },
    "float16": {
        "float16 model, output": "statistics in float32",
        "float16 model, statistics": "statistics in float16",
        "float16 model, scaled": "statistics in float16, rows scaled first",
    },
}


def predictions(ends: pd.DataFrame, speech: pd.DataFrame, dtype: str) -> pd.DataFrame:
    """What rounding does, a row a way: of language models KL with its interval, and agreement; of Whisper an error."""
    columns, ways = {}, ROUNDED[dtype]
    for model, rows in ends.groupby("model"):
        rows, name = rows.set_index("way").loc[list(ways)], STACKS[model]
        columns[f"{name}, KL"] = [f"{r.kl:.2g} ({r.kl_low:.2g} to {r.kl_high:.2g})" for r in rows.itertuples()]
        columns[f"{name}, same"] = rows.agree.map("{:.0%}".format)
    columns["Whisper, error"] = speech.set_index("way").error[list(ways)].map("{:.2g}".format)
    return pd.DataFrame(columns, index=list(ways)).rename(ways)


WAYS = {  # color, hatch and marker; "compiled" is normgeom's function under torch.compile
    "normgeom": ("#0072B2", "", "o"),
    "compiled": ("#009E73", "//", "s"),
    "torch": ("#D55E00", "..", "x"),
    "transformers": ("#CC79A7", "xx", "+"),
}
BYTES = {"float32": 4, "bfloat16": 2}  # per entry
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


def on_gpu() -> tuple[pd.DataFrame, list[Record]]:
    """What is recorded of norms on a GPU, at the largest size, and the record itself.

    Returns: a row a norm, format and pass with its ``ratio`` to the time of a copy, next to that of torch's own; a row
    of missing values and no record where nothing was measured.
    """
    try:
        of = recorded("speed-norms-cuda")
    except ValueError:
        return pd.DataFrame({"ratio": np.nan, "torch's own": np.nan}, index=["norms"]), []
    largest = of.table.loc[(of.table.rows * of.table.d).idxmax()]
    race = _in_words(of.table, largest.rows, largest.d).set_index(["norm", "dtype", "pass", "way"]).over_copy
    return race.unstack("way")[["normgeom", "torch"]].set_axis(["ratio", "torch's own"], axis=1), [of]
