"""Angles to 1 at every norm of a published model, beside 1,000 vectors of signs, with and without large coordinates."""

from functools import cache

import normgeom as ng
import torch
from normgeom.models.watch import forward
from normgeom.survey.directions import unit
from torch import Tensor

from experiments.real_models import LANGUAGE, LARGEST, PARTS, about, blocks, language_model, resampled, sites_of
from experiments.registry import experiment

DRAWN = 1000  # directions of each null
WINDOWS, LENGTH = 8, 256


@experiment(
    "published-angles",
    f"Angles in degrees and occupancies of 1 at the input of every norm, beside {DRAWN} vectors of signs and as many "
    "Gaussian ones.  below: how many of the signs have a lower occupancy; low, high: 90 % of resampled windows; "
    "dimensions: 1/tr C² (prop-matched); largest: the coordinate with the largest mean share of the squared length, "
    "top_share: that share, top_shares: of the three largest; clamped, clamped_below: occupancy and its rank with "
    "these three at their means; first_…: of position 0, which the rest leaves out.",
    dict(model=LANGUAGE, text=PARTS),
    minutes=2,
    corpus=f"WikiText-2, {WINDOWS} windows of {LENGTH} tokens spread over each part, begun by BOS",
    **about(*LANGUAGE),
)
def angles(model: str, text: str) -> list[dict]:
    network, tokenizer = language_model(model)
    sites, seen = sites_of(network), {}
    with ng.watch(network, sites, lambda site, x, _: seen.update({site.name: x})):
        forward(network.model, dict(input_ids=blocks(tokenizer, text, WINDOWS, LENGTH), use_cache=False))
    return [dict(norm=norm) | described(seen[site.name]) for norm, site in enumerate(sites)]


def described(x: Tensor) -> dict[str, float]:
    """What a record holds of the vectors ``(windows, positions, d)`` that enter one norm."""
    d, first, x = x.shape[-1], x[:1, :1], x[:, 1:]
    second, angle = second_moments(x), ng.angle(x, ng.uniform_vector(d))
    cos2 = angle.deg2rad().cos().square().mean(1)
    low, high = (d * end for end in resampled(cos2, torch.Generator().manual_seed(0)))
    shares = second.diagonal()
    large = shares.topk(LARGEST).indices
    held = x.clone()
    held[..., large] = x[..., large].mean((0, 1))
    (omega, null), (clamped, clamped_null) = occupancies(second), occupancies(second_moments(held))
    found = dict(
        mean_deg=angle.mean(),
        std_deg=angle.std(),
        occupancy=omega,
        low=low,
        high=high,
        below=(null["signs"] < omega).sum(),
        **{f"{kind}_q{q:02d}": v.quantile(q / 100) for kind, v in null.items() for q in (5, 50, 95)},
        dimensions=1 / second.square().sum(),
        length=x.norm(dim=-1).mean(),
        top_share=shares[large[0]],
        top_shares=shares[large].sum(),
        clamped=clamped,
        clamped_below=(clamped_null["signs"] < clamped).sum(),
        first_deg=ng.angle(first, ng.uniform_vector(d)),
        first_length=first.norm(),
        first_top_share=first.square().max() / first.square().sum(),
    )
    return dict(largest=int(large[0])) | {name: float(f"{float(value):.4g}") for name, value in found.items()}


def second_moments(x: Tensor) -> Tensor:
    """E[uuᵀ] of vectors scaled to length 1, ``(d, d)`` float64."""
    units = (x / x.norm(dim=-1, keepdim=True)).flatten(0, -2)
    return (units.T @ units).double() / len(units)


def occupancies(second: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """d·E[cos²] of 1 and of the directions of each null (eq-occupancy)."""
    d = len(second)
    of = lambda u: d * ((u @ second) * u).sum(-1)  # noqa: E731
    return of(unit("uniform", d, 0)), {kind: of(drawn(kind, d)) for kind in ("signs", "random")}


@cache
def drawn(kind: str, d: int) -> Tensor:
    """The directions of one null, ``(1000, d)``."""
    return torch.stack([unit(f"{kind}_{i:03d}", d, 0) for i in range(DRAWN)])
