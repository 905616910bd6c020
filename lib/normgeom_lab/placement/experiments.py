"""Gradients, growth and training of stacks with norms in different places."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from normgeom.norms.formula import center, rstd
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from normgeom_lab.common.growth import even_stack, unroll
from normgeom_lab.common.loop import fit, next_token_loss, random_windows
from normgeom_lab.common.stacks import Attention, LanguageModel, Stack, normalise_weights


def last_gradient(stack: Stack, x: Tensor, head: Tensor, target: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradient of the last W₂ of a post-norm or pre-norm stack for one text ``(length, d)`` (eq-last-gradient).

    The loss is the cross-entropy of ``target`` at the last position.  Returns the gradient ``(d, hidden)``, by
    automatic differentiation; a, the input of W₂; g, the gradient at the last norm's output; and that norm's input.
    """
    *_, last = unroll(stack, x)
    mlp = last.sublayer
    out = stack.final(mlp.sum(last.sum))
    loss = F.cross_entropy(out[-1] @ head.T, torch.tensor(target))
    matrix, after = torch.autograd.grad(loss, (mlp.branch[2].weight, out))
    return matrix, mlp.branch[:2](last.read)[-1].detach(), after[-1], last.sum[-1].detach()


def block_gradients(stack: Stack, x: Tensor, head: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """By block, ``(blocks,)`` each: the length of the gradient of W₂, mean over texts, and the stream's RMS after it.

    The loss of a text of ``x``, ``(texts, length, d)``, is the cross-entropy of its target at its last position.
    """
    mlps = unroll(stack, x)[1::2]
    behind = [step.sublayer.sum(step.sum) for step in mlps]
    logits = stack.final(behind[-1])[:, -1] @ head.T
    slopes = torch.autograd.grad(F.cross_entropy(logits, targets, reduction="sum"), [step.computed for step in mlps])
    hidden = [step.sublayer.branch[:2](step.read).detach() for step in mlps]
    lengths = [(g.mT @ a).flatten(1).norm(dim=-1).mean() for g, a in zip(slopes, hidden, strict=True)]
    return torch.stack(lengths), torch.stack([t.detach().square().mean().sqrt() for t in behind])


def _drawn_gradients(stack: Stack, tau: float) -> tuple[Tensor, Tensor]:
    """:func:`block_gradients` at random texts and targets, for a head of standard deviation τ."""
    head = tau * torch.randn(256, stack.d)
    targets = torch.randint(256, (8,))
    return block_gradients(stack, torch.randn(8, 8, stack.d), head, targets)


def mean_block_gradients(make: Callable[[int], Stack], seeds: Iterable[int]) -> tuple[Tensor, Tensor]:
    """:func:`block_gradients` at random texts and targets, mean over the stacks that ``make`` builds from the seeds."""
    return _means(_drawn_gradients(make(seed), 0.02) for seed in seeds)


def _means(runs: Iterable[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    first, second = (torch.stack(values).mean(0) for values in zip(*runs, strict=True))
    return first, second


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


def attention_entropy(attention: Attention, x: Tensor) -> Tensor:
    """The entropy of attention's weights over that of even weights, mean over heads and all positions but the first."""
    scores, _ = attention.scores_and_values(x)
    entropy = torch.special.entr(scores.softmax(-1)).sum(-1)[..., 1:]
    return (entropy / torch.arange(2, x.shape[-2] + 1, dtype=x.dtype).log()).mean()


@torch.no_grad()
def mean_saturation(make: Callable[[int], Stack], seeds: Iterable[int]) -> tuple[Tensor, Tensor]:
    """By block, ``(blocks,)`` each: the mean square of its input, and :func:`attention_entropy`.

    Means over the stacks that ``make`` builds from the seeds, each on 4 random texts of 32 positions.
    """
    runs = []
    for stack in map(make, seeds):
        steps = unroll(stack, torch.randn(4, 32, stack.d))[::2]
        squares = [step.stream.square().mean() for step in steps]
        entropies = [attention_entropy(step.sublayer.branch, step.read) for step in steps]
        runs.append((torch.stack(squares), torch.stack(entropies)))
    return _means(runs)


@torch.no_grad()
def mean_logit_statistics(make: Callable[[int], Stack], seeds: Iterable[int]) -> Tensor:
    """``(2,)``: the standard deviation of the logits, and the predictions' entropy over that of even predictions.

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
    """The factor by which blocks of the second half multiply the mean square ``(blocks,)``, their geometric mean."""
    late = squares[len(squares) // 2 :].log()
    return math.exp(float(late[-1] - late[0]) / (len(late) - 1))


@torch.no_grad()
def path_factors(stack: Stack, x: Tensor) -> tuple[Tensor, Tensor]:
    """The factor by which LayerNorms on the sum, without gain, multiply the identity path of each token.

    ``(..., length)`` each: the product of α/s over all sublayers; and that of (1 + v/α²)^(-1/2), with v the branch's
    variance: its value without correlations for a stream of variance 1 and ε = 0 (prop-identity-path).
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


@torch.no_grad()
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
) -> tuple[LanguageModel, list[float]]:
    """A float32 byte model trained on windows of a text by Adam (β = 0.9, 0.98), and its losses in nats per byte.

    Weights and batches depend only on the seed and are drawn in torch's default dtype by its own generator.  On the
    sphere weights are normalised at the start and after every step.
    """
    torch.manual_seed(seed)
    stack = Stack(BYTE_WIDTH, BYTE_HEADS, blocks, placement)
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
    """The share of the last stream's mean square that remains after its mean over all tokens is subtracted."""
    x = model.stack(model.embed(ids)).flatten(0, 1)
    return 1 - float(x.mean(0).square().sum() / x.square().sum(-1).mean())


def first_over_last(model: LanguageModel, ids: Tensor) -> float:
    """The length of the gradient with respect to the first block's W₂, over that of the last block's."""
    matrices = [model.stack.blocks[i].mlp.branch[2].weight for i in (0, -1)]
    first, last = torch.autograd.grad(next_token_loss(model, ids), matrices)
    return float(first.norm() / last.norm())
