"""Pictures of parts, each with its alt text."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib.pyplot as plt
import pandas as pd
import torch
from matplotlib.figure import Figure
from normgeom.view.style import COLORS, WIDTH, style

from normgeom_lab.common.axes import ticks_of_powers
from normgeom_lab.common.parts import Effects

# Marker, colour and how far beside its place each answer stands.
_ANSWERS = {
    "frozen": ("s", COLORS["random_a"], -0.24),
    "direct": ("o", COLORS["uniform"], -0.08),
    "slope": ("x", COLORS["random_b"], 0.08),
    "total": ("^", COLORS["null"], 0.24),
}

_LOST = {"logit": "in truth", "frozen": "with the scale frozen", "tangent": "along the tangent"}


def effects_by_part(answers: pd.DataFrame) -> tuple[Figure, str]:
    """Four answers to what each part does to a logit; below, each part's share of the scale."""
    place, share = range(len(answers)), answers["share κ"]
    with style():
        figure, (upper, lower) = plt.subplots(2, 1, figsize=(WIDTH, 4.4), sharex=True, height_ratios=(3, 1.3))
        for name, (marker, color, shift) in _ANSWERS.items():
            upper.plot([i + shift for i in place], answers[name], marker, color=color, label=name)
        lower.set_axisbelow(True)
        lower.bar(place, share, color=COLORS["null"], width=0.5)
        for axis, what in ((upper, "effect on the logit"), (lower, "share κ")):
            axis.axhline(0, color=COLORS["ink"], lw=0.8)
            axis.set_ylabel(what)
        lower.set_xticks(place, answers.index, rotation=90 * (len(answers) > 12))
        lower.set_xlabel("part, in the order in which they are written")
        figure.legend(loc="outside upper center", ncols=4)
    first = answers.loc[share.idxmax()]
    values = ", ".join(f"{name} {first[name]:.2f}" for name in _ANSWERS)
    turned = ", ".join(answers.index[answers["frozen"] * answers["direct"] < 0]) or "none"
    return figure, (
        f"{', '.join(_ANSWERS).capitalize()} effect of each part. Largest share of the scale: {first.name} with "
        f"{first['share κ']:.2f}; there {values}. Parts whose mean frozen and direct effects differ in sign: {turned}."
    )


def frozen_against_direct(questions: Mapping[str, Effects]) -> tuple[Figure, str]:
    """Direct effect against frozen contribution of one part, one panel a question, every fourth position a point."""
    words = []
    with style():
        figure, axes = plt.subplots(1, len(questions), figsize=(WIDTH, 3.4), squeeze=False)
        for axis, (title, e) in zip(axes[0], questions.items(), strict=True):
            pairs = torch.stack([e.frozen.flatten(), e.removed.flatten()])[:, ::4].cpu()
            axis.plot(*pairs, ".", color=COLORS["uniform"], ms=3, alpha=0.6)
            ends = [float(pairs.min()), float(pairs.max())]
            axis.plot(ends, ends, color=COLORS["ink"], lw=1)
            axis.set(title=title, xlabel="frozen contribution")
            larger = 100 * float((e.frozen > e.removed).double().mean())
            words.append(f"{title}, at {larger:.0f} % of the positions")
        axes[0, 0].set_ylabel("direct effect")
    return figure, f"Direct effect against frozen contribution. The frozen one is larger: {'; '.join(words)}."


def lenses_by_part(read: pd.DataFrame) -> tuple[Figure, str]:
    """The divergence of two logit lenses behind each part from the final prediction; beside it, the stream's scale."""
    nats, scale = read.iloc[:-1], read["scale"]  # behind the last part both are the prediction
    own, final = nats["KL, own scale / nats"], nats["KL, final scale / nats"]
    with style():
        figure, (left, right) = plt.subplots(1, 2, figsize=(WIDTH, 3.6))
        left.plot(nats.index, own, "o-", color=COLORS["uniform"], label="own scale")
        left.plot(nats.index, final, "s--", color=COLORS["random_a"], label="final scale")
        left.set(yscale="log", ylabel="KL from the final prediction / nats")
        ticks_of_powers(left.yaxis)
        left.legend()
        right.plot(read.index, scale, "o-", color=COLORS["ink"])
        right.set(ylabel="mean scale of the stream", ylim=0)
        for axis in (left, right):
            axis.set_xlabel("read behind part")
            axis.tick_params(axis="x", rotation=90 if len(read) > 12 else 45)
    return figure, (
        f"Left: the divergence falls from {own.iloc[0]:.2g} nats with its own and {final.iloc[0]:.2g} with the final "
        f"scale behind {nats.index[0]} to {own.iloc[-1]:.2g} and {final.iloc[-1]:.2g} behind {nats.index[-1]}. Right: "
        f"the scale grows from {scale.iloc[0]:.2g} to {scale.iloc[-1]:.2g}, the largest step behind "
        f"{scale.diff().idxmax()}."
    )


def fading_part(faded: pd.DataFrame, kept: float) -> tuple[Figure, str]:
    """What two attributions promise while a part fades, and the truth; beside it what the part and the others bring."""
    looks = {
        "frozen": ("--", COLORS["random_a"]),
        "tangent": (":", COLORS["random_b"]),
        "logit": ("-", COLORS["uniform"]),
    }
    name, so_far, here, whole = faded.index.name, faded[faded.index >= kept], faded.loc[kept], faded.iloc[0]
    with style():
        figure, (left, right) = plt.subplots(1, 2, figsize=(5, 3.4), sharey=True, width_ratios=(2, 1))
        for column, (dash, color) in looks.items():
            left.plot(faded.index, faded[column], dash, color=color, alpha=0.35)
            left.plot(so_far.index, so_far[column], dash, color=color, lw=2.5, label=column.replace("logit", "truth"))
            left.plot(kept, here[column], "o", color=color, ms=6)
        left.set(xlabel=f"{name} kept", ylabel="logit above the mean", xlim=(1.04, -0.04))
        right.set_axisbelow(True)
        look = dict(width=0.6, tick_label=[name, "others"], color=("#CC79A7", "#56B4E9"))
        right.bar((0, 1), here[["part", "others"]], **look)
        right.hlines(whole[["part", "others"]], (-0.4, 0.6), (0.4, 1.4), color=COLORS["ink"])
        right.set_title("who brings it")
        figure.legend(loc="outside upper left", ncols=3)
    values = ", ".join(f"{words} {whole[column] - here[column]:.1f}" for column, words in _LOST.items())
    return figure, (
        f"With {kept:g} of {name} kept, the logit of the next token above the mean is {here.logit:.1f} of "
        f"{whole.logit:.1f}; lost are {values}. The part brings {here.part:.1f}, of {whole.part:.1f}, and the others "
        f"{here.others:.1f}, of {whole.others:.1f}."
    )
