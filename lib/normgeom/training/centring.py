"""Training with the uniform vector left out of what the writers learn: LayerNorm's training, by RMSNorm's network."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from normgeom.models.gpt2 import written
from normgeom.models.untrained import shaken
from normgeom.training.twins import twins

PARTS = ("gradients", "steps")


class Descent(NamedTuple):
    """A trained copy, and its loss before each update, ``(updates,)`` float64."""

    model: GPT2LMHeadModel
    losses: Tensor


def unbiased_twins(config: GPT2Config, seed: int) -> tuple[GPT2LMHeadModel, GPT2LMHeadModel]:
    """Twins that satisfy the conditions of thm-centred-writers, away from their start: ``(LayerNorm, RMSNorm)``.

    Norms have a gain and no β, the head has a matrix of its own, and a draw of standard deviation 0.2 is added to all
    weights and gains, the same to both.  In float64.
    """
    made = []
    for model in twins(config, seed):
        model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
        for module in model.modules():
            if isinstance(module, nn.LayerNorm):
                module.register_parameter("bias", None)
        made.append(shaken(model.double(), 0.2, seed + 1))
    return tuple(made)


@torch.no_grad()
def centre(parameters: Iterable[Tensor]) -> None:
    """Take the part along 1, the mean over the last axis, from each tensor, in place."""
    for p in parameters:
        p -= p.mean(-1, keepdim=True)


def descend(
    model: GPT2LMHeadModel,
    ids: Tensor,
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
    leave_out: Collection[str] = (),
    clip: float | None = None,
    updates: int = 10,
) -> Descent:
    """Next-token training of a copy on one batch; of what the writers learn the part along 1 may be left out.

    Args:
        ids: ``(batch, length)``.
        optimizer: makes one of the parameters, such as ``lambda p: torch.optim.SGD(p, lr=0.1)``.
        leave_out: of the writers, some of ``"gradients"``, before they are clipped and the optimizer sees them, and
            ``"steps"``, after it has taken them; then the writers are centred after every step.
        clip: the length that all gradients together are clipped to; None for no clipping.

    Raises:
        ValueError: ``leave_out`` has other names, ``updates`` is below 1, or the model is no GPT-2.
    """
    if unknown := set(leave_out) - set(PARTS):
        raise ValueError(f"leave_out: expected some of {', '.join(PARTS)}, got {', '.join(sorted(unknown))}")
    if updates < 1:
        raise ValueError(f"updates: expected at least 1, got {updates}")
    model = copy.deepcopy(model)
    writers, rule, losses = written(model), optimizer(model.parameters()), []
    for _ in range(updates):
        rule.zero_grad()
        loss = next_token_loss(model, ids)
        loss.backward()
        losses.append(loss.detach())
        if "gradients" in leave_out:
            centre(p.grad for p in writers)
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        rule.step()
        if "steps" in leave_out:
            centre(writers)
    return Descent(model, torch.stack(losses).double())


def next_token_loss(model: GPT2LMHeadModel, ids: Tensor) -> Tensor:
    """Mean loss in nats, in the model's own dtype; the loss of transformers is in float32 whatever that is."""
    logits = model(ids).logits[:, :-1]
    return nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
