"""Figures of recorded measurements on published models: costs against angles, and changes in the outputs of norms."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from normgeom.view.style import COLORS, WIDTH, style

from normgeom_lab.common.axes import label_ends, ticks_of_powers

NAMES = {"SmolLM2-135M-Instruct": "SmolLM2", "gemma-3-270m": "Gemma 3"}
EVEN_SHARE = sum(1 / (t + 1) for t in range(1, 128)) / 127  # attention to position 0 if it is uniform, 128 tokens
MODELS = (*NAMES.values(), "Whisper, encoder", "Whisper, decoder")


def together(language: pd.DataFrame, speech: pd.DataFrame) -> pd.DataFrame:
    """Merge published-costs and published-speech-costs: one row per norm and direction, with mean costs over texts.

    For Whisper, the cost of 1 is that of *not* subtracting the mean, because a LayerNorm ignores the removal of 1.
    """
    cost = (language.cost_valid + language.cost_test) / 2
    of_text = language.assign(model=language.model.map(NAMES), cost=cost)
    speech = speech.replace({"direction": {"dropped": "uniform"}})
    side = speech.site.str.startswith("model.encoder.").map({True: MODELS[2], False: MODELS[3]})
    of_speech = speech.groupby([side.rename("model"), "norm", "direction"], sort=False).agg(
        angle=("angle", "first"), cost=("cost", "mean")
    )
    columns = ["model", "norm", "direction", "angle", "cost"]
    return pd.concat([of_text[columns], of_speech.reset_index()[columns]])


def without_directions(removed: pd.DataFrame) -> pd.DataFrame:
    """The record published-removed as a table: the removed directions in rows, models and texts in columns."""
    cost = removed.pivot(index="direction", columns=["model", "text"], values="cost").rename(columns=NAMES)
    patterns = r"^signs_\d+$", r"^signs_\d+_rest$", r"^uniform_\d+$"
    signs, signs_rest, control = (cost.filter(regex=pattern, axis=0) for pattern in patterns)
    count, spared = f"{len(signs)} sign vectors", "except at three"
    rows = {
        "unchanged": cost.loc["none"],
        "uniform vector": cost.loc["uniform"],
        f"{count}: lowest": signs.min(),
        f"{count}: median": signs.median(),
        f"{count}: highest": signs.max(),
        "Gaussian (one draw)": cost.loc["random_000"],
        f"uniform vector, {spared} coordinates": cost.loc["uniform_rest"],
        f"3 sign vectors, {spared}: highest": signs_rest.max(),
        f"uniform vector, {spared} random ones: highest": control.max(),
    }
    return pd.DataFrame(rows).T


def angle_and_cost(costs: pd.DataFrame) -> tuple[Figure, str]:
    """The cost of removing a direction at a norm's input against its angle to the input, one panel per model.

    ``costs`` is what :func:`together` returns; the direction 1 is called "uniform", those of the null "signs_…".
    """
    words = []
    with style():
        figure, axes = plt.subplots(2, 2, figsize=(WIDTH, 4.8), sharex=True, sharey=True)
        for model, axis in zip(MODELS, axes.flat, strict=True):
            rows = costs[costs.model == model]
            null = rows[rows.direction.str.startswith("signs_")]
            one = rows[rows.direction == "uniform"]
            axis.plot(null.angle, null.cost, "x", color=COLORS["null"], ms=4, label="sign vectors")
            axis.plot(one.angle, one.cost, "o", color=COLORS["uniform"], ms=4, label="uniform vector")
            axis.set_title(model)
            axis.set_yscale("symlog", linthresh=0.01)
            axis.yaxis.set_major_formatter(FuncFormatter(lambda cost, _: f"{cost:g}"))  # no raised exponents on a phone
            words.append(
                f"{model}: angles to 1 from {one.angle.min():.0f} to {one.angle.max():.0f} degrees, costs from "
                f"{one.cost.min():.2g} to {one.cost.max():.2g} nats, for sign vectors to {null.cost.max():.2g}"
            )
        figure.supxlabel("mean angle at the norm's input / degrees")
        figure.supylabel("cost / nats per token")
        figure.legend(*axes.flat[0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return figure, f"Cost against angle, one point per norm. {'; '.join(words)}."


def moved_and_predicted(moved: pd.DataFrame) -> tuple[Figure, str]:
    """The relative change in a norm's output without a sign vector: measured against the predicted mean over signs.

    ``moved`` is the record published-moved; hollow markers are for 1 on all but the three largest coordinates.
    """
    words = []
    looks = zip(NAMES.items(), (("s", COLORS["random_a"]), ("o", COLORS["uniform"])), strict=True)
    with style():
        figure, axis = plt.subplots(figsize=(WIDTH, 3.8))
        for (model, name), (marker, color) in looks:
            rows = changes(moved[moved.model == model])
            axis.loglog(rows.predicted, rows.signs, marker, color=color, ms=4, label=f"{name}, sign vectors")
            spared = f"{name}, 1 except at three"
            axis.loglog(rows.predicted, rows.uniform_rest, marker, color=color, mfc="none", ms=4, label=spared)
            words.append(
                f"{name}: predicted {rows.predicted.min():.2g} to {rows.predicted.max():.2g}, median ratio of measured "
                f"to predicted {(rows.signs / rows.predicted).median():.2f}; with three coordinates spared at most "
                f"{rows.uniform_rest.max():.2g}"
            )
        axis.loglog(axis.get_xlim(), axis.get_xlim(), ":", color=COLORS["ink"], lw=1)
        axis.set(xlabel="predicted relative change of the output", ylabel="measured")
        ticks_of_powers(axis.xaxis, axis.yaxis)
        figure.legend(loc="outside upper center", ncols=2)
    return figure, f"Relative change in a norm's output, one point per norm. {'; '.join(words)}."


def on_the_stream(measured: pd.DataFrame) -> pd.DataFrame:
    """The rows of norms that read the stream. In Gemma, every second norm reads the output of a branch instead."""
    return measured[(measured.model == "SmolLM2-135M-Instruct") | (measured.norm % 2 == 0)]


def streams(measured: pd.DataFrame, sinks: pd.DataFrame) -> tuple[Figure, str]:
    """Lengths of the stream at each norm and attention to the first position, one line per text.

    ``measured`` is the record published-angles after :func:`on_the_stream`, ``sinks`` is published-sinks.
    """
    words = []
    colors = dict(zip(NAMES, (COLORS["random_a"], COLORS["uniform"]), strict=True))
    with style():
        figure, (left, right) = plt.subplots(1, 2, figsize=(WIDTH, 3.6))
        for (model, _text), at in measured.groupby(["model", "text"], sort=False):
            depth = np.arange(len(at)) / (len(at) - 1)
            color = colors[model]
            left.semilogy(depth, at.length, color=color, lw=1.2)
            left.semilogy(depth, at.first_length, "--", color=color, lw=1.2)
            law = at.length.iloc[2] * np.sqrt(np.arange(2, len(at)) / 2)  # from the second block on
            left.semilogy(depth[2:], law, ":", color=color, lw=1)
            words.append(
                f"{NAMES[model]}: mean length from {at.length.iloc[0]:.3g} to {at.length.iloc[-1]:.3g}, of the first "
                f"position up to {at.first_length.max():.3g}"
            )
        for (model, text), at in sinks.groupby(["model", "text"], sort=False):
            label = NAMES[model] if text == sinks.text.iloc[0] else None
            right.plot(np.linspace(0, 1, len(at)), at["mean"], color=colors[model], lw=1.2, label=label)
            words.append(f"attention to it in {NAMES[model]} up to {at['mean'].max():.2f}")
        right.axhline(EVEN_SHARE, color=COLORS["null"], ls=":", lw=1)
        left.set(xlabel="share of the depth", title="length of the stream")
        right.set(xlabel="share of the depth", ylim=(0, 1), title="attention to position 0")
        ticks_of_powers(left.yaxis)
        label_ends(right)
    return figure, f"Two panels against the share of the depth. {'; '.join(words)}."


def changes(moved: pd.DataFrame) -> pd.DataFrame:
    """Root mean squares over texts, one row per norm."""
    return moved.groupby("norm")[["predicted", "signs", "uniform_rest"]].mean() ** 0.5
