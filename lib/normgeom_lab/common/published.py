"""Pictures of recorded measurements on published models: angles beside costs, and how far a norm's output moves."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from normgeom.view.style import COLORS, WIDTH, style, ticks_of_powers

MODELS = ("SmolLM2", "Gemma 3", "Whisper, encoder", "Whisper, decoder")


def angle_and_cost(costs: pd.DataFrame) -> tuple[Figure, str]:
    """What it costs to take a direction from a norm's input, against its angle to the input; a panel a model.

    ``costs`` has a row a norm and direction, with the columns ``model``, ``direction``, ``angle`` and ``cost``; 1 is
    called "uniform", the null's directions "signs_…".
    """
    words = []
    with style():
        figure, axes = plt.subplots(2, 2, figsize=(WIDTH, 4.8), sharex=True, sharey=True)
        for model, axis in zip(MODELS, axes.flat, strict=True):
            rows = costs[costs.model == model]
            null, one = rows[rows.direction.str.startswith("signs_")], rows[rows.direction == "uniform"]
            axis.plot(null.angle, null.cost, "x", color=COLORS["null"], ms=4, label="vectors of signs")
            axis.plot(one.angle, one.cost, "o", color=COLORS["uniform"], ms=4, label="1")
            axis.set_title(model)
            axis.set_yscale("symlog", linthresh=0.01)
            words.append(
                f"{model}: angles to 1 from {one.angle.min():.0f} to {one.angle.max():.0f} degrees, costs from "
                f"{one.cost.min():.2g} to {one.cost.max():.2g} nats, for vectors of signs to {null.cost.max():.2g}"
            )
        figure.supxlabel("mean angle at the norm's input / degrees")
        figure.supylabel("cost / nats a token")
        handles, labels = axes.flat[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=2)
    return figure, f"Cost against angle, a point a norm. {'; '.join(words)}."


def moved_and_predicted(costs: pd.DataFrame) -> tuple[Figure, str]:
    """The relative change of a norm's output, measured for 1 and for signs, against the mean over signs predicted.

    ``costs`` as in :func:`angle_and_cost`, with the mean squares ``moved`` and ``predicted``.
    """
    words, looks = [], {"SmolLM2": ("s", COLORS["random_a"]), "Gemma 3": ("o", COLORS["uniform"])}
    with style():
        figure, axis = plt.subplots(figsize=(WIDTH, 3.8))
        for model, (marker, color) in looks.items():
            rows = costs[costs.model == model]
            signs = rows[rows.direction.str.startswith("signs_")].groupby("norm")[["moved", "predicted"]].mean() ** 0.5
            rest = rows[rows.direction == "uniform_rest"].set_index("norm")[["moved", "predicted"]] ** 0.5
            axis.loglog(signs.predicted, signs.moved, marker, color=color, ms=4, label=f"{model}, signs")
            axis.loglog(
                rest.predicted, rest.moved, marker, color=color, mfc="none", ms=4, label=f"{model}, three spared"
            )
            words.append(
                f"{model}: predicted {signs.predicted.min():.2g} to {signs.predicted.max():.2g}, median ratio of "
                f"measured to predicted {(signs.moved / signs.predicted).median():.2f}; with three coordinates spared "
                f"at most {rest.moved.max():.2g}"
            )
        ends = np.array([0.02, 1.0])
        axis.loglog(ends, ends, ":", color=COLORS["ink"], lw=1)
        axis.set(xlabel="predicted relative change of the output", ylabel="measured")
        ticks_of_powers(axis.xaxis, axis.yaxis)
        figure.legend(loc="outside upper center", ncols=2)
    return figure, f"Relative change of a norm's output, a point a norm. {'; '.join(words)}."
