"""What the page "Type here" computes: small networks that read what a reader types."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

import matplotlib.pyplot as plt
import torch
from IPython.display import display
from matplotlib.figure import Figure
from normgeom.geometry.uniform import angle, uniform_vector
from normgeom.models.sites import NormSite, find_norms
from normgeom.models.twins import twins
from normgeom.models.watch import evaluating, forward, hooked
from normgeom.norms.formula import center
from normgeom.surgery.surgery import to_rms_norm
from normgeom.view.explore import image
from normgeom.view.style import COLORS, WIDTH, style
from torch import Tensor, nn
from transformers import GPT2LMHeadModel

from normgeom_lab.common.axes import label_ends
from normgeom_lab.common.recording import recorded_tensors
from normgeom_lab.common.stream import writers
from normgeom_lab.common.tiny import divergence, gpt2

# The quantities shown of a vector: name in words, number format, and function.
QUANTITIES = {
    "angle": ("angle to (1, …, 1) in degrees", ".1f", lambda x: angle(x, uniform_vector(x.shape[-1]).to(x))),
    "occupancy": ("occupancy, d·cos²", ".2g", lambda x: x.sum(-1).square() / x.square().sum(-1)),
    "length": ("length", ".1f", lambda x: torch.linalg.vector_norm(x, dim=-1)),
    "largest": ("largest entry", ".1f", lambda x: x.gather(-1, x.abs().argmax(-1, keepdim=True)).squeeze(-1)),
}


def at_norms(
    before: Mapping[str, Tensor], after: Mapping[str, Tensor], at: int, quantity: str = "angle"
) -> tuple[Figure, str]:
    """Plot a quantity at one position of a text before and after every norm; return the figure and its alt text."""
    words, digits, of = QUANTITIES[quantity]
    series = [[float(of(vectors[at].double())) for vectors in side.values()] for side in (before, after)]
    with style():
        figure, axis = plt.subplots(figsize=(WIDTH, 2.6))
        looks = dict(before=("o", COLORS["uniform"]), after=("s", COLORS["ink"]))
        for values, (side, (marker, color)) in zip(series, looks.items(), strict=True):
            axis.plot(range(1, len(values) + 1), values, marker=marker, color=color, label=side)
        axis.set(xlabel="norms, first to last", ylabel=words)
        if quantity == "angle":
            axis.set(ylim=(0, 180), yticks=[0, 90, 180])
        label_ends(axis)
    told = "; ".join(f"{a:{digits}} and {b:{digits}}" for a, b in zip(*series, strict=True))
    return figure, f"At position {at + 1}, {words}, before and after each norm: {told}."


def next_bytes(logits: Tensor) -> str:
    """Write out the six most probable next bytes and their probabilities, from logits ``(256,)``."""
    best = logits.double().softmax(-1).topk(6)
    seen = {10: "⏎", 32: "␣"} | {byte: chr(byte) for byte in range(33, 127)}
    pairs = zip(best.values.tolist(), best.indices.tolist(), strict=True)
    return ", ".join(f"{seen.get(byte, f'{byte:02X}')} {p:.1%}" for p, byte in pairs)


NAME, KINDS = "twins", ("layer", "rms")

CONTROLS = ("model", "shift", "uncentred", "removed", "held")

BODY, TIED = "transformer.", "lm_head.weight"  # the latter shares the token embedding's tensor


def recorded_twins() -> dict[str, GPT2LMHeadModel]:
    """The networks that the page runs, ``"layer"`` with LayerNorm and ``"rms"`` with RMSNorm, float32, on the CPU.

    Their weights are recorded in float16.  They read bytes: token ids below 256.
    """
    tensors, about = recorded_tensors(NAME)
    vocabulary, width = tensors["layer.wte.weight"].shape
    length = len(tensors["layer.wpe.weight"])
    config = gpt2(vocabulary, length, width, int(about["layers"]), int(about["heads"]))
    models = dict(zip(KINDS, twins(config, 0), strict=True))
    for kind, model in models.items():
        own = {name.split(".", 1)[1]: t.float() for name, t in tensors.items() if name.startswith(f"{kind}.")}
        model.load_state_dict({f"{BODY}{name}": t for name, t in own.items()} | {TIED: own["wte.weight"]})
    return models


@dataclass
class Typed:
    """A text in a network that a reader has changed: logits ``(length, 256)``; inputs, outputs and scales of norms."""

    logits: Tensor | None = None
    before: dict[str, Tensor] = field(default_factory=dict)
    after: dict[str, Tensor] = field(default_factory=dict)
    scales: dict[str, Tensor] = field(default_factory=dict)


@torch.no_grad()
def typed(
    model: nn.Module,
    ids: Tensor,
    shift: float = 0.0,
    uncentred: Collection[str] = (),
    held: Mapping[str, Tensor] | None = None,
    removed: str | None = None,
) -> Typed:
    """Run the network on token ids ``(length,)`` with changes that leave its weights as they are."""
    found, held = Typed(), held or {}
    changes = [(model.transformer.drop, lambda module, args, kwargs, y: args[0] + shift)]
    if removed is not None:
        changes.append((writers(model)[removed], lambda module, args, kwargs, y: torch.zeros_like(y)))
    changes += [
        (site.module, _norm(site, found, site.name not in uncentred, held.get(site.name))) for site in find_norms(model)
    ]
    with evaluating(model), hooked(after=changes):
        found.logits = forward(model, ids[None]).logits[0]
    return found


def _norm(site: NormSite, found: Typed, centred: bool, held: Tensor | None):
    """A hook that recomputes the norm, with or without its mean subtraction, and with its own scale or a held one."""

    def answer(module, args, kwargs, output) -> Tensor:
        (x,) = args
        numerator = center(x) if centred and site.kind == "layer" else x
        own = (numerator.square().mean(-1) + site.eps).sqrt()
        scale = own if held is None else held.to(x).expand_as(own)
        y = numerator / scale[..., None]
        y = y if site.weight is None else y * site.weight
        y = y if site.bias is None else y + site.bias
        found.before[site.name], found.after[site.name], found.scales[site.name] = x[0], y[0], scale[0]
        return y

    return answer


def type_here(
    text: str,
    controls: Sequence[str] = CONTROLS,
    model: str = "layer",
    shift: float = 0.0,
    uncentred: Collection[str] = (),
    removed: str | None = None,
    held: bool = False,
    quantity: str = "angle",
) -> None:
    """Display a network that reads a text.

    On a page, a script with these ``controls`` replaces the picture.  In a notebook, change the text or the other
    arguments and run the cell again: ``model`` is ``"layer"``, ``"rms"`` or ``"converted"``; ``held`` keeps the scales
    of the unchanged network; the others are those of :func:`typed`, and ``quantity`` is one of :data:`QUANTITIES`.
    """
    network = recorded_twins()["layer" if model == "converted" else model]
    ids = torch.tensor(list(text.encode())[-network.config.n_positions :])
    plain = typed(network, ids)
    network = to_rms_norm(copy.deepcopy(network)) if model == "converted" else network
    found = typed(network, ids, shift, uncentred, plain.scales if held else {}, removed)
    kl = float(divergence(plain.logits, found.logits).mean())
    largest = float((plain.logits - found.logits).abs().max())
    figure, alt = at_norms(found.before, found.after, len(found.logits) - 1, quantity)
    words = (
        f"Next: {next_bytes(found.logits[-1])}. KL from the unchanged network: {kl:.2g} nats per byte (mean over "
        f"positions); no logit changes by more than {largest:.2g}."
    )
    host = f'<div class="network" data-controls="{" ".join(controls)}" data-text="{escape(text)}">'
    page = f"{host}{image(figure, alt)}<p>{escape(words)}</p></div>"
    display({"text/html": page, "text/plain": f"A network. {alt} {words}"}, raw=True)
