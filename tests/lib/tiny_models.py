"""Models of a few thousand weights, one for each family of norms, built from their configurations."""

from __future__ import annotations

import normgeom as ng
import pytest
import torch
import transformers
from torch import nn

VOCABULARY = 64
# two blocks of width 32 with four heads of eight, each family in its own words
_IDS = dict(bos_token_id=None, eos_token_id=None, pad_token_id=None)
_WORDS = dict(vocab_size=VOCABULARY, **_IDS)
_SPECIAL = dict(vocab_size=VOCABULARY, bos_token_id=0, eos_token_id=1, pad_token_id=1)
_BLOCKS = dict(hidden_size=32, num_hidden_layers=2)
_LONG = dict(_WORDS, **_BLOCKS, intermediate_size=48, num_attention_heads=4, max_position_embeddings=64)
_GROUPED = dict(_LONG, num_key_value_heads=2)
_HEADS = dict(_GROUPED, head_dim=8)
_GPT = dict(_WORDS, n_embd=32, n_layer=2, n_head=4, n_positions=64)
_BERT = dict(_LONG, pad_token_id=0)
_SEQUENCES = dict(
    _SPECIAL,
    d_model=32,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    encoder_ffn_dim=48,
    decoder_ffn_dim=48,
    max_position_embeddings=64,
    decoder_start_token_id=0,
)
_IMAGE = dict(_BLOCKS, intermediate_size=48, num_attention_heads=4, image_size=8, patch_size=4)
_EXPERTS = dict(num_experts_per_tok=2, moe_intermediate_size=16)
_LATENT = dict(
    _LONG,
    **_EXPERTS,
    n_routed_experts=4,
    n_group=1,
    topk_group=1,
    first_k_dense_replace=1,
    q_lora_rank=16,
    kv_lora_rank=12,
    qk_rope_head_dim=4,
    qk_nope_head_dim=4,
    v_head_dim=8,
    rms_norm_eps=1e-5,
)
_STATES = dict(_WORDS, **_BLOCKS, state_size=8)

# family: class, configuration class, configuration
_FAMILIES = {
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", _GPT),
    "openai_gpt": ("OpenAIGPTLMHeadModel", "OpenAIGPTConfig", _GPT),
    "gpt_bigcode": ("GPTBigCodeForCausalLM", "GPTBigCodeConfig", _GPT),
    "gpt_neo": (
        "GPTNeoForCausalLM",
        "GPTNeoConfig",
        dict(
            _WORDS,
            hidden_size=32,
            num_layers=2,
            num_heads=4,
            attention_types=[[["global", "local"], 1]],
            window_size=8,
            max_position_embeddings=64,
        ),
    ),
    "gpt_neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", _LONG),
    "gptj": ("GPTJForCausalLM", "GPTJConfig", dict(_GPT, rotary_dim=4)),
    "codegen": ("CodeGenForCausalLM", "CodeGenConfig", dict(_GPT, rotary_dim=4)),
    "opt": (
        "OPTForCausalLM",
        "OPTConfig",
        dict(_LONG, ffn_dim=48, word_embed_proj_dim=32, pad_token_id=1),
    ),
    "biogpt": ("BioGptForCausalLM", "BioGptConfig", dict(_LONG, pad_token_id=1)),
    "xglm": (
        "XGLMForCausalLM",
        "XGLMConfig",
        dict(_SPECIAL, d_model=32, ffn_dim=48, num_layers=2, attention_heads=4, max_position_embeddings=64),
    ),
    "bloom": ("BloomForCausalLM", "BloomConfig", dict(_WORDS, hidden_size=32, n_layer=2, n_head=4)),
    "mpt": ("MptForCausalLM", "MptConfig", dict(_WORDS, d_model=32, n_heads=4, n_layers=2, max_seq_len=64)),
    "falcon": ("FalconForCausalLM", "FalconConfig", _LONG),
    "falcon_new": ("FalconForCausalLM", "FalconConfig", dict(_LONG, num_kv_heads=2, new_decoder_architecture=True)),
    "phi": ("PhiForCausalLM", "PhiConfig", _LONG),
    "phi_qk": ("PhiForCausalLM", "PhiConfig", dict(_LONG, qk_layernorm=True)),
    "phi3": ("Phi3ForCausalLM", "Phi3Config", _GROUPED),
    "phimoe": ("PhimoeForCausalLM", "PhimoeConfig", dict(_GROUPED, num_local_experts=4)),
    "stablelm": ("StableLmForCausalLM", "StableLmConfig", dict(_GROUPED, qk_layernorm=True)),
    "persimmon": ("PersimmonForCausalLM", "PersimmonConfig", _LONG),
    "starcoder2": ("Starcoder2ForCausalLM", "Starcoder2Config", _GROUPED),
    "llama": ("LlamaForCausalLM", "LlamaConfig", _GROUPED),
    "llama4": ("Llama4ForCausalLM", "Llama4TextConfig", dict(_HEADS, intermediate_size_mlp=48, num_local_experts=2)),
    "mistral": ("MistralForCausalLM", "MistralConfig", _GROUPED),
    "mixtral": ("MixtralForCausalLM", "MixtralConfig", dict(_GROUPED, num_local_experts=4)),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", _GROUPED),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", _HEADS),
    "qwen3_next": (
        "Qwen3NextForCausalLM",
        "Qwen3NextConfig",
        dict(
            _HEADS,
            **_EXPERTS,
            num_experts=4,
            shared_expert_intermediate_size=16,
            layer_types=["linear_attention", "full_attention"],
            linear_num_value_heads=4,
            linear_num_key_heads=2,
            linear_key_head_dim=8,
            linear_value_head_dim=8,
        ),
    ),
    "gemma": ("GemmaForCausalLM", "GemmaConfig", _HEADS),
    "gemma2": ("Gemma2ForCausalLM", "Gemma2Config", _HEADS),
    "gemma3": ("Gemma3ForCausalLM", "Gemma3TextConfig", _HEADS),
    "olmo": ("OlmoForCausalLM", "OlmoConfig", _GROUPED),
    "olmo2": ("Olmo2ForCausalLM", "Olmo2Config", _GROUPED),
    "cohere": ("CohereForCausalLM", "CohereConfig", _GROUPED),
    "cohere_qk": ("CohereForCausalLM", "CohereConfig", dict(_GROUPED, use_qk_norm=True)),
    "chameleon": (
        "ChameleonForConditionalGeneration",
        "ChameleonConfig",
        dict(
            _GROUPED,
            vocabulary_map={"<image>": 3},
            vq_config=dict(base_channels=32, channel_multiplier=[1], num_res_blocks=1, num_embeddings=8),
        ),
    ),
    "nemotron": ("NemotronForCausalLM", "NemotronConfig", _GROUPED),
    "glm4": ("Glm4ForCausalLM", "Glm4Config", _HEADS),
    "exaone4": ("Exaone4ForCausalLM", "Exaone4Config", _HEADS),
    "nanochat": ("NanoChatForCausalLM", "NanoChatConfig", _GROUPED),
    "bitnet": ("BitNetForCausalLM", "BitNetConfig", _GROUPED),
    "deepseek_v3": ("DeepseekV3ForCausalLM", "DeepseekV3Config", _LATENT),
    "lfm2": ("Lfm2ForCausalLM", "Lfm2Config", dict(_GROUPED, layer_types=["conv", "full_attention"])),
    "mamba2": ("Mamba2ForCausalLM", "Mamba2Config", dict(_STATES, num_heads=8, head_dim=8, n_groups=1)),
    "falcon_mamba": ("FalconMambaForCausalLM", "FalconMambaConfig", _STATES),
    "rwkv": ("RwkvForCausalLM", "RwkvConfig", dict(_WORDS, **_BLOCKS, attention_hidden_size=32, intermediate_size=48)),
    "t5": (
        "T5ForConditionalGeneration",
        "T5Config",
        dict(
            _WORDS,
            d_model=32,
            d_kv=8,
            d_ff=48,
            num_layers=1,
            num_heads=4,
            decoder_start_token_id=0,
            pad_token_id=0,
        ),
    ),
    "bart": ("BartForConditionalGeneration", "BartConfig", _SEQUENCES),
    "whisper": (
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        dict(_SEQUENCES, num_mel_bins=8, max_source_positions=9, max_target_positions=16),
    ),
    "bert": ("BertModel", "BertConfig", _BERT),
    "albert": ("AlbertModel", "AlbertConfig", dict(_BERT, embedding_size=16)),
    "deberta_v2": (
        "DebertaV2Model",
        "DebertaV2Config",
        dict(_BERT, relative_attention=True, pos_att_type=["p2c", "c2p"], norm_rel_ebd="layer_norm"),
    ),
    "modernbert": (
        "ModernBertModel",
        "ModernBertConfig",
        dict(_LONG, bos_token_id=0, eos_token_id=1, pad_token_id=0, cls_token_id=0, sep_token_id=1),
    ),
    "xlnet": ("XLNetModel", "XLNetConfig", dict(_SPECIAL, d_model=32, n_layer=2, n_head=4, d_inner=48)),
    "vit": ("ViTModel", "ViTConfig", _IMAGE),
    "dinov2": ("Dinov2Model", "Dinov2Config", _IMAGE),
    "swin": (
        "SwinModel",
        "SwinConfig",
        dict(image_size=8, patch_size=2, embed_dim=16, depths=[1, 1], num_heads=[2, 2], window_size=2),
    ),
    "convnextv2": (
        "ConvNextV2Model",
        "ConvNextV2Config",
        dict(image_size=16, patch_size=4, num_stages=2, hidden_sizes=[8, 16], depths=[1, 1]),
    ),
    "wav2vec2": (
        "Wav2Vec2Model",
        "Wav2Vec2Config",
        dict(
            _BLOCKS,
            intermediate_size=48,
            num_attention_heads=4,
            conv_dim=(16, 24),
            conv_kernel=(10, 3),
            conv_stride=(5, 2),
            num_conv_pos_embeddings=4,
            num_conv_pos_embedding_groups=2,
        ),
    ),
}
FAMILIES = tuple(_FAMILIES)
# each with something that the others have not; CI tests all families
FIRST = ("gpt2", "llama", "gemma3", "cohere_qk", "olmo", "opt", "t5", "vit")
each_family = pytest.mark.parametrize(
    "family", [family if family in FIRST else pytest.param(family, marks=pytest.mark.slow) for family in FAMILIES]
)


class Apply(nn.Module):
    """A leaf module that is one function."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


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


# twins

TWO_BLOCKS = transformers.GPT2Config(
    vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=32, layer_norm_epsilon=3e-3,
    bos_token_id=None, eos_token_id=None,
)  # fmt: skip
LAYER_NORMS = {f"transformer.{name}" for name in ("h.0.ln_1", "h.0.ln_2", "h.1.ln_1", "h.1.ln_2", "ln_f")}


def logits(model, ids):
    with torch.no_grad():
        return model(ids).logits


def only_the_norms_differ(model, reference, affine, kind):
    """Of two models of TWO_BLOCKS, the reference with LayerNorm.

    ``affine`` are the parameters of each norm of the model, ``kind`` is the one that find_norms reports, "" for none.
    """
    mine, theirs = model.state_dict(), reference.state_dict()
    outside = {name for name in theirs if name.rpartition(".")[0] not in LAYER_NORMS}
    assert set(mine) == outside | {f"{name}.{part}" for name in LAYER_NORMS for part in affine}
    for name, value in mine.items():
        assert torch.equal(value, theirs[name]), f"{name} differs"
    types = {name: type(module) for name, module in reference.named_modules()}
    for name, module in model.named_modules():
        assert name in LAYER_NORMS or type(module) is types[name], f"{name} is a {type(module).__name__}"
    assert model.lm_head.weight is model.transformer.wte.weight, "the head is not tied any more"
    assert not any(module.training for module in model.modules()), "evaluation mode everywhere"
    assert {(p.dtype, p.device.type) for p in model.parameters()} == {(torch.float32, "cpu")}
    sites = ng.find_norms(model)
    assert {site.name: site.kind for site in sites} == dict.fromkeys(LAYER_NORMS if kind else (), kind)
    assert all(site.eps == pytest.approx(3e-3) for site in sites), "ε is the default?"
