"""Chapter 12: removal of norms one by one, and pictures of what has taken LayerNorm's place."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from normgeom.models.sites import find_norms
from normgeom.norms.elementwise import dyt
from normgeom.norms.functions import rms_norm
from normgeom.training.stages import held_out_loss
from normgeom.training.twins import adamw
from normgeom.view.style import COLORS, WIDTH, style, ticks_of_powers
from torch import Tensor, nn

from normgeom_lab.common.growth import Growth

if TYPE_CHECKING:
    from jaxtyping import Int

    Ids = Int[Tensor, "batch length"]


def removal_order(model: nn.Module, example: Ids) -> list[str]:
    """Names of a GPT-2's norms as they are best taken out: those of the MLPs, of attention, and the final one.

    Each group from the first block to the last.

    Args:
        example: token ids that the model takes.

    Source: Baroni et al. (2025), who take queries and keys out of attention's before values.
    """
    names = [site.name for site in find_norms(model, example)]
    groups = [[name for name in names if name.endswith(end)] for end in ("ln_2", "ln_1", "ln_f")]
    return list(itertools.chain(*groups))


def remove_norms(
    model: nn.Module,
    batches: Iterator[Ids],
    held_out: Sequence[Ids],
    freeze: Callable[[nn.Module, list[Ids], list[str]], object],
    rate: float,
    gap: int,
    settle: int,
    order: Sequence[str] = (),
) -> pd.DataFrame:
    """Freeze norms one by one, each on the next batch, and train a little after each.

    AdamW at one rate, gradients clipped to length 1, no decay.

    Args:
        model: a causal language model of transformers; trained in place, left in evaluation mode.
        batches: token ids to train on, as many as are asked for.
        held_out: batches of which the loss is measured.
        freeze: :func:`normgeom.freeze_norms`, or what else takes the norms of a model that are named out of it.
        rate: the learning rate.
        gap: updates after each norm.
        settle: updates after the last one, and with an empty ``order`` all that there are.
        order: names of norms.

    Returns:
        one row for the model as it is given, one for each norm taken out, by the number of updates so far: ``site``,
        ``frozen``, how many are out; ``loss`` of the held-out batches in nats a token as soon as it is out; and one row
        at the end, whose ``site`` is empty as the first one's.

    Raises:
        ValueError: a size below 1, or errors of ``freeze``.
    """
    for name, value in (("gap", gap), ("settle", settle)):
        if value < 1:
            raise ValueError(f"{name}: expected at least 1, got {value}")
    optimizer = adamw(model, rate, decay=0.0)
    rows = [dict(updates=0, site="", frozen=0, loss=held_out_loss(model, held_out))]
    done = 0
    for number, site in enumerate(order, 1):
        freeze(model, [next(batches)], [site])
        rows.append(dict(updates=done, site=site, frozen=number, loss=held_out_loss(model, held_out)))
        done += _tune(model, optimizer, batches, gap)
    done += _tune(model, optimizer, batches, settle)
    rows.append(dict(updates=done, site="", frozen=len(order), loss=held_out_loss(model, held_out)))
    return pd.DataFrame(rows)


def _tune(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Iterator[Ids], updates: int) -> int:
    model.train()
    for ids in itertools.islice(batches, updates):
        optimizer.zero_grad()
        model(ids, labels=ids).loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    model.eval()
    return updates


# What the designs of the records are called in words.
TITLES = {
    "pre": "pre-norm",
    "pre-rms": "pre-norm, RMSNorm",
    "post": "post-norm",
    "deepnorm": "DeepNorm",
    "sandwich": "sandwich (Peri-LN)",
    "branch-out": "branch-out",
    "mix": "Mix-LN",
    "hybrid": "HybridNorm",
    "scaled": "LayerNorm scaling",
    "keel": "Keel",
    "qk": "pre-norm with QK-norm",
    "sphere": "sphere (nGPT)",
    "dyt": "DyT",
    "derf": "Derf",
    "none": "no norms",
    "post-small": "post-norm, small outputs",
    "hybrid-small": "HybridNorm, small outputs",
    "post-alpha": "post-norm, α = L",
    "pre-post": "norms before and on sums",
}

_LOOKS = {
    "pre": dict(color="#D55E00", marker="s"),
    "sandwich": dict(color="#009E73", marker="v"),
    "scaled": dict(color="#0072B2", marker="o"),
    "mix": dict(color="#CC79A7", marker="D"),
    "hybrid": dict(color="#E69F00", marker="^"),
    "keel": dict(color="#2F2F2F", marker="x"),
}

_MARKS = ("o", "s", "^", "D")


def growth_of_designs(grown: Mapping[str, Growth]) -> tuple[Figure, str]:
    """Mean square of the stream and size of the updates by sublayer.

    Args:
        grown: of each design, a key of :data:`TITLES`.

    Returns:
        the figure and its alt text, with the last numbers.
    """
    with style():
        figure, (size, late) = plt.subplots(2, 1, figsize=(WIDTH, 5.2), sharex=True)
        words = []
        for name, found in grown.items():
            square, update = found.square.mean(0).numpy(), found.update.mean(0).numpy()
            look = dict(_LOOKS.get(name, {}), label=TITLES[name], markevery=4)
            size.plot(np.arange(len(square)), square, **look)
            late.plot(np.arange(1, len(square)), update, **look)
            words.append(f"{TITLES[name]} {square[-1]:.2g} and {update[-1]:.2g}")
        size.set(ylabel="mean square of the stream", ylim=(0, None))
        late.set(yscale="log", ylim=(0.01, 1.5), xlabel="sublayer", ylabel="update over stream")
        ticks_of_powers(late.yaxis)
        figure.legend(*size.get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return figure, (
        "Two panels of lines over the sublayers. Mean square of the stream behind the last one, and how much that one "
        f"changes it: {'; '.join(words)}."
    )


def losses_of_designs(best: pd.DataFrame, beyond: float) -> tuple[Figure, str]:
    """Losses of designs, each at its best rate, by depth: a mark a depth, a bar over the seeds.

    Args:
        best: one row a (design, layers): ``design``, a key of :data:`TITLES`, ``layers``, ``mean``, ``low``, ``high``.
        beyond: means that are larger are not drawn.

    Returns:
        the figure and its alt text.
    """
    order = best.groupby("design").mean(numeric_only=True)["mean"].sort_values().index
    depths = sorted(best.layers.unique())
    with style():
        figure, axis = plt.subplots(figsize=(WIDTH, 0.5 + 0.34 * len(order)))
        for k, depth in enumerate(depths):
            drawn = best[(best.layers == depth) & (best["mean"] <= beyond)]
            rows = drawn.set_index("design").reindex(order)
            at = np.arange(len(order)) + 0.22 * (k - (len(depths) - 1) / 2)
            bars = np.abs(rows[["low", "high"]].to_numpy().T - rows["mean"].to_numpy())
            axis.errorbar(rows["mean"], at, xerr=bars, fmt=_MARKS[k], ms=5, lw=1.2, label=f"{depth} blocks")
        axis.set(yticks=range(len(order)), yticklabels=[TITLES[name] for name in order], xlabel="loss / nats a byte")
        axis.invert_yaxis()
        figure.legend(loc="outside upper center", ncols=len(depths))
    means = best.sort_values("layers").assign(
        said=best["mean"].map(lambda mean: f"{mean:.2f}" if mean <= beyond else f"beyond {beyond:g}")
    )
    words = "; ".join(f"{TITLES[name]} {', '.join(means[means.design == name].said)}" for name in order)
    return figure, f"Losses in nats a byte at {', '.join(map(str, depths))} blocks, the lowest above: {words}."


def what_becomes_of_rays() -> tuple[Figure, str]:
    """Rays of the plane, and what RMSNorm, DyT and a frozen norm with the same gain make of them.

    Returns:
        the figure and its alt text.
    """
    gain, lengths = torch.tensor([1.0, 0.6]), torch.linspace(0.05, 3, 60)
    angles = torch.arange(12) * (2 * math.pi / 12) + math.pi / 12
    rays = lengths[:, None, None] * torch.stack([angles.cos(), angles.sin()], -1)  # (lengths, rays, 2)
    panels = {
        "vectors on rays": rays,
        "RMSNorm: a point a ray": rms_norm(rays, gain, eps=0.0),
        "DyT: a curve a ray": dyt(rays, 1.0, gain),
        "frozen norm: still a ray": rays * gain / lengths.mean(),
    }
    with style():
        figure, axes = plt.subplots(2, 2, figsize=(WIDTH, WIDTH))
        for axis, (title, points) in zip(axes.flat, panels.items(), strict=True):
            for k, ray in enumerate(points.unbind(1)):
                axis.plot(*ray.T, f"C{k % 6}", marker="o", ms=4, markevery=[-1])
            reach = 3.2 if points is rays else 2.1
            axis.set(title=title, xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")
        turn = torch.linspace(0, 2 * math.pi, 200)
        ellipse = math.sqrt(2) * torch.stack([turn.cos(), turn.sin()]) * gain[:, None]
        axes[0, 1].plot(*ellipse, color=COLORS["null"], lw=0.8)
        box = torch.tensor([[-1, 1, 1, -1, -1], [-1, -1, 1, 1, -1]]) * gain[:, None]
        axes[1, 0].plot(*box, color=COLORS["null"], lw=0.8)
    return figure, (
        "Four panels. Twelve rays of vectors from the origin, each in its colour. After RMSNorm each ray is a point of "
        "an ellipse. After DyT each is a curve from the middle of a box towards its edge, to which it bends. After a "
        "norm with a frozen scale they are rays still, the plane pressed together in one direction."
    )


def step_on_the_sphere(*steps: float) -> tuple[Figure, str]:
    """By what angle nGPT's step turns the stream, against its angle to what the branch proposes.

    Args:
        steps: step sizes a, each between 0 and ½.

    Returns:
        the figure and its alt text, with the largest angles.
    """
    theta, words = np.linspace(0, np.pi, 721), []
    with style():
        figure, axis = plt.subplots()
        for k, a in enumerate(steps):
            phi = np.degrees(np.arctan2(a * np.sin(theta), 1 - a + a * np.cos(theta)))
            (line,) = axis.plot(np.degrees(theta), phi, label=f"a = {a:g}")
            axis.plot(np.degrees(theta), a * np.degrees(theta), color=line.get_color(), lw=1, ls="--")
            top = int(phi.argmax())
            axis.plot(np.degrees(theta[top]), phi[top], _MARKS[k], color=line.get_color(), ms=6)
            words.append(f"for a = {a:g} up to {phi[top]:.1f} degrees at {np.degrees(theta[top]):.0f}")
        axis.set(xlabel="angle θ to what the branch proposes / degrees", ylabel="angle φ of the step / degrees")
        axis.set(xticks=range(0, 181, 45), ylim=(0, 45))
        figure.legend(loc="outside upper center", ncols=len(steps))
    return figure, (
        "Curves that rise from 0, turn round behind a right angle and are back at 0 for an opposite proposal: "
        f"{'; '.join(words)}. Dashed, the lines aθ, which each follows at small angles."
    )


def removed_one_by_one(runs: pd.DataFrame) -> tuple[Figure, str]:
    """The loss while norms are frozen one at a time and trained on, over updates, beside training with all norms.

    Args:
        runs: ``updates``, ``site``, ``frozen``, ``loss``, ``arm`` (``"removed"`` or ``"kept"``) and ``seed``.

    Returns:
        the figure and its alt text, with mean losses.
    """
    removed, kept = (runs[runs.arm == arm] for arm in ("removed", "kept"))
    course = removed.groupby(["updates", "frozen"]).loss.agg(["mean", "min", "max"]).reset_index()
    other = kept.groupby("updates").loss.agg(["mean", "min", "max"]).reset_index()
    with style():
        figure, axis = plt.subplots()
        for rows, look in (
            (course, dict(color="#D55E00", marker="o")),
            (other, dict(color="#0072B2", marker="s", ls="--")),
        ):
            bars = np.abs(rows[["min", "max"]].to_numpy().T - rows["mean"].to_numpy())
            name = "norms frozen one by one" if rows is course else "all norms kept"
            axis.errorbar(rows.updates, rows["mean"], yerr=bars, lw=1.6, ms=4.5, label=name, **look)
        axis.set(xlabel="updates", ylabel="loss / nats a byte")
        figure.legend(loc="outside upper center", ncols=2)
    first, worst, last = course["mean"].iloc[0], course["mean"].max(), course["mean"].iloc[-1]
    return figure, (
        f"Loss over updates. From {first:.3f} nats it rises, with a jump and a descent at most norms, to at most "
        f"{worst:.3f}, and ends at {last:.3f} with no norm dividing; with all norms and as much training it ends at "
        f"{other['mean'].iloc[-1]:.3f}. Bars, the range of {runs.seed.nunique()} seeds."
    )
