"""Several pairs of twins, each from its own seed, trained alike for a survey to look at."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pandas as pd
import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from normgeom.checks import Draws
from normgeom.models.gpt2 import gpt2
from normgeom.models.untrained import shaken
from normgeom.text.tokens import byte_tokens, random_windows, windows
from normgeom.training.twins import train, twins

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
    gives, and are float64, every parameter moved (:func:`normgeom.models.untrained.shaken`), in a pair alike.
    """
    found = []
    for width, layers, heads in ((16, 2, 2), (10, 3, 1), (24, 4, 3)):
        config = gpt2(64, 16, width, layers, heads)
        config.layer_norm_epsilon = draw.eps()
        layer, rms = twins(config, seed)
        found.append((shaken(layer.double(), 0.3, seed), shaken(rms.double(), 0.3, seed)))
    return found


def train_pairs(networks: Mapping[tuple[str, int], GPT2LMHeadModel], ids: Tensor, steps: int) -> pd.DataFrame:
    """Train twins in place to predict the next token, by :func:`normgeom.training.twins.train`.

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
