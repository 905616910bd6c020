"""Training of small models: next-token loss, AdamW, a learning-rate schedule, and the training loop."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from tqdm.auto import tqdm


def random_windows(tokens: Tensor, length: int, batch_size: int, seed: int) -> Iterator[Tensor]:
    """Windows ``(batch_size, length)`` of ids ``(n,)`` at places drawn with ``seed``, without end."""
    generator = torch.Generator().manual_seed(seed)
    place, starts = torch.arange(length), len(tokens) - length + 1
    while True:
        yield tokens[torch.randint(starts, (batch_size, 1), generator=generator) + place]


def next_token_loss(model: nn.Module, ids: Tensor) -> Tensor:
    """Mean cross-entropy in nats of each token but the first given those before it, in the dtype of the logits.

    Args:
        model: returns logits ``(batch, length, vocabulary)``, alone or in an output of transformers.
        ids: ``(batch, length)``.
    """
    output = model(ids)
    logits = getattr(output, "logits", output)
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def adamw(model: nn.Module, lr: float) -> torch.optim.AdamW:
    """AdamW with β = (0.9, 0.95) and weight decay 0.1 for matrices and embeddings, none for gains and biases."""
    groups = {True: [], False: []}
    for parameter in model.parameters():
        groups[parameter.dim() > 1].append(parameter)
    decays = [dict(params=params, weight_decay=0.1 * matrices) for matrices, params in groups.items() if params]
    return torch.optim.AdamW(decays, lr=lr, betas=(0.9, 0.95))


def warmup_cosine(optimizer: torch.optim.Optimizer, steps: int) -> LambdaLR:
    """Warm up linearly over a tenth of the steps, at most 2000; then follow a cosine to a tenth of the peak rate."""
    warmup = max(1, min(2000, steps // 10))

    def factor(step: int) -> float:
        if step < warmup:  # unlike in transformers' schedule, the first step's rate is not 0
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
    """Take one step per batch of ids ``(batch, length)``; return the loss before each step, ``(steps,)``.

    To do anything else at a step, register a hook of the optimizer, as with ``register_step_post_hook``.

    Args:
        clip: the norm to which all gradients together are clipped.
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
    """Train a transformers model in place with AdamW, a warm-up and a cosine, gradients clipped to norm 1.

    Args:
        batches: at least ``steps`` batches of ids ``(batch, length)``.
        lr: the peak of the learning rate.
        description: the label of the progress bar; None for no bar.

    Returns:
        the loss before each step in nats per token.
    """
    optimizer = adamw(model, lr)
    shown = tqdm(range(steps), desc=description, disable=description is None)
    on_device = (ids.to(model.device) for _, ids in zip(shown, batches, strict=False))
    model.train()
    losses = fit(model, on_device, optimizer, warmup_cosine(optimizer, steps), clip=1.0)
    model.eval()
    return losses.tolist()
