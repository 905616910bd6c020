"""Small GPT-2s: their sizes, and which of their parameters write to the residual stream and which read it."""

from __future__ import annotations

from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

from normgeom.models.layouts import layout_of


def gpt2(vocabulary: int, length: int, width: int, layers: int, heads: int) -> GPT2Config:
    """The configuration of a GPT-2 without dropout: with it, no statement about gradients along 1 holds exactly.

    Raises:
        ValueError: a size is below 1, or ``heads`` does not divide ``width``.
    """
    sizes = dict(vocabulary=vocabulary, length=length, width=width, layers=layers, heads=heads)
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name}: expected at least 1, got {size}")
    if width % heads:
        raise ValueError(f"heads: expected a divisor of the width {width}, got {heads}")
    return GPT2Config(
        vocab_size=vocabulary,
        n_positions=length,
        n_embd=width,
        n_layer=layers,
        n_head=heads,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=None,
        eos_token_id=None,
    )


def written(model: GPT2LMHeadModel) -> list[nn.Parameter]:
    """Weights and biases of all that writes to the stream, which is their last axis.

    The token embedding comes first, which may be the head's matrix too, then the positions', then block by block.

    Raises:
        ValueError: the model is no GPT-2 with a language-model head, or something is attached to it.
    """
    return [p for _, writer in _layout(model).writers_of(model) for p in writer.parameters()]


def read(model: GPT2LMHeadModel) -> list[nn.Parameter]:
    """The matrices that read the norms of the blocks, whose first axis is the stream; the head is not among them.

    Raises:
        ValueError: as for :func:`written`.
    """
    *in_blocks, _ = _layout(model).readers_of(model)
    return [reader.weight for _, _, readers in in_blocks for _, reader in readers]


def _layout(model):
    if not isinstance(model, GPT2LMHeadModel):
        raise ValueError(f"model: expected a GPT2LMHeadModel, got a {type(model).__name__}")
    return layout_of(model)
