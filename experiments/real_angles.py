"""Angles to 1 at every norm of a published model, beside 1,000 vectors of signs, and the largest coordinate there."""

from functools import cache

import normgeom as ng
import torch
from normgeom.models.watch import forward
from normgeom.survey.directions import unit
from torch import Tensor

from experiments.real_models import LANGUAGE, PARTS, about, blocks, language_model, sites_of
from experiments.registry import experiment

DRAWN = 1000  # directions of each null
WINDOWS, LENGTH = 8, 256


@experiment(
    "published-angles",
    f"Angles in degrees and occupancies of 1 at the input of every norm, beside {DRAWN} vectors of signs and as many "
    "Gaussian ones.  below: how many of the signs have a lower occupancy; largest: the coordinate with the largest "
    "mean share of the squared length, top_share: that share; gain, rank: its gain, and the rank of that by size, 1 "
    "for the smallest; first_…: of position 0, which the rest leaves out.",
    dict(model=LANGUAGE, text=PARTS),
    minutes=2,
    corpus=f"WikiText-2, {WINDOWS} windows of {LENGTH} tokens spread over each part, begun by BOS",
    **about(*LANGUAGE),
)
def angles(model: str, text: str) -> list[dict]:
    network, tokenizer = language_model(model)
    sites, seen, rows = sites_of(network), {}, []
    with ng.watch(network, sites, lambda site, x, _: seen.update({site.name: x})):
        forward(network.model, dict(input_ids=blocks(tokenizer, text, WINDOWS, LENGTH), use_cache=False))
    for norm, site in enumerate(sites):
        found, size = described(seen[site.name]), site.weight.abs()
        at = found["largest"]
        gain = dict(gain=float(site.weight[at]), rank=1 + int((size < size[at]).sum()))
        rows.append(dict(norm=norm, site=site.name, dim=site.dim) | found | gain)
    return rows


def described(x: Tensor) -> dict[str, float]:
    """What a record holds of the vectors ``(windows, positions, d)`` that enter one norm."""
    first, x = x[:1, :1], x[:, 1:]
    units = (x / x.norm(dim=-1, keepdim=True)).flatten(0, -2)
    second = (units.T @ units).double() / len(units)
    angle = ng.angle(x, ng.uniform_vector(x.shape[-1]))
    top_share, largest = second.diagonal().max(0)
    omega, null = occupancies(second)
    found = dict(
        mean_deg=angle.mean(),
        std_deg=angle.std(),
        occupancy=omega,
        below=(null["signs"] < omega).sum(),
        **{f"{kind}_q{q:02d}": v.quantile(q / 100) for kind, v in null.items() for q in (5, 50, 95)},
        length=x.norm(dim=-1).mean(),
        top_share=top_share,
        first_length=first.norm(),
        first_top_share=first.square().max() / first.square().sum(),
    )
    return dict(largest=int(largest)) | {name: float(f"{float(value):.4g}") for name, value in found.items()}


def occupancies(second: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """d·E[cos²] of 1 and of the directions of each null (eq-occupancy), from the vectors' second moments."""
    d = len(second)

    def occupancy(u: Tensor) -> Tensor:
        return d * ((u @ second) * u).sum(-1)

    return occupancy(unit("uniform", d, 0)), {kind: occupancy(drawn(kind, d)) for kind in ("signs", "random")}


@cache
def drawn(kind: str, d: int) -> Tensor:
    """The directions of one null, ``(1000, d)``."""
    return torch.stack([unit(f"{kind}_{i:03d}", d, 0) for i in range(DRAWN)])
