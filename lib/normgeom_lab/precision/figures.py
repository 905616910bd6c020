"""Recorded times of norms as tables, and figures with their alt texts."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from itertools import product

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from normgeom.view.style import COLORS, FACES, WIDTH, style

from normgeom_lab.common.axes import label_ends, ticks_of_powers

# ``race`` is a table of recorded times: a row per size, number of threads, format, pass, norm and way to compute it.

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
    """torch's time over that of ``way``, one thread: a row per norm, a column per pass and dtype."""
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

    Returns: a row for each ``(pass, dtype)``, a column for each size.
    """
    columns = {}
    for rows, d in sizes:
        found = _in_words(race, rows, d).set_index(["pass", "dtype"])
        whose = ("LayerNorm", layer), ("RMSNorm", rms)
        of_layer, of_rms = (found[(found.norm == norm) & (found.way == way)].seconds for norm, way in whose)
        columns[f"{rows} × {d}"] = of_layer / of_rms
    return pd.DataFrame(columns)


def errors_over_means(off: pd.DataFrame, unit: float) -> tuple[Figure, str]:
    """Largest errors against the mean of the rows, a line per way, with u times the mean and u times its square."""
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
        axes.grid(visible=False)  # its lines would strike through a name
        ticks_of_powers(axes.xaxis, axes.yaxis, most=6)
        label_ends(axes)
    return figure, f"Errors against means, double logarithmic: {'; '.join(words)}."


STACKS = {"SmolLM2-135M-Instruct": "SmolLM2", "gemma-3-270m": "Gemma 3", "whisper-base": "Whisper, encoder"}
STATISTICS = {"sum": "partial sums rounded", "statistics": "results rounded"}


def predicted(found: pd.DataFrame, way: str) -> pd.Series:
    """The error that prop-drift predicts: its coherent and its random part, added as squares."""
    return np.hypot(found[f"coherent_{way}"], found[f"random_{way}"])


def drift(found: pd.DataFrame) -> tuple[Figure, str]:
    """The stream's relative error by block with rounded statistics, measured and predicted; a panel per model."""
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
        panels[0].set_title(f"{next(iter(STACKS.values()))} (markers: measured; lines: predicted)")
        panels[-1].set_xlabel("block (last: the final norm)")
        figure.supylabel("relative error of the stream")
    return figure, f"Errors by block, logarithmic. {'; '.join(words)}."


def quantised_forms(by_form: pd.DataFrame, ends: pd.DataFrame) -> pd.DataFrame:
    """The effects of quantising the outputs of norms, a row per model and form; ``ends`` has the divergences."""
    words = {"measured": "error", "ratio_q50": "error / predicted", "kl": "KL"}
    rows = by_form.merge(ends, how="left", on=["model", "form", "bits"]).replace({"model": STACKS})
    shown = rows.pivot(index=["model", "form"], columns="bits", values=["crest", *words])
    shown = shown.drop(columns=("crest", 4)).rename(columns=words | {"crest": "κ"})
    shown.columns = [f"{name}, {bits} bits" if name != "κ" else name for name, bits in shown.columns]
    return shown.sort_index(axis=1, key=lambda c: c.str[-6:], ascending=False, kind="stable")


Groups = Mapping[str, Mapping[Hashable, str]]  # names of rows by key, under a heading


def _name_rows(axis: Axes, groups: Groups) -> dict[Hashable, float]:
    """Write names on the vertical axis, headings in bold; return the place of each key."""
    names, places, top = {}, {}, 0.0
    for heading, rows in groups.items():
        names |= {top: heading} | dict(enumerate(rows.values(), int(top) + 1))
        places |= dict(zip(rows, range(int(top) + 1, int(top) + 1 + len(rows)), strict=True))
        top += len(rows) + 1
    axis.set(yticks=[*names], yticklabels=names.values(), ylim=(top - 0.5, -0.7))
    for label in axis.get_yticklabels():
        if label.get_text() in groups:
            label.set(family=FACES[0], weight=600)
    return places


ROUNDED = {  # ways of the record published-rounding-end in words, by what is in sixteen bits
    "rounded to bfloat16": {
        "statistics": "results of statistics",
        "sum": "every partial sum",
        "output": "output, once",
        "twice": "before and after gain",
        "gain": "gain (Gemma: 1 + w)",
    },
    "model in bfloat16": {
        "bfloat16 model, output": "statistics in float32",
        "bfloat16 model, statistics": "statistics in bfloat16",
    },
    "model in float16": {
        "float16 model, output": "statistics in float32",
        "float16 model, statistics": "statistics in float16",
        "float16 model, scaled": "rows scaled first",
    },
}
LEAST = 1e-5  # anything smaller, in nats or relative, is drawn here as an arrowhead


def predictions(ends: pd.DataFrame, speech: pd.DataFrame, positions: int) -> tuple[Figure, str]:
    """The effects of rounding, a panel per model: divergences, their intervals and changed tokens; for Whisper, errors.

    ``ends`` and ``speech`` are the records published-rounding-end, of ``positions`` positions, and …-rounding-speech.
    """
    words, color = [], COLORS["uniform"]
    divergence = ends.assign(error=ends.kl, low=ends.kl_low, high=ends.kl_high)
    with style():
        figure, panels = plt.subplots(1, len(STACKS), figsize=(WIDTH, 3.9), sharey=True)
        places = _name_rows(panels[0], ROUNDED)
        for axis, (model, title) in zip(panels, STACKS.items(), strict=True):
            read = divergence.model.eq(model)
            rows = (divergence[read] if read.any() else speech).set_index("way").loc[list(places)]
            at = np.array([*places.values()])
            axis.hlines(at, rows.low.clip(LEAST), rows.high.clip(LEAST), color=color, lw=1.4)
            for small, marker in ((False, "o"), (True, "<")):
                shown = (rows.error < LEAST) == small
                axis.semilogx(rows.error[shown].clip(LEAST), at[shown], marker, color=color, ms=5)
            axis.set(title=title.replace(", ", "’s\n"), xlabel="relative error")
            said = rows.error.map("{:.2g}".format)
            if read.any():
                changed = ((1 - rows.agree) * positions).round().astype(int)
                for place, text in [(0, "changed"), *zip(at, changed, strict=True)]:
                    axis.text(1.2, place, text, transform=axis.get_yaxis_transform(), va="center", ha="center")
                axis.set(xlabel="KL / nats", xlim=(LEAST / 2, 20))
                said += changed.map(", {} changed".format)
            axis.tick_params(axis="y", length=0)
            ticks_of_powers(axis.xaxis, most=3)
            words.append(f"{title}: {'; '.join(f'{way} {text}' for way, text in said.items())}")
    return figure, f"Divergences by way of rounding, and changed tokens out of {positions}. {'. '.join(words)}."


WAYS = ("normgeom", "compiled", "torch", "transformers")  # compiled: normgeom's function under torch.compile
BYTES = {"float32": 4, "bfloat16": 2}  # per entry
FLOORS = {False: 1, True: 2.5}  # in copies, without and with the backward pass (eq-floor)


def ways_over_copy(race: pd.DataFrame, rows: int, d: int) -> tuple[Figure, str]:
    """Each way's time over that of a copy, one thread, drawn from the floor (eq-floor); a panel per pass."""
    times = at_size(race, rows, d).set_index(["norm", "dtype", "backward", "way"]).over_copy
    groups = {
        f"{NORMS[norm]}, {dtype}": {(norm, dtype, way): way for way in WAYS if (norm, dtype, True, way) in times.index}
        for norm, dtype in product(NORMS, BYTES)
    }
    with style():
        figure, panels = plt.subplots(1, 2, figsize=(WIDTH, 4.2), sharex=True, sharey=True)
        places = _name_rows(panels[0], groups)
        for axis, (backward, title) in zip(panels, PASSES.items(), strict=True):
            for (norm, dtype, way), place in places.items():
                time, own = times[norm, dtype, backward, way], way == "normgeom"
                color = COLORS["uniform" if own else "ink"]
                axis.hlines(place, FLOORS[backward], time, lw=1.2, color=color)
                axis.plot(time, place, "o" if own else "s", color=color)
                axis.annotate(f"{time:.1f}", (time, place), (6, 0), textcoords="offset points", va="center")
            axis.axvline(FLOORS[backward], color=COLORS["ink"], ls="--", lw=1)
            axis.set(title=title, xscale="log", xlim=(0.9, 90))
            axis.tick_params(axis="y", length=0)
            axis.grid(visible=False)
            ticks_of_powers(axis.xaxis)
        figure.supxlabel("time / time of a copy")
    words = [
        f"{name} in {dtype}, {how}, {times[norm, dtype, backward, 'normgeom']:.1f} against "
        f"{times[norm, dtype, backward, 'torch']:.1f}"
        for backward, how in PASSES.items()
        for norm, name in NORMS.items()
        for dtype in BYTES
    ]
    return figure, f"Times over that of a copy, logarithmic; normgeom against torch: {'; '.join(words)}."
