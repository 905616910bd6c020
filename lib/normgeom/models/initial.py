"""Stacks at initialisation, each from its seed: in the usual setting, and in the one in which bounds were proved."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import nn

from normgeom.checks import Draws
from normgeom.models.placement import Stack


def seeded_stack(seed: int, d: int, layers: int, placement: str, **rest: object) -> Stack:
    """A :class:`~normgeom.models.placement.Stack` of 4 heads whose weights are the first draws after ``seed``.

    It seeds torch's own generator, in whose default dtype it is built: what is drawn next, inputs say, is seeded too.

    Args:
        seed: of torch's generator.
        d, layers, placement, rest: as :class:`~normgeom.models.placement.Stack` takes them; errors are its own.
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
        placements: keys of ``PLACEMENTS``; errors are those of :class:`~normgeom.models.placement.Stack`.
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
