"""Chapter 9: credit of parts and heads, the logit lens, and pictures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import matplotlib.pyplot as plt
import pandas as pd
import torch
from matplotlib.figure import Figure
from normgeom.checks import Draws
from normgeom.models.gpt2 import gpt2
from normgeom.models.sites import find_norms
from normgeom.models.watch import evaluating, forward, hooked
from normgeom.text.tokens import byte_tokens, random_windows
from normgeom.training.twins import Size, twins
from normgeom.view.style import COLORS, WIDTH, style, ticks_of_powers
from torch import Tensor, nn
from transformers import GPT2LMHeadModel

from normgeom_lab.common.loop import train
from normgeom_lab.common.parts import Effects, Predictions, blocks, effects, rms, writers
from normgeom_lab.common.tiny import divergence, scattered


class Head(NamedTuple):
    """One attention head of a GPT-2, the norm in front of it, and one run of both."""

    query: Tensor
    key: Tensor
    value: Tensor
    query_bias: Tensor
    key_bias: Tensor
    value_bias: Tensor
    output: Tensor
    gain: Tensor
    bias: Tensor
    eps: float
    centered: bool
    x: Tensor
    pattern: Tensor
    write: Tensor


@torch.no_grad()
def attention_heads(model: GPT2LMHeadModel, ids: Tensor) -> list[Head]:
    """All attention heads of a GPT-2, block by block, and one run of them; its attention is set to ``"eager"``."""
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


def drawn_heads(draw: Draws, ids: Tensor) -> list[Head]:
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
        rows[name] = {
            "error of frozen": relative_rms(frozen, direct),
            "error of slope": relative_rms(slope, direct),
            "rank correlation": rank_correlation(frozen, direct),
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def relative_rms(a: Tensor, b: Tensor) -> float:
    """The root mean square of ``a − b`` in units of that of ``b``."""
    return rms(a - b) / rms(b)


def rank_correlation(a: Tensor, b: Tensor) -> float:
    """Spearman's, over all entries."""
    first, second = (pd.Series(t.flatten().tolist()).rank() for t in (a, b))
    return float(first.corr(second))


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


class Trained(NamedTuple):
    """What :func:`train_on_bytes` made; ``held_out`` are the bytes that it was not trained on."""

    untrained: GPT2LMHeadModel
    model: GPT2LMHeadModel
    losses: list[float]
    held_out: Tensor


def train_on_bytes(size: Size, text: str, seed: int, device: torch.device | str = "cpu") -> Trained:
    """Train a GPT-2 with LayerNorm on the bytes of a text but the last."""
    ids = byte_tokens(text)
    untrained, model = (twins(size.config(256), seed)[0].to(device) for _ in range(2))
    batches = random_windows(ids[:-HELD_OUT], size.length, size.batch, seed)
    losses = train(model, batches, size.steps, size.lr)
    return Trained(untrained, model, losses, ids[-HELD_OUT:])


# Marker, colour and how far beside its place each answer stands.
_ANSWERS = {
    "frozen": ("s", COLORS["random_a"], -0.24),
    "direct": ("o", COLORS["uniform"], -0.08),
    "slope": ("x", COLORS["random_b"], 0.08),
    "total": ("^", COLORS["null"], 0.24),
}

_LOST = {"logit": "in truth", "frozen": "with the scale frozen", "tangent": "along the tangent"}


def effects_by_part(answers: pd.DataFrame) -> tuple[Figure, str]:
    """Four answers to what each part does to a logit; below, each part's share of the scale."""
    place, share = range(len(answers)), answers["share κ"]
    with style():
        figure, (upper, lower) = plt.subplots(2, 1, figsize=(WIDTH, 4.4), sharex=True, height_ratios=(3, 1.3))
        for name, (marker, color, shift) in _ANSWERS.items():
            upper.plot([i + shift for i in place], answers[name], marker, color=color, label=name)
        lower.set_axisbelow(True)
        lower.bar(place, share, color=COLORS["null"], width=0.5)
        for axis, what in ((upper, "effect on the logit"), (lower, "share κ")):
            axis.axhline(0, color=COLORS["ink"], lw=0.8)
            axis.set_ylabel(what)
        lower.set_xticks(place, answers.index, rotation=90 * (len(answers) > 12))
        lower.set_xlabel("part, in the order in which they are written")
        figure.legend(loc="outside upper center", ncols=4)
    first = answers.loc[share.idxmax()]
    values = ", ".join(f"{name} {first[name]:.2f}" for name in _ANSWERS)
    turned = ", ".join(answers.index[answers["frozen"] * answers["direct"] < 0]) or "none"
    return figure, (
        f"{', '.join(_ANSWERS).capitalize()} effect of each part. Largest share of the scale: {first.name} with "
        f"{first['share κ']:.2f}; there {values}. Parts whose mean frozen and direct effects differ in sign: {turned}."
    )


def frozen_against_direct(questions: Mapping[str, Effects]) -> tuple[Figure, str]:
    """Direct effect against frozen contribution of one part, one panel a question, every fourth position a point."""
    words = []
    with style():
        figure, axes = plt.subplots(1, len(questions), figsize=(WIDTH, 3.4), squeeze=False)
        for axis, (title, e) in zip(axes[0], questions.items(), strict=True):
            pairs = torch.stack([e.frozen.flatten(), e.removed.flatten()])[:, ::4].cpu()
            axis.plot(*pairs, ".", color=COLORS["uniform"], ms=3, alpha=0.6)
            ends = [float(pairs.min()), float(pairs.max())]
            axis.plot(ends, ends, color=COLORS["ink"], lw=1)
            axis.set(title=title, xlabel="frozen contribution")
            larger = 100 * float((e.frozen > e.removed).double().mean())
            words.append(f"{title}, at {larger:.0f} % of the positions")
        axes[0, 0].set_ylabel("direct effect")
    return figure, f"Direct effect against frozen contribution. The frozen one is larger: {'; '.join(words)}."


def lenses_by_part(read: pd.DataFrame) -> tuple[Figure, str]:
    """The divergence of two logit lenses behind each part from the final prediction; beside it, the stream's scale."""
    nats, scale = read.iloc[:-1], read["scale"]  # behind the last part both are the prediction
    own, final = nats["KL, own scale / nats"], nats["KL, final scale / nats"]
    with style():
        figure, (left, right) = plt.subplots(1, 2, figsize=(WIDTH, 3.6))
        left.plot(nats.index, own, "o-", color=COLORS["uniform"], label="own scale")
        left.plot(nats.index, final, "s--", color=COLORS["random_a"], label="final scale")
        left.set(yscale="log", ylabel="KL from the final prediction / nats")
        ticks_of_powers(left.yaxis)
        left.legend()
        right.plot(read.index, scale, "o-", color=COLORS["ink"])
        right.set(ylabel="mean scale of the stream", ylim=0)
        for axis in (left, right):
            axis.set_xlabel("read behind part")
            axis.tick_params(axis="x", rotation=90 if len(read) > 12 else 45)
    return figure, (
        f"Left: the divergence falls from {own.iloc[0]:.2g} nats with its own and {final.iloc[0]:.2g} with the final "
        f"scale behind {nats.index[0]} to {own.iloc[-1]:.2g} and {final.iloc[-1]:.2g} behind {nats.index[-1]}. Right: "
        f"the scale grows from {scale.iloc[0]:.2g} to {scale.iloc[-1]:.2g}, the largest step behind "
        f"{scale.diff().idxmax()}."
    )


def fading_part(faded: pd.DataFrame, kept: float) -> tuple[Figure, str]:
    """What two attributions promise while a part fades, and the truth; beside it what the part and the others bring."""
    looks = {
        "frozen": ("--", COLORS["random_a"]),
        "tangent": (":", COLORS["random_b"]),
        "logit": ("-", COLORS["uniform"]),
    }
    name, so_far, here, whole = faded.index.name, faded[faded.index >= kept], faded.loc[kept], faded.iloc[0]
    with style():
        figure, (left, right) = plt.subplots(1, 2, figsize=(5, 3.4), sharey=True, width_ratios=(2, 1))
        for column, (dash, color) in looks.items():
            left.plot(faded.index, faded[column], dash, color=color, alpha=0.35)
            left.plot(so_far.index, so_far[column], dash, color=color, lw=2.5, label=column.replace("logit", "truth"))
            left.plot(kept, here[column], "o", color=color, ms=6)
        left.set(xlabel=f"{name} kept", ylabel="logit above the mean", xlim=(1.04, -0.04))
        right.set_axisbelow(True)
        look = dict(width=0.6, tick_label=[name, "others"], color=("#CC79A7", "#56B4E9"))
        right.bar((0, 1), here[["part", "others"]], **look)
        right.hlines(whole[["part", "others"]], (-0.4, 0.6), (0.4, 1.4), color=COLORS["ink"])
        right.set_title("who brings it")
        figure.legend(loc="outside upper left", ncols=3)
    values = ", ".join(f"{words} {whole[column] - here[column]:.1f}" for column, words in _LOST.items())
    return figure, (
        f"With {kept:g} of {name} kept, the logit of the next token above the mean is {here.logit:.1f} of "
        f"{whole.logit:.1f}; lost are {values}. The part brings {here.part:.1f}, of {whole.part:.1f}, and the others "
        f"{here.others:.1f}, of {whole.others:.1f}."
    )
