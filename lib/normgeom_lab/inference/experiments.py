"""Pairs of twins and surveys of them, costs, and changes of gauge."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import pandas as pd
import torch
from normgeom.checks import Draws
from normgeom.commands.loading import load_model, most_tokens
from normgeom.models.sites import find_norms
from normgeom.surgery.surgery import center_writers, fold_norms
from normgeom.survey.survey import Survey
from normgeom.text.corpora import Corpus
from normgeom.text.tokens import byte_tokens, first_windows, load_tokenizer, random_windows, windows
from normgeom.training.twins import gpt2, twins
from torch import Tensor, nn
from torch.nn.functional import normalize
from transformers import AutoModel, GPT2Config, GPT2LMHeadModel, GPTJConfig, GPTNeoConfig, GPTNeoXConfig, LlamaConfig

from normgeom_lab.common.loop import train
from normgeom_lab.common.parts import shifted
from normgeom_lab.common.pictures import at_side
from normgeom_lab.common.stream import last_directions, rotate
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
    batches = first_windows(corpus, load_tokenizer(place, config), tokens, length, 32)
    had = sum(batch.numel() for batch in batches)
    assert had == tokens // length * length, f"tokens: {tokens} asked, the corpus gives {had}; name a larger one"
    return networks, batches


def title(name: str) -> str:
    """A model's name, of a folder the last part, for pictures and tables: without signs of HTML, TeX or a formula."""
    return re.sub(r"[^\w.,+/ -]", "_", Path(name).resolve().name if Path(name).is_dir() else name)


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
    return at_side(angles[angles.direction == "uniform"], side, positions)


# Columns of a survey in words.
WORDS = {
    "kind": "kind",
    "tokens": "tokens",
    "mean_deg": "mean angle / degrees",
    "std_deg": "spread / degrees",
    "occupancy": "occupancy",
    "mean_norm": "mean length",
    "mean_abs_cos": "mean |cos|",
    "drop_error": "change of the output",
}


def in_words(angles: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """Some columns of a survey's table under the names of :data:`WORDS`, one row a norm."""
    rows = angles.set_index("site")[list(columns)]
    if "kind" in columns:
        rows = rows.replace({"kind": {"layer": "LayerNorm", "rms": "RMSNorm"}})
    return rows.rename(columns=WORDS).rename_axis("norm")


def rotated(model: GPT2LMHeadModel, rotation: Tensor) -> GPT2LMHeadModel:
    """A copy of a GPT-2 with RMSNorm whose stream is rotated by Q ``(d, d)``, and which computes the same.

    RMSNorm without a gain commutes with Q (prop-two-scenarios), as SliceGPT uses: https://arxiv.org/abs/2401.15024.
    """
    return rotate(fold_norms(copy.deepcopy(model)), rotation)


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
