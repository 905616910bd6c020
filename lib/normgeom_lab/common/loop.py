"""Training of small models: the loss of the next token, AdamW, the learning rate by steps, and the steps."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from tqdm.auto import tqdm


def next_token_loss(model: nn.Module, ids: Tensor) -> Tensor:
    """Mean cross-entropy in nats of each token but the first given those before it, in the dtype of the logits.

    Args:
        model: gives logits ``(batch, length, vocabulary)``, alone or as an output of transformers.
        ids: ``(batch, length)``.
    """
    output = model(ids)
    logits = getattr(output, "logits", output)
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def adamw(model: nn.Module, lr: float) -> torch.optim.AdamW:
    """AdamW, β = 0.9 and 0.95; matrices and embeddings decay by 0.1, gains and biases do not."""
    groups = {True: [], False: []}
    for parameter in model.parameters():
        groups[parameter.dim() > 1].append(parameter)
    decays = [dict(params=params, weight_decay=0.1 * matrices) for matrices, params in groups.items() if params]
    return torch.optim.AdamW(decays, lr=lr, betas=(0.9, 0.95))


def warmup_cosine(optimizer: torch.optim.Optimizer, steps: int) -> LambdaLR:
    """Of the peak rate: a linear warm-up over a tenth of the steps, at most 2000, then a cosine to a tenth."""
    warmup = max(1, min(2000, steps // 10))

    def factor(step: int) -> float:
        if step < warmup:  # unlike transformers' schedule, the first step has a rate
            return (step + 1) / warmup
        return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))

    return LambdaLR(optimizer, factor)


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
