"""The norms of each family of tiny_models, written down from the source of its architecture in transformers."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn


class Norm(NamedTuple):
    """What the source says of one norm."""

    name: str
    kind: str
    eps: float
    bias: bool  # whether a parameter ``bias`` is added
    gain: str = "w"  # how the gain that acts is made of the parameter ``weight``
    dim: int = 32
    axis: int | None = 1  # that of the positions; images have none

    def gain_of(self, module: nn.Module) -> Tensor:
        return torch.ones(self.dim) if self.gain == "1" else {"w": 0, "1 + w": 1}[self.gain] + module.weight.detach()

    def bias_of(self, module: nn.Module) -> Tensor:
        return module.bias.detach() if self.bias else torch.zeros(self.dim)


layer = partial(Norm, kind="layer", eps=1e-5, bias=True)
layer6 = partial(layer, eps=1e-6)
layer7 = partial(layer, eps=1e-7)
layer12 = partial(layer, eps=1e-12)
place = partial(layer, axis=None)
place6 = partial(layer6, axis=None)
unbiased = partial(layer, bias=False)
rms = partial(Norm, kind="rms", eps=1e-6, bias=False)
rms5 = partial(rms, eps=1e-5)
offset = partial(rms, gain="1 + w")


def stack(norm, blocks: str, *parts: str | Norm, before=(), after=(), numbers=range(2)) -> list[Norm]:
    """``before``, the norms of each block in turn, ``after``.  A bare name is one of the usual ``norm``."""

    def placed(part, prefix=""):
        return norm(prefix + part) if isinstance(part, str) else part._replace(name=prefix + part.name)

    inside = [placed(part, f"{blocks}.{i}.") for i in numbers for part in parts]
    return [*map(placed, before), *inside, *map(placed, after)]


def llama(norm, *inside: Norm, blocks="model.layers", after="model.norm", **more) -> list[Norm]:
    """A norm before attention, those of ``inside`` in it, and one before the MLP."""
    return stack(norm, blocks, "input_layernorm", *inside, "post_attention_layernorm", after=[after], **more)


def pair(norm, q="self_attn.q_norm", k="self_attn.k_norm", dims=(8, 8), **more) -> list[Norm]:
    """The norms of queries and keys, by default one for all heads, head by head."""
    return [norm(name, dim=dim, **more) for name, dim in zip((q, k), dims, strict=True)]


_GPT = stack(layer, "transformer.h", "ln_1", "ln_2", after=["transformer.ln_f"])
_GPT_PARALLEL = stack(layer, "transformer.h", "ln_1", after=["transformer.ln_f"])
_LAYERNORMS = ("self_attn.q_layernorm", "self_attn.k_layernorm")
_AFTER_EACH_HALF = ("post_attention_layernorm", "post_feedforward_layernorm")
_BEFORE_MLP = ("post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")
_BERT = ("attention.output.LayerNorm", "output.LayerNorm")
_BART = ("self_attn_layer_norm", "final_layer_norm")
_CROSS = ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm")

# in the order in which they run; two blocks (T5: one) of width 32 with heads of eight, four for queries, two for keys
EXPECTED = {
    "gpt2": _GPT,
    "gpt_neo": _GPT,
    "gpt_bigcode": _GPT,
    # after each half of the block, none at the end
    "openai_gpt": stack(layer, "transformer.h", "ln_1", "ln_2"),
    # attention and MLP side by side, behind one norm or behind one each
    "gptj": _GPT_PARALLEL,
    "codegen": _GPT_PARALLEL,
    "falcon": stack(layer, "transformer.h", "input_layernorm", after=["transformer.ln_f"]),
    "falcon_new": stack(layer, "transformer.h", "ln_attn", "ln_mlp", after=["transformer.ln_f"]),
    "gpt_neox": llama(layer, blocks="gpt_neox.layers", after="gpt_neox.final_layer_norm"),
    "phi": stack(layer, "model.layers", "input_layernorm", after=["model.final_layernorm"]),
    "cohere": stack(unbiased, "model.layers", "input_layernorm", after=["model.norm"]),
    # the second norm of a block sees the tokens flattened
    "opt": stack(
        layer,
        "model.decoder.layers",
        "self_attn_layer_norm",
        layer("final_layer_norm", axis=None),
        after=["model.decoder.final_layer_norm"],
    ),
    # its configuration says 1e-12, which no norm is given
    "biogpt": stack(layer, "biogpt.layers", *_BART, after=["biogpt.layer_norm"]),
    "xglm": stack(layer, "model.layers", *_BART, after=["model.layer_norm"]),
    "bloom": llama(
        layer,
        blocks="transformer.h",
        before=["transformer.word_embeddings_layernorm"],
        after="transformer.ln_f",
    ),
    # made with a bias, which is then taken away
    "mpt": stack(unbiased, "transformer.blocks", "norm_1", "norm_2", after=["transformer.norm_f"]),
    "starcoder2": llama(layer),
    # rms_norm_eps, of a LayerNorm
    "phimoe": llama(layer),
    "nemotron": llama(partial(layer, gain="1 + w")),
    # F.layer_norm(…, eps=1e-5) without weights: no attribute says so
    "olmo": llama(partial(unbiased, gain="1")),
    "llama": llama(rms),
    "mistral": llama(rms),
    "qwen2": llama(rms),
    "phi3": llama(rms5),
    "mixtral": llama(rms5),
    "gemma": llama(offset),
    # queries and keys of each head, (batch, token, head, 8)
    "persimmon": llama(layer, *pair(layer, *_LAYERNORMS), after="model.final_layernorm"),
    "qwen3": llama(rms, *pair(rms)),
    # (batch, head, token, 8)
    "phi_qk": stack(
        layer, "model.layers", "input_layernorm", *pair(layer, *_LAYERNORMS, axis=2), after=["model.final_layernorm"]
    ),
    "exaone4": stack(rms5, "model.layers", *pair(rms5, axis=2), *_AFTER_EACH_HALF, after=["model.norm"]),
    # each head with a gain of its own
    "cohere_qk": stack(unbiased, "model.layers", "input_layernorm", *pair(unbiased), after=["model.norm"]),
    # a bias too, heads flattened with the tokens, and two kinds in one model
    "chameleon": llama(rms5, *pair(layer, axis=None)),
    # one module a head
    "stablelm": llama(
        layer,
        *(unbiased(f"self_attn.q_layernorm.norms.{i}", dim=8, axis=2) for i in range(4)),
        *(unbiased(f"self_attn.k_layernorm.norms.{i}", dim=8, axis=2) for i in range(2)),
    ),
    # one module for queries and keys, without weights
    "llama4": llama(rms5, rms5("self_attn.qk_norm", dim=8, gain="1")),
    # all heads at once: 4 · 8 for queries, 2 · 8 for keys
    "olmo2": stack(rms5, "model.layers", *pair(rms5, dims=(32, 16)), *_AFTER_EACH_HALF, after=["model.norm"]),
    # no weights anywhere; the last norm is also the first
    "nanochat": [
        rms("model.norm", gain="1"),
        *llama(partial(rms, gain="1"), *pair(rms, axis=2, gain="1"))[:-1],
    ],
    # before and after each half
    "gemma2": stack(offset, "model.layers", "input_layernorm", *_BEFORE_MLP, after=["model.norm"]),
    "gemma3": stack(
        offset, "model.layers", "input_layernorm", *pair(offset, axis=2), *_BEFORE_MLP, after=["model.norm"]
    ),
    "glm4": stack(
        partial(rms, eps=1.5625e-7),
        "model.layers",
        *("input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm"),
        after=["model.norm"],
    ),
    "bitnet": stack(
        rms5,
        "model.layers",
        *("input_layernorm", "self_attn.attn_sub_norm", "post_attention_layernorm"),
        rms5("mlp.ffn_sub_norm", dim=48),
        after=["model.norm"],
    ),
    # the latent norms keep their 1e-6 where the configuration says 1e-5
    "deepseek_v3": llama(rms5, *pair(rms, "self_attn.q_a_layernorm", "self_attn.kv_a_layernorm", (16, 12))),
    # a convolution in the first block, attention in the second
    "lfm2": [
        *stack(rms5, "model.layers", "operator_norm", "ffn_norm", numbers=[0]),
        *stack(rms5, "model.layers", "operator_norm", *pair(rms5, *_LAYERNORMS), "ffn_norm", numbers=[1]),
        rms5("model.embedding_norm"),
    ],
    # the norm inside the first block's linear attention is gated
    "qwen3_next": [*llama(offset, numbers=[0])[:-1], *llama(offset, *pair(offset), numbers=[1])],
    # mixer.norm is gated
    "mamba2": stack(rms5, "backbone.layers", "norm", after=["backbone.norm_f"]),
    # the step size (32 / 16), B and C (the state's size)
    "falcon_mamba": stack(
        rms5,
        "backbone.layers",
        "norm",
        rms("mixer.dt_layernorm", dim=2, gain="1"),
        *pair(rms, "mixer.b_layernorm", "mixer.c_layernorm", gain="1"),
        after=["backbone.norm_f"],
    ),
    "rwkv": stack(layer, "rwkv.blocks", "ln1", "ln2", before=["rwkv.blocks.0.pre_ln"], after=["rwkv.ln_out"]),
    "t5": [
        *(rms(f"encoder.block.0.layer.{i}.layer_norm") for i in range(2)),
        rms("encoder.final_layer_norm"),
        *(rms(f"decoder.block.0.layer.{i}.layer_norm") for i in range(3)),
        rms("decoder.final_layer_norm"),
    ],
    "bart": [
        *stack(layer, "model.encoder.layers", *_BART, before=["model.encoder.layernorm_embedding"]),
        *stack(layer, "model.decoder.layers", *_CROSS, before=["model.decoder.layernorm_embedding"]),
    ],
    "whisper": [
        *stack(layer, "model.encoder.layers", *_BART, after=["model.encoder.layer_norm"]),
        *stack(layer, "model.decoder.layers", *_CROSS, after=["model.decoder.layer_norm"]),
    ],
    "bert": stack(layer12, "encoder.layer", *_BERT, before=["embeddings.LayerNorm"]),
    # both blocks are the same one
    "albert": stack(
        layer12,
        "encoder.albert_layer_groups.0.albert_layers",
        "attention.LayerNorm",
        "full_layer_layer_norm",
        before=[layer12("embeddings.LayerNorm", dim=16)],
        numbers=[0],
    ),
    # the second normalises the table of relative positions
    "deberta_v2": stack(
        layer7,
        "encoder.layer",
        *_BERT,
        before=["embeddings.LayerNorm", layer7("encoder.LayerNorm", axis=None)],
    ),
    # the norm after the embedding stands for the first block's
    "modernbert": stack(
        unbiased,
        "layers",
        "attn_norm",
        "mlp_norm",
        before=["embeddings.norm", "layers.0.mlp_norm"],
        after=["final_norm"],
        numbers=[1],
    ),
    # (token, batch, 32)
    "xlnet": stack(partial(layer12, axis=0), "layer", "rel_attn.layer_norm", "ff.layer_norm"),
    "vit": stack(partial(layer12, axis=None), "layers", "layernorm_before", "layernorm_after", after=["layernorm"]),
    "dinov2": stack(place6, "encoder.layer", "norm1", "norm2", after=["layernorm"]),
    # four patches of width 16 become one of 32 between the stages
    "swin": [
        place("embeddings.norm", dim=16),
        place("encoder.layers.0.blocks.0.layernorm_before", dim=16),
        place("encoder.layers.0.blocks.0.layernorm_after", dim=16),
        place("encoder.layers.0.downsample.norm", dim=64),
        place("encoder.layers.1.blocks.0.layernorm_before"),
        place("encoder.layers.1.blocks.0.layernorm_after"),
        place("layernorm"),
    ],
    # those after the embedding and between the stages are over channels; a response norm keeps its input's scale
    "convnextv2": [
        place6("encoder.stages.0.layers.0.layernorm", dim=8),
        place6("encoder.stages.1.layers.0.layernorm", dim=16),
        layer12("layernorm", dim=16, axis=None),
    ],
    # not over the last axis: the group norm of the convolutions
    "wav2vec2": stack(
        layer,
        "encoder.layers",
        "layer_norm",
        "final_layer_norm",
        before=[layer("feature_projection.layer_norm", dim=24), "encoder.layer_norm"],
    ),
}
