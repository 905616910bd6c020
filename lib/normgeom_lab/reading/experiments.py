"""Attention heads after a norm, and a part that fades."""

from __future__ import annotations

from types import SimpleNamespace

import pandas as pd
import torch
from normgeom.models.sites import find_norms
from normgeom.models.twins import twins
from normgeom.models.watch import evaluating, forward, hooked
from torch import Tensor, nn
from transformers import GPT2LMHeadModel

from normgeom_lab.common.checks import Draws
from normgeom_lab.common.parts import effects
from normgeom_lab.common.stream import blocks, writers
from normgeom_lab.common.tiny import gpt2, scattered


@torch.no_grad()
def attention_heads(model: GPT2LMHeadModel, ids: Tensor) -> list[SimpleNamespace]:
    """All attention heads of a GPT-2, block by block, in one run; the model's attention is set to ``"eager"``.

    For each head: its matrices and biases, the norm before it with its input ``x``, its ``pattern`` and ``write``.
    """
    writes = head_writes(model, ids)
    sites = {site.module: site for site in find_norms(model)}
    model.set_attn_implementation("eager")
    with evaluating(model):
        run = model(ids, output_attentions=True, output_hidden_states=True)
    found = []
    for level, block in enumerate(model.transformer.h):
        site, attention, count = sites[block.ln_1], block.attn, model.config.n_head
        # q, k, v side by side, each of all heads; a Conv1D holds its matrix transposed
        readers = attention.c_attn.weight.T.unflatten(0, (3, count, -1))
        biases = attention.c_attn.bias.unflatten(0, (3, count, -1))
        outputs = attention.c_proj.weight.T.unflatten(1, (count, -1))
        gain = block.ln_1.weight  # in its own dtype; a site has it in float32
        bias = getattr(block.ln_1, "bias", None)
        bias = torch.zeros_like(gain) if bias is None else bias
        norm = dict(gain=gain, bias=bias, eps=site.eps, centered=site.kind == "layer", x=run.hidden_states[level])
        for head in range(count):
            matrices = dict(zip(("query", "key", "value"), readers[:, head], strict=True), output=outputs[:, head])
            added = dict(query_bias=biases[0, head], value_bias=biases[2, head], **norm)
            seen = dict(pattern=run.attentions[level][:, head], write=writes[f"{level + 1}.{head + 1}"])
            found.append(SimpleNamespace(**matrices, **added, **seen))
    return found


@torch.no_grad()
def head_writes(model: nn.Module, ids: Tensor) -> dict[str, Tensor]:
    """What each attention head adds to the stream in one run, ``(batch, length, d)``, by block and head: ``"1.1"``, ….

    The last linear map of attention reads the heads' outputs side by side.  Its bias belongs to no head: together
    with it, the heads of block l add up to the part ``al`` of :func:`normgeom_lab.common.parts.components`.
    """
    named, read = writers(model), {}
    outputs = {block: named[f"a{block}"] for block in range(1, len(blocks(model)) + 1)}

    def keep(module, args, kwargs):
        read[module] = args[0].reshape(*ids.shape, -1)

    with evaluating(model), hooked((module, keep) for module in outputs.values()):
        forward(model, ids)
    found = {}
    for block, module in outputs.items():
        side_by_side = read[module]
        bias = module(torch.zeros_like(side_by_side))
        each = side_by_side.shape[-1] // model.config.num_attention_heads
        for head in range(model.config.num_attention_heads):
            alone = torch.zeros_like(side_by_side)
            own = slice(head * each, (head + 1) * each)
            alone[..., own] = side_by_side[..., own]
            found[f"{block}.{head + 1}"] = module(alone) - bias
    return found


def drawn_heads(draw: Draws, ids: Tensor) -> list[SimpleNamespace]:
    """:func:`attention_heads` of six float64 GPT-2s of two blocks: three shapes, with LayerNorm and with RMSNorm."""
    found = []
    for width, heads in ((6, 3), (16, 2), (40, 4)):
        config = gpt2(vocabulary=64, length=16, width=width, layers=2, heads=heads)
        config.layer_norm_epsilon = draw.eps(1e-5, 1e-1)
        for model in twins(config, 0):
            found += attention_heads(scattered(model, draw), ids)
    return found


def faded(c: Tensor, x: Tensor, w: Tensor, eps: float, centered: bool) -> pd.DataFrame:
    """What ``w`` reads from the normalised stream ``x`` while its part ``c`` fades; means over the rows.

    One row per share kept.  Columns: ``logit``; ``frozen``, with the scale held; ``tangent``, by the slope at the
    whole part; and ``part`` and ``others``, which are then the contributions to ``logit``.
    """
    whole, frozen = (effects(v, x, w, eps, centered).frozen for v in (x, c))
    rows = {}
    for left in (k / 20 for k in range(20, -1, -1)):
        gone = effects((1 - left) * c, x, w, eps, centered)
        logit, part = whole - gone.removed, left * frozen / gone.ratio
        answers = dict(logit=logit, frozen=whole - gone.frozen, tangent=whole - gone.slope, part=part)
        rows[left] = {name: float(answer.mean()) for name, answer in (answers | dict(others=logit - part)).items()}
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("part")
