"""What the norms of a network do with a text that somebody types: pictures and words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor

from normgeom.geometry.uniform import angle, uniform_vector
from normgeom.view.style import COLORS, WIDTH, style

# What is shown of a vector, and its digits.
QUANTITIES = {
    "angle": ("angle to (1, …, 1) in degrees", ".1f", lambda x: angle(x, uniform_vector(x.shape[-1]).to(x))),
    "occupancy": ("occupancy, d·cos²", ".2g", lambda x: x.sum(-1).square() / x.square().sum(-1)),
    "length": ("length", ".1f", lambda x: torch.linalg.vector_norm(x, dim=-1)),
    "largest": ("largest entry", ".1f", lambda x: x.gather(-1, x.abs().argmax(-1, keepdim=True)).squeeze(-1)),
}


def at_norms(
    before: Mapping[str, Tensor], after: Mapping[str, Tensor], at: int, quantity: str = "angle"
) -> tuple[Figure, str]:
    """One position of a text at every norm, before it and after it.

    Args:
        before, after: by a norm's name its inputs and outputs, ``(length, d)``, in the order in which they run.
        at: the position.
        quantity: a key of :data:`QUANTITIES`.

    Returns:
        the figure and its alt text, with the numbers.

    Raises:
        ValueError: ``quantity`` is unknown.
    """
    if quantity not in QUANTITIES:
        raise ValueError(f"quantity: expected one of {[*QUANTITIES]}, got {quantity!r}")
    words, digits, of = QUANTITIES[quantity]
    series = [[float(of(vectors[at].double())) for vectors in side.values()] for side in (before, after)]
    with style():
        figure, axis = plt.subplots(figsize=(WIDTH, 2.6))
        looks = dict(before=("o", COLORS["uniform"]), after=("s", COLORS["ink"]))
        for values, (side, (marker, color)) in zip(series, looks.items(), strict=True):
            axis.plot(range(1, len(values) + 1), values, marker=marker, color=color, label=side)
        axis.set(xlabel="norm, in the order in which they run", ylabel=words)
        if quantity == "angle":
            axis.set(ylim=(0, 180), yticks=[0, 90, 180])
        axis.legend()
    told = "; ".join(f"{a:{digits}} and {b:{digits}}" for a, b in zip(*series, strict=True))
    return figure, f"At position {at + 1}, {words}, before and after each norm: {told}."


def next_bytes(logits: Tensor, count: int = 6) -> str:
    """The most probable next bytes, in words: logits ``(256,)``."""
    best = logits.double().softmax(-1).topk(count)
    return ", ".join(f"{shown(i)} {p:.1%}" for p, i in zip(best.values.tolist(), best.indices.tolist(), strict=True))


def shown(byte: int) -> str:
    """A byte as a character that one sees, or as a hexadecimal number."""
    return {10: "⏎", 32: "␣"}.get(byte) or (chr(byte) if 32 < byte < 127 else f"{byte:02X}")


def network_host(text: str, controls: Sequence[str], picture: str) -> str:
    """What the page's script makes alive, with a still picture for where there are no scripts."""
    chosen = " ".join(controls)
    return f'<div class="network" data-controls="{chosen}" data-text="{escape(text, quote=True)}">{picture}</div>'
