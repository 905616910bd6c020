"""Models of a few thousand weights, one for each family of norms, built from their configurations."""

from __future__ import annotations

import torch
import transformers
from torch import nn

VOCABULARY = 64
_IDS = dict(bos_token_id=None, eos_token_id=None, pad_token_id=None)
_GPT = dict(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=64, **_IDS)
_LONG = dict(
    vocab_size=VOCABULARY,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    max_position_embeddings=64,
    **_IDS,
)
_GROUPED = dict(_LONG, num_key_value_heads=2)

# family: class, configuration class, configuration
_FAMILIES = {
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", _GPT),
    "gpt_neo": (
        "GPTNeoForCausalLM",
        "GPTNeoConfig",
        dict(
            vocab_size=VOCABULARY,
            hidden_size=32,
            num_layers=2,
            num_heads=4,
            attention_types=[[["global", "local"], 1]],
            window_size=8,
            max_position_embeddings=64,
            **_IDS,
        ),
    ),
    "gpt_neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", _LONG),
    "gptj": ("GPTJForCausalLM", "GPTJConfig", dict(_GPT, rotary_dim=4)),
    "opt": (
        "OPTForCausalLM",
        "OPTConfig",
        dict(
            vocab_size=VOCABULARY,
            hidden_size=32,
            ffn_dim=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=64,
            word_embed_proj_dim=32,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=1,
        ),
    ),
    "bloom": (
        "BloomForCausalLM",
        "BloomConfig",
        dict(vocab_size=VOCABULARY, hidden_size=32, n_layer=2, n_head=4, **_IDS),
    ),
    "phi": ("PhiForCausalLM", "PhiConfig", _LONG),
    "llama": ("LlamaForCausalLM", "LlamaConfig", _GROUPED),
    "mistral": ("MistralForCausalLM", "MistralConfig", _GROUPED),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", dict(_GROUPED, head_dim=8)),
    "gemma": ("GemmaForCausalLM", "GemmaConfig", dict(_GROUPED, head_dim=8)),
    "gemma2": ("Gemma2ForCausalLM", "Gemma2Config", dict(_GROUPED, head_dim=8)),
    "olmo": ("OlmoForCausalLM", "OlmoConfig", _GROUPED),
    "olmo2": ("Olmo2ForCausalLM", "Olmo2Config", _GROUPED),
    "cohere": ("CohereForCausalLM", "CohereConfig", _GROUPED),
    "nemotron": ("NemotronForCausalLM", "NemotronConfig", _GROUPED),
    "t5": (
        "T5ForConditionalGeneration",
        "T5Config",
        dict(
            vocab_size=VOCABULARY,
            d_model=32,
            d_kv=8,
            d_ff=48,
            num_layers=1,
            num_heads=4,
            decoder_start_token_id=0,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=0,
        ),
    ),
    "bert": ("BertModel", "BertConfig", dict(_LONG, pad_token_id=0)),
    "vit": (
        "ViTModel",
        "ViTConfig",
        dict(
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            image_size=8,
            patch_size=4,
        ),
    ),
}
FAMILIES = tuple(_FAMILIES)


def tiny(family: str, seed: int = 0, **changes) -> nn.Module:
    """A model of the family, in evaluation mode, its weights fixed by ``seed``; the global generator stays."""
    model_name, config_name, settings = _FAMILIES[family]
    config = getattr(transformers, config_name)(**{**settings, **changes})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return getattr(transformers, model_name)(config).eval()


def randomise_norms(model: nn.Module, modules: list[nn.Module], seed: int = 1) -> None:
    """Draw gains and shifts of the given modules, so that none of them is at its initial value."""
    generator = torch.Generator().manual_seed(seed)
    for module in modules:
        for parameter in module.parameters(recurse=False):
            parameter.data.copy_(torch.randn(parameter.shape, generator=generator))


def token_ids(batch: int, length: int, seed: int = 0) -> torch.Tensor:
    """Token ids without padding's: ``(batch, length)`` from 2 up."""
    return torch.randint(2, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))
