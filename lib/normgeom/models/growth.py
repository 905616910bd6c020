"""How the stream of a stack grows at initialisation, how much of it a sublayer changes, and what attention sees."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from normgeom.models.paths import unroll
from normgeom.models.placement import Attention, Stack

if TYPE_CHECKING:
    from jaxtyping import Float

    Stream = Float[Tensor, "*batch length d"]
    Runs = Float[Tensor, "stacks sublayers"]


class Growth(NamedTuple):
    """The stream by sublayer, mean over positions; one row a stack.

    Attributes:
        square: ``(stacks, sublayers + 1)``, its mean square, first that of the input.
        cosine: ``(stacks, sublayers + 1)``, its cosine with the input.
        update: ``(stacks, sublayers)``, the length of what the sublayer changes over that of the stream before.
        turn: ``(stacks, sublayers)``, the angle between the stream before and behind, in degrees.
    """

    square: Runs
    cosine: Runs
    update: Runs
    turn: Runs

    @property
    def added(self) -> Tensor:
        """``(stacks,)``: what a sublayer of the second half adds to the mean square, on average."""
        half = self.update.shape[1] // 2
        return (self.square[:, -1] - self.square[:, -1 - half]) / half


@torch.no_grad()
def growth(stacks: Iterable[Stack], x: Stream) -> Growth:
    """Size, direction and change of the streams of several stacks of one depth, all of which start as ``x``.

    Raises:
        ValueError: there is no stack.
    """
    runs = [_growth(stack.streams(x)) for stack in stacks]
    if not runs:
        raise ValueError("stacks: expected at least one, got none")
    return Growth(*(torch.stack(rows) for rows in zip(*runs, strict=True)))


def _growth(streams: list[Stream]) -> Growth:
    def mean(values: Iterable[Tensor]) -> Tensor:
        return torch.stack([value.mean() for value in values])

    pairs = list(itertools.pairwise(streams))
    return Growth(
        mean(x.square().mean(-1) for x in streams),
        mean(F.cosine_similarity(x, streams[0], dim=-1) for x in streams),
        mean((y - x).norm(dim=-1) / x.norm(dim=-1) for x, y in pairs),
        mean(F.cosine_similarity(x, y, dim=-1).clamp(-1, 1).acos().rad2deg() for x, y in pairs),
    )


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


def mean_square_over_signs(x: Tensor, branches: Sequence[Callable[[Tensor], Tensor]]) -> Tensor:
    """The mean of ‖x_L‖² over all signs of the branches f_l, with x_l = x_{l−1} ± f_l(x_{l−1}) and no norm."""
    if not branches:
        return x.square().sum()
    branch, *later = branches
    written = branch(x)
    return sum(mean_square_over_signs(x + sign * written, later) for sign in (1, -1)) / 2


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
        make: a stack from its seed, as :func:`normgeom.models.initial.seeded_stack`, whose generator then draws the
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
