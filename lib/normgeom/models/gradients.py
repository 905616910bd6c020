"""Gradients of the MLPs' last matrices at initialisation, by block, by depth and by width."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normgeom.models.initial import even_stack
from normgeom.models.placement import Stack

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    Stream = Float[Tensor, "texts length d"]
    Head = Float[Tensor, "vocabulary d"]
    Targets = Int[Tensor, " texts"]
    Blocks = Float[Tensor, " blocks"]
    Lengths = Float[Tensor, "values seeds"]


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
        make: a stack from its seed, as :func:`normgeom.models.initial.seeded_stack`, whose generator then draws a
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
        placement, d, final_norm: of :func:`normgeom.models.initial.even_stack`; inputs and targets are drawn as in
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
