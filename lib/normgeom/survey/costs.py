"""What a survey of a large model asks for, from its sizes alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import transformers
from torch import nn
from transformers import AutoModel, PreTrainedConfig

# The models of the paper's table 1 by their names on the hub, with the sizes that their configurations there state.
_NEOX = transformers.GPTNeoXConfig
_LLAMA = partial(transformers.LlamaConfig, hidden_size=4096, num_hidden_layers=32, num_attention_heads=32)
SEVEN: dict[str, Callable[[], PreTrainedConfig]] = {
    "openai-community/gpt2-xl": partial(transformers.GPT2Config, n_embd=1600, n_layer=48, n_head=25),
    "EleutherAI/gpt-neo-1.3B": transformers.GPTNeoConfig,
    "EleutherAI/pythia-1.4b": partial(
        _NEOX, hidden_size=2048, num_hidden_layers=24, num_attention_heads=16, intermediate_size=8192
    ),
    "EleutherAI/gpt-j-6b": transformers.GPTJConfig,
    "EleutherAI/pythia-6.9b": partial(
        _NEOX, hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, intermediate_size=16384
    ),
    "meta-llama/Llama-2-7b-hf": partial(_LLAMA, intermediate_size=11008),
    "meta-llama/Meta-Llama-3-8B": partial(_LLAMA, intermediate_size=14336, num_key_value_heads=8, vocab_size=128256),
}
TOKENS, RATE, BYTES = 1e6, 50e12, 2  # of the survey; operations a second of the device; bytes a number


def survey_cost(config: PreTrainedConfig) -> dict[str, float]:
    """What a survey of 10⁶ tokens asks for, computed from the sizes of a model and not measured.

    Returns:
        by a column's name: the width ``d``, the number of norms; ``"weights / GB"`` in two bytes each, without the
        head; ``"work / 10¹⁵ operations"``, two a weight and token, embeddings and attention's own products left out;
        ``"time / minutes"`` of a device that sustains 50 · 10¹² operations a second; and ``"stored / TB"``, what the
        inputs and outputs of all norms would take in two bytes a number.
    """
    weights, working, norms = counted(config)
    work = 2 * working * TOKENS
    return {
        "d": config.hidden_size,
        "norms": norms,
        "weights / GB": BYTES * weights / 1e9,
        "work / 10¹⁵ operations": work / 1e15,
        "time / minutes": work / RATE / 60,
        "stored / TB": norms * 2 * config.hidden_size * BYTES * TOKENS / 1e12,
    }


def counted(config: PreTrainedConfig) -> tuple[int, int, int]:
    """How many weights a model has without its head, how many of them are no embeddings, and how many norms."""
    with torch.device("meta"):  # sizes without weights
        shell = AutoModel.from_config(config)
    weights = sum(p.numel() for p in shell.parameters())
    embeddings = sum(m.weight.numel() for m in shell.modules() if isinstance(m, nn.Embedding))
    return weights, weights - embeddings, sum("norm" in type(m).__name__.lower() for m in shell.modules())
