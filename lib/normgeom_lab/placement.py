"""Chapter 6: gradients, growth and training of stacks whose norms stand in different places, and pictures."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from normgeom.models.watch import hooked
from normgeom.norms.formula import center, rstd
from normgeom.text.tokens import random_windows
from normgeom.training.loop import next_token_loss
from normgeom.view.style import COLORS, WIDTH, style, ticks_of_powers
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from transformers import AutoConfig, AutoModel, PreTrainedModel

from normgeom_lab.common.growth import Growth, even_stack, unroll
from normgeom_lab.common.loop import fit
from normgeom_lab.common.stacks import DESIGNS, PLACEMENTS, Attention, LanguageModel, Stack, normalise_weights

_GROUPED = dict(num_key_value_heads=2, head_dim=16)
_LLAMA, _OPT = ("self_attn.o_proj", "mlp.down_proj"), ("self_attn.out_proj", "fc2")

# Family → its model type in transformers, the last linear maps of a block's two branches, options of its own.
FAMILIES = {
    "GPT-2": ("gpt2", ("attn.c_proj", "mlp.c_proj"), {}),
    "Llama": ("llama", _LLAMA, _GROUPED),
    "BERT": ("bert", ("attention.output.dense", "output.dense"), {}),
    "OPT": ("opt", _OPT, {}),
    "OPT, 350m": ("opt", _OPT, dict(do_layer_norm_before=False)),
    "Gemma 2": ("gemma2", _LLAMA, _GROUPED),
    "Gemma 3": ("gemma3_text", _LLAMA, _GROUPED),
    "OLMo 2": ("olmo2", _LLAMA, _GROUPED),
    "GPT-J": ("gptj", ("attn.out_proj", "mlp.fc_out"), dict(rotary_dim=8)),
    "GPT-NeoX": ("gpt_neox", ("attention.dense", "mlp.dense_4h_to_h"), {}),
    "Cohere": ("cohere", _LLAMA, _GROUPED),
}


class Behaviour(NamedTuple):
    """Relative changes of what the second of two blocks does, each the answer to one question, its class and its file.

    Attributes:
        sum: of its output, branches silent, when the stream is ten times as large: 0 if a norm stands on the sum.
        after: of what it adds when a branch computes ten times as much: 0 if norms stand behind both branches.
        before: of what a branch computes when the stream is ten times as large: 0 if both read through norms.
        parallel: of what the MLP computes when attention is silent: 0 if it does not read attention's result.
        final_norm: from the block's output to the model's: 0 if no norm stands between.
    """

    sum: float
    after: float
    before: float
    parallel: float
    final_norm: float
    block: str
    file: str


def tiny_model(family: str, seed: int) -> tuple[PreTrainedModel, nn.ModuleList]:
    """A float64 model of two blocks of width 32, and its list of blocks, whose matrices have variance 1 over width.

    Torch's own generator draws it from ``seed``.
    """
    kind, _, options = FAMILIES[family]
    sizes = dict(vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=2)
    ids = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2)
    torch.manual_seed(seed)
    model = AutoModel.from_config(AutoConfig.for_model(kind, **sizes, **ids, **options)).double().eval()
    blocks = next(m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) == 2)
    for parameter in blocks.parameters():
        if parameter.dim() == 2:
            nn.init.normal_(parameter, std=1 / math.sqrt(parameter.shape[-1]))
    return model, blocks


def behaviour(family: str, seed: int, without: str | None = None) -> Behaviour:
    """Ask the second block of :func:`tiny_model`, on a random stream of mean square 9, where its norms stand.

    ``without`` names a module of the block that is taken out first.
    """
    model, blocks = tiny_model(family, seed)
    if without is not None:
        blocks[1].set_submodule(without, nn.Identity(), strict=True)
    x = 3 * torch.randn(2, 7, 32, dtype=torch.float64)

    def ask(stream, *factors):
        return run_block(model, blocks[1], FAMILIES[family][1], stream, factors)

    def change(a, b):
        return float((a - b).norm() / b.norm())

    out, attention, mlp, final = ask(x, 1, 1)
    alone = ask(x, 0, 1)
    return Behaviour(
        sum=change(ask(10 * x, 0, 0)[0], ask(x, 0, 0)[0]),
        after=max(change(ask(x, 10, 0)[0] - x, ask(x, 1, 0)[0] - x), change(ask(x, 0, 10)[0] - x, alone[0] - x)),
        before=max(change(ask(10 * x, 1, 1)[1], attention), change(ask(10 * x, 0, 1)[2], alone[2])),
        parallel=change(alone[2], mlp),
        final_norm=change(final, out),
        block=type(blocks[1]).__name__,
        file=type(blocks[1]).__module__.rpartition(".")[2] + ".py",
    )


@torch.no_grad()
def run_block(
    model: PreTrainedModel, block: nn.Module, writers: tuple[str, str], x: Tensor, factors: tuple[float, float]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Put ``x``, ``(2, 7, d)``, in the stream's place before a block, and multiply what its branches compute.

    Returns the block's output, what attention and MLP computed before their factors, and the model's output.
    """
    computed, out = [], []

    def enter(module, args, kwargs):
        return ((x, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": x})

    def leave(module, args, kwargs, output):
        out.append(output[0] if isinstance(output, tuple) else output)

    def write(module, args, kwargs, output):
        computed.append(output)
        return factors[len(computed) - 1] * output

    with hooked([(block, enter)], [(block, leave), *((block.get_submodule(name), write) for name in writers)]):
        final = model(torch.arange(3, 17).reshape(2, 7)).last_hidden_state
    return out[0], *computed, final


def name_of(behaviour: Behaviour) -> str | None:
    """The placement with these answers in words, or None; a relative change below 0.02 counts as none.

    Post-norm and DeepNorm answer alike; such a block is called a post-norm.
    """
    yes = {question: getattr(behaviour, question) < 0.02 for question in behaviour._fields[:5]}
    for name, rule in PLACEMENTS.items():
        if all(yes[norm] == getattr(rule, norm) for norm in ("before", "after", "sum")):
            return WORDS[name] + ", parallel" * yes["parallel"] + ", final norm" * (not yes["final_norm"])
    return None


def _mlps(stack: Stack, x: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Of each block: the input and output of W₂, the sum of stream and MLP, and the stream behind the block."""
    for block in stack.blocks:
        mlp, x = block.mlp, block.attention(x)
        hidden = mlp.branch[:2](mlp.read(x))
        written = mlp.branch[2](hidden)
        total = mlp.joined(x, mlp.after(written))
        x = mlp.sum(total)
        yield hidden, written, total, x


def last_gradient(stack: Stack, x: Tensor, head: Tensor, target: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradient of the last W₂ of a post-norm or pre-norm stack for one text ``(length, d)`` (eq-last-gradient).

    The loss is the cross-entropy of ``target`` at the last position.  Returns the gradient ``(d, hidden)``, by
    automatic differentiation; a, the input of W₂; g, the gradient at the last norm's output; and that norm's input.
    """
    hidden, _, total, behind = list(_mlps(stack, x))[-1]
    out = stack.final(behind)
    loss = F.cross_entropy(out[-1] @ head.T, torch.tensor(target))
    matrix, after = torch.autograd.grad(loss, (stack.blocks[-1].mlp.branch[2].weight, out))
    return matrix, hidden[-1].detach(), after[-1], total[-1].detach()


def block_gradients(stack: Stack, x: Tensor, head: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """By block, ``(blocks,)`` each: the length of the gradient of W₂, mean over texts, and the stream's RMS behind it.

    The loss of a text of ``x``, ``(texts, length, d)``, is the cross-entropy of its target at its last position.
    """
    hidden, written, _, behind = zip(*_mlps(stack, x), strict=True)
    logits = stack.final(behind[-1])[:, -1] @ head.T
    slopes = torch.autograd.grad(F.cross_entropy(logits, targets, reduction="sum"), written)
    lengths = [(g.mT @ a.detach()).flatten(1).norm(dim=-1).mean() for g, a in zip(slopes, hidden, strict=True)]
    return torch.stack(lengths), torch.stack([t.detach().square().mean().sqrt() for t in behind])


def _drawn_gradients(stack: Stack, tau: float) -> tuple[Tensor, Tensor]:
    """:func:`block_gradients` at random texts and targets, for a head of standard deviation τ."""
    head = tau * torch.randn(256, stack.d)
    targets = torch.randint(256, (8,))
    return block_gradients(stack, torch.randn(8, 8, stack.d), head, targets)


def mean_block_gradients(make: Callable[[int], Stack], seeds: Iterable[int]) -> tuple[Tensor, Tensor]:
    """:func:`block_gradients` at random texts and targets, mean over the stacks that ``make`` makes of the seeds."""
    runs = [_drawn_gradients(make(seed), 0.02) for seed in seeds]
    lengths, sizes = (torch.stack(values).mean(0) for values in zip(*runs, strict=True))
    return lengths, sizes


def depth_sweep(
    placement: str, depths: Sequence[int], d: int, seeds: Iterable[int], final_norm: bool | None = None
) -> Tensor:
    """The length of the gradient of the last block's W₂, ``(depths, seeds)``, in the setting of Xiong et al. (2020).

    The number of blocks is added to each seed.
    """

    def last(k: int, m: int) -> float:
        return float(_drawn_gradients(even_stack(k + m, d, m, placement, final_norm), 0.02)[0][-1])

    return torch.tensor([[last(k, m) for k in seeds] for m in depths])


def power_law(values: Sequence[float], sizes: Tensor) -> tuple[float, float]:
    """The exponent of the power law that fits ``sizes``, ``(values, seeds)``, and twice its standard error."""
    x = np.log(np.repeat(np.asarray(values, float), sizes.shape[1]))
    (slope, _), covariance = np.polyfit(x, np.log(np.ravel(sizes)), 1, cov=True)
    return float(slope), 2 * math.sqrt(covariance[0, 0])


@torch.no_grad()
def sign_patterns(stack: Stack, x: Tensor) -> tuple[Tensor, Tensor]:
    """‖x_L‖² of the last stream, ``(patterns,)``, and ‖b_l‖² of what sublayers added, ``(patterns, sublayers)``.

    A pattern is a choice of signs of the last matrices of all branches (prop-growth).
    """
    ends = [end for b in stack.blocks for end in (b.attention.branch.out_proj.weight, b.mlp.branch[2].weight)]
    kept, last, added = [end.clone() for end in ends], [], []
    for signs in itertools.product((1, -1), repeat=len(ends)):
        for end, weight, sign in zip(ends, kept, signs, strict=True):
            end.copy_(sign * weight)
        found = unroll(stack, x)
        last.append(found[-1].sublayer.sum(found[-1].sum).square().sum())
        added.append(torch.stack([step.added.square().sum() for step in found]))
    for end, weight in zip(ends, kept, strict=True):
        end.copy_(weight)
    return torch.stack(last), torch.stack(added)


def mlp_mean_square(n: Tensor, hidden: int, tau1: float, tau2: float, draws: int, generator: torch.Generator) -> Tensor:
    """The mean square of the entries of W₂ ReLU(W₁n), n ``(d,)``, over draws of both matrices (prop-growth).

    W₁ has ``hidden`` rows; the entries have standard deviations ``tau1`` and ``tau2``.
    """
    first = tau1 * torch.randn(draws, hidden, len(n), generator=generator, dtype=n.dtype)
    second = tau2 * torch.randn(draws, len(n), hidden, generator=generator, dtype=n.dtype)
    return (second @ (first @ n).clamp_min(0)[..., None]).square().mean()


@torch.no_grad()
def attention_entropy(attention: Attention, x: Tensor) -> Tensor:
    """The entropy of attention's weights over that of even ones, mean over heads and positions but the first."""
    scores, _ = attention.scores_and_values(x)
    entropy = torch.special.entr(scores.softmax(-1)).sum(-1)[..., 1:]
    return (entropy / torch.arange(2, x.shape[-2] + 1, dtype=x.dtype).log()).mean()


def mean_saturation(make: Callable[[int], Stack], seeds: Iterable[int]) -> tuple[Tensor, Tensor]:
    """By block, ``(blocks,)`` each: the mean square of its input, and :func:`attention_entropy`.

    Means over the stacks that ``make`` makes of the seeds, each on 4 random texts of 32 positions.
    """
    squares, entropies = [], []
    for stack in map(make, seeds):
        steps = unroll(stack, torch.randn(4, 32, stack.d))[::2]
        squares.append(torch.stack([step.stream.square().mean() for step in steps]))
        entropies.append(torch.stack([attention_entropy(step.sublayer.branch, step.read) for step in steps]))
    return torch.stack(squares).mean(0), torch.stack(entropies).mean(0)


@torch.no_grad()
def mean_logit_statistics(make: Callable[[int], Stack], seeds: Iterable[int]) -> Tensor:
    """``(2,)``: the standard deviation of the logits, and the entropy of the predictions over that of even ones.

    Means as in :func:`mean_saturation`, for heads of 512 rows whose entries have standard deviation 1/√d.
    """
    runs = []
    for stack in map(make, seeds):
        head = torch.randn(512, stack.d) / math.sqrt(stack.d)
        logits = stack(torch.randn(4, 32, stack.d)) @ head.T
        entropy = torch.special.entr(logits.softmax(-1)).sum(-1).mean()
        runs.append(torch.stack([logits.std(), entropy / math.log(512)]))
    return torch.stack(runs).mean(0)


def factor_a_block(squares: Tensor) -> float:
    """The factor by which a block of the second half multiplies the mean square ``(blocks,)``, geometric mean."""
    late = squares[len(squares) // 2 :].log()
    return math.exp(float(late[-1] - late[0]) / (len(late) - 1))


def path_factors(stack: Stack, x: Tensor) -> tuple[Tensor, Tensor]:
    """The factor by which LayerNorms on the sum, without gain, multiply the identity path of each token.

    ``(..., length)`` each: the product of α/s over all sublayers; and that of (1 + v/α²)^(-1/2) with v the branch's
    variance, its value without correlations for a stream of variance 1 and ε = 0 (prop-identity-path).
    """
    factor = law = torch.ones(x.shape[:-1], dtype=x.dtype)
    for step in unroll(stack, x):
        alpha, norm = step.sublayer.alpha, step.sublayer.sum
        factor = factor * alpha / (step.sum.var(-1, correction=0) + norm.eps).sqrt()
        law = law / (1 + step.added.var(-1, correction=0) / alpha**2).sqrt()
    return factor, law


def jacobian_matrix(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """The derivative of ``f`` at ``x`` as a matrix ``(outputs, inputs)``, by automatic differentiation, detached."""
    return torch.func.jacrev(f)(x).detach().reshape(-1, x.numel())


def composition(stack: Stack, x: Tensor) -> list[Tensor]:
    """The shares of the input and of each branch in the stream after each sublayer, ``(l + 1,)`` after the l-th.

    Shares are of the sum of mean squared lengths, means removed (eq-unrolled and its counterpart); norms on the sum,
    which are LayerNorms of gain 1 and bias 0, are held at their scales.
    """
    parts, shares = [center(x)], []
    for step in unroll(stack, x):
        norm = step.sublayer.sum
        scale = 1.0 if isinstance(norm, nn.Identity) else rstd(center(step.sum), norm.eps)
        parts = [step.sublayer.alpha * scale * part for part in parts] + [scale * center(step.added)]
        squares = torch.stack([part.square().sum(-1).mean() for part in parts])
        shares.append(squares / squares.sum())
    return shares


BYTE_WIDTH, BYTE_HEADS, BYTE_LENGTH = 64, 4, 65


def train_bytes(
    text: Tensor,
    placement: str,
    blocks: int,
    lr: float,
    steps: int,
    seed: int,
    warmup: int = 0,
    batch: int = 4,
    scale: float = 1.0,
) -> tuple[LanguageModel, list[float]]:
    """A float32 byte model trained on windows of a text by Adam (β = 0.9, 0.98), and its losses in nats per byte.

    Weights and batches depend on the seed alone, drawn in torch's default dtype by its own generator; the matrices of
    the branches are multiplied by ``scale``.  On the sphere weights are normalised at the start and after every step.
    """
    torch.manual_seed(seed)
    stack = Stack(BYTE_WIDTH, BYTE_HEADS, blocks, placement)
    with torch.no_grad():
        for matrix in (p for sublayer in stack.sublayers for p in sublayer.branch.parameters() if p.dim() == 2):
            matrix *= scale
    model = LanguageModel(256, BYTE_LENGTH, stack).float()
    optimizer = torch.optim.Adam(model.parameters(), lr=lr, betas=(0.9, 0.98))
    if stack.on_sphere:
        normalise_weights(model)
        optimizer.register_step_post_hook(lambda *_: normalise_weights(model))
    if not steps:
        return model, []
    schedule = LambdaLR(optimizer, lambda step: min(1, (step + 1) / (warmup + 1)))
    batches = itertools.islice(random_windows(text, BYTE_LENGTH, batch, seed), steps)
    return model, fit(model, batches, optimizer, schedule).tolist()


@torch.no_grad()
def varying_share(model: LanguageModel, ids: Tensor) -> float:
    """The share of the last stream's mean square that is not of its mean over all tokens."""
    x = model.stack(model.embed(ids)).flatten(0, 1)
    return 1 - float(x.mean(0).square().sum() / x.square().sum(-1).mean())


def first_over_last(model: LanguageModel, ids: Tensor) -> float:
    """The length of the loss's gradient of the first block's W₂ over that of the last one's."""
    matrices = [model.stack.blocks[i].mlp.branch[2].weight for i in (0, -1)]
    first, last = torch.autograd.grad(next_token_loss(model, ids), matrices)
    return float(first.norm() / last.norm())


@torch.no_grad()
def block_table(model: LanguageModel, ids: Tensor) -> pd.DataFrame:
    """What each block of a model does to the stream, one row a block, from 1.

    ``square``, the mean square of the stream behind it; ``update``, the mean length of what it changes over that of the
    stream before; ``cosine`` of the two, mean over positions; ``more``, by how much the loss grows without the block.
    """
    streams, whole = model.stack.streams(model.embed(ids))[::2], next_token_loss(model, ids)
    rows = []
    for block, (x, y) in enumerate(itertools.pairwise(streams)):
        less = copy.deepcopy(model)
        del less.stack.blocks[block]
        cosine, more = F.cosine_similarity(x, y - x, dim=-1).mean(), next_token_loss(less, ids) - whole
        update = (y - x).norm(dim=-1).mean() / x.norm(dim=-1).mean()
        rows.append([float(value) for value in (y.square().mean(), update, cosine, more)])
    index = pd.RangeIndex(1, len(rows) + 1, name="block")
    return pd.DataFrame(rows, index, ["square", "update", "cosine", "more"])


@torch.no_grad()
def loss_without_norms(model: LanguageModel, ids: Tensor) -> float:
    """The loss in nats per token of a copy without norms."""
    bare = copy.deepcopy(model)
    bare.stack.final = nn.Identity()
    for sublayer in bare.stack.sublayers:
        sublayer.before = sublayer.after = sublayer.sum = nn.Identity()
    return float(next_token_loss(bare, ids))


WORDS = {name: DESIGNS[name].words for name in (*PLACEMENTS, "post-small")}

LOOKS = {
    "pre-norm": dict(color="#D55E00", marker="s"),
    "post-norm": dict(color="#0072B2", marker="o"),
    "post-norm, small outputs": dict(color="#56B4E9", marker="*"),
    "sandwich": dict(color="#009E73", marker="v"),
    "branch-out": dict(color="#CC79A7", marker="D"),
    "DeepNorm": dict(color="#E69F00", marker="^"),
    "pre-norm, no final norm": dict(color=COLORS["null"], marker="P"),
    "no norms": dict(color=COLORS["ink"], marker="x"),
}

_WIDE = dict(lw=5, alpha=0.4, ms=8, zorder=1)  # what another line covers shows on both sides of it
_LAW = dict(color=COLORS["ink"], lw=1.2, ls=(0, (2, 2)), zorder=5)
_BEHIND = dict(color=COLORS["null"], lw=3, alpha=0.5, zorder=0)

# Each picture comes with its alt text; names of placements are keys of LOOKS.


def sublayers() -> tuple[Figure, str]:
    """One sublayer of each placement (eq-sublayer)."""
    with style():
        figure, axes = plt.subplots(1, len(PLACEMENTS), figsize=(WIDTH, 2.7))
        for axis, (name, rule) in zip(axes, PLACEMENTS.items(), strict=True):
            axis.set(title=WORDS[name], xlim=(-0.8, 1.7), ylim=(-0.2, 6.9))
            axis.axis("off")
            axis.plot([0, 1, 1, 0], [0.7, 0.7, 4.6, 4.6], color=COLORS["null"], lw=1.2)
            axis.annotate("", (0, 6.9), (0, -0.2), arrowprops=dict(arrowstyle="->", color=COLORS["ink"], lw=1.6))
            boxes = (
                (1, 2.65, "f", True),
                (1, 1.6, "N", rule.before),
                (1, 3.7, "N", rule.after),
                (0, 5.7, "N", rule.sum),
                (0, 2.65, "α", rule.alpha != 1),
            )
            for x, y, letter, present in boxes:
                if present:
                    box = dict(boxstyle="square,pad=0.35", fc="#D6E6F2" if letter == "N" else "white")
                    axis.text(x, y, letter, ha="center", va="center", bbox=box)
            axis.text(0, 4.6, "+", ha="center", va="center", bbox=dict(boxstyle="circle,pad=0.2", fc="white"))
    return figure, (
        "Five drawings of a sublayer: the stream runs upwards, a branch f leaves it and is added again. Pre-norm has a "
        "norm N before f, post-norm on the stream behind the sum, the sandwich before and after f, branch-out after f; "
        "DeepNorm is post-norm with a factor α on the stream before the sum."
    )


def gradient_powers(
    depths: Sequence[int], by_depth: Mapping[str, Tensor], by_block: Mapping[str, Tensor]
) -> tuple[Figure, str]:
    """Lengths of gradients against depth, ``(depths, seeds)``, with fitted powers, and by block."""
    words = []
    with style():
        figure, (left, right) = plt.subplots(1, 2, figsize=(WIDTH, 3.6), sharey=True)
        for name, lengths in by_depth.items():
            words.append(f"{_points_and_power(left, depths, lengths, name):.2f} for {name}")
        for name, lengths in by_block.items():
            look = LOOKS[name] | (_WIDE if name == "branch-out" else {})
            right.semilogy(range(1, len(lengths) + 1), lengths, label=name, **look)
        left.set_xticks(depths, depths)
        left.minorticks_off()
        ticks_of_powers(left.yaxis)
        left.set(xlabel="number of blocks", ylabel="length of the gradient", title="last block")
        right.set(xlabel="block", title=f"each of {len(lengths)} blocks")
        handles = {line.get_label(): line for axis in (left, right) for line in axis.get_legend_handles_labels()[0]}
        figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=2)
    ratios = ", ".join(f"{float(v[0] / v[-1]):.2f} for {name}" for name, v in by_block.items())
    return figure, (
        f"Gradients of the last block, double logarithmic, with fitted powers of the depth: {', '.join(words)}. "
        f"By block, the first block's over the last one's: {ratios}."
    )


def _points_and_power(axis: Axes, values: Sequence[int], lengths: Tensor, name: str) -> float:
    """Draw a point a seed and the fitted power as a line; return the power."""
    axis.loglog(values, lengths, LOOKS[name]["marker"], color=LOOKS[name]["color"], ms=3, alpha=0.6)
    power, _ = power_law(values, lengths)
    x = np.log(np.asarray(values, float))
    line = np.exp(float(lengths.log().mean()) + power * (x - x.mean()))
    axis.loglog(values, line, color=LOOKS[name]["color"], lw=1.2, label=name)
    return power


def growth_by_sublayer(grown: Mapping[str, Growth]) -> tuple[Figure, str]:
    """Mean square of the stream and relative update by sublayer, means over stacks, beside 1 + l and 1/√l."""
    ends = {"square": [], "update": []}
    with style():
        figure, (left, right) = plt.subplots(1, 2, figsize=(WIDTH, 4.2))
        for name, run in grown.items():
            square, update = run.square.mean(0), run.update.mean(0)
            number = np.arange(1, len(update) + 1)
            look = LOOKS[name] | (_WIDE if name == "branch-out" else {})
            left.plot(square, markevery=6, label=name, **look | (_WIDE if name == "post-norm" else {}))
            for first, dash in ((0, "-"), (1, ":")):  # attention, MLP
                right.loglog(number[first::2], update[first::2], dash, markevery=4, **look)
            ends["square"].append(f"{float(square[-1]):.2g} for {name}")
            ends["update"].append(f"{float(update[-1]):.2g} for {name}")
        left.plot([0, number[-1]], [1, 1 + number[-1]], label="1 + l, and 1/√l", **_LAW)
        right.loglog(number, number**-0.5, **_LAW)
        ticks_of_powers(right.xaxis, right.yaxis)
        left.set(xlabel="sublayers", title="mean square of the stream")
        right.set(xlabel="sublayer", title="update / stream")
        figure.legend(*left.get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return figure, (
        "Left, the mean square of the stream beside the line 1 + l; at the end "
        f"{', '.join(ends['square'])}. Right, relative updates in double logarithmic axes beside 1/√l; at the end "
        f"{', '.join(ends['update'])}."
    )


def growth_rows(grown: Mapping[str, Growth]) -> dict[str, dict[str, float]]:
    """The growth of stacks in numbers, one row a name."""
    return {
        name: {
            "mean square at the end": float(run.square[:, -1].mean()),
            "added a sublayer": float(run.added.mean()),
            "least": float(run.added.min()),
            "most": float(run.added.max()),
            "update / stream": float(run.update[:, -4:].mean()),
            "turn / degrees": float(run.turn[:, -4:].mean()),
            "cosine with the input": float(run.cosine[:, -1].mean()),
        }
        for name, run in grown.items()
    }


def stream_shares(shares: Mapping[str, Sequence[Tensor]], sublayers: int) -> tuple[Figure, str]:
    """Shares of :func:`composition` after so many sublayers, a bar a placement, the input lowest and dark.

    A branch keeps its shade as later ones come.
    """
    most = max(map(len, shares.values()))
    shades, words = [COLORS["ink"], *plt.get_cmap("viridis")(np.linspace(0.25, 1, most))], {}
    with style():
        figure, axis = plt.subplots(figsize=(5, 3.6))
        for place, (name, by_depth) in enumerate(shares.items()):
            share = by_depth[sublayers - 1].tolist()
            look = dict(color=shades[: len(share)], edgecolor="white", linewidth=0.5)
            axis.bar([place] * len(share), share, 0.72, np.cumsum([0, *share[:-1]]), **look)
            words[name] = f"input {100 * share[0]:.0f} %", f"last two {100 * sum(share[1:][-2:]):.0f} %"
        axis.set(ylabel="share of the squared length", ylim=(0, 1), title=f"after {sublayers} sublayers")
        axis.set_xticks(range(len(shares)), ["\n".join([name, *rest]) for name, rest in words.items()])
        axis.grid(visible=False)
    return figure, (
        f"After {sublayers} sublayers, the shares of the input and of every branch, one bar a placement, the input "
        f"lowest, the newest on top. {'; '.join(', '.join([name, *rest]) for name, rest in words.items())}."
    )


def saturation_by_block(runs: Mapping[str, tuple[Tensor, Tensor]]) -> tuple[Figure, str]:
    """Mean square of the stream and entropy of attention by block, of :func:`mean_saturation`."""
    words = []
    with style():
        figure, (left, right) = plt.subplots(1, 2, figsize=(WIDTH, 3.2))
        for name, (squares, entropies) in runs.items():
            blocks = range(1, len(squares) + 1)
            left.semilogy(blocks, squares, label=name, **LOOKS[name])
            right.plot(blocks, entropies, label=name, **LOOKS[name])
            words.append(f"{name} {float(squares[-1]):.0e} and {float(entropies[-1]):.2f}")
        ticks_of_powers(left.yaxis)
        left.set(xlabel="block", title="mean square of its input")
        right.set(xlabel="block", title="attention's entropy,\nover that of even weights", ylim=(0, 1.05))
        left.legend()
    return figure, (
        "Mean square of the stream, logarithmic, and entropy of attention, both by block. In the last block they are: "
        f"{'; '.join(words)}."
    )


def losses_by_rate(sweep: pd.DataFrame, entropy: float) -> tuple[Figure, str]:
    """Loss against the learning rate, mean and range over seeds, a panel for each depth.

    ``sweep`` has columns ``placement``, ``layers``, ``rate``, ``warmup`` and ``loss``; the entropy of single bytes, in
    nats, is a grey line.
    """
    words, depths, rates = [], sorted(set(sweep.layers)), sorted(set(sweep.rate))
    dashed = {True: dict(ls="-", mfc=None), False: dict(ls="--", mfc="none")}  # with a warm-up, and without
    with style():
        figure, panels = plt.subplots(1, len(depths), figsize=(WIDTH, 3.8), sharey=True, squeeze=False)
        for axis, depth in zip(panels[0], depths, strict=True):
            for (placement, warmup), runs in sweep[sweep.layers == depth].groupby(["placement", "warmup"], sort=False):
                name, losses = WORDS[placement], runs.groupby("rate").loss
                mean, low, high = losses.mean(), losses.min(), losses.max()
                beside, look = mean.index * (1.04 if warmup else 0.96), LOOKS[name] | dashed[warmup > 0]
                bars = [mean - low, high - mean]
                axis.errorbar(beside, mean, bars, capsize=2, label=f"{name}, warm-up {warmup}", **look)
                words.append(f"{name} of {depth} blocks, warm-up {warmup}, from {mean.min():.2f} to {mean.max():.2f}")
            axis.axhline(entropy, **_BEHIND)
            axis.set(xscale="log", xlabel="learning rate", title=f"{depth} blocks")
            axis.set_xticks(rates, [f"{rate:g}" for rate in rates])
            axis.minorticks_off()
            axis.margins(x=0.15)
        panels[0, 0].set_ylabel("loss / nats a byte")
        marks = {WORDS[placement]: LOOKS[WORDS[placement]] for placement in dict.fromkeys(sweep.placement)}
        for warmup in sorted(set(sweep.warmup)):
            marks[f"warm-up {warmup}"] = dict(color=COLORS["ink"], marker="o", **dashed[warmup > 0])
        lines = [axis.plot([], [], **look)[0] for look in marks.values()]
        figure.legend(lines, marks.keys(), loc="outside upper center", ncols=2)
    return figure, f"Loss against learning rate, means over seeds: {'; '.join(words)}."


def losses_of_runs(runs: pd.DataFrame, entropy: float) -> tuple[Figure, str]:
    """Loss over training, a line a run, of columns ``placement``, ``seed``, ``step``, ``loss``; in grey the entropy."""
    words = []
    with style():
        figure, axis = plt.subplots(figsize=(WIDTH, 3.2))
        for placement, of_one in runs.groupby("placement", sort=False):
            name = WORDS[placement]
            for number, (_, run) in enumerate(of_one.groupby("seed")):
                axis.plot(run.step, run.loss, ms=3, label=None if number else name, **LOOKS[name])
            last = of_one[of_one.step == of_one.step.max()].loss
            words.append(f"{name} ends at {last.min():.2f} to {last.max():.2f}")
        axis.axhline(entropy, **_BEHIND)
        axis.set(xlabel="update", ylabel="loss / nats a byte")
        axis.legend()
    return figure, f"Loss over {runs.step.max()} updates, a line a run: {', '.join(words)}."
