"""Stacks at initialisation: random stacks, their sublayers step by step, and the growth of their stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normgeom_lab.common.checks import Draws
from normgeom_lab.common.stacks import Stack, Sublayer


def seeded_stack(seed: int, d: int, layers: int, placement: str, heads: int = 4, **options: object) -> Stack:
    """A :class:`Stack` whose weights are the first draws of torch's own generator after ``seed``."""
    torch.manual_seed(seed)
    return Stack(d, heads, layers, placement, **options)


@torch.no_grad()
def even_stack(seed: int, d: int, layers: int, placement: str, final_norm: bool | None = None) -> Stack:
    """Like :func:`seeded_stack`, in the setting of Xiong et al. (2020): one head that attends evenly, a small ReLU MLP.

    The MLP has width ``d``.  Queries and keys are 0, so that each position attends evenly to itself and those before
    it; in the paper, to all positions.
    """
    stack = seeded_stack(seed, d, layers, placement, heads=1, hidden=d, activation="relu", final_norm=final_norm)
    for block in stack.blocks:
        block.attention.branch.in_proj.weight[: 2 * d] = 0
    return stack


@torch.no_grad()
def shaken(stack: Stack, generator: torch.Generator) -> Stack:
    """Add 0.3 times a standard normal number to each entry of a stack's gains and biases; return the same stack."""
    for parameter in stack.parameters():
        if parameter.dim() == 1:
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return stack


def drawn_stacks(draw: Draws, *placements: str, biases: bool = True) -> Iterator[tuple[str, Stack]]:
    """Yield each placement with three random stacks: widths 8, 16 and 24 with 3, 2 and 1 blocks; ε is random, too."""
    for placement in placements:
        for width, blocks in ((8, 3), (16, 2), (24, 1)):
            seed = int(torch.randint(2**31, (), generator=draw.generator))
            stack = shaken(seeded_stack(seed, width, blocks, placement, eps=draw.eps()), draw.generator)
            for name, parameter in stack.named_parameters():
                if name.endswith("bias") and not biases:
                    nn.init.zeros_(parameter)
            yield placement, stack


class Step(NamedTuple):
    r"""A sublayer's run, :math:`N_s(\alpha x+N_a(f(\lambda N_b(x))))` (eq-any-sublayer), ``(..., length, d)`` each.

    Attributes:
        stream: x, the stream before the sublayer.
        read: :math:`\lambda N_b(x)`, the input of its branch f.
        computed: the output of f.
        added: :math:`N_a` of ``computed``, which is added to the stream.
        sum: :math:`\alpha x` plus ``added``, the input of :math:`N_s`.
    """

    sublayer: Sublayer
    stream: Tensor
    read: Tensor
    computed: Tensor
    added: Tensor
    sum: Tensor


def unroll(stack: Stack, x: Tensor) -> list[Step]:
    """Run a stack on the stream that starts as ``x``; return the :class:`Step` of each sublayer."""
    found = []
    for sublayer in stack.sublayers:
        read = sublayer.read(x)
        computed = sublayer.branch(read)
        added = sublayer.after(computed)
        found.append(Step(sublayer, x, read, computed, added, sublayer.joined(x, added)))
        x = sublayer.sum(found[-1].sum)
    return found


class Growth(NamedTuple):
    """The stream by sublayer, mean over positions; one row per stack.

    Attributes:
        square: ``(stacks, sublayers + 1)``, the stream's mean square, starting with that of the input.
        cosine: ``(stacks, sublayers + 1)``, the stream's cosine with the input.
        update: ``(stacks, sublayers)``, the length of the sublayer's change divided by that of the stream before it.
        turn: ``(stacks, sublayers)``, the angle between the streams before and after the sublayer, in degrees.
    """

    square: Tensor
    cosine: Tensor
    update: Tensor
    turn: Tensor

    @property
    def added(self) -> Tensor:
        """``(stacks,)``: how much a sublayer of the second half adds to the mean square, on average."""
        half = self.update.shape[1] // 2
        return (self.square[:, -1] - self.square[:, -1 - half]) / half


@torch.no_grad()
def growth(stacks: Sequence[Stack], x: Tensor) -> Growth:
    """Size, direction and change of the streams of several stacks of equal depth, all of which start as ``x``."""
    runs = []
    for stack in stacks:
        streams = stack.streams(x)
        pairs = list(pairwise(streams))
        measures = (
            [x.square().mean(-1) for x in streams],
            [F.cosine_similarity(x, streams[0], dim=-1) for x in streams],
            [(y - x).norm(dim=-1) / x.norm(dim=-1) for x, y in pairs],
            [F.cosine_similarity(x, y, dim=-1).clamp(-1, 1).acos().rad2deg() for x, y in pairs],
        )
        runs.append([torch.stack([values.mean() for values in measure]) for measure in measures])
    return Growth(*(torch.stack(rows) for rows in zip(*runs, strict=True)))


def mean_square_over_signs(x: Tensor, branches: Sequence[Callable[[Tensor], Tensor]]) -> Tensor:
    """The mean of ‖x_L‖² over all signs of the branches f_l, with x_l = x_{l−1} ± f_l(x_{l−1}) and no norm."""
    if not branches:
        return x.square().sum()
    branch, *later = branches
    written = branch(x)
    return sum(mean_square_over_signs(x + sign * written, later) for sign in (1, -1)) / 2
