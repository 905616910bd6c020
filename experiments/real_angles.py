"""Angles to 1 at every norm of a published model, compared with 1,000 sign vectors, and the largest coordinate."""

from functools import cache

import normgeom as ng
import torch
from normgeom.models.watch import forward
from normgeom.survey.directions import unit
from torch import Tensor

from experiments.real_models import LANGUAGE, PARTS, about, blocks, language_model, sites_of
from experiments.registry import experiment

DRAWN = 1000  # directions of each kind of random directions (null)
WINDOWS, LENGTH = 8, 256


@experiment(
    "published-angles",
    "Angle to 1 in degrees and occupancy of 1 at the input of every norm, without position 0. signs_…, random_…: "
    f"quantiles of the occupancies of {DRAWN} sign vectors and {DRAWN} Gaussian ones; below: number of sign vectors "
    "with a lower occupancy than 1. largest, top_share: coordinate with the largest mean share of the squared length, "
    "and that share; gain, rank: its gain, and the rank of |gain| from the smallest. first_…: at position 0.",
    dict(model=LANGUAGE, text=PARTS),
    minutes=2,
    corpus=f"WikiText-2, {WINDOWS} windows of {LENGTH} tokens spread over each part, each starting with BOS",
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
    """Return the record's entries for the vectors ``(windows, positions, d)`` that enter one norm."""
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
    """Return d·E[cos²] for 1 and for the directions of each null (eq-occupancy), from the vectors' second moments."""
    d = len(second)

    def occupancy(u: Tensor) -> Tensor:
        return d * ((u @ second) * u).sum(-1)

    return occupancy(unit("uniform", d, 0)), {kind: occupancy(drawn(kind, d)) for kind in ("signs", "random")}


@cache
def drawn(kind: str, d: int) -> Tensor:
    """Return the directions of one null, "signs" or "random", ``(1000, d)``."""
    return torch.stack([unit(f"{kind}_{i:03d}", d, 0) for i in range(DRAWN)])
