"""Weights on the sphere: the other half of nGPT, whose matrices are made of vectors of length 1."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from normgeom.models.placement import LanguageModel


@torch.no_grad()
def normalise_weights(model: LanguageModel) -> LanguageModel:
    """Bring every vector that reads from the stream, writes to it or embeds a token to length 1, in place.

    They are the rows of embeddings, head, queries, keys, values and first matrix of the MLP, and the columns of the
    attention's output and of the MLP's second matrix; nGPT does so at the start and after every update.

    Args:
        model: of placement ``"sphere"``.

    Returns:
        the model.

    Raises:
        ValueError: the model's stream is not on a sphere.

    Source: Loshchilov et al. (2025).
    """
    if not model.stack.on_sphere:
        raise ValueError("model: expected one of placement 'sphere', whose norms have no gain")
    for matrix, axis in _vectors(model):
        matrix.div_(torch.linalg.vector_norm(matrix, dim=axis, keepdim=True))
    return model


def _vectors(model: LanguageModel) -> Iterator[tuple[Tensor, int]]:
    """Each matrix, and the axis of it that is as long as the stream is wide."""
    for embedding in (model.tokens, model.positions, model.head):
        yield embedding.weight, 1
    for block in model.stack.blocks:
        attention, (first, _, second) = block.attention.branch, block.mlp.branch
        yield from (
            (attention.in_proj.weight, 1),
            (attention.out_proj.weight, 0),
            (first.weight, 1),
            (second.weight, 0),
        )
