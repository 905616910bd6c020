"""Families whose streams surgery finds by itself, and some that it refuses, as data for tiny models."""

from tiny_models import _BLOCKS, _GPT, _GROUPED, _HEADS, _IMAGE, _LONG, _SEQUENCES, _SPECIAL

_WORDS = dict(_LONG, **_SPECIAL)
_LABELLED = dict(_IMAGE, num_labels=5)
_BARK = dict(_BLOCKS, input_vocab_size=64, output_vocab_size=64, num_heads=4, block_size=64)
# that have no row in tiny_models: class, configuration class, configuration
MORE = {
    "cohere2": ("Cohere2ForCausalLM", "Cohere2Config", _GROUPED),
    "gpt_neox_japanese": ("GPTNeoXJapaneseForCausalLM", "GPTNeoXJapaneseConfig", _WORDS),
    "jais2": ("Jais2ForCausalLM", "Jais2Config", _GROUPED),
    "bark": ("BarkSemanticModel", "BarkSemanticConfig", dict(_BARK, bias=True)),
    "bark, no biases": ("BarkSemanticModel", "BarkSemanticConfig", dict(_BARK, bias=False)),
    "megatron_bert": ("MegatronBertForMaskedLM", "MegatronBertConfig", _WORDS),
    "xlm_roberta_xl": ("XLMRobertaXLForMaskedLM", "XLMRobertaXLConfig", _WORDS),
    "pegasus": ("PegasusForConditionalGeneration", "PegasusConfig", _SEQUENCES),
    "blenderbot": ("BlenderbotForConditionalGeneration", "BlenderbotConfig", _SEQUENCES),
    "vit": ("ViTForImageClassification", "ViTConfig", _LABELLED),
    "deit": ("DeiTForImageClassification", "DeiTConfig", _LABELLED),
    "vit_msn": ("ViTMSNForImageClassification", "ViTMSNConfig", _LABELLED),
    "ijepa": ("IJepaForImageClassification", "IJepaConfig", _LABELLED),
    "opt_projected": ("OPTForCausalLM", "OPTConfig", dict(_WORDS, ffn_dim=48, word_embed_proj_dim=16)),
    # refused
    "ctrl": ("CTRLLMHeadModel", "CTRLConfig", dict(_GPT, dff=48)),
    "modernbert_decoder": (
        "ModernBertDecoderForCausalLM",
        "ModernBertDecoderConfig",
        dict(_WORDS, cls_token_id=0, sep_token_id=1),
    ),
    "glm": ("GlmForCausalLM", "GlmConfig", _HEADS),
    "clip": ("CLIPTextModelWithProjection", "CLIPTextConfig", _WORDS),
    "dinov2": ("Dinov2ForImageClassification", "Dinov2Config", _LABELLED),
    "whisper": (
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        dict(_SEQUENCES, num_mel_bins=8, max_source_positions=9, max_target_positions=16),
    ),
    "pegasus, decoder": ("PegasusForCausalLM", "PegasusConfig", dict(_SEQUENCES, is_decoder=True)),
}
