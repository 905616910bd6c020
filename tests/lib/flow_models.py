"""Families whose streams surgery finds by itself, and some that it refuses, as data for tiny models."""

_SPECIAL = dict(vocab_size=64, bos_token_id=0, eos_token_id=1, pad_token_id=1)
_WORDS = dict(
    _SPECIAL,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=48,
    max_position_embeddings=64,
)
_GROUPED = dict(_WORDS, num_key_value_heads=2)
_BOTH = dict(
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
_IMAGE = dict(
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=48,
    image_size=8,
    patch_size=4,
    num_labels=5,
)
_BARK = dict(input_vocab_size=64, output_vocab_size=64, num_layers=2, num_heads=4, hidden_size=32, block_size=64)
# that have no row in tiny_models: class, configuration class, configuration
MORE = {
    "cohere2": ("Cohere2ForCausalLM", "Cohere2Config", _GROUPED),
    "gpt_neox_japanese": ("GPTNeoXJapaneseForCausalLM", "GPTNeoXJapaneseConfig", _WORDS),
    "jais2": ("Jais2ForCausalLM", "Jais2Config", _GROUPED),
    "bark": ("BarkSemanticModel", "BarkSemanticConfig", dict(_BARK, bias=True)),
    "bark, no biases": ("BarkSemanticModel", "BarkSemanticConfig", dict(_BARK, bias=False)),
    "megatron_bert": ("MegatronBertForMaskedLM", "MegatronBertConfig", _WORDS),
    "xlm_roberta_xl": ("XLMRobertaXLForMaskedLM", "XLMRobertaXLConfig", _WORDS),
    "pegasus": ("PegasusForConditionalGeneration", "PegasusConfig", _BOTH),
    "blenderbot": ("BlenderbotForConditionalGeneration", "BlenderbotConfig", _BOTH),
    "vit": ("ViTForImageClassification", "ViTConfig", _IMAGE),
    "deit": ("DeiTForImageClassification", "DeiTConfig", _IMAGE),
    "vit_msn": ("ViTMSNForImageClassification", "ViTMSNConfig", _IMAGE),
    "ijepa": ("IJepaForImageClassification", "IJepaConfig", _IMAGE),
    "opt_projected": (
        "OPTForCausalLM",
        "OPTConfig",
        dict(_WORDS, ffn_dim=48, word_embed_proj_dim=16),
    ),
    # refused
    "ctrl": (
        "CTRLLMHeadModel",
        "CTRLConfig",
        dict(vocab_size=64, n_positions=64, n_embd=32, dff=48, n_layer=2, n_head=4),
    ),
    "modernbert_decoder": (
        "ModernBertDecoderForCausalLM",
        "ModernBertDecoderConfig",
        dict(_WORDS, cls_token_id=0, sep_token_id=1),
    ),
    "glm": ("GlmForCausalLM", "GlmConfig", dict(_GROUPED, head_dim=8)),
    "clip": ("CLIPTextModelWithProjection", "CLIPTextConfig", _WORDS),
    "dinov2": ("Dinov2ForImageClassification", "Dinov2Config", _IMAGE),
    "whisper": (
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        dict(_BOTH, num_mel_bins=8, max_source_positions=9, max_target_positions=16),
    ),
    "pegasus, decoder": ("PegasusForCausalLM", "PegasusConfig", dict(_BOTH, is_decoder=True)),
}
