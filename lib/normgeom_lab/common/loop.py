"""One step of training for each batch of tokens."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from normgeom.training.loop import adamw, next_token_loss, warmup_cosine
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from tqdm.auto import tqdm


def fit(
    model: nn.Module,
    batches: Iterable[Tensor],
    optimizer: torch.optim.Optimizer,
    schedule: LambdaLR | None = None,
    clip: float = math.inf,
) -> Tensor:
    """One step for each batch of ids ``(batch, length)``; returns the loss before each, ``(steps,)``.

    What else happens at a step is a hook of the optimizer, such as ``register_step_post_hook``.

    Args:
        clip: the length that all gradients together are clipped to.
    """
    losses = []
    for ids in batches:
        loss = next_token_loss(model, ids)
        optimizer.zero_grad()
        loss.backward()
        if clip < math.inf:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        if schedule is not None:
            schedule.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def train(
    model: nn.Module, batches: Iterable[Tensor], steps: int, lr: float, description: str | None = "train"
) -> list[float]:
    """Train a model of transformers in place by AdamW, a warm-up and a cosine, gradients clipped to norm 1.

    Args:
        batches: ids ``(batch, length)``, at least ``steps`` of them.
        lr: the peak of the learning rate.
        description: stands before the progress bar; None for no bar.

    Returns:
        the loss before each step in nats a token.
    """
    optimizer = adamw(model, lr)
    shown = tqdm(range(steps), desc=description, disable=description is None)
    on_device = (ids.to(model.device) for _, ids in zip(shown, batches, strict=False))
    model.train()
    losses = fit(model, on_device, optimizer, warmup_cosine(optimizer, steps), clip=1.0)
    model.eval()
    return losses.tolist()
