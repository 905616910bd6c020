"""Pictures of what a norm forgets: what it maps to one output, its small changes, the scale, and keys of a head."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from normgeom.norms.functions import check_floating, layer_norm
from normgeom.view.style import COLORS, WIDTH, style, ticks_of_powers

_RADIUS = 0.6  # of the circle of changes
_POINTS = ((0.5, -1.2), (0.5, 1.0), (1.4, -0.3))  # σ and mean
_AXES = ((1.0, -1.0, 0.0), (1.0, 1.0, -2.0))  # of the plane orthogonal to (1, 1, 1)


def fibres_of_layer_norm(*eps: float) -> tuple[Figure, str]:
    """The plane of 1 and a direction u across it, shaded by what LayerNorm makes of each point (prop-fibres).

    Args:
        eps: ε of each panel, in the units of the axes: the mean, and σ signed along u.

    Returns:
        the figure, with three points in each panel, and its alt text with the shades of these points.

    Raises:
        ValueError: no ε, or a negative one.
    """
    if not eps or not min(eps) >= 0:
        raise ValueError(f"eps: expected some numbers >= 0, got {eps}")
    along = torch.linspace(-2, 2, 401)
    words = []
    with style():
        figure, axes = plt.subplots(1, len(eps), figsize=(WIDTH, 2.6), sharey=True, squeeze=False)
        for axis, e in zip(axes[0], eps, strict=True):
            shade = along / torch.sqrt(along**2 + e)  # 0/0 stays white
            picture = axis.imshow(shade.expand(2, -1).numpy(), "cividis", vmin=-1, vmax=1, extent=[-2, 2] * 2)
            axis.plot(*zip(*_POINTS, strict=True), "o", color="w", mec=COLORS["ink"])
            axis.grid(False)
            axis.set(title=f"ε = {e:g}", xlabel="σ, signed, along u")
            values = ", ".join(f"{sigma / math.sqrt(sigma**2 + e):.2f}" for sigma, _ in _POINTS)
            change = "changes from left to right only" if e else "is −1 in the left half and +1 in the right"
            words.append(f"ε = {e:g}: the shade {change}; at the points it is {values}.")
        axes[0, 0].set_ylabel("mean m")
        figure.colorbar(picture, ax=axes, label="n along u, over √d")
    points = "two above each other and one farther out"
    return figure, f"The plane of 1 and u, a panel for each ε, with three points: {points}. {' '.join(words)}"


def errors_of_scale(
    sigmas: Sequence[float], found: Mapping[str, Sequence[float]], predicted: Mapping[str, Sequence[float]], eps: float
) -> tuple[Figure, str]:
    """Relative error of σ, read from an output, against σ: a line and markers for each format (claim-ladder).

    Args:
        sigmas: rising.
        found, predicted: for the name of each format, four at most, an error for each of ``sigmas``.
        eps: ε of the norm, whose root is marked.

    Returns:
        the figure and its alt text.
    """
    words = []
    with style():
        figure, axis = plt.subplots(figsize=(WIDTH, 3.8))
        for (name, errors), marker in zip(found.items(), "os^D", strict=False):
            (line,) = axis.plot(sigmas, predicted[name])
            axis.plot(sigmas, errors, marker, color=line.get_color(), label=name)
            first = next((i for i, error in enumerate(errors) if error > 0.1), 0)
            words.append(
                f"{name} passes 10 % between σ = {sigmas[first - 1]:.2g} and {sigmas[first]:.2g}"
                if first
                else f"{name} goes from {errors[0]:.0e} to {errors[-1]:.0e} at σ = {sigmas[-1]:g}"
            )
        axis.axvline(eps**0.5, color=COLORS["null"], linestyle=":")
        axis.annotate("√ε", (eps**0.5, 0.2), (4, 0), textcoords="offset points")
        axis.set(xscale="log", yscale="log", ylim=(1e-17, 5), xlabel="σ", ylabel="median relative error")
        ticks_of_powers(axis.xaxis, axis.yaxis, most=6)
        figure.legend(*axis.get_legend_handles_labels(), loc="outside upper center", ncols=4, handlelength=1)
    return figure, (
        f"For each format the error is flat below σ = √ε = {eps**0.5:.1g} and then grows with the square of σ along "
        f"its line: {'; '.join(words)}."
    )


def change_around_x(sigma_over_root_eps: float) -> tuple[Figure, str]:
    """Small changes around Πx and what a norm without gain makes of them to first order (prop-no-gain).

    Above the plane of Πx and one direction across, in units of √(dε) for inputs and √d for outputs; below the two
    singular values over σ, times √ε.

    Args:
        sigma_over_root_eps: σ in units of √ε; the frame shows up to 4.

    Returns:
        the figure and its alt text.

    Raises:
        ValueError: ``sigma_over_root_eps`` is negative or not finite.
    """
    sigma = sigma_over_root_eps
    if not 0 <= sigma < math.inf:
        raise ValueError(f"sigma_over_root_eps: expected a number >= 0, got {sigma}")
    s = math.sqrt(1 + sigma**2)
    with style():
        figure, (upper, lower) = plt.subplots(2, 1, figsize=(WIDTH, 5.6))
        _changes(upper, sigma, s)
        grid = torch.logspace(-1.3, 1.3, 100)
        lower.plot(grid, (1 + grid**2) ** -0.5, label="across, 1/s")
        lower.plot(grid, (1 + grid**2) ** -1.5, "--", label="along x, (1/s)·(ε/s²)")
        lower.plot([sigma, sigma], [1 / s, 1 / s**3], "D", color=COLORS["ink"])
        lower.set(xscale="log", yscale="log", xlabel="σ / √ε", ylabel="singular value · √ε")
        ticks_of_powers(lower.xaxis, lower.yaxis)
        lower.legend(loc="lower left")
    return figure, (
        f"Above: a circle of radius {_RADIUS} around Πx, which is {sigma:g} from the origin, and its image, an ellipse "
        f"around n at {sigma / s:.2f} inside the unit circle, with half-axes {_RADIUS / s**3:.2g} along Πx and "
        f"{_RADIUS / s:.2g} across. "
        f"Below: two curves that are 1 at small σ/√ε and fall, 1/s slower than (1/s)·(ε/s²); "
        f"at σ/√ε = {sigma:g} they are marked at {1 / s:.2g} and {1 / s**3:.2g}."
    )


def _changes(axis: Axes, sigma: float, s: float) -> None:
    turn = torch.linspace(0, 2 * torch.pi, 200)
    along, across = turn.cos(), turn.sin()
    inputs, outputs = COLORS["random_a"], COLORS["uniform"]
    axis.plot(along, across, color=COLORS["null"], lw=0.8)
    axis.fill(sigma / s + _RADIUS * along / s**3, _RADIUS * across / s, color=outputs, alpha=0.5, lw=1)
    axis.plot(sigma / s, 0, "s", ms=2.5, color=outputs, label="n and the image")
    axis.plot(sigma + _RADIUS * along, _RADIUS * across, color=inputs)
    axis.plot(sigma, 0, "o", color=inputs, label="Πx and changes")
    axis.set(xlim=(-1.2, 4.8), ylim=(-1.3, 2.4), aspect="equal", xlabel="along Πx", ylabel="across")
    axis.legend(loc="upper right")


def sinking_key(x: Tensor, eps: float) -> tuple[Figure, str]:
    """LayerNorm's keys of tokens of ℝ³ in the plane orthogonal to (1, 1, 1): is the first one selectable?

    Args:
        x: ``(N, 3)``, floating point, N at least 4; the first row is the key in question.
        eps: ε of the norm, whose gain is 1.

    Returns:
        the figure, with the hull of the other keys (which are in the order of their angles), and its alt text with the
        first key's largest margin over the others, among queries of length 1 (prop-sinking).

    Raises:
        TypeError: ``x`` is not a floating-point tensor.
        ValueError: ``x`` has another shape, or ``eps`` is negative.
    """
    check_floating("x", x)
    if x.dim() != 2 or len(x) < 4 or x.shape[1] != 3:
        raise ValueError(f"x: expected shape (N, 3) with N at least 4, got {tuple(x.shape)}")
    plane = torch.nn.functional.normalize(torch.tensor(_AXES).to(x), dim=-1)
    own, *rest = layer_norm(x, eps=eps) @ plane.T
    others = torch.stack(rest)
    turn = torch.linspace(0, 2 * torch.pi, 36_001).to(x)  # fine enough for two digits of the margin
    scores = (own - others) @ torch.stack([turn.cos(), turn.sin()])
    margin = float(scores.amin(0).max())
    verdict = "selectable" if margin > 1e-9 else "not selectable"
    sigma, *spreads = x.std(-1, correction=0).tolist()
    with style():
        figure, axis = plt.subplots(figsize=(WIDTH, 3.6))
        axis.add_patch(plt.Circle((0, 0), 3**0.5, fill=False, ls=":", ec=COLORS["null"]))
        axis.fill(*others.T, color=COLORS["null"], alpha=0.25, label="hull of the others")
        axis.plot(*others.T, "s", color=COLORS["random_a"], label=f"others, σ ≥ {min(spreads):.2g}")
        axis.plot(*own, "o", ms=8, color=COLORS["uniform"], label=f"σ = {sigma:.2g}")
        axis.set(xlim=(-2.1, 2.1), ylim=(-2.1, 2.1), aspect="equal", title=verdict)
        axis.set(xlabel="along (1, −1, 0)", ylabel="along (1, 1, −2)")
        axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure, (
        f"{len(x)} keys in the plane with ε = {eps:g}: {len(rest)} at distances {_range(others.norm(dim=-1))} from the "
        f"centre, on or near a circle of radius 1.73, and one at {float(own.norm()):.2f}. "
        f"It is {verdict}: the query of length 1 that prefers it most scores it {abs(margin):.2f} "
        f"{'above' if margin > 0 else 'below'} the best of the others."
    )


def _range(values: Tensor) -> str:
    least, most = (f"{float(v):.2f}" for v in (values.min(), values.max()))
    return least if least == most else f"{least} to {most}"
