"""Pairs of twins and surveys of them, costs, and changes of gauge."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pandas as pd
import torch
from normgeom.models.twins import twins
from normgeom.surgery.surgery import fold_norms
from normgeom.survey.survey import Survey
from normgeom.text.corpora import Corpus
from normgeom.text.tokens import byte_tokens, windows
from torch import Tensor, nn
from torch.nn.functional import normalize
from transformers import GPT2Config, GPT2LMHeadModel

from normgeom_lab.common.checks import Draws
from normgeom_lab.common.loading import load_with_windows
from normgeom_lab.common.loop import random_windows, train
from normgeom_lab.common.parts import shifted
from normgeom_lab.common.pictures import at_side
from normgeom_lab.common.stream import rotate
from normgeom_lab.common.tiny import gpt2, perturb

HELD_OUT = 300_000  # bytes at the end of a text that are not trained on


def held_out_bytes(text: str, tokens: int, length: int) -> tuple[Tensor, list[Tensor]]:
    """The bytes of a text to train on, ``(n,)``, and windows of its last 300,000, ``tokens`` in all, to measure on."""
    ids = byte_tokens(text)
    training, held_out = ids[:-HELD_OUT], ids[-HELD_OUT:][:tokens]
    assert len(held_out) == tokens, f"tokens: {tokens} asked, the corpus gives {len(held_out)}; name a larger one"
    return training, windows(held_out, length, 32)


def load_to_survey(name: str, corpus: Corpus, tokens: int) -> tuple[dict[str, nn.Module], tuple[Tensor, ...]]:
    """Load a model by name, without its head, and windows of a corpus to measure it on, in batches of 32."""
    network, ids = load_with_windows(name, corpus, tokens, 128, head=False)
    return {name: network}, ids.split(32)


def pairs(config: GPT2Config, seeds: Iterable[int], device: str = "cpu") -> dict[tuple[str, int], GPT2LMHeadModel]:
    """Untrained twins, by name and seed."""
    names = "LayerNorm twin", "RMSNorm twin"
    made = {seed: zip(names, twins(config, seed), strict=True) for seed in seeds}
    return {(name, seed): twin.to(device) for seed, named in made.items() for name, twin in named}


def tiny_pairs(draw: Draws, seed: int) -> list[tuple[GPT2LMHeadModel, GPT2LMHeadModel]]:
    """Three pairs of float64 twins ``(LayerNorm, RMSNorm)`` of different sizes and ε, both twins perturbed alike."""
    found = []
    for width, layers, heads in ((16, 2, 2), (10, 3, 1), (24, 4, 3)):
        config = gpt2(64, 16, width, layers, heads)
        config.layer_norm_epsilon = draw.eps()
        found.append(tuple(perturb(twin.double(), Draws(seed)) for twin in twins(config, seed)))
    return found


def train_pairs(networks: Mapping[tuple[str, int], GPT2LMHeadModel], ids: Tensor, steps: int) -> pd.DataFrame:
    """Train twins in place on 16 windows of ``ids`` per step; return losses in nats per token, by (model, seed)."""
    rows = {}
    for (name, seed), network in networks.items():
        batches = random_windows(ids, network.config.n_positions, 16, seed=seed)
        losses = train(network, batches, steps, 3e-3, description=f"{name} {seed}")
        rows[name, seed] = {"first step": losses[0], "last 10 steps": sum(losses[-10:]) / 10}
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis(["model", "seed"])


def survey_runs(
    networks: Mapping[tuple[str, int], nn.Module],
    batches: Sequence[Tensor],
    directions: Sequence[str],
    seed: int,
    progress: bool = False,
    out: str = "",
) -> pd.DataFrame:
    """Survey networks, by (``model``, ``run``), on the same batches of token ids; return one table of all surveys.

    The folder ``out`` keeps the state of each survey; the same call resumes a survey that was stopped.
    """
    if out:
        Path(out).mkdir(parents=True, exist_ok=True)
    tables = []
    for (model, run), network in networks.items():
        state = Path(out) / f"{model.replace('/', '--')}-{run}.safetensors" if out else None
        survey = Survey(network, directions, seed).run(batches, progress, state)
        tables.append(survey.table().assign(model=model, run=run))
    return pd.concat(tables, ignore_index=True)


def of_uniform(angles: pd.DataFrame, side: str = "in", positions: str = "rest") -> pd.DataFrame:
    """The rows of the uniform vector in a survey's table, at one side of the norms."""
    return at_side(angles[angles.direction == "uniform"], side, positions)


def in_words(angles: pd.DataFrame) -> pd.DataFrame:
    """Some columns of a survey's table under names in words, one row a norm."""
    words = dict(mean_deg="mean angle / degrees", std_deg="standard deviation / degrees")
    return angles.set_index("site")[[*words, "occupancy"]].rename(columns=words).rename_axis("norm")


def reflected(model: GPT2LMHeadModel, direction: Tensor) -> GPT2LMHeadModel:
    """A copy of a GPT-2 with RMSNorm that computes the same, its stream reflected so that ``direction`` becomes 1's.

    RMSNorm without a gain commutes with it (prop-two-scenarios), which SliceGPT uses: https://arxiv.org/abs/2401.15024.
    """
    one = torch.ones_like(direction)
    across = normalize(direction / direction.norm() - one / one.norm(), dim=0)
    reflection = torch.eye(len(across)).to(across) - 2 * torch.outer(across, across)
    return rotate(fold_norms(copy.deepcopy(model)), reflection)


@torch.no_grad()
def turned(model: nn.Module, constants: Sequence[float], batch: Tensor) -> pd.DataFrame:
    """Add c·1 to every token embedding: the mean angle to 1 at the last norm, and the relative change of its output."""
    body, rows = model.base_model, []
    plain = body(batch).last_hidden_state
    for c in constants:
        moved = shifted(body, c)
        angles = Survey(moved, ("uniform",)).run([batch], progress=False).table()
        change = (moved(batch).last_hidden_state - plain).norm() / plain.norm()
        angle = of_uniform(angles).mean_deg.iloc[-1]
        rows.append({"c": c, "angle at the last norm / degrees": angle, "change of output": float(change)})
    return pd.DataFrame(rows)
