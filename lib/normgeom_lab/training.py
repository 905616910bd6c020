"""Chapter 8: what training does to the component along 1: orbits, courses of twins, costs, and pictures."""

from __future__ import annotations

import copy
import math
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from normgeom.geometry.ellipsoid import Ellipsoid
from normgeom.models.flow import stream_readers, stream_writers
from normgeom.models.sites import find_norms
from normgeom.models.watch import watch
from normgeom.training.loop import adamw, train, warmup_cosine
from normgeom.training.twins import TITLES, Size, twins, variants
from normgeom.view.style import COLORS, MARKERS, WIDTH, style, ticks_of_powers
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from normgeom_lab.common.pictures import LINES, angle_bars
from normgeom_lab.common.tiny import shaken

PARTS = ("gradients", "steps")


class Descent(NamedTuple):
    """A trained copy, and its loss before each update, ``(updates,)`` float64."""

    model: GPT2LMHeadModel
    losses: Tensor


def unbiased_twins(config: GPT2Config, seed: int) -> tuple[GPT2LMHeadModel, GPT2LMHeadModel]:
    """Twins that satisfy the conditions of thm-centred-writers, away from their start: ``(LayerNorm, RMSNorm)``.

    Norms have a gain and no β, the head has a matrix of its own, and a draw of standard deviation 0.2 is added to all
    weights and gains, the same to both.  In float64.
    """
    made = []
    for model in twins(config, seed):
        model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
        for module in model.modules():
            if isinstance(module, nn.LayerNorm):
                module.register_parameter("bias", None)
        made.append(shaken(model.double(), 0.2, seed + 1))
    return tuple(made)


@torch.no_grad()
def centre(parameters: Iterable[Tensor]) -> None:
    """Take the part along 1, the mean over the last axis, from each tensor, in place."""
    for p in parameters:
        p -= p.mean(-1, keepdim=True)


def descend(
    model: GPT2LMHeadModel,
    ids: Tensor,
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
    leave_out: Collection[str] = (),
    clip: float | None = None,
    updates: int = 10,
) -> Descent:
    """Next-token training of a copy on one batch; of what the writers learn the part along 1 may be left out.

    Args:
        ids: ``(batch, length)``.
        optimizer: makes one of the parameters, such as ``lambda p: torch.optim.SGD(p, lr=0.1)``.
        leave_out: of the writers, some of ``"gradients"``, before they are clipped and the optimizer sees them, and
            ``"steps"``, after it has taken them; then the writers are centred after every step.
        clip: the length that all gradients together are clipped to; None for no clipping.

    Raises:
        ValueError: ``leave_out`` has other names, ``updates`` is below 1, or the model is no GPT-2.
    """
    if unknown := set(leave_out) - set(PARTS):
        raise ValueError(f"leave_out: expected some of {', '.join(PARTS)}, got {', '.join(sorted(unknown))}")
    if updates < 1:
        raise ValueError(f"updates: expected at least 1, got {updates}")
    model = copy.deepcopy(model)
    writers, rule, losses = stream_writers(model), optimizer(model.parameters()), []
    for _ in range(updates):
        rule.zero_grad()
        loss = next_token_loss(model, ids)
        loss.backward()
        losses.append(loss.detach())
        if "gradients" in leave_out:
            centre(p.grad for p in writers)
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        rule.step()
        if "steps" in leave_out:
            centre(writers)
    return Descent(model, torch.stack(losses).double())


def next_token_loss(model: GPT2LMHeadModel, ids: Tensor) -> Tensor:
    """Mean loss in nats, in the model's own dtype; the loss of transformers is in float32 whatever that is."""
    logits = model(ids).logits[:, :-1]
    return nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


WORDS = 50257  # GPT-2's vocabulary, of windows of 1024 tokens; shorter windows are of bytes

SUSTAINED, STATE = 200e12, 16  # operations a second of the device; bytes a weight


def training_cost(size: Size) -> dict[str, float]:
    """What one twin of a size asks for, computed and not measured.

    Returns:
        by a column's name: ``blocks``, the width ``d``, ``"parameters / 10⁶"``, those of LayerNorms included,
        the head tied; ``"tokens / 10⁹"`` that it reads; ``"time / hours"`` of a device that sustains 200 · 10¹²
        operations a second (:func:`operations`); and ``"state / GB"``, of all parameters, gradients and Adam's two
        moments in four bytes each, activations left out.
    """
    return {
        "blocks": size.layers,
        "d": size.width,
        "parameters / 10⁶": parameters(size) / 1e6,
        "tokens / 10⁹": size.steps * size.batch * size.length / 1e9,
        "time / hours": operations(size) / SUSTAINED / 3600,
        "state / GB": STATE * parameters(size) / 1e9,
    }


def vocabulary(size: Size) -> int:
    """How many tokens a twin of a size knows."""
    return WORDS if size.length == 1024 else 256


def parameters(size: Size) -> int:
    """How many a twin has, those of LayerNorms included, the head tied."""
    rest = 13 * size.layers + 2 + size.length  # biases and gains, and the embeddings of positions
    return (12 * size.layers * size.width + vocabulary(size) + rest) * size.width


def operations(size: Size) -> int:
    """How many the training takes: six a weight of a matrix and token, attention's products and the head included."""
    tokens = size.steps * size.batch * size.length
    attention = size.layers * size.width * size.length
    return 6 * tokens * ((12 * size.layers * size.width + vocabulary(size)) * size.width + attention)


QUANTILES = {"low": 0.05, "median": 0.5, "high": 0.95}

_PLACE = ["step", "site", "side"]


def read_twins(folder: str | os.PathLike, name: str) -> dict[str, pd.DataFrame]:
    """One of the tables that ``normgeom train`` wrote to a folder, of either twin, by what the text calls its norm.

    Args:
        name: ``"curve"``, ``"loss"``, ``"survey"``, ``"gains"`` or ``"surface"``.

    Raises:
        ValueError: the folder holds no such table.
    """
    paths = {TITLES[norm]: Path(folder) / norm / f"{name}.parquet" for norm in ("layer", "rms")}
    for path in paths.values():
        if not path.is_file():
            raise ValueError(f"folder: expected what normgeom train wrote, there is no {path}")
    return {title: pd.read_parquet(path) for title, path in paths.items()}


def beside_signs(survey: pd.DataFrame, null: str = "signs_") -> pd.DataFrame:
    """Angles to each direction that is no null, beside the occupancies of the null's directions at the same place.

    Args:
        survey: rows of :meth:`normgeom.Survey.table` with a column ``step``, of one model, with several directions
            whose names begin with ``null``.

    Returns:
        one row a (step, site, side, direction), first positions left out: ``mean_deg``, ``std_deg``, ``occupancy``,
        ``mean_norm``; the null's quantiles ``low`` (5 %), ``median`` and ``high`` (95 %) of the occupancy; and
        ``rank``, 1 where no direction of the null has a smaller occupancy (cor-sign-null).

    Raises:
        ValueError: the survey has no direction of the null.
    """
    rows = survey[survey.positions == "rest"]
    drawn = rows.direction.str.startswith(null)
    if not drawn.any():
        raise ValueError(f"null: expected directions whose names begin with {null!r} in the survey, got none")
    groups = rows[drawn].groupby(_PLACE, sort=False).occupancy
    band = pd.DataFrame({name: groups.quantile(q) for name, q in QUANTILES.items()} | {"null": groups.agg(list)})
    columns = [*_PLACE, "direction", "mean_deg", "std_deg", "occupancy", "mean_norm"]
    table = rows.loc[~drawn, columns].merge(band, left_on=_PLACE, right_index=True)
    pairs = zip(table.null, table.occupancy, strict=True)
    table["rank"] = [1 + sum(other < mine for other in of_null) for of_null, mine in pairs]
    return table.drop(columns="null").reset_index(drop=True)


def off_uniform(ranks: Sequence[int], most: int) -> float:
    """The largest distance between the distribution function of ranks among 1 to ``most`` and the uniform one.

    That is Kolmogorov and Smirnov's statistic, for a distribution with steps (cor-sign-null says that it is uniform).

    Raises:
        ValueError: a rank is not between 1 and ``most``, or there is none.
    """
    found = np.asarray(ranks)
    if found.size == 0 or found.min() < 1 or found.max() > most:
        raise ValueError(f"ranks: expected some between 1 and {most}, got {found.tolist()}")
    places = np.arange(1, most + 1)
    # In whole numbers: equal distances must come out equal, or ties are counted by their rounding.
    apart = most * (found[:, None] <= places).sum(0) - found.size * places
    return float(np.abs(apart).max() / (found.size * most))


def chance_of(distance: float, count: int, most: int, draws: int = 10_000, seed: int = 0) -> float:
    """How often ``count`` uniform ranks from 1 to ``most`` are off by ``distance`` or more (:func:`off_uniform`).

    Raises:
        ValueError: ``count`` or ``most`` is below 1.
    """
    if min(count, most) < 1:
        raise ValueError(f"count, most: expected at least 1, got {count} and {most}")
    drawn = np.random.default_rng(seed).integers(1, most + 1, (draws, count))
    return float(np.mean([off_uniform(ranks, most) >= distance for ranks in drawn]))


def shapes(gains: pd.DataFrame, centered: bool, top: int = 8) -> pd.DataFrame:
    """The ellipsoid of each norm over the course of training, and how far its longest axes are those of the end.

    Args:
        gains: ``step``, ``site``, ``coordinate``, ``weight`` as :func:`normgeom.training.stages.measure_stage` gives
            them.
        centered: True for LayerNorm.
        top: how many of the longest axes are compared.

    Returns:
        one row a (step, site), steps at which all gains are equal left out, for their axes are any: the gain's
        ``smallest``, ``mean``, ``largest`` and ``spread`` (standard deviation); ``axis_ratio``, the longest semi-axis
        over the shortest; ``correlation`` of the gain with that of the last step; ``overlap``, ‖VᵀW‖²/top for the
        longest axes V at the step and W at the end, 1 if they span the same space and top/d by chance; ``pointing``,
        the mean over these axes of the largest squared entry, 1 for an axis along a coordinate.
    """
    last = gains[gains.step == gains.step.max()].set_index("site")
    rows = []
    for (step, site), group in gains.groupby(["step", "site"], sort=False):
        weight = torch.tensor(group.weight.to_numpy(np.float64))
        if weight.min() == weight.max():
            continue
        end = torch.tensor(last.loc[[site], "weight"].to_numpy(np.float64))
        image = Ellipsoid(weight, centered=centered)
        axes = image.axes(top)
        rows.append(
            dict(
                step=step,
                site=site,
                smallest=float(weight.min()),
                mean=float(weight.mean()),
                largest=float(weight.max()),
                spread=float(weight.std(unbiased=False)),
                axis_ratio=float(image.semi_axes[0] / image.semi_axes[-1]),
                correlation=float(torch.corrcoef(torch.stack([weight, end]))[0, 1]),
                overlap=float((axes.T @ Ellipsoid(end, centered=centered).axes(top)).square().sum() / top),
                pointing=float(axes.square().amax(0).mean()),
            )
        )
    return pd.DataFrame(rows)


def paired(losses: pd.DataFrame, of: str = "RMSNorm", less: str = "LayerNorm") -> pd.Series:
    """The loss of one norm less that of another, by ``rate`` and ``seed``, of those trained with both.

    Args:
        losses: ``loss``, ``norm``, ``rate``, ``seed``, one row a run.

    Raises:
        ValueError: there is no such pair, or a run is there twice.
    """
    by_seed = losses.pivot(index=["rate", "seed"], columns="norm", values="loss")
    if not {of, less} <= {*by_seed.columns}:
        raise ValueError(f"of, less: expected two of {', '.join(by_seed.columns)}, got {of!r} and {less!r}")
    return (by_seed[of] - by_seed[less]).dropna()


def noise_walks(norms: int, width: int, updates: int, stages: Sequence[int], seed: int) -> pd.DataFrame:
    """Gains that AdamW moves on noise instead of gradients: what agreement with the end is worth without any text.

    All begin at 1; each update has its own independent normal numbers for a gradient, and rate, warm-up, cosine and
    moments are those of the recorded runs (:func:`normgeom.training.loop.adamw` at a peak of 0.001; gains do not
    decay).

    Args:
        stages: after which updates the gains are noted, each from 1 to ``updates``.

    Returns:
        the columns of :func:`normgeom.training.stages.measure_stage`'s gains that :func:`shapes` reads.

    Raises:
        ValueError: there is no stage, or one that is no update.
    """
    if not stages or not all(1 <= stage <= updates for stage in stages):
        raise ValueError(f"stages: expected updates from 1 to {updates}, got {list(stages)}")
    gains = torch.nn.ParameterList([torch.ones(norms * width)])
    (gain,), rule = gains, adamw(gains, 0.001)
    schedule = warmup_cosine(rule, updates)
    generator, noted = torch.Generator().manual_seed(seed), []
    for update in range(1, updates + 1):
        gain.grad = torch.randn(gain.shape, generator=generator)
        rule.step()
        schedule.step()
        if update in stages:
            weights = gain.detach().view(norms, width).numpy().copy()
            noted += [dict(step=update, site=str(i), weight=row) for i, row in enumerate(weights)]
    noted = pd.DataFrame(noted).assign(coordinate=[range(width)] * len(noted))
    return noted.explode(["coordinate", "weight"], ignore_index=True)


RATE = 3e-3


@torch.no_grad()
def flipped(model: GPT2LMHeadModel, signs: Tensor) -> GPT2LMHeadModel:
    """A copy whose stream has other signs: with D = diag(signs), writers become DW and Db, readers RD (thm-sign-flips).

    The bias β of a norm becomes Dβ, gains stay.  With RMSNorm no output changes and every vector h of the stream
    becomes Dh, to the last bit.

    Args:
        signs: ``(d,)``, entries 1 and −1.

    Raises:
        ValueError: ``signs`` has another size or other entries; the model is no GPT-2.
    """
    width = model.config.n_embd
    if signs.shape != (width,) or not bool((signs.abs() == 1).all()):
        raise ValueError(f"signs: expected {width} entries of 1 and −1, got {signs}")
    model = turned(model, torch.diag(signs))
    for name, p in model.named_parameters():
        if ".ln_" in name and name.endswith("bias"):
            p *= signs
    return model


@torch.no_grad()
def turned(model: GPT2LMHeadModel, rotation: Tensor) -> GPT2LMHeadModel:
    """A copy whose stream is turned: with an orthogonal Q, writers become QW and Qb, readers RQᵀ (prop-rotations).

    Gains and biases of norms stay, so the function is the same where Q commutes with them, as any does with none.

    Args:
        rotation: Q, ``(d, d)``.

    Raises:
        ValueError: ``rotation`` has another size or is not orthogonal; the model is no GPT-2.
    """
    width = model.config.n_embd
    model, unit = copy.deepcopy(model), torch.eye(width, dtype=rotation.dtype)
    if rotation.shape != unit.shape or not torch.allclose(rotation @ rotation.T, unit, atol=1e-5):
        raise ValueError(f"rotation: expected an orthogonal matrix of size {width}, got {tuple(rotation.shape)}")
    turn = stream_writers(model)
    if model.lm_head.weight is not model.transformer.wte.weight:
        turn.append(model.lm_head.weight)
    for p in turn:  # the stream is the last axis
        p.copy_(p @ rotation.T.to(p))
    for matrix in stream_readers(model):
        matrix.copy_(rotation.to(matrix) @ matrix)
    return model


def moved(config: GPT2Config, norm: str, seed: int) -> GPT2LMHeadModel:
    """One of :func:`normgeom.training.twins.variants` away from its start, in float64: gains not 1, biases not 0."""
    return shaken(variants(config, seed, (norm,))[norm].double(), 0.2, seed)


def either_order(
    start: GPT2LMHeadModel,
    ids: Tensor,
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
    change: Callable[[GPT2LMHeadModel, Tensor], GPT2LMHeadModel],
    way: Tensor,
) -> tuple[Tensor, Tensor]:
    """All weights in one row, of the network that is changed and then trained, and trained and then changed.

    Trained is :func:`normgeom_lab.training.descend`, ten updates of clipped gradients; a rule for which both are
    equal treats the network as it treats the changed one (thm-sign-flips, prop-rotations).

    Args:
        ids: ``(batch, length)``.
        change: :func:`flipped` or :func:`turned`.
        way: its second argument.
    """
    first = descend(change(start, way), ids, optimizer, clip=1.0).model
    last = change(descend(start, ids, optimizer, clip=1.0).model, way)
    return tuple(nn.utils.parameters_to_vector(model.parameters()).detach() for model in (first, last))


def sign_vectors(d: int) -> Tensor:
    """All vectors of signs up to their negatives, ``(2 ** (d − 1), d)`` float32; 1 is the first.

    Raises:
        ValueError: ``d`` is below 2.
    """
    if d < 2:
        raise ValueError(f"d: expected at least 2, got {d}")
    halves = torch.cartesian_prod(*[torch.tensor([1.0, -1.0])] * (d - 1)).reshape(-1, d - 1)
    return torch.cat([torch.ones(len(halves), 1), halves], dim=1)


def trained(model: GPT2LMHeadModel, batches: Sequence[Tensor], updates: int) -> GPT2LMHeadModel:
    """A copy after some updates of :func:`normgeom.training.loop.train`, at a peak rate of 0.003.

    Args:
        batches: token ids ``(batch, length)``, taken in turn.

    Raises:
        ValueError: there is no batch, or ``updates`` is below 1.
    """
    if not len(batches):
        raise ValueError("batches: expected at least one, got none")
    model = copy.deepcopy(model)
    train(model, cycle(batches), updates, RATE, description=None)
    return model


def orbit(model: GPT2LMHeadModel, batches: Sequence[Tensor], updates: int) -> list[GPT2LMHeadModel]:
    """All networks that flips make of one, each trained on the same text, in the order of :func:`sign_vectors`.

    There are 2 ** (d − 1) of them: flips of all signs together change nothing that an occupancy or a share shows.
    """
    return [trained(flipped(model, signs), batches, updates) for signs in sign_vectors(model.config.n_embd)]


@torch.no_grad()
def occupancies(model: nn.Module, ids: Tensor, vectors: Tensor) -> Tensor:
    """Occupancies (eq-occupancy) of some directions at the input of the last norm, over all tokens of a batch.

    Args:
        ids: ``(batch, length)``.
        vectors: ``(k, d)``; their lengths play no part.

    Returns:
        ``(k,)`` float64.
    """
    seen, last = [], find_norms(model)[-1]
    with watch(model, [last], lambda site, x_in, x_out: seen.append(x_in)):
        model(ids)
    hidden, units = (nn.functional.normalize(t.double(), dim=-1) for t in (seen[0], vectors))
    return last.dim * (hidden @ units.T).square().mean((0, 1))


def share_along_one(model: GPT2LMHeadModel, ids: Tensor) -> float:
    """Of the gradient of the last block's last matrix, the share of its squared length along 1 (cor-gradient-share)."""
    matrix = model.transformer.h[-1].mlp.c_proj.weight  # the stream is its last axis
    (gradient,) = torch.autograd.grad(next_token_loss(model, ids), matrix)
    gradient = gradient.double()
    return float(gradient.sum(-1).square().sum() / gradient.square().sum()) / gradient.shape[-1]


COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def newton_schulz(matrix: Tensor, rounds: int = 5) -> Tensor:
    """Near the orthogonal factor UVᵀ of a matrix USVᵀ: U p(S/‖S‖) Vᵀ, where p lies between 0.7 and 1.2 for most.

    Each round is X ↦ (a + bXXᵀ + c(XXᵀ)²)X, beginning with the matrix over its Frobenius norm.  A polynomial in XXᵀ
    times X, so for orthogonal Q and P it makes QXP of X's result as of X (prop-rotations).

    Args:
        matrix: ``(m, n)``, floating point; the result has its dtype, in which all is computed.

    Raises:
        ValueError: ``matrix`` has not two axes.

    Source: K. Jordan and others, "Muon: An optimizer for hidden layers in neural networks" (2024), whose coefficients
    ``torch.optim.Muon`` takes as well.
    """
    if matrix.dim() != 2:
        raise ValueError(f"matrix: expected two axes, got a tensor of shape {tuple(matrix.shape)}")
    if matrix.shape[0] > matrix.shape[1]:
        return newton_schulz(matrix.T, rounds).T
    a, b, c = COEFFICIENTS
    x = matrix / matrix.norm().clamp_min(1e-7)
    for _ in range(rounds):
        square = x @ x.T
        x = a * x + (b * square + c * square @ square) @ x
    return x


class Muon(torch.optim.Optimizer):
    """Momentum, of which :func:`newton_schulz` is taken for matrices, and nothing for vectors; in the weights' dtype.

    As ``torch.optim.Muon``, which computes in bfloat16 and refuses vectors: an average B ← μB + (1 − μ)g, the step
    along (1 − μ)g + μB, for an m × n matrix times √max(1, m/n), and decay that is apart from the gradient.

    Args:
        rate: length of a step, at least 0.
        momentum: μ, from 0 to 1.
        decay: of all weights, times ``rate``.

    Raises:
        ValueError: a negative rate, or a momentum outside of [0, 1].
    """

    def __init__(self, parameters: Iterable[nn.Parameter], rate: float, momentum: float = 0.95, decay: float = 0.0):
        if not rate >= 0 or not 0 <= momentum <= 1:
            raise ValueError(f"rate, momentum: expected at least 0 and from 0 to 1, got {rate} and {momentum}")
        super().__init__(parameters, dict(rate=rate, momentum=momentum, decay=decay))

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            rate, momentum = group["rate"], group["momentum"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                average = self.state[p].setdefault("average", torch.zeros_like(p))
                average.lerp_(p.grad, 1 - momentum)
                step = p.grad.lerp(average, momentum)
                if p.dim() == 2:
                    step = newton_schulz(step) * math.sqrt(max(1, p.shape[0] / p.shape[1]))
                p.mul_(1 - rate * group["decay"]).sub_(step, alpha=rate)


def losses_over_steps(curves: Mapping[str, pd.DataFrame]) -> tuple[Figure, str]:
    """Loss against updates, one line a model: the mean over seeds in a band from the smallest to the largest.

    Args:
        curves: for each model's name, rows of ``step``, ``loss`` and, with several seeds, ``seed``.
    """
    words = []
    with style():
        figure, axis = plt.subplots(figsize=(WIDTH, 3.2))
        for number, (name, curve) in enumerate(curves.items()):
            over_seeds = curve.groupby("step").loss
            mean, low, high = over_seeds.mean(), over_seeds.min(), over_seeds.max()
            (line,) = axis.plot(mean.index, mean, linestyle=LINES[number % len(LINES)], label=name)
            axis.fill_between(mean.index, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
            words.append(f"{name} from {mean.iloc[0]:.2f} to {mean.iloc[-1]:.2f}")
        axis.set(xlabel="updates", ylabel="loss / nats a token")
        axis.legend()
    return figure, f"Loss against updates: {', '.join(words)} nats a token."


def angles_over_steps(tables: Mapping[str, pd.DataFrame], sites: Sequence[str], side: str = "in") -> tuple[Figure, str]:
    """Mean angle ± one standard deviation to three directions against updates, a row of panels a norm.

    Args:
        tables: for each model's name, what :func:`normgeom_lab.training.beside_signs` gave.
        sites: the norms that are shown.
        side: ``"in"`` or ``"out"`` of them.
    """
    words = []
    with style():
        figure, axes = _grid(tables, sites, "angle / degrees")
        for (site, name), axis in axes.items():
            rows = _at(tables[name], site, side)
            for shift, direction in enumerate(MARKERS):
                part = rows[rows.direction == direction]
                beside = part.step * (0.9 + 0.1 * shift)  # on a logarithmic axis
                angle_bars(axis, beside, part, direction, elinewidth=0.9, markersize=3.5)
            axis.axhline(90, color=COLORS["ink"], linewidth=0.8)
            last = rows[rows.direction == "uniform"].iloc[-1]
            words.append(f"{name}, {_short(site)}: {last.mean_deg:.1f} ± {last.std_deg:.1f} at the end")
        figure.legend(*axis.get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure, f"Angles at the {side}put of norms against updates. To the uniform vector: {'; '.join(words)}."


def occupancy_over_steps(
    tables: Mapping[str, pd.DataFrame], sites: Sequence[str], side: str = "in"
) -> tuple[Figure, str]:
    """Occupancy of the uniform direction against updates, one line a seed, over the band of random signs.

    Arguments are those of :func:`angles_over_steps`; a table may hold several seeds, told apart by a column ``seed``.
    """
    words = []
    with style():
        figure, axes = _grid(tables, sites, "occupancy d·E[cos²]")
        for (site, name), axis in axes.items():
            rows = _at(tables[name], site, side)
            rows = rows[rows.direction == "uniform"]
            band = rows.groupby("step")[["low", "median", "high"]].agg(dict(low="min", median="median", high="max"))
            axis.fill_between(band.index, band.low, band.high, color=COLORS["null"], alpha=0.3, linewidth=0)
            axis.plot(band.index, band["median"], color=COLORS["null"], linestyle="--", label="random signs, median")
            for number, (_, run) in enumerate(rows.groupby("seed") if "seed" in rows else [(0, rows)]):
                label = "uniform vector, one line a seed" if number == 0 else None
                axis.plot(
                    run.step,
                    run.occupancy,
                    color=COLORS["uniform"],
                    linestyle=LINES[number % len(LINES)],
                    marker="o",
                    markersize=3,
                    label=label,
                )
            axis.set_yscale("log")
            ticks_of_powers(axis.yaxis, most=4)
            last = rows[rows.step == rows.step.max()]
            words.append(
                f"{name}, {_short(site)}: from {last.occupancy.min():.2g} to {last.occupancy.max():.2g}, "
                f"band {last.low.min():.2g} to {last.high.max():.2g}"
            )
        figure.legend(*axis.get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return figure, f"Occupancy at the {side}put of norms against updates. At the end: {'; '.join(words)}."


def ranks_over_seeds(ranks: Mapping[str, pd.Series], most: int = 40) -> tuple[Figure, str]:
    """The distribution function of a rank over seeds, one line a model, beside the uniform one.

    Args:
        ranks: for the names of two models, a rank of 1 to ``most`` for each seed.
    """
    words = []
    with style():
        figure, axis = plt.subplots(figsize=(WIDTH, 2.6))
        for (name, values), color, line in zip(ranks.items(), ("random_a", "uniform"), ("--", "-"), strict=True):
            values = np.sort(values)
            share = np.arange(1, len(values) + 1) / len(values)
            label = f"{name}, {len(values)} seeds"
            axis.step(
                [0, *values, most], [0, *share, 1], where="post", color=COLORS[color], linestyle=line, label=label
            )
            low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
            words.append(f"{name}: from {values[0]} to {values[-1]}, quartiles {low:.0f}, {middle:.0f} and {high:.0f}")
        axis.plot([0, most], [0, 1], color=COLORS["null"], linestyle=":", label="uniform")
        axis.set(xlabel=f"rank of 1 among {most}", ylabel="share of seeds up to it")
        axis.legend(loc="lower right")
    return figure, f"Distribution of the rank of the uniform vector among {most} over seeds. {'; '.join(words)}."


def rank_dots(ranks: pd.DataFrame, norm: int, updates: int, most: int = 40) -> tuple[Figure, str]:
    """One dot a seed at the rank of 1, in columns of five ranks, a panel a model; a dotted line where they are even.

    Args:
        ranks: ``norm``, the model, and ``seed``, ``step``, ``site`` and ``rank``, from 1 to ``most``.
        norm: which site, from 1, in the order of the rows.
        updates: which step.

    Returns:
        the figure and its alt text.
    """
    here, words = ranks[(ranks.site == ranks.site.unique()[norm - 1]) & (ranks.step == updates)], []
    with style():
        figure, panels = plt.subplots(2, 1, figsize=(5, 3.8), sharex=True)
        for axis, (name, rows), color, marker in zip(
            panels, here.groupby("norm"), ("uniform", "random_a"), "os", strict=True
        ):
            column = (rows["rank"].to_numpy(int) - 1) // 5
            height = pd.Series(column).groupby(column).cumcount() + 1
            axis.plot(5 * column + 3, height, marker, color=COLORS[color])
            axis.axhline(len(rows) * 5 / most + 0.5, color=COLORS["null"], linestyle=":")
            axis.set(title=f"{name}, {len(rows)} seeds", ylim=(0, 11), yticks=[0, 5, 10], ylabel="seeds")
            words.append(
                f"{name}, {len(rows)} seeds: median rank {rows['rank'].median():g}, {100 * np.mean(column == 0):.0f} % "
                f"of them among the lowest five, {100 * np.mean(column == most // 5 - 1):.0f} % among the highest"
            )
        axis.set(xlabel=f"rank of 1 among {most}", xlim=(0, most + 1), xticks=range(0, most + 1, 5))
    return figure, f"After {updates} updates, at norm {norm}. {'; '.join(words)}."


def shapes_over_steps(forms: Mapping[str, pd.DataFrame], by_chance: float) -> tuple[Figure, str]:
    """Spread of the gains, and their and the longest axes' agreement with the end, against updates.

    Means over norms and seeds; of the first model in bands from the smallest to the largest.

    Args:
        forms: for each model's name, what :func:`normgeom_lab.training.shapes` gave, of several norms and seeds.
        by_chance: the overlap of axes that chance gives.
    """
    words = []
    with style():
        figure, (upper, lower) = plt.subplots(2, 1, figsize=(WIDTH, 5.6), sharex=True)
        for number, (name, rows) in enumerate(forms.items()):
            over = rows.groupby("step")
            look = dict(linestyle=LINES[number % len(LINES)])
            for axis, column, color, what in (
                (upper, "spread", "uniform", ""),
                (lower, "correlation", "uniform", ", gains"),
                (lower, "overlap", "random_a", ", axes"),
            ):
                mean, low, high = (over[column].agg(of) for of in ("mean", "min", "max"))
                axis.plot(mean.index, mean, color=COLORS[color], label=name + what, **look)
                if number == 0:
                    axis.fill_between(mean.index, low, high, color=COLORS[color], alpha=0.15, linewidth=0)
            means = over[["spread", "correlation", "overlap"]].mean()
            tenth = means.iloc[np.abs(means.index - means.index.max() / 10).argmin()]
            words.append(
                f"{name}: spread {means.spread.iloc[-1]:.3f} at the end; a tenth of the way the gains correlate "
                f"with those of the end by {tenth.correlation:.2f}, the axes overlap by {tenth.overlap:.2f}"
            )
        lower.axhline(by_chance, color=COLORS["null"], linestyle=":", label="axes, by chance")
        upper.set(ylabel="spread of the gains")
        lower.set(xlabel="updates", ylabel="agreement with the end")
        upper.legend()
        figure.legend(*lower.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure, f"Gains and axes over the course of training. {'; '.join(words)}."


def _grid(tables: Mapping, sites: Sequence[str], label: str) -> tuple[Figure, dict[tuple[str, str], Axes]]:
    figure, grid = plt.subplots(
        len(sites), len(tables), figsize=(WIDTH, 1.2 + 1.7 * len(sites)), sharex=True, sharey=True, squeeze=False
    )
    axes = {}
    for site, row in zip(sites, grid, strict=True):
        for name, axis in zip(tables, row, strict=True):
            steps = sorted({step for step in tables[name].step if step > 0})
            axis.set_xscale("symlog", linthresh=steps[0])
            axis.set_xticks([0, *_apart(steps)])
            axis.minorticks_off()
            axis.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step:,.0f}"))
            axis.set_title(f"{name}: {_short(site)}")
            axes[site, name] = axis
        row[0].set_ylabel(label)
    for axis in grid[-1]:
        axis.set_xlabel("updates")
    return figure, axes


def _apart(steps: Sequence[int], ratio: float = 3.5) -> list[int]:
    """The last of the steps and those before it that are far enough apart on a logarithmic axis to have a tick."""
    chosen = [steps[-1]]
    for step in reversed(steps):
        if chosen[-1] >= ratio * step:
            chosen.append(step)
    return chosen[::-1]


def _at(table: pd.DataFrame, site: str, side: str) -> pd.DataFrame:
    return table[(table.site == site) & (table.side == side)]


def _short(site: str) -> str:
    """GPT-2's names in words, others as they are."""
    site = re.sub(r".*\bh\.(\d+)\.ln_(\d)$", r"block \1, norm \2", site)
    return "last norm" if site.endswith("ln_f") else site
