"""What each sublayer of a stack reads, computes and adds, and what the stream is a sum of."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from normgeom.models.placement import Stack, Sublayer
from normgeom.norms.formula import center, rate

if TYPE_CHECKING:
    from jaxtyping import Float

    Stream = Float[Tensor, "*batch length d"]


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
        TypeError: ``stack`` is not a :class:`~normgeom.models.placement.Stack`.
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


def _check_stack(stack: Stack) -> None:
    if not isinstance(stack, Stack):
        raise TypeError(f"stack: expected a Stack, got {type(stack).__name__}")
