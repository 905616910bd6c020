"""Stacks at initialisation: drawn, unrolled, and how their stream grows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from normgeom.checks import Draws
from torch import Tensor, nn

from normgeom_lab.common.stacks import Stack, Sublayer

if TYPE_CHECKING:
    from jaxtyping import Float

    Stream = Float[Tensor, "*batch length d"]
    Runs = Float[Tensor, "stacks sublayers"]


def seeded_stack(seed: int, d: int, layers: int, placement: str, **rest: object) -> Stack:
    """A :class:`~normgeom_lab.common.stacks.Stack` of 4 heads whose weights are the first draws after ``seed``.

    It seeds torch's own generator, in whose default dtype it is built: what is drawn next, inputs say, is seeded too.

    Args:
        seed: of torch's generator.
        d, layers, placement, rest: as :class:`~normgeom_lab.common.stacks.Stack` takes them; errors are its own.
    """
    torch.manual_seed(seed)
    return Stack(d, **{"heads": 4, "layers": layers, "placement": placement, **rest})


@torch.no_grad()
def even_stack(seed: int, d: int, layers: int, placement: str, final_norm: bool | None = None) -> Stack:
    """As :func:`seeded_stack`, in the setting of Xiong et al. (2020): one head that attends evenly, a small ReLU MLP.

    The MLP is ``d`` wide, and queries and keys are 0, so that each position attends evenly to all up to it: the setting
    is theirs but for that "up to".
    """
    stack = seeded_stack(seed, d, layers, placement, heads=1, hidden=d, activation="relu", final_norm=final_norm)
    for block in stack.blocks:
        block.attention.branch.in_proj.weight[: 2 * d] = 0
    return stack


@torch.no_grad()
def shaken(stack: Stack, generator: torch.Generator) -> Stack:
    """The stack itself, its gains and biases moved by 0.3 times a normal draw each: no longer 1 and 0."""
    for parameter in stack.parameters():
        if parameter.dim() == 1:
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return stack


@torch.no_grad()
def scaled(stack: Stack, factor: float) -> Stack:
    """The stack itself, each matrix of its branches multiplied by a factor: another scale of initialisation.

    Those of queries and keys too, so that attention's scores at a given input change by the square.

    Raises:
        ValueError: ``factor`` is not a positive, finite number.
    """
    if not 0 < factor < math.inf:
        raise ValueError(f"factor: expected a positive number, got {factor}")
    for sublayer in stack.sublayers:
        for parameter in sublayer.branch.parameters():
            if parameter.dim() == 2:
                parameter *= factor
    return stack


def drawn_stacks(draw: Draws, *placements: str, biases: bool = True) -> Iterator[tuple[str, Stack]]:
    """Small stacks for checks: of each placement three, of width 8, 16 and 24 and 3, 2 and 1 blocks, :func:`shaken`.

    Weights, gains, biases and ε are drawn anew for each; torch's own generator is seeded by that of ``draw``.

    Args:
        placements: keys of ``PLACEMENTS``; errors are those of :class:`~normgeom_lab.common.stacks.Stack`.
        biases: whether those of norms and maps are drawn too, or 0.

    Yields:
        the placement and the stack.
    """
    for placement in placements:
        for width, blocks in ((8, 3), (16, 2), (24, 1)):
            seed = int(torch.randint(2**31, (), generator=draw.generator))
            stack = shaken(seeded_stack(seed, width, blocks, placement, eps=draw.eps()), draw.generator)
            for name, parameter in stack.named_parameters():
                if name.endswith("bias") and not biases:
                    nn.init.zeros_(parameter)
            yield placement, stack


class Step(NamedTuple):
    r"""One sublayer at work, :math:`N_s(\alpha x+N_a(f(\lambda N_b(x))))` (eq-any-sublayer).

    Tensors are of shape ``(..., length, d)``.

    Attributes:
        sublayer: whose numbers these are.
        stream: x, what it finds.
        read: :math:`\lambda N_b(x)`, the input of its branch f.
        computed: what f makes of that.
        added: :math:`N_a` of that, what is added to the stream.
        sum: :math:`\alpha x` and that, before :math:`N_s`.
    """

    sublayer: Sublayer
    stream: Stream
    read: Stream
    computed: Stream
    added: Stream
    sum: Stream


@torch.no_grad()
def unroll(stack: Stack, x: Stream) -> list[Step]:
    """Each sublayer of a stack at work on the stream that starts as ``x``, without gradient.

    Raises:
        TypeError: ``stack`` is not a :class:`~normgeom_lab.common.stacks.Stack`.
        ValueError: a wrong shape of ``x``.
    """
    _check_stack(stack)
    if x.dim() < 2 or x.shape[-1] != stack.d:
        raise ValueError(f"x: expected shape (..., length, {stack.d}), got {tuple(x.shape)}")
    found = []
    for sublayer in stack.sublayers:
        read = sublayer.read(x)
        computed = sublayer.branch(read)
        added = sublayer.after(computed)
        found.append(Step(sublayer, x, read, computed, added, sublayer.joined(x, added)))
        x = sublayer.sum(found[-1].sum)
    return found


def _check_stack(stack: Stack) -> None:
    if not isinstance(stack, Stack):
        raise TypeError(f"stack: expected a Stack, got {type(stack).__name__}")


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


def mean_square_over_signs(x: Tensor, branches: Sequence[Callable[[Tensor], Tensor]]) -> Tensor:
    """The mean of ‖x_L‖² over all signs of the branches f_l, with x_l = x_{l−1} ± f_l(x_{l−1}) and no norm."""
    if not branches:
        return x.square().sum()
    branch, *later = branches
    written = branch(x)
    return sum(mean_square_over_signs(x + sign * written, later) for sign in (1, -1)) / 2
