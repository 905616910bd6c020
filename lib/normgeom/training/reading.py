"""Small language models, and what a decoder reads at their norms before and after they are trained."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pandas as pd
from torch import Tensor

from normgeom.survey.decoders import read_norms
from normgeom.text.tokens import random_windows
from normgeom.training.twins import Size, train, variants

if TYPE_CHECKING:
    from jaxtyping import Int

    Text = Int[Tensor, "n"]
    Ids = Int[Tensor, "batch length"]


def read_before_and_after(
    size: Size, seed: int, tokens: Text, held_out: Sequence[Ids], vocabulary: int
) -> pd.DataFrame:
    """Train a GPT-2 with LayerNorm and read its norms' inputs back from their outputs, before and after.

    Args:
        size: of the model and of its training, which :func:`normgeom.training.twins.train` does.
        seed: of the initial weights and of the windows.
        tokens: ids to train on.
        held_out: batches to read on.
        vocabulary: one more than the largest id.

    Returns:
        :func:`normgeom.survey.decoders.read_norms` with the number of updates, 0 and ``size.steps``, as the first level
        of the index, and ``loss``, the mean of the last ten updates in nats a token; NaN before training.

    Raises:
        ValueError: an id is not below ``vocabulary``, there is no batch, or the text is shorter than one window.
    """
    if not held_out:
        raise ValueError("held_out: expected at least one batch, got none")
    largest = max(int(ids.max()) for ids in (tokens, *held_out))
    if largest >= vocabulary:
        raise ValueError(f"vocabulary: expected above {largest}, the largest id, got {vocabulary}")
    drawn = random_windows(tokens, size.length, size.batch, seed)
    model = variants(size.config(vocabulary), seed, ("layer",))["layer"]
    before = read_norms(model, held_out)
    last = train(model, drawn, size.steps, size.rate, f"model {seed}")[-10:]
    after = read_norms(model, held_out)
    readings = {0: before.assign(loss=math.nan), size.steps: after.assign(loss=sum(last) / len(last))}
    return pd.concat(readings, names=["updates", "norm"])
