"""Small GPT-2s by their sizes."""

from __future__ import annotations

from transformers import GPT2Config


def gpt2(vocabulary: int, length: int, width: int, layers: int, heads: int) -> GPT2Config:
    """The configuration of a GPT-2 without dropout: with it, no statement about gradients along 1 holds exactly."""
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
