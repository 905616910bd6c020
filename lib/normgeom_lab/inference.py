"""Chapter 7: pairs of twins and surveys of them, changes of gauge, and pictures of angles by layer."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import torch
import transformers
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from normgeom.checks import Draws
from normgeom.geometry.uniform import uniform_vector
from normgeom.models.flow import stream_readers, stream_writers
from normgeom.models.gpt2 import gpt2
from normgeom.models.sites import find_norms
from normgeom.surgery.surgery import center_writers, fold_norms
from normgeom.survey.survey import Survey
from normgeom.text.tokens import byte_tokens, random_windows, windows
from normgeom.training.loop import train
from normgeom.training.twins import twins
from normgeom.view.style import COLORS, MARKERS, WIDTH, style, ticks_of_powers
from torch import Tensor, nn
from transformers import AutoModel, GPT2Config, GPT2LMHeadModel, PreTrainedConfig

from normgeom_lab.common.parts import final_norm, shifted
from normgeom_lab.common.pictures import NULLS, _rows, angle_bars, null_band
from normgeom_lab.common.tiny import shaken

NAMES = ("LayerNorm twin", "RMSNorm twin")  # in the order of :func:`twins`

APART = 300_000  # bytes that are not trained on

BATCH, RATE, LAST = 16, 3e-3, 10

Twins = dict[tuple[str, int], GPT2LMHeadModel]


def held_out_bytes(text: str, tokens: int, length: int) -> tuple[Tensor, list[Tensor]]:
    """The bytes of a text to train on, ``(n,)``, and windows of its last 300,000 to measure on.

    Args:
        tokens: the windows hold so many, what is left after the last window left out.

    Raises:
        ValueError: the text gives fewer, or nothing is left to train on.
    """
    ids = byte_tokens(text)
    training, apart = ids[:-APART], ids[-APART:][:tokens]
    if len(apart) < tokens or len(training) < length:
        raise ValueError(f"tokens: {tokens} asked, the corpus gives {len(apart)}; name a larger one")
    return training, windows(apart, length, 32)


def pairs(config: GPT2Config, seeds: Iterable[int], device: str | torch.device = "cpu") -> Twins:
    """Twins before any training, by name and seed.

    Raises:
        ValueError: there is no seed.
    """
    made = {}
    for run in seeds:
        for name, network in zip(NAMES, twins(config, run), strict=True):
            made[name, run] = network.to(device)
    if not made:
        raise ValueError("seeds: expected at least one, got none")
    return made


def tiny_pairs(draw: Draws, seed: int) -> list[tuple[GPT2LMHeadModel, GPT2LMHeadModel]]:
    """Three pairs of tiny twins ``(LayerNorm, RMSNorm)`` of other sizes, away from their start: for statements.

    They know 64 tokens and 16 positions, have 2, 3 and 4 blocks of width 16, 10 and 24, each pair an ε that ``draw``
    gives, and are float64, every parameter moved (:func:`normgeom_lab.common.tiny.shaken`), in a pair alike.
    """
    found = []
    for width, layers, heads in ((16, 2, 2), (10, 3, 1), (24, 4, 3)):
        config = gpt2(64, 16, width, layers, heads)
        config.layer_norm_epsilon = draw.eps()
        layer, rms = twins(config, seed)
        found.append((shaken(layer.double(), 0.3, seed), shaken(rms.double(), 0.3, seed)))
    return found


def train_pairs(networks: Mapping[tuple[str, int], GPT2LMHeadModel], ids: Tensor, steps: int) -> pd.DataFrame:
    """Train twins in place to predict the next token, by :func:`normgeom.training.loop.train`.

    Each update reads 16 windows of ``ids`` at places drawn with the seed, so the twins of a pair read the same windows
    in the same order.  The learning rate peaks at 0.003.

    Args:
        networks: by name and seed, as :func:`pairs` gives them.
        ids: tokens of the text, ``(n,)``.
        steps: updates of each, at least 10.

    Returns:
        training losses in nats a token, one row a (model, seed): at the first update, and the mean of the last ten.

    Raises:
        ValueError: fewer than 10 ``steps``, or ``ids`` shorter than a window.
    """
    if steps < LAST:
        raise ValueError(f"steps: expected at least {LAST}, got {steps}")
    rows = {}
    for (name, run), network in networks.items():
        batches = random_windows(ids, network.config.n_positions, BATCH, seed=run)
        losses = train(network, batches, steps, RATE, description=f"{name} {run}")
        rows[name, run] = {"first update": losses[0], f"last {LAST} updates": sum(losses[-LAST:]) / LAST}
    found = pd.DataFrame.from_dict(rows, orient="index")
    return found.rename_axis(["model", "seed"])


# The models of the paper's table 1 by their names on the hub, with the sizes that their configurations there state.
_NEOX = transformers.GPTNeoXConfig

_LLAMA = partial(transformers.LlamaConfig, hidden_size=4096, num_hidden_layers=32, num_attention_heads=32)

SEVEN: dict[str, Callable[[], PreTrainedConfig]] = {
    "openai-community/gpt2-xl": partial(transformers.GPT2Config, n_embd=1600, n_layer=48, n_head=25),
    "EleutherAI/gpt-neo-1.3B": transformers.GPTNeoConfig,
    "EleutherAI/pythia-1.4b": partial(
        _NEOX, hidden_size=2048, num_hidden_layers=24, num_attention_heads=16, intermediate_size=8192
    ),
    "EleutherAI/gpt-j-6b": transformers.GPTJConfig,
    "EleutherAI/pythia-6.9b": partial(
        _NEOX, hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, intermediate_size=16384
    ),
    "meta-llama/Llama-2-7b-hf": partial(_LLAMA, intermediate_size=11008),
    "meta-llama/Meta-Llama-3-8B": partial(_LLAMA, intermediate_size=14336, num_key_value_heads=8, vocab_size=128256),
}

TOKENS, SUSTAINED, BYTES = 1e6, 50e12, 2  # of the survey; operations a second of the device; bytes a number


def survey_cost(config: PreTrainedConfig) -> dict[str, float]:
    """What a survey of 10⁶ tokens asks for, computed from the sizes of a model and not measured.

    Returns:
        by a column's name: the width ``d``, the number of norms; ``"weights / GB"`` in two bytes each, without the
        head; ``"work / 10¹⁵ operations"``, two a weight and token, embeddings and attention's own products left out;
        ``"time / minutes"`` of a device that sustains 50 · 10¹² operations a second; and ``"stored / TB"``, what the
        inputs and outputs of all norms would take in two bytes a number.
    """
    weights, working, norms = counted(config)
    work = 2 * working * TOKENS
    return {
        "d": config.hidden_size,
        "norms": norms,
        "weights / GB": BYTES * weights / 1e9,
        "work / 10¹⁵ operations": work / 1e15,
        "time / minutes": work / SUSTAINED / 60,
        "stored / TB": norms * 2 * config.hidden_size * BYTES * TOKENS / 1e12,
    }


def counted(config: PreTrainedConfig) -> tuple[int, int, int]:
    """How many weights a model has without its head, how many of them are no embeddings, and how many norms."""
    with torch.device("meta"):  # sizes without weights
        shell = AutoModel.from_config(config)
    weights = sum(p.numel() for p in shell.parameters())
    embeddings = sum(m.weight.numel() for m in shell.modules() if isinstance(m, nn.Embedding))
    return weights, weights - embeddings, sum("norm" in type(m).__name__.lower() for m in shell.modules())


def survey_runs(
    networks: Mapping[tuple[str, int], nn.Module],
    batches: Sequence[Tensor],
    directions: Sequence[str],
    seed: int,
    progress: bool = False,
    out: str | os.PathLike = "",
) -> pd.DataFrame:
    """The survey of each network on the same text, as one table.

    Args:
        networks: by the name of the model and the number of the run, such as the seed of its training.
        batches: token ids ``(batch, length)``; matched directions are drawn from the first.
        directions: as in :class:`normgeom.Survey`, as is ``seed``.
        out: a folder that keeps the state of each survey as ``<model>-<run>.safetensors``, slashes in the name as
            ``--``; the same call goes on where it was stopped.  By default nothing is kept.

    Returns:
        the rows of :meth:`normgeom.Survey.table`, with columns ``model`` and ``run`` before them.

    Raises:
        ValueError: there is no network or no batch, or :class:`normgeom.Survey` refuses one; ``out`` holds the survey
            of something else.
        OSError: ``out`` cannot be written.
    """
    if not networks:
        raise ValueError("networks: expected at least one, got none")
    if not batches:
        raise ValueError("batches: expected at least one, got none")
    if out:
        Path(out).mkdir(parents=True, exist_ok=True)
    tables = []
    for (model, run), network in networks.items():
        survey = Survey(network, directions, seed, pilot=batches[0])
        found = survey.run(batches, progress, kept_as(out, model, run) if out else None).table()
        found.insert(0, "model", model)
        found.insert(1, "run", run)
        tables.append(found)
    return pd.concat(tables, ignore_index=True)


def kept_as(out: str | os.PathLike, model: str, run: int) -> Path:
    """Where :func:`survey_runs` keeps the state of a survey."""
    return Path(out) / f"{model.replace('/', '--')}-{run}.safetensors"


def of_uniform(angles: pd.DataFrame, side: str = "in", positions: str = "rest") -> pd.DataFrame:
    """The rows of the uniform vector at one side of the norms, in order of use.

    Args:
        angles: as :meth:`normgeom.Survey.table` gives it, perhaps with more columns.
        side: ``"in"`` or ``"out"``.
        positions: ``"first"``, ``"rest"`` or ``"all"``.

    Raises:
        ValueError: there are none.
    """
    wanted = dict(side=side, positions=positions, direction="uniform")
    rows = angles
    for column, value in wanted.items():
        rows = rows[rows[column] == value]
        if rows.empty:
            raise ValueError(f"{column}: expected rows with {value!r}, got a table without")
    return rows


# What a reader is told of each column; units stand behind the stroke.
WORDS = {
    "kind": "kind",
    "positions": "positions",
    "tokens": "tokens",
    "mean_deg": "mean angle / degrees",
    "std_deg": "spread / degrees",
    "occupancy": "occupancy",
    "mean_norm": "mean length",
    "mean_abs_cos": "mean |cos|",
    "top_share": "share of the largest entry",
    "drop_error": "change of the output",
}

KINDS = {"layer": "LayerNorm", "rms": "RMSNorm"}


def in_words(angles: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """Some columns of a survey's table as a reader is shown them: names of :data:`WORDS`, one row a norm.

    Raises:
        ValueError: a column that is not in :data:`WORDS`.
    """
    if unknown := [name for name in columns if name not in WORDS]:
        raise ValueError(f"columns: expected some of {', '.join(WORDS)}, got {', '.join(unknown)}")
    rows = angles.set_index("site")[list(columns)].replace({"kind": KINDS} if "kind" in columns else {})
    return rows.rename(columns=WORDS).rename_axis("norm")


def at_last_norm(angles: pd.DataFrame) -> pd.DataFrame:
    """The stream that enters the last norm: its mean ``length`` and, roughly, its component ``along 1``.

    The component is the length times the root mean square of the cosine: √(ω/d) of it, ω the occupancy (eq-occupancy).

    Args:
        angles: as :func:`survey_runs` gives them.

    Returns:
        one row a (model, seed), the run being the seed.
    """
    last = of_uniform(angles).rename(columns={"run": "seed"})
    last = last.groupby(["model", "seed"], sort=False).tail(1).set_index(["model", "seed"])
    along = last.mean_norm * (last.occupancy / last.dim) ** 0.5
    return pd.DataFrame({"length": last.mean_norm, "along 1": along})


@torch.no_grad()
def with_means_of(model: GPT2LMHeadModel, other: GPT2LMHeadModel) -> GPT2LMHeadModel:
    """A copy of a GPT-2 in which every writer puts along 1 what the same writer of another puts there.

    Of weights, biases and embeddings the mean over the stream is the other's, and the rest is as it was.  With
    LayerNorm, what the norms put out stays the same (prop-gauge); a head that shares the embedding's matrix does not.

    Raises:
        ValueError: one of them is no GPT-2, or they have other sizes.
    """
    model = copy.deepcopy(model)
    mine, theirs = stream_writers(model), stream_writers(other)
    if [p.shape for p in mine] != [p.shape for p in theirs]:
        raise ValueError("other: expected a model of the same sizes, got one of others")
    for p, wanted in zip(mine, theirs, strict=True):
        p += wanted.to(p).mean(-1, keepdim=True) - p.mean(-1, keepdim=True)
    return model


@torch.no_grad()
def rotated(model: GPT2LMHeadModel, rotation: Tensor) -> GPT2LMHeadModel:
    """A copy of a GPT-2 with RMSNorm whose stream is rotated, and which computes the same (prop-two-scenarios).

    Gains and biases are folded first (:func:`normgeom.fold_norms`).  Then everything that writes to the stream writes
    Qx where it wrote x, and everything that reads it, the head included, takes Q back.  RMSNorm without a gain commutes
    with Q, the freedom that SliceGPT uses: https://arxiv.org/abs/2401.15024.

    Args:
        model: every norm an RMSNorm; it stays as it is.
        rotation: Q, ``(d, d)``, orthogonal.

    Raises:
        ValueError: ``rotation`` has another shape or is not orthogonal; a norm is a LayerNorm, which does not commute
            with Q; the model is no GPT-2 with a language-model head.
    """
    d = stream_writers(model)[0].shape[-1]
    if rotation.shape != (d, d):
        raise ValueError(f"rotation: expected shape ({d}, {d}), got {tuple(rotation.shape)}")
    off = float((rotation.double() @ rotation.double().T - torch.eye(d, dtype=torch.float64)).abs().max())
    if not off <= d * torch.finfo(rotation.dtype).eps * 8:
        raise ValueError(f"rotation: expected an orthogonal matrix, QQᵀ is off the identity by {off:.1e}")
    if kinds := {site.kind for site in find_norms(model)} - {"rms"}:
        raise ValueError(f"model: expected RMSNorm throughout, which commutes with rotations, got {', '.join(kinds)}")
    model = fold_norms(copy.deepcopy(model))
    rows = rotation.T  # of row vectors: x → xQᵀ
    for p in (*stream_writers(model), model.lm_head.weight):
        p.copy_(p @ rows.to(p))
    for p in stream_readers(model):
        p.copy_(rotation.to(p) @ p)
    return model


def onto_uniform(direction: Tensor) -> Tensor:
    """The reflection ``(d, d)`` that takes a direction ``(d,)`` to that of 1; the identity where it lies there.

    Raises:
        ValueError: ``direction`` is no vector, or is 0.
    """
    if direction.dim() != 1 or not direction.norm() > 0:
        raise ValueError(f"direction: expected a vector that is not 0, got shape {tuple(direction.shape)}")
    across = direction / direction.norm() - _unit_uniform(direction)
    across = nn.functional.normalize(across, dim=0)
    return torch.eye(len(across), dtype=across.dtype, device=across.device) - 2 * torch.outer(across, across)


@torch.no_grad()
def scenarios(model: GPT2LMHeadModel, batch: Tensor, c: float = 10.0) -> pd.DataFrame:
    """How much or little lies along 1 at the last norm, in weights that compute what a model does (prop-two-scenarios).

    With LayerNorm, the writers are centred, or ``c`` is added to each entry of the token embedding; with RMSNorm, the
    stream is rotated until 1 is the emptiest direction at the last norm, or the fullest.

    Args:
        model: a GPT-2 with a language-model head, its norms all LayerNorm or all RMSNorm; it stays as it is.
        batch: token ids ``(batch, length)``, length at least 2.

    Returns:
        one row a set of weights: ``share``, the mean of cos² of the angle to 1 at the last norm's input, first
        positions left out; ``"change of log p"``, the largest of a log-probability at any position.

    Raises:
        ValueError: the norms are of both kinds; or as for :func:`rotated`.
    """
    kinds = {site.kind for site in find_norms(model)}
    if len(kinds) != 1:
        raise ValueError(f"model: expected norms of one kind, got {', '.join(sorted(kinds)) or 'none'}")
    if kinds == {"layer"}:
        least, most = center_writers(copy.deepcopy(model)), shifted(model, c)
    else:
        units = _directions(model, batch)
        _, vectors = torch.linalg.eigh(units.T @ units)  # ascending
        least, most = (rotated(model, onto_uniform(vectors[:, i])) for i in (0, -1))
    plain = model(batch).logits.double().log_softmax(-1)
    rows = {}
    for name, other in {"as trained": model, "least along 1": least, "most along 1": most}.items():
        units = _directions(other, batch)
        change = other(batch).logits.double().log_softmax(-1) - plain
        share = (units @ _unit_uniform(units)).square().mean()
        rows[name] = {"share": float(share), "change of log p": float(change.abs().max())}
    return pd.DataFrame.from_dict(rows, orient="index")


def _unit_uniform(like: Tensor) -> Tensor:
    one = uniform_vector(like.shape[-1]).to(like)
    return one / one.norm()


def _directions(model: nn.Module, batch: Tensor) -> Tensor:
    """What enters the last norm, scaled to length 1, ``(n, d)`` float64, first positions left out."""
    seen = []
    hook = final_norm(model).register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    try:
        model(batch)
    finally:
        hook.remove()
    return nn.functional.normalize(seen[0][:, 1:].flatten(0, 1).double(), dim=-1)


@torch.no_grad()
def turned(model: nn.Module, constants: Sequence[float], batch: Tensor) -> pd.DataFrame:
    """Add c·1 to every token embedding of a model: the angle to 1 turns; does the output change?

    Args:
        model: a transformers model; its head, if it has one, is left out.
        constants: values of c.
        batch: token ids ``(batch, length)``.

    Returns:
        one row a c: ``c``; ``"angle at the last norm / degrees"``, its mean at the input, first positions left out; and
        ``"change of output"``, the length of the change of all hidden vectors behind the last norm, over their length.

    Raises:
        ValueError: there is no constant.
    """
    if not constants:
        raise ValueError("constants: expected at least one, got none")
    body = model.base_model
    plain = body(batch).last_hidden_state
    rows = []
    for c in constants:
        moved = shifted(body, c)
        angles = Survey(moved, ("uniform",)).run([batch], progress=False).table()
        change = (moved(batch).last_hidden_state - plain).norm() / plain.norm()
        angle = of_uniform(angles).mean_deg.iloc[-1]
        rows.append({"c": c, "angle at the last norm / degrees": angle, "change of output": float(change)})
    return pd.DataFrame(rows)


_ORDER = "norm, in order of use"


def angles_by_layer(
    tables: Mapping[str, pd.DataFrame], sides: Sequence[str] = ("in", "out"), positions: str = "rest"
) -> tuple[Figure, str]:
    """Mean angle ± one standard deviation at each norm, for the directions of :data:`normgeom.view.style.MARKERS`.

    Args:
        tables: for each model's name, what :meth:`normgeom.Survey.table` gave.
        sides: ``"in"`` and ``"out"`` of the norms, or one of them.
        positions: which tokens, as in the table.

    Returns:
        the figure, a row of panels a side and a column a model, and its alt text.
    """
    words = []
    with style():
        size = (WIDTH, 1.1 + 1.9 * len(sides))
        figure, grid = plt.subplots(len(sides), len(tables), figsize=size, sharex="col", sharey=True, squeeze=False)
        for side, axes in zip(sides, grid, strict=True):
            for axis, (model, table) in zip(axes, tables.items(), strict=True):
                rows = _rows(table, side, positions)
                for shift, direction in enumerate(MARKERS):
                    part = rows[rows.direction == direction]
                    angle_bars(axis, [i + 0.22 * (shift - 1) for i in range(len(part))], part, direction)
                axis.axhline(90, color=COLORS["ink"], linewidth=0.8)
                axis.set(title=f"{model}, {side}puts", xticks=_ticks(rows.site.nunique()))
                uniform = rows[rows.direction == "uniform"]
                words.append(
                    f"{side}puts of {model}: mean angle to the uniform vector between {uniform.mean_deg.min():.1f} and "
                    f"{uniform.mean_deg.max():.1f} degrees, "
                    f"spread {uniform.std_deg.min():.1f} to {uniform.std_deg.max():.1f}"
                )
            axes[0].set_ylabel("angle / degrees")
        for axis in grid[-1]:
            axis.set_xlabel(_ORDER)
        figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure, "Angles at each norm, mean and standard deviation: " + "; ".join(words) + "."


def occupancy_by_layer(
    tables: Mapping[str, pd.DataFrame], side: str = "in", positions: str = "rest"
) -> tuple[Figure, str]:
    """Occupancy of the uniform direction at each norm, one line a run, over the null's band (:func:`null_band`).

    Arguments and results are those of :func:`angles_by_layer`; a table may hold several runs, told apart by a
    column ``run``.
    """
    words = []
    with style():
        figure, axes = plt.subplots(1, len(tables), figsize=(WIDTH, 3.2), sharey=True, squeeze=False)
        for axis, (model, table) in zip(axes[0], tables.items(), strict=True):
            rows, band = _rows(table, side, positions), null_band(table, side, positions)
            place = range(len(band))
            axis.fill_between(
                place, band.low, band.high, color=COLORS["null"], alpha=0.3, linewidth=0, label="random, 5 to 95 %"
            )
            axis.plot(place, band["median"], color=COLORS["null"], linestyle="--", label="random, median")
            uniform = rows[rows.direction == "uniform"].pivot(index="site", columns="run", values="occupancy")
            uniform = uniform.loc[band.index]
            for number, run in enumerate(uniform):
                label = "uniform vector, one line a run" if number == 0 else None
                axis.plot(place, uniform[run], color=COLORS["uniform"], marker="o", label=label)
            axis.set(title=model, xlabel=_ORDER, xticks=_ticks(len(band)), yscale="log")
            ticks_of_powers(axis.yaxis)
            values = uniform.to_numpy()
            below = (values < band.low.to_numpy()[:, None]).sum()
            above = (values > band.high.to_numpy()[:, None]).sum()
            words.append(
                f"{model}: the uniform vector from {values.min():.2g} to {values.max():.2g}, below the random "
                f"directions' band at {below} and above it at {above} of {values.size} points"
            )
        axes[0, 0].set_ylabel("occupancy d·E[cos²]")
        figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return figure, f"Occupancy at the {side}put of each norm. " + "; ".join(words) + "."


def nulls_by_layer(panels: Mapping[str, tuple[pd.Series, Mapping[str, pd.DataFrame]]]) -> tuple[Figure, str]:
    """Occupancy of the uniform direction at each norm, over the bands of several nulls.

    Args:
        panels: for each title, the occupancy by site, and for each of :data:`NULLS` its :func:`null_band`.

    Returns:
        the figure, one panel a title, and its alt text.
    """
    words = []
    with style():
        figure, axes = plt.subplots(1, len(panels), figsize=(WIDTH, 3.6), sharey=True, squeeze=False)
        for axis, (title, (uniform, bands)) in zip(axes[0], panels.items(), strict=True):
            place = range(len(uniform))
            compared = []
            for null, band in bands.items():
                name, look = NULLS[null]
                band = band.loc[uniform.index]
                axis.fill_between(place, band.low, band.high, label=f"{name}, 5 to 95 %", **look)
                compared.append(f"below the band of {name} at {(uniform < band.low).sum()}, above at ")
                compared[-1] += str((uniform > band.high).sum())
            axis.plot(place, uniform, color=COLORS["uniform"], marker="o", label="uniform vector")
            axis.set(title=title, xlabel=_ORDER, xticks=_ticks(len(uniform)), yscale="log")
            ticks_of_powers(axis.yaxis)
            words.append(
                f"{title}: the uniform vector from {uniform.min():.2g} to {uniform.max():.2g} over {len(uniform)} "
                f"norms, {'; '.join(compared)}"
            )
        axes[0, 0].set_ylabel("occupancy d·E[cos²]")
        figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return figure, "Occupancy at each norm over three nulls. " + ". ".join(words) + "."


def errors_by_layer(tables: Mapping[str, pd.DataFrame], positions: str = "rest") -> tuple[Figure, str]:
    """The error of dropping the mean at each LayerNorm beside the mean |cos| to the uniform direction at its input.

    Arguments and results are those of :func:`angles_by_layer`; a model without LayerNorm has an empty panel.
    """
    columns = {"drop_error": ("change of the output", "-", "o"), "mean_abs_cos": ("mean |cos| at the input", "--", "s")}
    words = []
    with style():
        figure, axes = plt.subplots(1, len(tables), figsize=(WIDTH, 3.2), sharey=True, squeeze=False)
        for axis, (model, table) in zip(axes[0], tables.items(), strict=True):
            rows = _rows(table, "in", positions)
            rows = rows[(rows.direction == "uniform") & (rows.kind == "layer")]
            for color, (column, (label, line, marker)) in zip(("uniform", "random_a"), columns.items(), strict=True):
                axis.plot(
                    range(len(rows)), rows[column], color=COLORS[color], linestyle=line, marker=marker, label=label
                )
            axis.set(title=model, xlabel="LayerNorm, in order of use", yscale="log", xticks=_ticks(len(rows)))
            ticks_of_powers(axis.yaxis)
            words.append(
                f"{model}: the change is {rows.drop_error.min():.2g} to {rows.drop_error.max():.2g}, "
                f"{(rows.drop_error / rows.mean_abs_cos).min():.2g} to "
                f"{(rows.drop_error / rows.mean_abs_cos).max():.2g} times the mean |cos|"
                if len(rows)
                else f"{model}: no LayerNorm"
            )
        axes[0, 0].set_ylabel("relative error")
        figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return figure, "Error of dropping the mean at each LayerNorm. " + "; ".join(words) + "."


def _ticks(sites: int) -> range:
    return range(0, sites, max(1, sites // 5))


def turned_by(found: Mapping[str, pd.DataFrame], c: float) -> tuple[Figure, str]:
    """Where adding c·1 sends the mean vector at the last norm, and what it does to the output there.

    Args:
        found: for each model's name, what :func:`normgeom_lab.inference.turned` gave; the lines of the right panel go
            through all its rows, arrows and marks are those of ``c``.
        c: one of its constants.

    Returns:
        the figure and its alt text.
    """
    words, looks = [], (("o", "-", COLORS["uniform"]), ("s", "--", COLORS["random_a"]))
    with style():
        figure, (left, right) = plt.subplots(1, 2, figsize=(5, 3.0), width_ratios=(1, 1.5))
        left.set(xlim=(-0.08, 1.15), ylim=(-0.4, 1.15), aspect=1, title="angle to 1")
        left.axis("off")
        _arrow(left, 0.0, COLORS["ink"], "-", width=1.0)
        left.text(0.05, 1.0, "1", color=COLORS["ink"])
        for place, ((model, rows), (marker, dash, color)) in enumerate(zip(found.items(), looks, strict=False)):
            _, angle, change = rows[rows.c == c].iloc[0]
            _arrow(left, math.radians(angle), color, dash)
            left.text(0, -0.2 - 0.2 * place, f"{model.split()[0]} {angle:.0f}°", color=color)
            right.plot(rows.c, rows["change of output"], color=color, linestyle=dash, marker=marker, ms=3, alpha=0.45)
            right.plot(c, change, marker, color=color, ms=9, label=model)
            words.append(f"{model}: angle {angle:.0f} degrees, change of the output {change:.1g} of its length")
        right.set(xlabel="c", title="change of the output / its length", ylim=(-0.06, None))
        right.legend(loc="center right")
    return figure, f"With c = {c:g} on every entry of the stream, at the last norm. {'; '.join(words)}."


def _arrow(axis: Axes, angle: float, color: str, dash: str, width: float = 2.5) -> None:
    """From the origin, at an angle to the vertical, of length 1."""
    look = dict(arrowstyle="-|>", color=color, linestyle=dash, linewidth=width, shrinkA=0, shrinkB=0)
    axis.annotate("", (math.sin(angle), math.cos(angle)), (0, 0), arrowprops=look)
