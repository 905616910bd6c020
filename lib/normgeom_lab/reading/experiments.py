"""Credit of parts and heads, and the logit lens."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace

import pandas as pd
import torch
from normgeom.checks import Draws
from normgeom.models.gpt2 import gpt2
from normgeom.models.sites import find_norms
from normgeom.models.watch import evaluating, forward, hooked
from normgeom.text.tokens import byte_tokens, random_windows
from normgeom.training.twins import Size, twins
from torch import Tensor, nn
from transformers import GPT2LMHeadModel

from normgeom_lab.common.loop import train
from normgeom_lab.common.parts import Effects, Predictions, effects, rms
from normgeom_lab.common.stream import blocks, writers
from normgeom_lab.common.tiny import divergence, scattered


@torch.no_grad()
def attention_heads(model: GPT2LMHeadModel, ids: Tensor) -> list[SimpleNamespace]:
    """All attention heads of a GPT-2, block by block, and one run of them; its attention is set to ``"eager"``.

    Of each its matrices and biases, the norm in front of it, what that reads, the ``pattern`` and what it writes.
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
        gain = block.ln_1.weight  # as it is stored; a site has it in float32
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

    The last linear map of an attention reads its heads' outputs side by side.  Its bias belongs to no head: with it
    the heads of block l add up to the part ``al`` of :func:`normgeom_lab.common.parts.components`.
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


def scale_moves(run: Predictions) -> pd.DataFrame:
    """By how much the scale of later streams would differ without each attention head, one row a head.

    The output c of a head is taken out of a stream x behind it, and |s(x − c)/s(x) − 1| (eq-scale-ratio), by kind and
    ε of the final norm, is averaged over the inner positions.  Columns: ``next norm``, of the stream right behind its
    attention; ``final norm``; ``largest`` of these means over all streams behind the head; ``one position``, the
    largest single number; and two of :func:`errors_by_part`, for the logit of the next token above the mean.
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


def drawn_heads(draw: Draws, ids: Tensor) -> list[SimpleNamespace]:
    """:func:`attention_heads` of six float64 GPT-2s of two blocks: three shapes, with LayerNorm and with RMSNorm."""
    found = []
    for width, heads in ((6, 3), (16, 2), (40, 4)):
        config = gpt2(vocabulary=64, length=16, width=width, layers=2, heads=heads)
        config.layer_norm_epsilon = draw.eps(1e-5, 1e-1)
        for model in twins(config, 0):
            found += attention_heads(scattered(model, draw), ids)
    return found


def answers_by_part(found: Mapping[str, Effects], total: Mapping[str, Tensor]) -> pd.DataFrame:
    """Four answers to what each part does, one row a part: their means over positions, and how they disagree.

    The columns of :func:`errors_by_part` follow, and how far direct is off total, relative to it.
    """
    means = {
        name: {
            "share κ": float(e.share.mean()),
            "frozen": float(e.frozen.mean()),
            "slope": float(e.slope.mean()),
            "direct": float(e.removed.mean()),
            "total": float(total[name].mean()),
            "s'/s": float(e.ratio.mean()),
        }
        for name, e in found.items()
    }
    answers = pd.DataFrame.from_dict(means, orient="index").join(errors_by_part(found))
    answers["direct off total"] = [relative_rms(e.removed, total[name]) for name, e in found.items()]
    return answers


def added_up(answers: pd.DataFrame, run: Predictions) -> pd.DataFrame:
    """Columns of :func:`answers_by_part` summed over the parts, and in that of ``frozen`` the mean of the logit."""
    sums = {"all parts": answers.sum(), "the logit itself": {"frozen": float(run.whole.mean())}}
    return pd.DataFrame(sums).T[answers.columns]


def errors_by_part(found: Mapping[str, Effects], where: Tensor | None = None) -> pd.DataFrame:
    """How far two attributions of each part are off its direct effect, one row a part, at the positions ``where``.

    The errors are relative to the direct effect; the rank correlation is of frozen with direct.
    """
    rows = {}
    for name, e in found.items():
        frozen, slope, direct = (a if where is None else a[where] for a in (e.frozen, e.slope, e.removed))
        ranks = [pd.Series(a.flatten().tolist()).rank() for a in (frozen, direct)]
        rows[name] = {
            "error of frozen": relative_rms(frozen, direct),
            "error of slope": relative_rms(slope, direct),
            "rank correlation": float(ranks[0].corr(ranks[1])),
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def relative_rms(a: Tensor, b: Tensor) -> float:
    """The root mean square of ``a − b`` in units of that of ``b``."""
    return rms(a - b) / rms(b)


def lenses(run: Predictions) -> pd.DataFrame:
    """Read the stream behind each part through the final norm and head, with its own scale and with the final one.

    One row a part, in order; means over positions of the stream's scale, of the divergence of each lens from the
    model's prediction, and of how often the first choices of lenses and model are the same.
    """
    readout, last, h = run.readout, run.readout.scale(run.stream), 0
    rows = {}
    for name, part in run.parts.items():
        h = h + part
        own, final = readout.logits(h), readout.logits(h, last)
        rows[name] = {
            "scale": float(readout.scale(h).mean()),
            "KL, own scale / nats": float(divergence(run.logits, own).mean()),
            "KL, final scale / nats": float(divergence(run.logits, final).mean()),
            "first choice right, own": _agree(own, run.logits),
            "first choice right, final": _agree(final, run.logits),
            "both choose the same": _agree(own, final),
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def _agree(logits: Tensor, others: Tensor) -> float:
    """The share of positions at which both have their largest entry at the same token."""
    return float((logits.argmax(-1) == others.argmax(-1)).double().mean())


HELD_OUT = 300_000  # bytes at the end of the text


def train_on_bytes(size: Size, text: str, seed: int, device: torch.device | str = "cpu") -> SimpleNamespace:
    """A GPT-2, ``untrained`` and trained on all bytes of a text but the last, ``held_out``; and the ``losses``."""
    ids = byte_tokens(text)
    untrained, model = (twins(size.config(256), seed)[0].to(device) for _ in range(2))
    batches = random_windows(ids[:-HELD_OUT], size.length, size.batch, seed)
    losses = train(model, batches, size.steps, size.lr)
    return SimpleNamespace(untrained=untrained, model=model, losses=losses, held_out=ids[-HELD_OUT:])
