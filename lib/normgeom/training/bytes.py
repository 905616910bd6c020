"""A small GPT-2 that learns a text byte by byte, and the end of the text that it has not seen."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from transformers import GPT2LMHeadModel

from normgeom.text.tokens import byte_tokens, random_windows
from normgeom.training.twins import Size, train, twins

HELD_OUT = 300_000  # bytes at the end of the text


class Trained(NamedTuple):
    """What :func:`train_on_bytes` made.

    Attributes:
        untrained: the model as it was drawn.
        model: after training; both float32, in evaluation mode.
        losses: of each update, nats a byte.
        held_out: the bytes that no update has seen, ``(300000,)`` int64, on the CPU.
    """

    untrained: GPT2LMHeadModel
    model: GPT2LMHeadModel
    losses: list[float]
    held_out: Tensor


def train_on_bytes(size: Size, text: str, seed: int, device: torch.device | str = "cpu") -> Trained:
    """Train a GPT-2 with LayerNorm (:func:`normgeom.training.twins.train`) on a text, without its last bytes.

    Args:
        size: of the model and of its training; ``spacing`` is not used.
        text: longer than :data:`HELD_OUT` bytes by at least a window.
        seed: of the weights and of the places of the windows.
        device: where both models are.

    Raises:
        ValueError: the text is too short.
    """
    ids = byte_tokens(text)
    least = HELD_OUT + size.length
    if len(ids) < least:
        raise ValueError(f"text: expected at least {least} bytes, {HELD_OUT} of them held out, got {len(ids)}")
    untrained, model = (twins(size.config(256), seed)[0].to(device) for _ in range(2))
    batches = random_windows(ids[:-HELD_OUT], size.length, size.batch, seed)
    losses = train(model, batches, size.steps, size.rate)
    return Trained(untrained, model, losses, ids[-HELD_OUT:])
