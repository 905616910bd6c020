"""Pairs of models that differ in the norm alone, and a short training loop for both."""

from __future__ import annotations

import copy
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from normgeom.norms import RMSNorm


def twins(config: GPT2Config, seed: int) -> tuple[GPT2LMHeadModel, GPT2LMHeadModel]:
    """Two GPT-2 models with the same initial weights, one with LayerNorm and one with RMSNorm.

    The second is a copy of the first with each ``nn.LayerNorm`` replaced by :class:`normgeom.RMSNorm` of the same
    ε and gain; the bias β, which RMSNorm does not have, is dropped.  The global random state is left as it was.

    Args:
        config: sizes of both models.
        seed: of the initial weights.

    Returns:
        ``(layer_norm_model, rms_norm_model)``, float32, on the CPU, in evaluation mode.
    """
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        with_layer_norm = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with_rms_norm = copy.deepcopy(with_layer_norm)
    for name, module in list(with_rms_norm.named_modules()):
        if isinstance(module, nn.LayerNorm):
            parent, _, attribute = name.rpartition(".")
            norm = RMSNorm(module.normalized_shape, eps=module.eps, dtype=torch.float32)
            norm.weight.data.copy_(module.weight.data)
            setattr(with_rms_norm.get_submodule(parent), attribute, norm)
    return with_layer_norm, with_rms_norm.eval()


def train(
    model: GPT2LMHeadModel,
    batches: Iterable[Tensor],
    steps: int,
    learning_rate: float,
    description: str = "train",
) -> list[float]:
    """Next-token training with AdamW, ``steps`` batches, a linear warm-up over a tenth and a cosine to a tenth.

    Args:
        model: trained in place; left in evaluation mode.
        batches: token ids ``(batch, length)``, at least ``steps`` of them.
        steps: how many updates.
        learning_rate: its peak.
        description: stands before the progress bar.

    Returns:
        the loss of each step in nats a token.

    Raises:
        ValueError: ``steps`` is below 1, or ``batches`` ends before ``steps`` updates.
    """
    if steps < 1:
        raise ValueError(f"steps: expected at least 1, got {steps}")
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.1, betas=(0.9, 0.95))
    warmup = max(1, steps // 10)
    schedule = torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [
            torch.optim.lr_scheduler.LinearLR(optimizer, 1 / warmup, total_iters=warmup),
            torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(1, steps - warmup), eta_min=learning_rate / 10),
        ],
        milestones=[warmup],
    )
    losses = []
    model.train()
    for _, ids in zip(tqdm(range(steps), desc=description), batches, strict=False):
        ids = ids.to(model.device)
        loss = model(ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.detach())
    model.eval()
    if len(losses) < steps:
        raise ValueError(f"batches: expected {steps}, got {len(losses)}")
    return torch.stack(losses).tolist()
