"""Chapter 6: gradients, growth and training of stacks whose norms stand in different places, and pictures."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from normgeom.norms.formula import center, rate
from normgeom.text.tokens import random_windows
from normgeom.view.style import COLORS, WIDTH, style, ticks_of_powers
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PreTrainedModel

from normgeom_lab.common.growth import Growth, _check_stack, even_stack, scaled, unroll
from normgeom_lab.common.stacks import PLACEMENTS, Attention, LanguageModel, Stack, normalise_weights
from normgeom_lab.common.tiny import fit, next_token_loss

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    Stream = Float[Tensor, "texts length d"]
    Head = Float[Tensor, "vocabulary d"]
    Targets = Int[Tensor, " texts"]
    Blocks = Float[Tensor, " blocks"]
    Lengths = Float[Tensor, "values seeds"]
    Stream = Float[Tensor, "*batch length d"]
    Runs = Float[Tensor, "stacks sublayers"]
    Ids = Int[Tensor, "windows length"]

_SIZES = dict(vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=2)

_IDS = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2)

_GROUPED = dict(num_key_value_heads=2, head_dim=16)

_LLAMA, _OPT = ("self_attn.o_proj", "mlp.down_proj"), ("self_attn.out_proj", "fc2")


class Family(NamedTuple):
    """A family of transformers: its model type, the last linear maps of a block's two branches, options of its own."""

    kind: str
    writers: tuple[str, str]
    options: dict[str, object]


FAMILIES = {
    "GPT-2": Family("gpt2", ("attn.c_proj", "mlp.c_proj"), {}),
    "Llama": Family("llama", _LLAMA, _GROUPED),
    "BERT": Family("bert", ("attention.output.dense", "output.dense"), {}),
    "OPT": Family("opt", _OPT, {}),
    "OPT, 350m": Family("opt", _OPT, dict(do_layer_norm_before=False)),
    "Gemma 2": Family("gemma2", _LLAMA, _GROUPED),
    "Gemma 3": Family("gemma3_text", _LLAMA, _GROUPED),
    "OLMo 2": Family("olmo2", _LLAMA, _GROUPED),
    "GPT-J": Family("gptj", ("attn.out_proj", "mlp.fc_out"), dict(rotary_dim=8)),
    "GPT-NeoX": Family("gpt_neox", ("attention.dense", "mlp.dense_4h_to_h"), {}),
    "Cohere": Family("cohere", _LLAMA, _GROUPED),
}


class Behaviour(NamedTuple):
    """Relative changes of what the second of two blocks does, each to one question.

    Attributes:
        sum: of its output, branches silent, when the stream is ten times as large: 0 if a norm stands on the sum.
        after: of what it adds when a branch computes ten times as much, the larger of both branches': 0 if norms
            stand behind both.
        before: of what a branch computes when the stream is ten times as large, the larger of both: 0 if both read
            through norms.
        parallel: of what the MLP computes when attention is silent: 0 if it does not read attention's result.
        final_norm: from the block's output to the model's: 0 if nothing stands between.
        block: the name of the block's class.
        file: the file of transformers in which that stands.
    """

    sum: float
    after: float
    before: float
    parallel: float
    final_norm: float
    block: str
    file: str


def tiny_model(family: str, seed: int) -> tuple[PreTrainedModel, nn.ModuleList]:
    """A float64 model of two blocks of width 32, from its family's configuration, and its list of blocks.

    Matrices of the blocks are normal with variance 1 over the length of their rows.  Seeds torch's own generator.

    Raises:
        ValueError: the family is not one of :data:`FAMILIES`.
    """
    kind, _, options = _family(family)
    torch.manual_seed(seed)
    model = AutoModel.from_config(AutoConfig.for_model(kind, **_SIZES, **_IDS, **options)).double().eval()
    blocks = next(m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) == 2)
    for parameter in blocks.parameters():
        if parameter.dim() == 2:
            nn.init.normal_(parameter, std=1 / math.sqrt(parameter.shape[-1]))
    return model, blocks


def behaviour(family: str, seed: int, without: str | None = None) -> Behaviour:
    """Ask the second block of :func:`tiny_model`, on a random stream of mean square 9, where its norms stand.

    Args:
        family: of :data:`FAMILIES`.
        seed: of the weights and the stream.
        without: the name of a module of the block that is taken out first.

    Raises:
        ValueError: the family is not known, or the block has no such module.
    """
    writers = _family(family).writers
    model, blocks = tiny_model(family, seed)
    if without is not None:
        if not hasattr(blocks[1], without):
            raise ValueError(f"without: expected a module of {type(blocks[1]).__name__}, got {without!r}")
        setattr(blocks[1], without, nn.Identity())
    x = 3 * torch.randn(2, 7, 32, dtype=torch.float64)

    def ask(stream, *factors):
        return run_block(model, blocks[1], writers, stream, factors)

    out, attention, mlp, final = ask(x, 1, 1)
    alone = ask(x, 0, 1)
    return Behaviour(
        sum=_change(ask(10 * x, 0, 0)[0], ask(x, 0, 0)[0]),
        after=max(
            _change(ask(x, 10, 0)[0] - x, ask(x, 1, 0)[0] - x),
            _change(ask(x, 0, 10)[0] - x, alone[0] - x),
        ),
        before=max(_change(ask(10 * x, 1, 1)[1], attention), _change(ask(10 * x, 0, 1)[2], alone[2])),
        parallel=_change(alone[2], mlp),
        final_norm=_change(final, out),
        block=type(blocks[1]).__name__,
        file=type(blocks[1]).__module__.rpartition(".")[2] + ".py",
    )


@torch.no_grad()
def run_block(
    model: PreTrainedModel, block: nn.Module, writers: tuple[str, str], x: Tensor, factors: tuple[float, float]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Run a block of a model on a stream of one's own, what its two branches compute multiplied by factors.

    Args:
        model: runs on 2 texts of 7 tokens.
        block: of the model.
        writers: the names in the block of the branches' last linear maps, attention's first.
        x: ``(2, 7, d)``, put in the stream's place before the block.
        factors: of what both maps put out.

    Returns:
        ``(2, 7, d)`` each: the block's output, what attention and MLP computed before their factors, and the model's
        output.
    """
    computed, out = [], []

    def enter(module, args, kwargs):
        return ((x, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": x})

    def leave(module, args, output):
        out.append(output[0] if isinstance(output, tuple) else output)

    def write(factor):
        def hook(module, args, output):
            computed.append(output)
            return factor * output

        return hook

    with ExitStack() as hooks:
        hooks.callback(block.register_forward_pre_hook(enter, with_kwargs=True).remove)
        hooks.callback(block.register_forward_hook(leave).remove)
        for name, factor in zip(writers, factors, strict=True):
            hooks.callback(block.get_submodule(name).register_forward_hook(write(factor)).remove)
        final = model(torch.arange(3, 17).reshape(2, 7)).last_hidden_state
    return out[0], *computed, final


def _change(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


def _family(name: str) -> Family:
    if name not in FAMILIES:
        raise ValueError(f"family: expected one of {', '.join(map(repr, FAMILIES))}, got {name!r}")
    return FAMILIES[name]


class LastGradient(NamedTuple):
    """The gradient of the last MLP's W₂ for a loss at one position, and what it is made of (eq-last-gradient).

    Attributes:
        matrix: ``(d, hidden)``, the gradient by W₂, by automatic differentiation.
        hidden: a, ``(hidden,)``, what W₂ multiplies.
        after: g, ``(d,)``, the gradient by the output of the last norm.
        normed: ``(d,)``, what that norm is applied to.
    """

    matrix: Tensor
    hidden: Tensor
    after: Tensor
    normed: Tensor


def last_gradient(stack: Stack, x: Tensor, head: Head, target: int) -> LastGradient:
    """The parts of the last gradient of a post-norm or pre-norm stack for one text.

    Args:
        stack: whose last norm is on the last sum, or the final one.
        x: ``(length, d)``, the stream at the start; the loss is the cross-entropy at the last position.
        head: rows of logits.
        target: the token that should come next.

    Raises:
        ValueError: there is no norm between the last W₂ and the head, or ``target`` is not a row of ``head``.
    """
    mlp = stack.blocks[-1].mlp
    norm = mlp.sum if isinstance(stack.final, nn.Identity) else stack.final
    if isinstance(norm, nn.Identity):
        raise ValueError("stack: expected a norm on the last sum or behind the last block, got none")
    if not 0 <= target < len(head):
        raise ValueError(f"target: expected a row of the head, 0 to {len(head) - 1}, got {target}")
    seen = {}

    def note(module, args, output):
        seen[module] = args[0], output

    with ExitStack() as hooks:
        for module in (norm, mlp.branch[2]):
            hooks.callback(module.register_forward_hook(note).remove)
        logits = stack(x)[-1] @ head.T
    (normed, out), (hidden, _) = seen[norm], seen[mlp.branch[2]]
    loss = F.cross_entropy(logits, torch.tensor(target, device=x.device))
    matrix, after = torch.autograd.grad(loss, (mlp.branch[2].weight, out))
    return LastGradient(matrix, hidden[-1].detach(), after[-1], normed[-1].detach())


def block_gradients(stack: Stack, x: Stream, head: Head, targets: Targets) -> tuple[Blocks, Blocks]:
    """By block: how long the gradient of the MLP's W₂ is, and how large the stream behind the block is.

    Args:
        stack: as it is; its gradients are not touched.
        x: streams at the start, a text each; the loss of a text is the cross-entropy at its last position.
        head: rows of logits.
        targets: for each text the token that should come next.

    Returns:
        two tensors ``(blocks,)``: ‖∂L/∂W₂‖, Frobenius, mean over texts; and the stream's root mean square.

    Raises:
        ValueError: ``targets`` are not one a text.
    """
    if x.dim() != 3 or targets.shape != x.shape[:1]:
        raise ValueError(
            f"targets: expected one for each text of x, (texts, length, d), got {tuple(targets.shape)} for "
            f"{tuple(x.shape)}"
        )
    inside, outputs, sizes = [], [], []

    def note(module, args, output):
        inside.append(args[0].detach())
        outputs.append(output)

    def measure(module, args, output):
        sizes.append(output.detach().square().mean().sqrt())

    with ExitStack() as hooks:
        for block in stack.blocks:
            hooks.callback(block.mlp.branch[2].register_forward_hook(note).remove)
            hooks.callback(block.register_forward_hook(measure).remove)
        logits = stack(x)[:, -1] @ head.T
    slopes = torch.autograd.grad(F.cross_entropy(logits, targets, reduction="sum"), outputs)
    lengths = [(g.mT @ a).flatten(1).norm(dim=-1).mean() for g, a in zip(slopes, inside, strict=True)]
    return torch.stack(lengths), torch.stack(sizes)


def mean_block_gradients(
    make: Callable[[int], Stack], seeds: Iterable[int], tau: float = 0.02
) -> tuple[Blocks, Blocks]:
    """:func:`block_gradients` at random texts and targets, mean over stacks.

    Args:
        make: a stack from its seed, as :func:`normgeom_lab.common.growth.seeded_stack`, whose generator then draws a
            head, 8 targets of 256, and 8 texts of 8 positions.
        seeds: one a stack.
        tau: standard deviation of the head's entries.

    Raises:
        ValueError: there is no seed.
    """
    runs = [_drawn_gradients(make(seed), tau) for seed in _listed("seeds", seeds)]
    lengths, sizes = (torch.stack(values).mean(0) for values in zip(*runs, strict=True))
    return lengths, sizes


def depth_sweep(
    placement: str,
    depths: Sequence[int],
    d: int,
    seeds: Iterable[int],
    tau: float = 0.02,
    final_norm: bool | None = None,
) -> Lengths:
    """How long the gradient of the last block's W₂ is, by the number of blocks, in the setting of Xiong et al. (2020).

    Args:
        placement, d, final_norm: of :func:`normgeom_lab.common.growth.even_stack`; inputs and targets are drawn as in
            :func:`mean_block_gradients`.
        depths: numbers of blocks.
        seeds: those of a point are these plus the number of blocks.
        tau: standard deviation of the head's entries.

    Returns:
        ``(depths, seeds)``.

    Raises:
        ValueError: no depth or no seed.
    """
    depths, seeds = _listed("depths", depths), _listed("seeds", seeds)
    return torch.stack(
        [
            torch.stack([_drawn_gradients(even_stack(k + m, d, m, placement, final_norm), tau)[0][-1] for k in seeds])
            for m in depths
        ]
    )


def width_sweep(
    placement: str, widths: Sequence[int], layers: int, seeds: Iterable[int], tau: Callable[[int], float]
) -> Lengths:
    """As :func:`depth_sweep`, by the width d of the stream.

    Args:
        widths: of the streams.
        layers: how many blocks.
        seeds: those of a point are these plus the width.
        tau: standard deviation of the head's entries, by the width.

    Returns:
        ``(widths, seeds)``.
    """
    widths, seeds = _listed("widths", widths), _listed("seeds", seeds)
    return torch.stack(
        [
            torch.stack([_drawn_gradients(even_stack(k + w, w, layers, placement), tau(w))[0][-1] for k in seeds])
            for w in widths
        ]
    )


def power_law(values: Sequence[float], sizes: Lengths) -> tuple[float, float]:
    """The power of ``values`` as which ``sizes`` go, by least squares of logarithms, and twice its standard error.

    Args:
        values: positive, at least two different ones.
        sizes: ``(values, seeds)``, positive.

    Raises:
        ValueError: shapes that do not fit, a size or a value that is not positive, fewer than three sizes, or fewer
            than two values.
    """
    x, y = np.asarray(values, float), np.asarray(sizes, float)
    if y.ndim != 2 or len(y) != len(x) or len(set(x)) < 2 or y.size < 3:
        raise ValueError(f"sizes: expected (values, seeds) with two values or more, got {y.shape} for {len(x)} values")
    if not (x > 0).all() or not (y > 0).all():
        raise ValueError("values, sizes: expected positive numbers, got others too")
    u, w = np.log(np.repeat(x, y.shape[1])), np.log(y.ravel())
    u = u - u.mean()
    slope = float(u @ w / (u @ u))
    residual = w - w.mean() - slope * u
    return slope, 2 * math.sqrt(float(residual @ residual) / (len(w) - 2) / float(u @ u))


def _drawn_gradients(stack: Stack, tau: float) -> tuple[Blocks, Blocks]:
    head = tau * torch.randn(256, stack.d)
    targets = torch.randint(256, (8,))
    return block_gradients(stack, torch.randn(8, 8, stack.d), head, targets)


def _listed(name: str, values: Iterable) -> list:
    listed = list(values)
    if not listed:
        raise ValueError(f"{name}: expected at least one, got none")
    return listed


@torch.no_grad()
def sign_patterns(stack: Stack, x: Stream) -> tuple[Tensor, Tensor]:
    """Squared lengths for every choice of signs of the last matrices, one a branch (prop-growth).

    Returns:
        ``(patterns,)``, ‖x_L‖² of the last stream, and ``(patterns, sublayers)``, ‖b_l‖² of what each sublayer added.
        The stack is left as it was.

    Raises:
        ValueError: more than 12 sublayers, 4096 patterns.
    """
    ends = [end for b in stack.blocks for end in (b.attention.branch.out_proj.weight, b.mlp.branch[2].weight)]
    if len(ends) > 12:
        raise ValueError(f"stack: expected at most 12 sublayers, got {len(ends)}: 2 to that power patterns")
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
    """The mean square of the entries of W₂ ReLU(W₁n) over draws of both matrices (prop-growth).

    Args:
        n: ``(d,)``.
        hidden: rows of W₁.
        tau1, tau2: standard deviations of the entries of W₁ and W₂.
        draws: how many of each.
        generator: of the matrices.

    Raises:
        ValueError: ``n`` is not of shape ``(d,)``, or ``hidden`` or ``draws`` is below 1.
    """
    if n.dim() != 1 or hidden < 1 or draws < 1:
        raise ValueError(
            f"n, hidden, draws: expected shape (d,) and numbers >= 1, got {tuple(n.shape)}, {hidden} and {draws}"
        )
    first = tau1 * torch.randn(draws, hidden, len(n), generator=generator, dtype=n.dtype)
    second = tau2 * torch.randn(draws, len(n), hidden, generator=generator, dtype=n.dtype)
    return (second @ (first @ n).clamp_min(0)[..., None]).square().mean()


@torch.no_grad()
def attention_entropy(attention: Attention, x: Stream) -> Tensor:
    """The entropy of causal attention's shares over that of even ones, mean over heads and positions but the first.

    1 where each position attends evenly to all up to it, 0 where it looks at a single one.

    Args:
        attention: causal.
        x: what it reads, ``(..., length, d)`` of at least two positions.

    Raises:
        ValueError: it is not causal, or there is one position only.
    """
    if not attention.causal or x.shape[-2] < 2:
        raise ValueError(
            f"attention, x: expected a causal one and two positions or more, got causal={attention.causal} and "
            f"{x.shape[-2]}"
        )
    entropy = torch.special.entr(attention.shares(x)).sum(-1)[..., 1:]
    even = torch.arange(2, x.shape[-2] + 1, dtype=x.dtype, device=x.device).log()
    return (entropy / even).mean()


@torch.no_grad()
def saturation(stack: Stack, x: Stream) -> tuple[Tensor, Tensor]:
    """By block, ``(blocks,)`` each: the mean square of the stream that it finds, and :func:`attention_entropy`."""
    found = unroll(stack, x)[::2]
    squares = [step.stream.square().mean() for step in found]
    return torch.stack(squares), torch.stack([attention_entropy(s.sublayer.branch, s.read) for s in found])


@torch.no_grad()
def logit_statistics(stack: Stack, head: Tensor, x: Stream) -> Tensor:
    """``(2,)``: the standard deviation of the logits, and the mean entropy of the predictions over that of even ones.

    Args:
        head: ``(vocabulary, d)``, rows of logits.
        x: the stream at the start.

    Raises:
        ValueError: ``head`` has another width than the stack, or a single row.
    """
    if head.dim() != 2 or head.shape[1] != stack.d or len(head) < 2:
        raise ValueError(f"head: expected shape (two or more, {stack.d}), got {tuple(head.shape)}")
    logits = stack(x) @ head.T
    entropy = torch.special.entr(logits.softmax(-1)).sum(-1).mean()
    return torch.stack([logits.std(), entropy / math.log(len(head))])


def mean_saturation(make: Callable[[int], Stack], seeds: Iterable[int]) -> tuple[Tensor, Tensor]:
    """:func:`saturation` on 4 random texts of 32 positions, mean over stacks.

    Args:
        make: a stack from its seed, as :func:`normgeom_lab.common.growth.seeded_stack`, whose generator then draws the
            texts.
        seeds: one a stack.

    Raises:
        ValueError: there is no seed.
    """
    runs = [saturation(stack, _texts(stack)) for stack in map(make, _some(seeds))]
    squares, entropies = (torch.stack(rows).mean(0) for rows in zip(*runs, strict=True))
    return squares, entropies


def mean_logit_statistics(make: Callable[[int], Stack], seeds: Iterable[int]) -> Tensor:
    """:func:`logit_statistics` on 4 random texts of 32 positions, mean over stacks, ``(2,)``.

    Args:
        make, seeds: as in :func:`mean_saturation`; before the texts a head of 512 rows is drawn, with entries of
            standard deviation 1/√d, so that a stream of mean square 1 gives logits of variance 1.

    Raises:
        ValueError: there is no seed.
    """
    runs = []
    for stack in map(make, _some(seeds)):
        head = torch.randn(512, stack.d) / math.sqrt(stack.d)
        runs.append(logit_statistics(stack, head, _texts(stack)))
    return torch.stack(runs).mean(0)


def factor_a_block(squares: Tensor) -> float:
    """By which factor a block of the second half multiplies the mean square, geometric mean; ``(blocks,)``.

    Raises:
        ValueError: fewer than three blocks.
    """
    if len(squares) < 3:
        raise ValueError(f"squares: expected three blocks or more, got {len(squares)}")
    late = squares[len(squares) // 2 :].log()
    return math.exp(float(late[-1] - late[0]) / (len(late) - 1))


def _texts(stack: Stack) -> Stream:
    return torch.randn(4, 32, stack.d)


def _some(seeds: Iterable[int]) -> list[int]:
    listed = list(seeds)
    if not listed:
        raise ValueError("seeds: expected at least one, got none")
    return listed


def path_factors(stack: Stack, x: Stream) -> tuple[Tensor, Tensor]:
    """By which factor norms on the sum multiply the identity path of each token, gain left out.

    Args:
        stack: with LayerNorms on the sum.
        x: the stream at the start.

    Returns:
        two tensors ``(..., length)``: the product of α/s over all sublayers; and what it would be if each branch were
        uncorrelated with a stream of variance 1 and ε were 0, the product of (1 + v/α²)^(-1/2) with v the branch's
        variance (prop-identity-path).

    Raises:
        ValueError: a sublayer has no norm on the sum.
    """
    factor = law = torch.ones(x.shape[:-1], dtype=x.dtype)
    for step in unroll(stack, x):
        alpha, norm = step.sublayer.alpha, step.sublayer.sum
        if isinstance(norm, nn.Identity):
            raise ValueError("stack: expected a norm on every sum, got a sublayer without")
        factor = factor * alpha / (step.sum.var(-1, correction=0) + norm.eps).sqrt()
        law = law / (1 + step.added.var(-1, correction=0) / alpha**2).sqrt()
    return factor, law


def jacobian_matrix(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """The derivative of ``f`` at ``x`` as a matrix ``(outputs, inputs)``, by automatic differentiation, detached."""
    return torch.func.jacrev(f)(x).detach().reshape(-1, x.numel())


def composition(stack: Stack, x: Stream) -> list[Tensor]:
    """What the stream is made of after each sublayer, with norms on the sum held at the scales that they took.

    Then the stream is a sum of what the input and each branch so far have contributed, with divisions where a norm
    stands on the sum (eq-unrolled and its counterpart).

    Args:
        stack: with LayerNorms of gain 1 and bias 0 on the sum, as at initialisation, or none.
        x: the stream at the start.

    Returns:
        for the l-th sublayer a tensor ``(l + 1,)``: the shares of the input and of each branch in the sum of the
        summands' mean squared lengths, means removed.

    Raises:
        ValueError: a norm on the sum is something else.
    """
    _check_stack(stack)
    for sublayer in stack.sublayers:
        if not _is_plain(sublayer.sum):
            raise ValueError("stack: expected LayerNorms of gain 1 and bias 0 on the sum, or none")
    parts, shares = [center(x)], []
    for step in unroll(stack, x):
        norm = step.sublayer.sum
        scale = 1.0 if isinstance(norm, nn.Identity) else rate(center(step.sum), norm.eps)
        parts = [step.sublayer.alpha * scale * part for part in parts] + [scale * center(step.added)]
        squares = torch.stack([part.square().sum(-1).mean() for part in parts])
        shares.append(squares / squares.sum())
    return shares


def _is_plain(norm: nn.Module) -> bool:
    if isinstance(norm, nn.Identity):
        return True
    bias = getattr(norm, "bias", None)
    return bias is not None and bool((norm.weight == 1).all()) and not bias.any()


BYTE_WIDTH, BYTE_HEADS, BYTE_LENGTH = 64, 4, 65


def train_bytes(
    text: Tensor,
    placement: str,
    blocks: int,
    rate: float,
    updates: int,
    seed: int,
    warmup: int = 0,
    batch: int = 4,
    norm: str = "layer",
    scale: float = 1.0,
) -> tuple[LanguageModel, list[float]]:
    """A byte model, 64 wide, trained on windows of a text by :func:`normgeom_lab.common.tiny.fit`.

    Weights and batches depend on the seed alone: one text in one order for every placement.  Seeds torch's own
    generator, in whose default dtype the weights are drawn; trained in float32.  On the sphere weights are brought to
    it at the start and after every update (:func:`normgeom_lab.common.stacks.normalise_weights`).

    Args:
        text: byte ids ``(n,)``.
        placement: a key of ``PLACEMENTS`` or ``DESIGNS``.
        blocks: how many.
        rate: the learning rate, after ``warmup`` updates, which climb to it.
        updates: how many; 0 for a model as it starts.
        seed: of weights and batches.
        batch: windows of 65 bytes, of which 64 are predicted.
        norm: a key of ``NORMS``.
        scale: by which all matrices of the branches are multiplied before the first update.

    Returns:
        the model, and the loss of each batch before its update in nats a byte.

    Raises:
        ValueError: ``updates`` is negative; errors of the others are those of what takes them.
    """
    if updates < 0:
        raise ValueError(f"updates: expected a number >= 0, got {updates}")
    torch.manual_seed(seed)
    stack = scaled(Stack(BYTE_WIDTH, BYTE_HEADS, blocks, placement, norm), scale)
    model = LanguageModel(256, BYTE_LENGTH, stack, scale=1 / math.sqrt(BYTE_WIDTH)).float()
    batches = itertools.islice(random_windows(text, BYTE_LENGTH, batch, seed), updates)
    settle = normalise_weights if stack.on_sphere else lambda model: model
    return model, fit(settle(model), batches, rate, warmup, settle)


@torch.no_grad()
def varying_share(model: LanguageModel, ids: Ids) -> float:
    """The share of the final stream's mean square that differs from token to token; the rest is one vector for all."""
    x = model.stack(model.embed(ids)).flatten(0, 1)
    return 1 - float(x.mean(0).square().sum() / x.square().sum(-1).mean())


def first_over_last(model: LanguageModel, ids: Ids) -> float:
    """How long the loss's gradient by the first block's W₂ is, over that by the last one's."""
    matrices = [model.stack.blocks[i].mlp.branch[2].weight for i in (0, -1)]
    first, last = torch.autograd.grad(next_token_loss(model, ids), matrices)
    return float(first.norm() / last.norm())


@torch.no_grad()
def block_table(model: LanguageModel, ids: Ids) -> pd.DataFrame:
    """What each block of a model does to the stream, and what its loss is without it.

    Returns:
        one row a block, by its number from 1: ``square``, the mean square of the stream behind it; ``update``, the mean
        length of what it changes over that of the stream before; ``cosine``, of the two, mean over positions; ``more``,
        the loss in nats a token without this block, less that of the whole model.
    """
    streams, whole = model.stack.streams(model.embed(ids))[::2], next_token_loss(model, ids)
    rows = []
    for block, (x, y) in enumerate(itertools.pairwise(streams)):
        less = copy.deepcopy(model)
        del less.stack.blocks[block]
        rows.append(
            dict(
                square=float(y.square().mean()),
                update=float((y - x).norm(dim=-1).mean() / x.norm(dim=-1).mean()),
                cosine=float(F.cosine_similarity(x, y - x, dim=-1).mean()),
                more=float(next_token_loss(less, ids) - whole),
            )
        )
    return pd.DataFrame(rows, index=pd.RangeIndex(1, len(rows) + 1, name="block"))


@torch.no_grad()
def last_update(model: LanguageModel, ids: Ids) -> float:
    """The mean length of what the last block changes, over that of the stream before it."""
    streams = model.stack.streams(model.embed(ids))
    x, y = streams[-3], streams[-1]
    return float((y - x).norm(dim=-1).mean() / x.norm(dim=-1).mean())


@torch.no_grad()
def largest_score(model: LanguageModel, ids: Ids) -> float:
    """The largest absolute value of which attention takes a softmax, in any block, head and position; NaN if one is."""
    x, largest = model.embed(ids), torch.tensor(0.0)
    for block in model.stack.blocks:
        sublayer = block.attention
        scores = sublayer.branch.scores(sublayer.read(x))
        largest = torch.maximum(largest, scores[~scores.isneginf()].abs().max())
        x = block(x)
    return float(largest)


@torch.no_grad()
def loss_without_norms(model: LanguageModel, ids: Ids) -> float:
    """The loss in nats a token of a model with all its norms taken out; the model stays as it is."""
    bare = copy.deepcopy(model)
    bare.stack.final = nn.Identity()
    for sublayer in bare.stack.sublayers:
        sublayer.before, sublayer.after, sublayer.sum = (nn.Identity() for _ in range(3))
    return float(next_token_loss(bare, ids))


# What the placements of normgeom_lab.common.stacks are called in words.
WORDS = {
    "pre": "pre-norm",
    "post": "post-norm",
    "sandwich": "sandwich",
    "branch-out": "branch-out",
    "deepnorm": "DeepNorm",
    "post-small": "post-norm, small outputs",
}

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


def sublayers() -> tuple[Figure, str]:
    """One sublayer of each placement: the stream, the branch f, and the norms N (eq-sublayer).

    Returns:
        the figure and its alt text.
    """
    with style():
        figure, axes = plt.subplots(1, len(PLACEMENTS), figsize=(WIDTH, 2.7))
        for axis, (name, rule) in zip(axes, PLACEMENTS.items(), strict=True):
            axis.set(title=WORDS[name], xlim=(-0.8, 1.7), ylim=(-0.2, 6.9))
            axis.axis("off")
            axis.plot([0, 1, 1, 0], [0.7, 0.7, 4.6, 4.6], color=COLORS["null"], lw=1.2)
            axis.annotate("", (0, 6.9), (0, -0.2), arrowprops=dict(arrowstyle="->", color=COLORS["ink"], lw=1.6))
            boxes = {(1, 2.65): "f"}
            boxes |= {(1, 1.6): "N"} if rule.before else {}
            boxes |= {(1, 3.7): "N"} if rule.after else {}
            boxes |= {(0, 5.7): "N"} if rule.sum else {}
            boxes |= {(0, 2.65): "α"} if rule.deep else {}
            for place, letter in boxes.items():
                face = "#D6E6F2" if letter == "N" else "white"
                axis.text(*place, letter, ha="center", va="center", bbox=dict(boxstyle="square,pad=0.35", fc=face))
            axis.text(0, 4.6, "+", ha="center", va="center", bbox=dict(boxstyle="circle,pad=0.2", fc="white"))
    return figure, (
        "Five drawings of a sublayer: the stream runs upwards, a branch f leaves it and is added again. Pre-norm has a "
        "norm N before f, post-norm on the stream behind the sum, the sandwich before and after f, branch-out after f; "
        "DeepNorm is post-norm with a factor α on the stream before the sum."
    )


def gradient_powers(
    depths: Sequence[int],
    by_depth: Mapping[str, Tensor],
    widths: Sequence[int],
    by_width: Mapping[tuple[str, str], Tensor],
    by_block: Mapping[str, Tensor],
) -> tuple[Figure, str]:
    """Lengths of gradients against depth and width with fitted powers, and by block.

    Args:
        by_depth: for each of :data:`LOOKS`, ``(depths, seeds)``.
        by_width: for each of these and each scale of the head in words, ``(widths, seeds)``; the scales in the order of
            the dashes, solid and dotted.
        by_block: for each of these, ``(blocks,)``.

    Returns:
        the figure and its alt text.
    """
    words = []
    dashes = dict(zip(dict.fromkeys(scale for _, scale in by_width), ("-", ":"), strict=False))
    with style():
        figure, panels = plt.subplot_mosaic("AB;CC", figsize=(WIDTH, 6.0))
        left, middle, below = (panels[name] for name in "ABC")
        for name, lengths in by_depth.items():
            words.append(f"{_points_and_power(left, depths, lengths, '-', name):.2f} of the depth for {name}")
        for (name, scale), lengths in by_width.items():
            power = _points_and_power(middle, widths, lengths, dashes[scale], name)
            words.append(f"{power:.2f} of the width for {name}, τ = {scale}")
        for name, lengths in by_block.items():
            look = LOOKS[name] | (_WIDE if name == "branch-out" else {})
            below.semilogy(range(1, len(lengths) + 1), lengths, label=name, **look)
        for axis, values in ((left, depths), (middle, widths)):
            axis.set_xticks(values, values)
            axis.minorticks_off()
        for axis in (middle, below):
            axis.sharey(left)  # one scale, so that lengths compare
        left.autoscale(axis="y")
        ticks_of_powers(left.yaxis)
        left.set(xlabel="blocks", ylabel="length of the gradient", title="last block, by depth")
        middle.set(xlabel="width d", title="last block, by width")
        below.set(xlabel="block", ylabel="length of the gradient", title=f"each of {len(lengths)} blocks")
        handles = dict(zip(*left.get_legend_handles_labels()[::-1], strict=True))
        handles |= dict(zip(*below.get_legend_handles_labels()[::-1], strict=True))
        figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=2)
    ratios = ", ".join(f"{float(v[0] / v[-1]):.2f} for {name}" for name, v in by_block.items())
    return figure, (
        "Gradients of the last block, double logarithmic, with fitted powers: "
        f"{', '.join(words)}. By block, the first block's over the last one's: {ratios}."
    )


def growth_by_sublayer(grown: Mapping[str, Growth]) -> tuple[Figure, str]:
    """Mean square of the stream and relative update by sublayer, mean over stacks, beside the lines 1 + l and 1/√l.

    Args:
        grown: for each of :data:`LOOKS`.

    Returns:
        the figure and its alt text.
    """
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
    """The same in numbers, mean over stacks, for :func:`normgeom.view.tables.table`: a row for each name."""
    rows = {}
    for name, run in grown.items():
        rows[name] = {
            "mean square at the end": float(run.square[:, -1].mean()),
            "added a sublayer": float(run.added.mean()),
            "least": float(run.added.min()),
            "most": float(run.added.max()),
            "update / stream": float(run.update[:, -4:].mean()),
            "turn / degrees": float(run.turn[:, -4:].mean()),
            "cosine with the input": float(run.cosine[:, -1].mean()),
        }
    return rows


def stream_shares(shares: Mapping[str, Sequence[Tensor]], sublayers: int) -> tuple[Figure, str]:
    """What the stream is made of after so many sublayers: a bar each, cut into its summands, the input lowest and dark.

    A branch keeps its shade as later ones come.

    Args:
        shares: for each of :data:`LOOKS`, what :func:`normgeom_lab.placement.composition` gave.
        sublayers: from 1.

    Returns:
        the figure and its alt text.
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
    """Mean square of the stream and entropy of attention by block.

    Args:
        runs: for each of :data:`LOOKS`, both by block.

    Returns:
        the figure and its alt text.
    """
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
    """Loss against the learning rate: mean and range of the seeds, a panel for each depth.

    Args:
        sweep: rows of ``placement``, ``layers``, ``rate``, ``warmup``, ``loss``, one a seed.
        entropy: of single bytes, in nats: a grey line.

    Returns:
        the figure and its alt text.
    """
    words, depths = [], sorted(set(sweep.layers))
    with style():
        figure, panels = plt.subplots(1, len(depths), figsize=(WIDTH, 3.8), sharey=True, squeeze=False)
        for axis, depth in zip(panels[0], depths, strict=True):
            for (placement, warmup), runs in sweep[sweep.layers == depth].groupby(["placement", "warmup"], sort=False):
                name, losses = WORDS[placement], runs.groupby("rate").loss
                mean, low, high = losses.mean(), losses.min(), losses.max()
                look = dict(LOOKS[name], ls="-" if warmup else "--", mfc=None if warmup else "none")
                beside = mean.index * (1.04 if warmup else 0.96)
                axis.errorbar(
                    beside, mean, [mean - low, high - mean], capsize=2, label=f"{name}, warm-up {warmup}", **look
                )
                words.append(f"{name} of {depth} blocks, warm-up {warmup}, from {mean.min():.2f} to {mean.max():.2f}")
            rates = sorted(set(sweep.rate))
            axis.axhline(entropy, **_BEHIND)
            axis.set(xscale="log", xlabel="learning rate", title=f"{depth} blocks")
            axis.set_xticks(rates, [f"{rate:g}" for rate in rates])
            axis.minorticks_off()
            axis.margins(x=0.15)
        panels[0, 0].set_ylabel("loss / nats a byte")
        marks = [axis.plot([], [], label=WORDS[p], **LOOKS[WORDS[p]])[0] for p in dict.fromkeys(sweep.placement)]
        dashes = [
            axis.plot([], [], color=COLORS["ink"], ls="-" if w else "--", marker="o", mfc=None if w else "none")[0]
            for w in sorted(set(sweep.warmup))
        ]
        names = [*(mark.get_label() for mark in marks), *(f"warm-up {w}" for w in sorted(set(sweep.warmup)))]
        figure.legend([*marks, *dashes], names, loc="outside upper center", ncols=2)
    return figure, f"Loss against learning rate, means over seeds: {'; '.join(words)}."


def losses_of_runs(runs: pd.DataFrame, entropy: float) -> tuple[Figure, str]:
    """Loss over training, a line a run.

    Args:
        runs: rows of ``placement``, ``seed``, ``step``, ``loss``.
        entropy: of single bytes, in nats: a grey line.

    Returns:
        the figure and its alt text.
    """
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


def _points_and_power(axis: Axes, values: Sequence[int], lengths: Tensor, dash: str, name: str) -> float:
    """Each seed a point, and the fitted power as a line; the power."""
    axis.loglog(values, lengths, LOOKS[name]["marker"], color=LOOKS[name]["color"], ms=3, alpha=0.6)
    power, _ = power_law(values, lengths)
    x = np.log(np.asarray(values, float))
    line = np.exp(float(lengths.log().mean()) + power * (x - x.mean()))
    axis.loglog(values, line, dash, color=LOOKS[name]["color"], lw=1.2, label=name)
    return power


def name_of(behaviour: Behaviour, line: float = 0.02) -> str | None:
    """The placement that answers in this way, in words; None if none of them does.

    Args:
        behaviour: a block's, of :func:`normgeom_lab.placement.behaviour`.
        line: below it a relative change counts as none.

    Post-norm and DeepNorm answer alike; such a block is called a post-norm.
    """
    yes = (behaviour.before < line, behaviour.after < line, behaviour.sum < line)
    for name, rule in PLACEMENTS.items():
        if yes == (rule.before, rule.after, rule.sum) and not rule.deep:
            parallel = ", parallel" if behaviour.parallel < line else ""
            return WORDS[name] + parallel + ("" if behaviour.final_norm < line else ", final norm")
    return None
