"""Chapter 7: pairs of twins and surveys of them, changes of gauge, and pictures of angles by layer."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from normgeom.checks import Draws
from normgeom.commands.loading import load_model, most_tokens, title
from normgeom.models.gpt2 import gpt2
from normgeom.models.sites import find_norms
from normgeom.surgery.surgery import center_writers, fold_norms
from normgeom.survey.survey import Survey
from normgeom.text.corpora import Corpus
from normgeom.text.tokens import TokenBatches, byte_tokens, load_tokenizer, random_windows, windows
from normgeom.training.twins import twins
from normgeom.view.style import COLORS, MARKERS, WIDTH, style, ticks_of_powers
from torch import Tensor, nn
from torch.nn.functional import normalize
from transformers import AutoModel, GPT2Config, GPT2LMHeadModel, GPTJConfig, GPTNeoConfig, GPTNeoXConfig, LlamaConfig

from normgeom_lab.common.loop import train
from normgeom_lab.common.parts import copied, last_directions, rotate, shifted, stream_writers
from normgeom_lab.common.pictures import NULLS, _rows, angle_bars, null_band
from normgeom_lab.common.tiny import perturb

HELD_OUT = 300_000  # bytes at the end of a text that are not trained on


def held_out_bytes(text: str, tokens: int, length: int) -> tuple[Tensor, list[Tensor]]:
    """The bytes of a text to train on, ``(n,)``, and windows of its last 300,000, ``tokens`` in all, to measure on."""
    ids = byte_tokens(text)
    training, held_out = ids[:-HELD_OUT], ids[-HELD_OUT:][:tokens]
    assert len(held_out) == tokens, f"tokens: {tokens} asked, the corpus gives {len(held_out)}; name a larger one"
    return training, windows(held_out, length, 32)


def load_to_survey(name: str, corpus: Corpus, tokens: int) -> tuple[dict[str, nn.Module], list[Tensor]]:
    """A model, or the twins in a folder of ``normgeom train``, by name, and windows of a corpus to measure it on.

    The windows ``(≤ 32, length)`` are read by the model's own tokenizer; they have 128 tokens, fewer where the model
    has fewer positions, and ``tokens`` in all.
    """
    folder = Path(name)
    places = {"LayerNorm twin": folder / "layer/model", "RMSNorm twin": folder / "rms/model"}
    if not all(path.is_dir() for path in places.values()):
        places = {title(name): name}
    networks = {kind: load_model(str(place)) for kind, place in places.items()}
    config, place = next(iter(networks.values())).config, str(next(iter(places.values())))
    length = most_tokens(config, 128)
    batches = list(TokenBatches(corpus, load_tokenizer(place, config), tokens, length, 32))
    had = sum(batch.numel() for batch in batches)
    assert had == tokens // length * length, f"tokens: {tokens} asked, the corpus gives {had}; name a larger one"
    return networks, batches


def pairs(config: GPT2Config, seeds: Iterable[int], device: str = "cpu") -> dict[tuple[str, int], GPT2LMHeadModel]:
    """Twins before any training, by name and seed."""
    names = "LayerNorm twin", "RMSNorm twin"
    made = {seed: zip(names, twins(config, seed), strict=True) for seed in seeds}
    return {(name, seed): twin.to(device) for seed, named in made.items() for name, twin in named}


def tiny_pairs(draw: Draws, seed: int) -> list[tuple[GPT2LMHeadModel, GPT2LMHeadModel]]:
    """Three pairs of float64 twins ``(LayerNorm, RMSNorm)`` of different sizes and ε, both perturbed alike."""
    found = []
    for width, layers, heads in ((16, 2, 2), (10, 3, 1), (24, 4, 3)):
        config = gpt2(64, 16, width, layers, heads)
        config.layer_norm_epsilon = draw.eps()
        found.append(tuple(perturb(twin.double(), Draws(seed)) for twin in twins(config, seed)))
    return found


def train_pairs(networks: Mapping[tuple[str, int], GPT2LMHeadModel], ids: Tensor, steps: int) -> pd.DataFrame:
    """Train twins in place on 16 windows of ``ids`` a step: the losses, in nats per token, by (model, seed)."""
    rows = {}
    for (name, seed), network in networks.items():
        batches = random_windows(ids, network.config.n_positions, 16, seed=seed)
        losses = train(network, batches, steps, 3e-3, description=f"{name} {seed}")
        rows[name, seed] = {"first update": losses[0], "last 10 updates": sum(losses[-10:]) / 10}
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis(["model", "seed"])


# The models of the paper's table 1 by their names on the hub, with the sizes that their configurations there state.
_NEOX = partial(GPTNeoXConfig, num_attention_heads=16)
_LLAMA = partial(LlamaConfig, hidden_size=4096, num_hidden_layers=32, num_attention_heads=32)
SEVEN = {
    "openai-community/gpt2-xl": partial(GPT2Config, n_embd=1600, n_layer=48, n_head=25),
    "EleutherAI/gpt-neo-1.3B": GPTNeoConfig,
    "EleutherAI/pythia-1.4b": partial(_NEOX, hidden_size=2048, num_hidden_layers=24, intermediate_size=8192),
    "EleutherAI/gpt-j-6b": GPTJConfig,
    "EleutherAI/pythia-6.9b": partial(_NEOX, hidden_size=4096, num_hidden_layers=32, intermediate_size=16384),
    "meta-llama/Llama-2-7b-hf": partial(_LLAMA, intermediate_size=11008),
    "meta-llama/Meta-Llama-3-8B": partial(_LLAMA, intermediate_size=14336, num_key_value_heads=8, vocab_size=128256),
}


def survey_cost(config: GPT2Config) -> dict[str, float]:
    """What a survey of 10⁶ tokens needs, computed for two bytes a number and 50 · 10¹² operations a second."""
    weights, working, norms = counted(config)
    work = 2 * working * 1e6
    return {
        "d": config.hidden_size,
        "norms": norms,
        "weights / GB": 2 * weights / 1e9,
        "work / 10¹⁵ operations": work / 1e15,
        "time / minutes": work / 50e12 / 60,
        "stored / TB": norms * 2 * config.hidden_size * 2 * 1e6 / 1e12,
    }


def counted(config: GPT2Config) -> tuple[int, int, int]:
    """How many weights a model has without its head, how many of these outside embeddings, and how many norms."""
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
    out: str = "",
) -> pd.DataFrame:
    """One table of the surveys of networks by (``model``, ``run``) on the same batches of token ids.

    The folder ``out`` keeps the state of each survey, and the same call continues one that was stopped.
    """
    if out:
        Path(out).mkdir(parents=True, exist_ok=True)
    tables = []
    for (model, run), network in networks.items():
        state = Path(out) / f"{model.replace('/', '--')}-{run}.safetensors" if out else None
        survey = Survey(network, directions, seed, pilot=batches[0]).run(batches, progress, state)
        tables.append(survey.table().assign(model=model, run=run))
    return pd.concat(tables, ignore_index=True)


def of_uniform(angles: pd.DataFrame, side: str = "in", positions: str = "rest") -> pd.DataFrame:
    """The rows of the uniform vector in a survey's table, at one side of the norms."""
    return angles[(angles.side == side) & (angles.positions == positions) & (angles.direction == "uniform")]


# Columns of a survey in words.
WORDS = {
    "kind": "kind",
    "tokens": "tokens",
    "mean_deg": "mean angle / degrees",
    "std_deg": "spread / degrees",
    "occupancy": "occupancy",
    "mean_norm": "mean length",
    "mean_abs_cos": "mean |cos|",
    "top_share": "share of the largest entry",
    "drop_error": "change of the output",
}


def in_words(angles: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """Some columns of a survey's table under the names of :data:`WORDS`, one row a norm."""
    rows = angles.set_index("site")[list(columns)]
    if "kind" in columns:
        rows = rows.replace({"kind": {"layer": "LayerNorm", "rms": "RMSNorm"}})
    return rows.rename(columns=WORDS).rename_axis("norm")


def at_last_norm(angles: pd.DataFrame) -> pd.DataFrame:
    """The mean length of the stream at the last norm by (model, seed), and √(ω/d) of it, roughly that along 1."""
    last = of_uniform(angles).rename(columns={"run": "seed"})
    last = last.groupby(["model", "seed"], sort=False).tail(1).set_index(["model", "seed"])
    along = last.mean_norm * (last.occupancy / last.dim) ** 0.5
    return pd.DataFrame({"length": last.mean_norm, "along 1": along})


@torch.no_grad()
def with_means_of(model: GPT2LMHeadModel, other: GPT2LMHeadModel) -> GPT2LMHeadModel:
    """A copy of a GPT-2 in which every writer puts along 1 what the same writer of another puts there (prop-gauge)."""
    model = copied(model)
    for p, wanted in zip(stream_writers(model), stream_writers(other), strict=True):
        p += wanted.to(p).mean(-1, keepdim=True) - p.mean(-1, keepdim=True)
    return model


def rotated(model: GPT2LMHeadModel, rotation: Tensor) -> GPT2LMHeadModel:
    """A copy of a GPT-2 with RMSNorm whose stream is rotated by Q ``(d, d)``, and which computes the same.

    RMSNorm without a gain commutes with Q (prop-two-scenarios), as SliceGPT uses: https://arxiv.org/abs/2401.15024.
    """
    return rotate(fold_norms(copied(model)), rotation)


def onto_uniform(direction: Tensor) -> Tensor:
    """The reflection ``(d, d)`` that takes a direction ``(d,)`` to that of 1; the identity where it lies there."""
    one = torch.ones_like(direction)
    across = normalize(direction / direction.norm() - one / one.norm(), dim=0)
    return torch.eye(len(across), dtype=across.dtype, device=across.device) - 2 * torch.outer(across, across)


@torch.no_grad()
def scenarios(model: GPT2LMHeadModel, batch: Tensor) -> pd.DataFrame:
    """The share of 1 at the last norm, mean of cos², in weights that compute what a model does (prop-two-scenarios).

    With LayerNorm, the writers are centred, or 10 is added to each entry of the token embedding; with RMSNorm, the
    stream is rotated until 1 has the least share at the last norm, or the largest.  First positions do not count.
    """
    if find_norms(model)[-1].kind == "layer":
        least, most = center_writers(copy.deepcopy(model)), shifted(model, 10.0)
    else:
        units = last_directions(model, batch)[:, 1:].flatten(0, 1)
        _, vectors = torch.linalg.eigh(units.T @ units)  # ascending
        least, most = (rotated(model, onto_uniform(vectors[:, i])) for i in (0, -1))
    plain = model(batch).logits.double().log_softmax(-1)
    rows = {}
    for name, other in {"as trained": model, "least along 1": least, "most along 1": most}.items():
        units = last_directions(other, batch)[:, 1:].flatten(0, 1)
        change = other(batch).logits.double().log_softmax(-1) - plain
        share = units.sum(-1).square().mean() / units.shape[-1]
        rows[name] = {"share": float(share), "change of log p": float(change.abs().max())}
    return pd.DataFrame.from_dict(rows, orient="index")


@torch.no_grad()
def turned(model: nn.Module, constants: Sequence[float], batch: Tensor) -> pd.DataFrame:
    """Add c·1 to every token embedding: the mean angle to 1 at the last norm, and the relative change behind it."""
    body, rows = model.base_model, []
    plain = body(batch).last_hidden_state
    for c in constants:
        moved = shifted(body, c)
        angles = Survey(moved, ("uniform",)).run([batch], progress=False).table()
        change = (moved(batch).last_hidden_state - plain).norm() / plain.norm()
        angle = of_uniform(angles).mean_deg.iloc[-1]
        rows.append({"c": c, "angle at the last norm / degrees": angle, "change of output": float(change)})
    return pd.DataFrame(rows)


_ORDER = "norm, in order of use"


def angles_by_layer(tables: Mapping[str, pd.DataFrame]) -> tuple[Figure, str]:
    """Mean angle ± one standard deviation to three directions at each norm, a column of panels for each survey."""
    words = []
    with style():
        figure, grid = plt.subplots(2, len(tables), figsize=(WIDTH, 4.9), sharex="col", sharey=True, squeeze=False)
        for side, axes in zip(("in", "out"), grid, strict=True):
            for axis, (model, table) in zip(axes, tables.items(), strict=True):
                rows = _rows(table, side, "rest")
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


@contextmanager
def _panels(titles: Sequence[str], label: str, height: float = 3.2) -> Iterator[tuple[Figure, list[Axes]]]:
    """A row of panels with one logarithmic scale, and a legend above them."""
    with style():
        figure, (axes,) = plt.subplots(1, len(titles), figsize=(WIDTH, height), sharey=True, squeeze=False)
        yield figure, axes
        for axis, title in zip(axes, titles, strict=True):
            axis.set(title=title, yscale="log")
            ticks_of_powers(axis.yaxis)
        axes[0].set_ylabel(label)
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=2)


def occupancy_by_layer(tables: Mapping[str, pd.DataFrame]) -> tuple[Figure, str]:
    """Occupancy of the uniform direction at the norms' inputs, one line a run, over the band of random directions."""
    words = []
    with _panels(tables, "occupancy d·E[cos²]") as (figure, axes):
        for axis, (model, table) in zip(axes, tables.items(), strict=True):
            rows, band = _rows(table, "in", "rest"), null_band(table)
            place = range(len(band))
            gray = dict(color=COLORS["null"])
            axis.fill_between(place, band.low, band.high, alpha=0.3, linewidth=0, label="random, 5 to 95 %", **gray)
            axis.plot(place, band["median"], linestyle="--", label="random, median", **gray)
            uniform = rows[rows.direction == "uniform"].pivot(index="site", columns="run", values="occupancy")
            uniform = uniform.loc[band.index]
            for number, run in enumerate(uniform):
                label = "uniform vector, one line a run" if number == 0 else None
                axis.plot(place, uniform[run], color=COLORS["uniform"], marker="o", label=label)
            axis.set(xlabel=_ORDER, xticks=_ticks(len(band)))
            values = uniform.to_numpy()
            below = (values < band.low.to_numpy()[:, None]).sum()
            above = (values > band.high.to_numpy()[:, None]).sum()
            words.append(
                f"{model}: the uniform vector from {values.min():.2g} to {values.max():.2g}, below the random "
                f"directions' band at {below} and above it at {above} of {values.size} points"
            )
    return figure, "Occupancy at the input of each norm. " + "; ".join(words) + "."


def nulls_by_layer(panels: Mapping[str, tuple[pd.Series, Mapping[str, pd.DataFrame]]]) -> tuple[Figure, str]:
    """Occupancies by site, over the bands of several nulls (:func:`null_band`, by the names of :data:`NULLS`)."""
    words = []
    with _panels(panels, "occupancy d·E[cos²]", height=3.6) as (figure, axes):
        for axis, (title, (uniform, bands)) in zip(axes, panels.items(), strict=True):
            place = range(len(uniform))
            compared = []
            for null, band in bands.items():
                name, look = NULLS[null]
                band = band.loc[uniform.index]
                axis.fill_between(place, band.low, band.high, label=f"{name}, 5 to 95 %", **look)
                below, above = (uniform < band.low).sum(), (uniform > band.high).sum()
                compared.append(f"below the band of {name} at {below}, above at {above}")
            axis.plot(place, uniform, color=COLORS["uniform"], marker="o", label="uniform vector")
            axis.set(xlabel=_ORDER, xticks=_ticks(len(uniform)))
            words.append(
                f"{title}: the uniform vector from {uniform.min():.2g} to {uniform.max():.2g} over {len(uniform)} "
                f"norms, {'; '.join(compared)}"
            )
    return figure, "Occupancy at each norm over three nulls. " + ". ".join(words) + "."


def errors_by_layer(tables: Mapping[str, pd.DataFrame]) -> tuple[Figure, str]:
    """The error of dropping the mean at each LayerNorm beside the mean |cos| to the uniform direction at its input."""
    columns = {"drop_error": ("change of the output", "-", "o"), "mean_abs_cos": ("mean |cos| at the input", "--", "s")}
    words = []
    with _panels(tables, "relative error") as (figure, axes):
        for axis, (model, table) in zip(axes, tables.items(), strict=True):
            rows = of_uniform(table)
            rows = rows[rows.kind == "layer"]
            for color, (column, (label, line, marker)) in zip(("uniform", "random_a"), columns.items(), strict=True):
                look = dict(color=COLORS[color], linestyle=line, marker=marker)
                axis.plot(range(len(rows)), rows[column], label=label, **look)
            axis.set(xlabel="LayerNorm, in order of use", xticks=_ticks(len(rows)))
            times = rows.drop_error / rows.mean_abs_cos
            words.append(
                f"{model}: the change is {rows.drop_error.min():.2g} to {rows.drop_error.max():.2g}, "
                f"{times.min():.2g} to {times.max():.2g} times the mean |cos|"
            )
    return figure, "Error of dropping the mean at each LayerNorm. " + "; ".join(words) + "."


def _ticks(sites: int) -> range:
    return range(0, sites, max(1, sites // 5))


def turned_by(found: Mapping[str, pd.DataFrame], c: float) -> tuple[Figure, str]:
    """Where adding c·1 sends the mean vector at the last norm, and what it does to the output: of :func:`turned`."""
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
