"""Changes of gauge: what lies along 1 is moved, and what a LayerNorm network computes is not (prop-gauge)."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import pandas as pd
import torch
from torch import Tensor, nn
from transformers import GPT2LMHeadModel

from normgeom.models.gpt2 import written
from normgeom.surgery.dropping import shifted
from normgeom.survey.runs import of_uniform
from normgeom.survey.survey import Survey


@torch.no_grad()
def with_means_of(model: GPT2LMHeadModel, other: GPT2LMHeadModel) -> GPT2LMHeadModel:
    """A copy of a GPT-2 in which every writer puts along 1 what the same writer of another puts there.

    Of weights, biases and embeddings the mean over the stream is the other's, and the rest is as it was.  With
    LayerNorm, what the norms put out stays the same (prop-gauge); a head that shares the embedding's matrix does not.

    Raises:
        ValueError: one of them is no GPT-2, or they have other sizes.
    """
    model = copy.deepcopy(model)
    mine, theirs = written(model), written(other)
    if [p.shape for p in mine] != [p.shape for p in theirs]:
        raise ValueError("other: expected a model of the same sizes, got one of others")
    for p, wanted in zip(mine, theirs, strict=True):
        p += wanted.to(p).mean(-1, keepdim=True) - p.mean(-1, keepdim=True)
    return model


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
