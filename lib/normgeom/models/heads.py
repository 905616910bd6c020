"""Attention heads one by one: their circuits, what they write, and how far they move the scale of later norms."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pandas as pd
import torch
from torch import Tensor, nn
from transformers import GPT2LMHeadModel

from normgeom.checks import Draws
from normgeom.models.calls import evaluating, forward
from normgeom.models.families import scattered
from normgeom.models.gpt2 import gpt2
from normgeom.models.layouts import layout_of
from normgeom.models.modules import replace_module
from normgeom.models.removals import Predictions, errors_by_part
from normgeom.models.sites import find_norms
from normgeom.models.stream import effects, writers
from normgeom.norms.functions import RMSNorm

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    Ids = Int[Tensor, "batch length"]
    Stream = Float[Tensor, "batch length d"]
    Reader = Float[Tensor, "width d"]


class Head(NamedTuple):
    r"""One attention head of a GPT-2, the norm in front of it, and one run of both.

    Attributes:
        query, key, value: :math:`W_Q`, :math:`W_K`, :math:`W_V` as stored, ``(width, d)``.
        query_bias, key_bias, value_bias: ``(width,)``.
        output: :math:`W_O`, ``(d, width)``.
        gain, bias, eps, centered: of the norm that it reads; zeros where there is no bias, True for LayerNorm.
        x: the stream that the norm reads, ``(batch, length, d)``.
        pattern: the model's own attention weights, ``(batch, length, length)``; rows are queries.
        write: what the head adds to the stream, without the bias of the output, ``(batch, length, d)``.
    """

    query: Reader
    key: Reader
    value: Reader
    query_bias: Tensor
    key_bias: Tensor
    value_bias: Tensor
    output: Tensor
    gain: Tensor
    bias: Tensor
    eps: float
    centered: bool
    x: Stream
    pattern: Tensor
    write: Stream


@torch.no_grad()
def attention_heads(model: GPT2LMHeadModel, ids: Ids) -> list[Head]:
    """All attention heads of a GPT-2, block by block, with what they see and do in one run on ``ids``.

    The pattern is what transformers' own attention reports, written out (``"eager"``), which is left switched on.

    Raises:
        ValueError: another model, or as for :func:`head_writes`.
    """
    if not isinstance(model, GPT2LMHeadModel):
        raise ValueError(f"model: expected a GPT2LMHeadModel, got a {type(model).__name__}")
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
        gain = block.ln_1.weight  # as it is stored; a site has it in float32
        bias = getattr(block.ln_1, "bias", None)
        bias = torch.zeros_like(gain) if bias is None else bias
        norm = gain, bias, site.eps, site.kind == "layer", run.hidden_states[level]
        for head in range(count):
            seen = run.attentions[level][:, head], writes[f"{level + 1}.{head + 1}"]
            found.append(Head(*readers[:, head], *biases[:, head], outputs[:, head], *norm, *seen))
    return found


@torch.no_grad()
def head_writes(model: nn.Module, ids: Ids) -> dict[str, Stream]:
    """What each attention head adds to the stream, in one run.

    The last linear map of an attention reads its heads' outputs side by side.  Its bias is no head's: with it the heads
    of block l add up to the part ``al`` of :func:`normgeom.models.stream.components`.

    Args:
        model: that :func:`normgeom.models.layouts.layout_of` knows; runs in evaluation mode, without gradients.
        ids: ``(batch, length)``.

    Returns:
        ``(batch, length, d)`` for each head by block and head, both counted from 1: ``"1.1"``, ``"1.2"``, …; in the
        model's dtype and on its device.

    Raises:
        ValueError: ``ids`` are not ``(batch, length)``, or no layout of the model is known.
    """
    if ids.dim() != 2:
        raise ValueError(f"ids: expected (batch, length), got {tuple(ids.shape)}")
    blocks, named, read = len(model.get_submodule(layout_of(model).blocks)), writers(model), {}
    outputs = {block: named[f"a{block}"] for block in range(1, blocks + 1)}

    def keep(module, args):
        read[module] = args[0].reshape(*ids.shape, -1)

    handles = [module.register_forward_pre_hook(keep) for module in outputs.values()]
    try:
        with evaluating(model):
            forward(model, ids)
    finally:
        for handle in handles:
            handle.remove()
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


def scale_moves(run: Predictions) -> pd.DataFrame:
    """By how much the scale of later streams would differ without each attention head, one row a head.

    A head's output c (:func:`head_writes`) is taken out of a stream x behind it, all else as it is, and
    |s(x − c)/s(x) − 1| (eq-scale-ratio) averaged over the inner positions.  Columns: ``next norm``, of the stream right
    behind its attention, which the MLP's norm reads unless blocks are parallel; ``final norm``; ``largest``, of these
    means over all streams behind the head; ``one position``, the largest single number; then ``error of frozen`` and
    ``error of slope`` as :func:`normgeom.models.removals.errors_by_part` has them, of the head at the final norm for
    the logit of the next token above the mean.  Kind and ε are those of the final norm.

    Raises:
        ValueError: as for :func:`head_writes`.
    """
    readout, x, streams = run.readout, 0, {}
    for name, part in run.parts.items():
        x = x + part
        streams[name] = x
    names, rows, found = list(streams), {}, {}
    for head, write in head_writes(run.model, run.ids).items():
        c = write[:, 1:-1]
        behind = names[names.index(f"a{head.partition('.')[0]}") :]
        moves = [(readout.scale(streams[n] - c) / readout.scale(streams[n]) - 1).abs() for n in behind]
        means = [float(move.mean()) for move in moves]
        rows[head] = {
            "next norm": means[0],
            "final norm": means[-1],
            "largest": max(means),
            "one position": max(float(move.max()) for move in moves),
        }
        found[head] = effects(c, x, run.above_mean, readout.eps, readout.centered)
    errors = errors_by_part(found)[["error of frozen", "error of slope"]]
    return pd.DataFrame.from_dict(rows, orient="index").join(errors)


def drawn_heads(draw: Draws, ids: Ids) -> list[Head]:
    """:func:`attention_heads` of six drawn GPT-2s of two blocks: three shapes and ε, with LayerNorm and with RMSNorm.

    Every weight, gain and bias is its own (:func:`normgeom.models.families.scattered`); float64.

    Args:
        draw: of the weights and of ε.
        ids: ``(batch, length)``, below 64, length at most 16.
    """
    found = []
    for width, heads in ((6, 3), (16, 2), (40, 4)):
        config = gpt2(vocabulary=64, length=16, width=width, layers=2, heads=heads)
        config.layer_norm_epsilon = draw.eps(1e-5, 1e-1)
        for centered in (True, False):
            with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
                torch.manual_seed(0)
                model = GPT2LMHeadModel(config).eval()
            for norm in [m for m in model.modules() if isinstance(m, nn.LayerNorm)] * (not centered):
                replace_module(model, norm, RMSNorm(norm.normalized_shape, eps=norm.eps))
            found += attention_heads(scattered(model, draw), ids)
    return found
