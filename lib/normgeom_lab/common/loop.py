"""Training of small models, as the chapters need it."""

from __future__ import annotations

from collections.abc import Iterable

from normgeom.training.loop import adamw, fit, warmup_cosine
from torch import Tensor, nn
from tqdm.auto import tqdm


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
