"""Small language models of bytes, by placement: how they are trained, and what of it a stack's blocks show."""

from __future__ import annotations

import copy
import itertools
import math
from typing import TYPE_CHECKING

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normgeom.models.initial import scaled
from normgeom.models.placement import LanguageModel, Stack
from normgeom.models.sphere import normalise_weights
from normgeom.text.tokens import random_windows
from normgeom.training.fitting import fit, next_token_loss

if TYPE_CHECKING:
    from jaxtyping import Int

    Ids = Int[Tensor, "windows length"]

WIDTH, HEADS, LENGTH = 64, 4, 65


def train_bytes(
    text: Tensor,
    placement: str,
    blocks: int,
    rate: float,
    updates: int,
    seed: int,
    warmup: int = 0,
    batch: int = 4,
    norm: str = "layer",
    scale: float = 1.0,
) -> tuple[LanguageModel, list[float]]:
    """A byte model, 64 wide, trained on windows of a text by :func:`normgeom.training.fitting.fit`.

    Weights and batches depend on the seed alone: one text in one order for every placement.  Seeds torch's own
    generator, in whose default dtype the weights are drawn; trained in float32.  On the sphere weights are brought to
    it at the start and after every update (:func:`normgeom.models.sphere.normalise_weights`).

    Args:
        text: byte ids ``(n,)``.
        placement: a key of ``PLACEMENTS`` or ``DESIGNS``.
        blocks: how many.
        rate: the learning rate, after ``warmup`` updates, which climb to it.
        updates: how many; 0 for a model as it starts.
        seed: of weights and batches.
        batch: windows of 65 bytes, of which 64 are predicted.
        norm: a key of ``NORMS``.
        scale: by which all matrices of the branches are multiplied before the first update.

    Returns:
        the model, and the loss of each batch before its update in nats a byte.

    Raises:
        ValueError: ``updates`` is negative; errors of the others are those of what takes them.
    """
    if updates < 0:
        raise ValueError(f"updates: expected a number >= 0, got {updates}")
    torch.manual_seed(seed)
    stack = scaled(Stack(WIDTH, HEADS, blocks, placement, norm), scale)
    model = LanguageModel(256, LENGTH, stack, scale=1 / math.sqrt(WIDTH)).float()
    batches = itertools.islice(random_windows(text, LENGTH, batch, seed), updates)
    settle = normalise_weights if stack.on_sphere else lambda model: model
    return model, fit(settle(model), batches, rate, warmup, settle)


@torch.no_grad()
def varying_share(model: LanguageModel, ids: Ids) -> float:
    """The share of the final stream's mean square that differs from token to token; the rest is one vector for all."""
    x = model.stack(model.embed(ids)).flatten(0, 1)
    return 1 - float(x.mean(0).square().sum() / x.square().sum(-1).mean())


def first_over_last(model: LanguageModel, ids: Ids) -> float:
    """How long the loss's gradient by the first block's W₂ is, over that by the last one's."""
    matrices = [model.stack.blocks[i].mlp.branch[2].weight for i in (0, -1)]
    first, last = torch.autograd.grad(next_token_loss(model, ids), matrices)
    return float(first.norm() / last.norm())


@torch.no_grad()
def block_table(model: LanguageModel, ids: Ids) -> pd.DataFrame:
    """What each block of a model does to the stream, and what its loss is without it.

    Returns:
        one row a block, by its number from 1: ``square``, the mean square of the stream behind it; ``update``, the mean
        length of what it changes over that of the stream before; ``cosine``, of the two, mean over positions; ``more``,
        the loss in nats a token without this block, less that of the whole model.
    """
    streams, whole = model.stack.streams(model.embed(ids))[::2], next_token_loss(model, ids)
    rows = []
    for block, (x, y) in enumerate(itertools.pairwise(streams)):
        less = copy.deepcopy(model)
        del less.stack.blocks[block]
        rows.append(
            dict(
                square=float(y.square().mean()),
                update=float((y - x).norm(dim=-1).mean() / x.norm(dim=-1).mean()),
                cosine=float(F.cosine_similarity(x, y - x, dim=-1).mean()),
                more=float(next_token_loss(less, ids) - whole),
            )
        )
    return pd.DataFrame(rows, index=pd.RangeIndex(1, len(rows) + 1, name="block"))


@torch.no_grad()
def last_update(model: LanguageModel, ids: Ids) -> float:
    """The mean length of what the last block changes, over that of the stream before it."""
    streams = model.stack.streams(model.embed(ids))
    x, y = streams[-3], streams[-1]
    return float((y - x).norm(dim=-1).mean() / x.norm(dim=-1).mean())


@torch.no_grad()
def largest_score(model: LanguageModel, ids: Ids) -> float:
    """The largest absolute value of which attention takes a softmax, in any block, head and position; NaN if one is."""
    x, largest = model.embed(ids), torch.tensor(0.0)
    for block in model.stack.blocks:
        sublayer = block.attention
        scores = sublayer.branch.scores(sublayer.read(x))
        largest = torch.maximum(largest, scores[~scores.isneginf()].abs().max())
        x = block(x)
    return float(largest)


@torch.no_grad()
def loss_without_norms(model: LanguageModel, ids: Ids) -> float:
    """The loss in nats a token of a model with all its norms taken out; the model stays as it is."""
    bare = copy.deepcopy(model)
    bare.stack.final = nn.Identity()
    for sublayer in bare.stack.sublayers:
        sublayer.before, sublayer.after, sublayer.sum = (nn.Identity() for _ in range(3))
    return float(next_token_loss(bare, ids))
