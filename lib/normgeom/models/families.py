"""Small pre-norm language models of several architectures, every weight of them drawn."""

from __future__ import annotations

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

# What each architecture wants besides the sizes that all have.
FAMILIES = {"gpt2": {}, "opt": {"word_embed_proj_dim": 32}, "gpt_neox": {}, "gptj": {"rotary_dim": 8}, "llama": {}}
PARALLEL = ("gpt_neox", "gptj")  # attention and MLP read the same stream
_SIZES = dict(vocab_size=50, hidden_size=32, num_hidden_layers=3, num_attention_heads=2)
_SPECIAL = dict(pad_token_id=49, bos_token_id=None, eos_token_id=None)


def random_model(family: str, seed: int) -> nn.Module:
    """A language model of one of :data:`FAMILIES`: three blocks, width 32, fifty tokens.

    Weights and biases are normal with standard deviation 0.3, around 1 where the parameter is a vector, so that no
    gain is 1, no bias is 0 and none of them can be forgotten unnoticed.  The global random state is left as it was.

    Args:
        family: transformers' name of the architecture.
        seed: of all that is drawn.

    Returns:
        float64, on the CPU, in evaluation mode.

    Raises:
        ValueError: an unknown ``family``.
    """
    if family not in FAMILIES:
        raise ValueError(f"family: expected one of {', '.join(FAMILIES)}, got {family!r}")
    config = AutoConfig.for_model(family, **_SIZES, **_SPECIAL, **FAMILIES[family])
    with torch.random.fork_rng(devices=[]):
        model = AutoModelForCausalLM.from_config(config).double().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(float(parameter.dim() == 1), 0.3, generator=generator)
    return model
