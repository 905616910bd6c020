"""Chapter 5: training of weights that feed a norm, and figures with their alt texts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from normgeom.geometry.uniform import angle
from normgeom.norms.functions import rms_norm
from normgeom.view.style import COLORS, WIDTH, style
from torch import Tensor

from normgeom_lab.common.axes import label_ends, ticks_of_powers
from normgeom_lab.common.checks import Draws
from normgeom_lab.common.pictures import LINES

OUTPUTS, INPUTS, BATCH = 16, 12, 16


class ScaleFreeRun(NamedTuple):
    """After each step, the length of W and the degrees by which the step turned it, both ``(steps,)``."""

    lengths: Tensor
    turns: Tensor


def train_scale_free(start: float, eps: float, steps: int, seed: int, rate: float, decay: float) -> ScaleFreeRun:
    """Train W of RMSNorm(Wh) by gradient steps with decoupled decay, W⁺ = (1 − ηλ)W − η∇f (claim-equilibrium).

    f is the mean over 16 Gaussian h of half the squared distance to targets: RMSNorm with ε = 0 of another random
    16 × 12 matrix at h, plus Gaussian noise. RMSNorm has no gain.
    """
    draw = Draws(seed)
    teacher, weight = draw(OUTPUTS, INPUTS), draw(OUTPUTS, INPUTS)
    weight = start * weight / weight.norm()
    lengths, turns = [], []
    for _ in range(steps):
        h = draw(BATCH, INPUTS)
        target = rms_norm(h @ teacher.T, eps=0.0) + draw(BATCH, OUTPUTS)
        before = weight.requires_grad_()
        loss = (rms_norm(h @ before.T, eps=eps) - target).square().sum() / (2 * BATCH)
        (slope,) = torch.autograd.grad(loss, before)
        before = before.detach()
        weight = (1 - rate * decay) * before - rate * slope
        turns.append(angle(weight.flatten(), before.flatten()))
        lengths.append(weight.norm())
    return ScaleFreeRun(torch.stack(lengths), torch.stack(turns))


_TURNS = 20  # the number of steps that turns_over_steps averages


def turns_over_steps(
    runs: Mapping[float, ScaleFreeRun], with_eps: Mapping[float, ScaleFreeRun], predicted: float
) -> tuple[Figure, str]:
    """The length of weights that feed a norm, and the angle by which a step turns them, means of 20 steps."""

    def smooth(run: ScaleFreeRun) -> tuple[list[float], list[float]]:
        means = run.turns.unfold(0, _TURNS, _TURNS).mean(-1).tolist()
        return [_TURNS * (i + 0.5) for i in range(len(means))], means

    words = []
    with style():
        figure, (left, right) = plt.subplots(1, 2, figsize=(WIDTH, 3.2))
        for (start, run), dash in zip(runs.items(), LINES, strict=False):
            left.plot([start, *run.lengths.tolist()], linestyle=dash, label=f"start {start:g}")
            right.plot(*smooth(run), linestyle=dash)
            farthest = max(run.lengths.tolist(), key=lambda length: abs(math.log(length / start)))  # as a ratio
            words.append(f"from {start:g} via {farthest:.1f} to {run.lengths[-1]:.1f}")
        for (eps, run), marker in zip(with_eps.items(), "^v", strict=False):
            right.plot(*smooth(run), marker, ms=3, label=f"ε = {eps:g}")
        right.axhline(predicted, color=COLORS["null"], lw=3, alpha=0.5, zorder=0)
        left.set(xlabel="step", ylabel="length of W", ylim=(0, None))
        right.set(xlabel="step", ylabel="turn per step / degrees", ylim=(0, 1.35 * predicted))
        left.legend()
        label_ends(right)
    named = {f"start {start:g}": run for start, run in runs.items()} | {f"ε = {e:g}": r for e, r in with_eps.items()}
    late = ", ".join(f"{run.turns[len(run.turns) // 2 :].mean():.1f} ({name})" for name, run in named.items())
    return figure, (
        f"Left: the length of W during training goes {'; '.join(words)}. Right: the turn per step, whose mean over "
        f"the second half is, in degrees, {late}; a grey line is at {predicted:.1f}."
    )


_RADIUS = 0.6  # of the circle of changes


def change_around_x(sigma_over_root_eps: float) -> tuple[Figure, str]:
    """A circle of small changes around Πx and its image under the Jacobian of a norm without gain (prop-no-gain).

    Above, the plane of Πx and one orthogonal direction, in units of √(dε) for inputs and √d for outputs; below, the
    two singular values times √ε, by σ.
    """
    sigma = sigma_over_root_eps
    s = math.sqrt(1 + sigma**2)
    with style():
        figure, (upper, lower) = plt.subplots(2, 1, figsize=(WIDTH, 5.6))
        turn = torch.linspace(0, 2 * torch.pi, 200)
        along, across = turn.cos(), turn.sin()
        inputs, outputs = COLORS["random_a"], COLORS["uniform"]
        upper.plot(along, across, color=COLORS["null"], lw=0.8)
        upper.fill(sigma / s + _RADIUS * along / s**3, _RADIUS * across / s, color=outputs, alpha=0.5, lw=1)
        upper.plot(sigma / s, 0, "s", ms=2.5, color=outputs, label="n and the image")
        upper.plot(sigma + _RADIUS * along, _RADIUS * across, color=inputs)
        upper.plot(sigma, 0, "o", color=inputs, label="Πx and changes")
        upper.set(xlim=(-1.2, 4.8), ylim=(-1.3, 2.4), aspect="equal", xlabel="along Πx", ylabel="orthogonal")
        upper.legend(loc="upper right")
        grid = torch.logspace(-1.3, 1.3, 100)
        lower.plot(grid, (1 + grid**2) ** -0.5, label="orthogonal, 1/s")
        lower.plot(grid, (1 + grid**2) ** -1.5, "--", label="along x, (1/s)·(ε/s²)")
        lower.plot([sigma, sigma], [1 / s, 1 / s**3], "D", color=COLORS["ink"])
        lower.set(xscale="log", yscale="log", xlabel="σ / √ε", ylabel="singular value · √ε")
        ticks_of_powers(lower.xaxis, lower.yaxis)
        label_ends(lower)
    return figure, (
        f"Above: a circle of radius {_RADIUS} around Πx, which is {sigma:g} from the origin, and its image, an ellipse "
        f"around n at {sigma / s:.2f} inside the unit circle, with semi-axes {_RADIUS / s**3:.2g} along Πx and "
        f"{_RADIUS / s:.2g} in the orthogonal direction. "
        f"Below: two curves start near 1 at small σ/√ε and fall, 1/s more slowly than (1/s)·(ε/s²); "
        f"at σ/√ε = {sigma:g} they are marked at {1 / s:.2g} and {1 / s**3:.2g}."
    )
