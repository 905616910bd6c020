"""Training a weight of which a norm sees the direction alone: its length, and how far each step turns it."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from normgeom.geometry.uniform import angle
from normgeom.norms.functions import rms_norm

OUTPUTS, INPUTS, BATCH = 16, 12, 16


class ScaleFreeRun(NamedTuple):
    """After each step the length of W, and by how many degrees the step turned it; both ``(steps,)``, float64."""

    lengths: Tensor
    turns: Tensor


def train_scale_free(start: float, eps: float, steps: int, seed: int, rate: float, decay: float) -> ScaleFreeRun:
    """Train W of RMSNorm(Wh) by plain gradient steps W⁺ = (1 − ηλ)W − η∇f with decoupled decay (claim-equilibrium).

    f is the mean over a minibatch of half the squared distance to noisy targets: RMSNorm with ε = 0 of another random
    matrix at the same Gaussian h, plus Gaussian noise.  W is 16 × 12, minibatches have 16 rows, RMSNorm no gain.

    Args:
        start: the length of W at the start; its direction is the same for all.
        eps: ε of the norm that follows W.
        steps: how many updates.
        seed: of the weights and of the stream of data.
        rate: η.
        decay: λ.

    Raises:
        ValueError: ``start`` or ``rate`` is not positive and finite, ``eps`` negative, ``steps`` below 1, or
            ``rate * decay`` not in [0, 1).
    """
    for name, value in (("start", start), ("rate", rate)):
        if not 0 < value < math.inf:
            raise ValueError(f"{name}: expected a positive number, got {value}")
    if not eps >= 0:
        raise ValueError(f"eps: expected a number >= 0, got {eps}")
    if steps < 1:
        raise ValueError(f"steps: expected at least 1, got {steps}")
    if not 0 <= rate * decay < 1:
        raise ValueError(f"decay: expected 0 <= rate * decay < 1, got {rate} * {decay}")
    source = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(shape, generator=source, dtype=torch.float64)

    teacher, weight = draw(OUTPUTS, INPUTS), draw(OUTPUTS, INPUTS)
    weight = start * weight / weight.norm()
    lengths, turns = [], []
    for _ in range(steps):
        h = draw(BATCH, INPUTS)
        target = rms_norm(h @ teacher.T, eps=0.0) + draw(BATCH, OUTPUTS)
        before = weight.requires_grad_()
        loss = (rms_norm(h @ before.T, eps=eps) - target).square().sum() / (2 * BATCH)
        (slope,) = torch.autograd.grad(loss, before)
        before = before.detach()
        weight = (1 - rate * decay) * before - rate * slope
        turns.append(angle(weight.flatten(), before.flatten()))
        lengths.append(weight.norm())
    return ScaleFreeRun(torch.stack(lengths), torch.stack(turns))
