"""The plainest training loop: next tokens, Adam, a linear warm-up, nothing that could hide a divergence."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def fit(
    model: nn.Module,
    batches: Iterable[Tensor],
    learning_rate: float,
    warmup: int = 0,
    after: Callable[[nn.Module], object] = lambda model: None,
) -> list[float]:
    """Train on each batch once with Adam (β = 0.9, 0.98), without weight decay or clipping.

    Args:
        model: ids ``(batch, length)`` to logits ``(batch, length, vocabulary)``; trained in place.
        batches: token ids ``(batch, length)``.
        learning_rate: after ``warmup`` updates, which climb to it in equal steps.
        after: called with the model after every update.

    Returns:
        the loss of each batch before its update, in nats a token.  Once it is not finite, training ends, and the rest
        is NaN.

    Raises:
        ValueError: ``learning_rate`` not positive and finite, or ``warmup`` negative.
    """
    if not 0 < learning_rate < math.inf:
        raise ValueError(f"learning_rate: expected a positive number, got {learning_rate}")
    if warmup < 0:
        raise ValueError(f"warmup: expected a number of updates >= 0, got {warmup}")
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate, betas=(0.9, 0.98))
    losses = []
    for step, ids in enumerate(batches):
        if losses and not math.isfinite(losses[-1]):
            losses.append(math.nan)
            continue
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * min(1, (step + 1) / (warmup + 1))
        loss = next_token_loss(model, ids)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        after(model)
        losses.append(float(loss.detach()))
    return losses


def next_token_loss(model: nn.Module, ids: Tensor) -> Tensor:
    """Mean cross-entropy of each token but the first given those before it, in nats; ids ``(batch, length)``."""
    return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
