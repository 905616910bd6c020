"""Keys of an attention head: which of them some query gives the highest score, and how a norm changes that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from normgeom.norms.functions import check_floating, layer_norm, rms_norm

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

    Keys = Float[Tensor, "keys width"]
    Verdicts = Bool[Tensor, "keys"]

HEADS = ("no norm", "norm, then W", "norm, W, norm")


def selectable(keys: Keys, rounds: int = 300) -> Verdicts:
    """For each key whether a query was found that scores it strictly above all others (def-selectable).

    A walk within the hull of the others towards the key: the direction from the current point to the key is a query to
    try; if it fails, the walk steps towards the key that it prefers.  A key in that hull is never found; one just
    outside may take more than ``rounds`` steps (thm-selectable).

    Args:
        keys: ``(N, width)``, floating point.
        rounds: how many queries are tried for each key, the key itself first.

    Returns:
        ``(N,)``, bool.

    Raises:
        TypeError: ``keys`` is not a floating-point tensor.
        ValueError: ``keys`` is not a matrix with a row, or ``rounds`` is below 1.
    """
    check_floating("keys", keys)
    if keys.dim() != 2 or not len(keys):
        raise ValueError(f"keys: expected shape (N, width) with N at least 1, got {tuple(keys.shape)}")
    if rounds < 1:
        raise ValueError(f"rounds: expected at least 1, got {rounds}")
    found = torch.zeros(len(keys), dtype=torch.bool, device=keys.device)
    left = torch.arange(len(keys), device=keys.device)  # the keys for which no query is found yet
    inside = torch.zeros_like(keys)
    for number in range(rounds):
        query = keys[left] - inside
        scores = query @ keys.T
        own = scores.gather(1, left[:, None])[:, 0]
        best, top = scores.scatter(1, left[:, None], -torch.inf).max(-1)
        hit = own > best + 1e-12
        found[left[hit]] = True
        left, inside, query, top = (t[~hit] for t in (left, inside, query, top))
        if not len(left):
            break
        step = keys[top] - inside
        length = (query * step).sum(-1) / step.square().sum(-1).clamp(min=1e-30)
        length = length.clamp(0, 1) if number else torch.ones_like(length)  # the first query is the key, from nowhere
        inside = inside + length[:, None] * step
    return found


def selectable_shares(
    widths: Sequence[int], trials: int, generator: torch.Generator, count: int = 256, d: int = 768
) -> dict[str, dict[int, float]]:
    """The share of keys that heads of several widths can select, without a norm and with one or two.

    In each trial ``count`` Gaussian vectors of ``d`` features, their lengths multiplied by e^g with standard normal g,
    meet a Gaussian matrix W of that width: as they are; after LayerNorm with ε = 0; and with an RMSNorm with ε = 0
    after W as well (claim-head-width).

    Returns:
        for each of :data:`HEADS` the share of keys that :func:`selectable` finds, by width, a mean over the trials.

    Raises:
        ValueError: ``widths`` is empty or holds one below 1; ``trials`` or ``count`` below 1, or ``d`` below 2.
    """
    if not widths or min(widths) < 1:
        raise ValueError(f"widths: expected some, each at least 1, got {list(widths)}")
    for name, value, least in (("trials", trials, 1), ("count", count, 1), ("d", d, 2)):
        if value < least:
            raise ValueError(f"{name}: expected at least {least}, got {value}")

    def draw(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    shares = {name: dict.fromkeys(widths, 0.0) for name in HEADS}
    for width in widths:
        for _ in range(trials):
            x = draw(count, 1).exp() * draw(count, d)
            w = draw(d, width) / d**0.5
            projected = layer_norm(x, eps=0.0) @ w
            for name, keys in zip(HEADS, (x @ w, projected, rms_norm(projected, eps=0.0)), strict=True):
                shares[name][width] += float(selectable(keys).double().mean()) / trials
    return shares
