"""Chapter 4: keys that cannot be selected, decoders of what a norm discards, and figures with their alt texts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import matplotlib.pyplot as plt
import pandas as pd
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from normgeom.models.sites import NormSite, find_norms
from normgeom.models.watch import evaluating, forward, watch
from normgeom.norms.functions import layer_norm, rms_norm
from normgeom.view.style import COLORS, WIDTH, style
from torch import Tensor, nn
from transformers import GPT2Config

from normgeom_lab.common.axes import ticks_of_powers
from normgeom_lab.common.loop import random_windows, train
from normgeom_lab.common.space import ONE_UP
from normgeom_lab.common.variants import variant


def selectable(keys: Tensor) -> Tensor:
    """For each key whether a query was found that scores it strictly above all others (def-selectable).

    A point walks within the hull of the other keys towards the key. The direction from the point to the key is the
    query to try; if it fails, the point steps towards the key that it prefers. A key in the hull is never found, and
    one just outside may take more than the 300 steps that are tried (thm-selectable).
    """
    found = torch.zeros(len(keys), dtype=torch.bool)
    left = torch.arange(len(keys))  # the keys for which no query is found yet
    inside = torch.zeros_like(keys)
    for number in range(300):
        query = keys[left] - inside
        scores = query @ keys.T
        own = scores.gather(1, left[:, None])[:, 0]
        best, top = scores.scatter(1, left[:, None], -torch.inf).max(-1)
        hit = own > best + 1e-12
        found[left[hit]] = True
        left, inside, query, top = (t[~hit] for t in (left, inside, query, top))
        if not len(left):
            break
        step = keys[top] - inside
        length = (query * step).sum(-1) / step.square().sum(-1).clamp(min=1e-30)
        length = length.clamp(0, 1) if number else torch.ones_like(length)  # at first, jump from the origin to a key
        inside = inside + length[:, None] * step
    return found


def selectable_shares(widths: Sequence[int], trials: int, generator: torch.Generator) -> dict[str, dict[int, float]]:
    """The share of keys that heads of several widths can select, with no norm, one norm or two norms.

    Keys are 256 Gaussian vectors of 768 features, multiplied by e^g with standard normal g, times a Gaussian matrix W
    of that width; then with a LayerNorm before W; then also with an RMSNorm after W, all with ε = 0 (claim-head-width).
    """

    def draw(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    heads = ("no norm", "norm, then W", "norm, W, norm")
    shares = {name: dict.fromkeys(widths, 0.0) for name in heads}
    for width in widths:
        for _ in range(trials):
            x = draw(256, 1).exp() * draw(256, 768)
            w = draw(768, width) / 768**0.5
            projected = layer_norm(x, eps=0.0) @ w
            for name, keys in zip(heads, (x @ w, projected, rms_norm(projected, eps=0.0)), strict=True):
                shares[name][width] += float(selectable(keys).double().mean()) / trials
    return shares


def random_layer(d: int, width: int, generator: torch.Generator) -> Callable[[Tensor], Tensor]:
    """GELU of a random linear map: the hidden layer of a network of which only the last layer is trained."""
    weight = torch.randn(d, width, generator=generator, dtype=torch.float64) / d**0.5
    return lambda rows: F.gelu(rows @ weight)


def held_out_scores(seen: Tensor, targets: Mapping[str, Tensor]) -> dict[str, float]:
    """R² = 1 − Σ‖t − t̂‖²/Σ‖t − t̄‖² of an affine decoder of ``seen``, for each target.

    The decoder is fitted by least squares to the first half of the rows and judged on the second.
    """
    half = len(seen) // 2
    inputs, wanted = F.pad(seen, (0, 1), value=1.0), torch.cat([*targets.values()], -1)
    decoder = torch.linalg.lstsq(inputs[:half], wanted[:half], driver="gelsd").solution
    guesses = (inputs[half:] @ decoder).split([target.shape[-1] for target in targets.values()], -1)
    scores = {}
    for (name, target), guess in zip(targets.items(), guesses, strict=True):
        truth = target[half:]
        scores[name] = 1 - float((guess - truth).square().sum() / (truth - truth.mean(0)).square().sum())
    return scores


def read_norms(model: nn.Module, batches: Sequence[Tensor]) -> pd.DataFrame:
    """How well an affine decoder reads mean and log σ of each LayerNorm's input from its output (claim-read-back).

    Returns: a row per norm, in order of use: :func:`held_out_scores` for ``mean`` and ``log σ``, and ``spread``, the
    standard deviation of the means over the median σ. Position 0 is left out: inputs there depend only on the token.
    """
    sites = find_norms(model, batches[0])
    seen: dict[str, list[tuple[Tensor, Tensor]]] = {}

    def keep(site: NormSite, x: Tensor, y: Tensor) -> None:
        seen.setdefault(site.name, []).append(tuple(v[:, 1:].flatten(0, 1).double() for v in (x, y)))

    with watch(model, sites, keep), evaluating(model):
        for ids in batches:
            forward(model, ids)
    rows = {}
    for name, pairs in seen.items():
        x, y = map(torch.cat, zip(*pairs, strict=True))
        mean, sigma = x.mean(-1, keepdim=True), x.std(-1, correction=0, keepdim=True)
        scores = held_out_scores(y, {"mean": mean, "log σ": sigma.log()})
        rows[name] = {**scores, "spread": float(mean.std() / sigma.median())}
    return pd.DataFrame.from_dict(rows, orient="index")


def scale_error(
    dtype: torch.dtype,
    sigma: float,
    generator: torch.Generator,
    d: int = 768,
    eps: float = 1e-5,
    rows: int = 500,
    given: torch.dtype | None = None,
) -> float:
    """The median relative error of σ, read from the length of LayerNorm's output, without gain and bias (claim-ladder).

    σ² = ερ²/(1 − ρ²) with ρ = ‖n‖/√d (prop-fibres). Inputs are Gaussian vectors in the format ``given``, outputs are
    rounded to ``dtype``. Infinity if half of the outputs or more are too long for any σ.
    """
    drawn = torch.randn(rows, d, generator=generator, dtype=torch.float64)
    x = (sigma * drawn).to(given or dtype)
    square = layer_norm(x, eps=eps).to(dtype).double().square().mean(-1)  # ρ²
    found = torch.where(square < 1, torch.sqrt(eps * square / (1 - square)), torch.inf)
    return float((found / x.double().std(-1, correction=0) - 1).abs().median())


def read_before_and_after(
    config: GPT2Config, seed: int, tokens: Tensor, held_out: Sequence[Tensor], steps: int
) -> pd.DataFrame:
    """:func:`read_norms` of a GPT-2 with LayerNorm, before and after training, by number of steps: 0 and ``steps``.

    A further column, ``loss``, has the mean of the last ten steps in nats per token, NaN before training.
    """
    drawn = random_windows(tokens, config.n_positions, 8, seed)
    model = variant(config, seed, "layer")
    before = read_norms(model, held_out)
    last = train(model, drawn, steps, 3e-3, f"model {seed}")[-10:]
    after = read_norms(model, held_out)
    readings = {0: before.assign(loss=math.nan), steps: after.assign(loss=sum(last) / len(last))}
    return pd.concat(readings, names=["updates", "norm"])


_POINTS = ((0.5, -1.2), (0.5, 1.0), (1.4, -0.3))  # σ and mean


def fibres_of_layer_norm(*eps: float) -> tuple[Figure, str]:
    """The plane of 1 and a direction u orthogonal to it, shaded by LayerNorm's output along u (prop-fibres)."""
    along = torch.linspace(-2, 2, 401)
    words = []
    with style():
        figure, axes = plt.subplots(1, len(eps), figsize=(WIDTH, 2.6), sharey=True, squeeze=False)
        for axis, e in zip(axes[0], eps, strict=True):
            shade = along / torch.sqrt(along**2 + e)  # 0/0 stays white
            picture = axis.imshow(shade.expand(2, -1).numpy(), "cividis", vmin=-1, vmax=1, extent=[-2, 2] * 2)
            axis.plot(*zip(*_POINTS, strict=True), "o", color="w", mec=COLORS["ink"])
            axis.grid(False)
            axis.set(title=f"ε = {e:g}", xticks=(-1, 0, 1), xlabel="x along u, over √d")
            values = ", ".join(f"{sigma / math.sqrt(sigma**2 + e):.2f}" for sigma, _ in _POINTS)
            change = "changes only from left to right" if e else "is −1 in the left half and +1 in the right half"
            words.append(f"ε = {e:g}: the shade {change}; at the points it is {values}.")
        axes[0, 0].set_ylabel("mean m")
        figure.colorbar(picture, ax=axes, label="n along u, over √d")
    points = "two in one vertical line and one farther out"
    return figure, f"The plane of 1 and u, a panel for each ε, with three points: {points}. {' '.join(words)}"


def errors_of_scale(
    sigmas: Sequence[float], found: Mapping[str, Sequence[float]], predicted: Mapping[str, Sequence[float]], eps: float
) -> tuple[Figure, str]:
    """The relative error of σ, read from an output, against σ: a line and markers for each format (claim-ladder)."""
    words = []
    with style():
        figure, axis = plt.subplots(figsize=(WIDTH, 3.8))
        for (name, errors), marker in zip(found.items(), "os^D", strict=False):
            (line,) = axis.plot(sigmas, predicted[name])
            axis.plot(sigmas, errors, marker, color=line.get_color(), label=name)
            above = 8 if predicted[name][0] == max(flat for flat, *_ in predicted.values()) else -16
            axis.annotate(name, (sigmas[0], predicted[name][0]), (-4, above), textcoords="offset points")
            first = next((i for i, error in enumerate(errors) if error > 0.1), 0)
            words.append(
                f"{name} passes 10 % between σ = {sigmas[first - 1]:.2g} and {sigmas[first]:.2g}"
                if first
                else f"{name} goes from {errors[0]:.0e} to {errors[-1]:.0e} at σ = {sigmas[-1]:g}"
            )
        axis.axvline(eps**0.5, color=COLORS["null"], linestyle=":")
        axis.annotate("√ε", (eps**0.5, 0.2), (4, 0), textcoords="offset points")
        axis.set(xscale="log", yscale="log", ylim=(1e-19, 5), xlabel="σ", ylabel="median relative error of σ")
        ticks_of_powers(axis.xaxis, axis.yaxis, most=6)
        axis.set_yticks([10.0**power for power in range(-18, 1, 3)])  # 1 is among them
    return figure, (
        f"For each format the error is constant below σ = √ε = {eps**0.5:.1g} and then grows like the square of σ "
        f"along its line: {'; '.join(words)}."
    )


def sinking_key(x: Tensor, eps: float) -> tuple[Figure, str]:
    """Keys of tokens of ℝ³ after LayerNorm, and whether the first can be selected among the others (prop-sinking).

    The others are in the order of their angles. The plane orthogonal to (1, 1, 1) is drawn.
    """
    own, *rest = layer_norm(x, eps=eps) @ ONE_UP[:2].T
    others = torch.stack(rest)
    turn = torch.linspace(0, 2 * torch.pi, 36_001).to(x)  # fine enough for two digits of the margin
    scores = (own - others) @ torch.stack([turn.cos(), turn.sin()])
    margin = float(scores.amin(0).max())
    verdict = "selectable" if margin > 1e-9 else "not selectable"
    sigma, *spreads = x.std(-1, correction=0).tolist()
    equal = "=" if max(spreads) - min(spreads) < 1e-9 else "≥"
    with style():
        figure, axis = plt.subplots(figsize=(WIDTH, 3.6))
        axis.add_patch(plt.Circle((0, 0), 3**0.5, fill=False, ls=":", ec=COLORS["null"]))
        axis.fill(*others.T, color=COLORS["null"], alpha=0.25, label="hull of the others")
        axis.plot(*others.T, "s", color=COLORS["random_a"], label=f"others, σ {equal} {min(spreads):.2g}")
        axis.plot(*own, "o", ms=8, color=COLORS["uniform"], label=f"σ = {sigma:.2g}")
        axis.set(xlim=(-2.1, 2.1), ylim=(-2.1, 2.1), aspect="equal", title=verdict)
        axis.set(xlabel="along (1, −1, 0)", ylabel="along (1, 1, −2)")
        axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure, (
        f"Keys of {len(x)} tokens in the plane, for ε = {eps:g}: {len(rest)} at a distance of "
        f"{_range(others.norm(dim=-1))} from the centre, on or near a circle of radius 1.73, and one at a distance of "
        f"{float(own.norm()):.2f}. This key is {verdict}: by its best query of length 1, its score is "
        f"{abs(margin):.2f} {'above' if margin > 0 else 'below'} the highest score of the others."
    )


def _range(values: Tensor) -> str:
    least, most = (f"{float(v):.2f}" for v in (values.min(), values.max()))
    return least if least == most else f"{least} to {most}"
