"""Who reads a residual stream and who writes to it: pre-norm language models of transformers, described as data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from torch import nn

Named = tuple[str, nn.Module]


@dataclass(frozen=True)
class Layout:
    """The modules of a pre-norm model that norms, reads and writes its residual stream, by their names.

    Every reader of the stream stands behind one of the norms; what a block adds to the stream comes from its writers.

    Attributes:
        embeddings: that write to the stream before the first block.
        blocks: the list of blocks.
        norms: within a block, each norm of the stream and the modules that read it.
        writers: within a block.
        final: the norm after the last block.
        head: which reads ``final``.
        aside: parts of a block that touch the stream neither way, such as norms of queries and keys.
        offset: the gain is ``offset + weight``: 1 for Gemma, else 0.
        refuses: what a configuration must not be, as a reason and a test of it.
    """

    embeddings: tuple[str, ...]
    blocks: str
    norms: Mapping[str, tuple[str, ...]]
    writers: tuple[str, ...]
    final: str
    head: str = "lm_head"
    aside: tuple[str, ...] = ()
    offset: float = 0.0
    refuses: tuple[tuple[str, Callable], ...] = ()

    def writers_of(self, model: nn.Module) -> list[Named]:
        """All that writes to the stream, ``(name, module)``: the embeddings, then block by block."""
        return _named(model, [*self.embeddings, *self._inside(model, self.writers)])

    def readers_of(self, model: nn.Module) -> list[tuple[str, nn.Module, list[Named]]]:
        """Each norm of the stream with its readers, ``(name, norm, [(name, reader), …])``; the head comes last."""
        pairs = [
            (f"{block}.{norm}", [f"{block}.{reader}" for reader in readers])
            for block in self._blocks(model)
            for norm, readers in self.norms.items()
        ]
        pairs.append((self.final, [self.head]))
        return [(norm, model.get_submodule(norm), _named(model, readers)) for norm, readers in pairs]

    def aside_of(self, model: nn.Module) -> list[Named]:
        """What stands aside, ``(name, module)``, where the model has it."""
        there = dict(model.named_modules())
        return [(name, there[name]) for name in self._inside(model, self.aside) if name in there]

    def _inside(self, model: nn.Module, names: tuple[str, ...]) -> list[str]:
        return [f"{block}.{name}" for block in self._blocks(model) for name in names]

    def _blocks(self, model: nn.Module) -> list[str]:
        return [f"{self.blocks}.{i}" for i in range(len(model.get_submodule(self.blocks)))]


def layout_of(model: nn.Module) -> Layout:
    """The layout of a transformers model.

    It holds for this model: every module that has parameters is accounted for, so an adapter, a second head or
    cross-attention is not overlooked.

    Raises:
        ValueError: the architecture, its configuration or one of its modules fits no layout; the message says why.
    """
    name = type(model).__name__
    if name not in LAYOUTS:
        kind = getattr(getattr(model, "config", None), "model_type", None)
        known = f"a layout is known of {', '.join(LAYOUTS)}"
        raise ValueError(f"model: a {name} has no layout: {_REASONS.get(kind, known)}")
    layout = LAYOUTS[name]
    for reason, holds in layout.refuses:
        if holds(model.config):
            raise ValueError(f"model: this {name} has no layout: {reason}")
    try:
        norms = layout.readers_of(model)
        listed = [*layout.writers_of(model), *layout.aside_of(model)]
    except AttributeError as error:
        raise ValueError(f"model: this {name} lacks a part of its layout ({error})") from error
    listed += [pair for norm, module, readers in norms for pair in ((norm, module), *readers)]
    known = {module for _, module in listed}
    for part, module in model.named_modules():
        if module not in known and any(True for _ in module.parameters(recurse=False)):
            raise ValueError(f"model: this {name} has no layout: {part}, a {type(module).__name__}, has no place in it")
    return layout


def _named(model: nn.Module, names: list[str]) -> list[Named]:
    return [(name, model.get_submodule(name)) for name in names]


def _under(prefix: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{prefix}.{name}" for name in names)


_QKV = ("q_proj", "k_proj", "v_proj")
_QK_NORMS = _under("self_attn", "q_layernorm", "k_layernorm", "q_norm", "k_norm")
_POST = "it normalises the stream itself, after each addition, so that later blocks read norms' outputs (post-norm)"
_SANDWICH = "it normalises what a block adds to the stream, and such a norm has no reader of its own"
_CROSS = ("cross-attention brings a second stream", lambda config: config.add_cross_attention)

_GPT2 = Layout(
    embeddings=_under("transformer", "wte", "wpe"),
    blocks="transformer.h",
    norms={"ln_1": ("attn.c_attn",), "ln_2": ("mlp.c_fc",)},
    writers=("attn.c_proj", "mlp.c_proj"),
    final="transformer.ln_f",
    refuses=(_CROSS,),
)
_GPTJ = Layout(
    embeddings=("transformer.wte",),
    blocks="transformer.h",
    norms={"ln_1": (*_under("attn", *_QKV), "mlp.fc_in")},
    writers=("attn.out_proj", "mlp.fc_out"),
    final="transformer.ln_f",
)
_NEOX = Layout(
    embeddings=("gpt_neox.embed_in",),
    blocks="gpt_neox.layers",
    norms={
        "input_layernorm": ("attention.query_key_value",),
        "post_attention_layernorm": ("mlp.dense_h_to_4h",),
    },
    writers=("attention.dense", "mlp.dense_4h_to_h"),
    final="gpt_neox.final_layer_norm",
)
_OPT = Layout(
    embeddings=_under("model.decoder", "embed_tokens", "embed_positions"),
    blocks="model.decoder.layers",
    norms={"self_attn_layer_norm": _under("self_attn", *_QKV), "final_layer_norm": ("fc1",)},
    writers=("self_attn.out_proj", "fc2"),
    final="model.decoder.final_layer_norm",
    refuses=(
        (_POST, lambda config: not config.do_layer_norm_before),
        ("no norm stands before its head", lambda config: config._remove_final_layer_norm),
        (
            "a projection stands between its stream and its embeddings and head",
            lambda config: config.word_embed_proj_dim != config.hidden_size,
        ),
    ),
)
_LLAMA = Layout(
    embeddings=("model.embed_tokens",),
    blocks="model.layers",
    norms={
        "input_layernorm": _under("self_attn", *_QKV),
        "post_attention_layernorm": _under("mlp", "gate_proj", "up_proj"),
    },
    writers=("self_attn.o_proj", "mlp.down_proj"),
    final="model.norm",
    aside=_QK_NORMS,
)

# By the name of the class: another head of the same model reads its final norm otherwise.
LAYOUTS: dict[str, Layout] = {
    "GPT2LMHeadModel": _GPT2,
    "GPTBigCodeForCausalLM": _GPT2,
    "GPTNeoForCausalLM": replace(
        _GPT2,
        norms={"ln_1": _under("attn.attention", *_QKV), "ln_2": ("mlp.c_fc",)},
        writers=("attn.attention.out_proj", "mlp.c_proj"),
        refuses=(),
    ),
    # attention and MLP side by side or one after the other: both norms read the stream in either case
    "GPTNeoXForCausalLM": _NEOX,
    "GPTJForCausalLM": _GPTJ,
    "CodeGenForCausalLM": replace(_GPTJ, norms={"ln_1": ("attn.qkv_proj", "mlp.fc_in")}),
    "PhiForCausalLM": Layout(
        embeddings=("model.embed_tokens",),
        blocks="model.layers",
        norms={"input_layernorm": (*_under("self_attn", *_QKV), "mlp.fc1")},
        writers=("self_attn.dense", "mlp.fc2"),
        final="model.final_layernorm",
        aside=_QK_NORMS,
    ),
    "OPTForCausalLM": _OPT,
    "BioGptForCausalLM": replace(
        _OPT,
        embeddings=_under("biogpt", "embed_tokens", "embed_positions"),
        blocks="biogpt.layers",
        final="biogpt.layer_norm",
        head="output_projection",
        refuses=(),
    ),
    "MptForCausalLM": Layout(
        embeddings=("transformer.wte",),
        blocks="transformer.blocks",
        norms={"norm_1": ("attn.Wqkv",), "norm_2": ("ffn.up_proj",)},
        writers=("attn.out_proj", "ffn.down_proj"),
        final="transformer.norm_f",
    ),
    "PersimmonForCausalLM": Layout(
        embeddings=("model.embed_tokens",),
        blocks="model.layers",
        norms={
            "input_layernorm": ("self_attn.query_key_value",),
            "post_attention_layernorm": ("mlp.dense_h_to_4h",),
        },
        writers=("self_attn.dense", "mlp.dense_4h_to_h"),
        final="model.final_layernorm",
        aside=_QK_NORMS,
    ),
    "Starcoder2ForCausalLM": replace(
        _LLAMA,
        norms={"input_layernorm": _under("self_attn", *_QKV), "post_attention_layernorm": ("mlp.c_fc",)},
        writers=("self_attn.o_proj", "mlp.c_proj"),
    ),
    # RMSNorm from the beginning: its gains fold, nothing is to be centred
    "LlamaForCausalLM": _LLAMA,
    "MistralForCausalLM": _LLAMA,
    "Qwen2ForCausalLM": _LLAMA,
    "Qwen3ForCausalLM": _LLAMA,
    "GemmaForCausalLM": replace(_LLAMA, offset=1.0),
}

# By the configuration's model_type: why a well-known model has none.
_REASONS = {
    **dict.fromkeys(("bert", "roberta", "distilbert", "albert", "electra", "openai-gpt"), _POST),
    **dict.fromkeys(("gemma2", "gemma3", "gemma3_text", "glm4", "olmo2"), _SANDWICH),
    "bloom": "it normalises its embeddings, whose output, no longer centred, is the stream",
    **dict.fromkeys(
        ("gpt2", "gpt_neo", "gpt_neox", "gptj", "phi", "opt", "llama", "mistral", "qwen2", "gemma"),
        "expected the model with its language-modelling head, as AutoModelForCausalLM loads it",
    ),
}
