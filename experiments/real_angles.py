"""Angles to 1 at every norm of a published model, beside 1,000 vectors of signs, with and without large coordinates."""

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache

import normgeom as ng
import pandas as pd
import torch
from normgeom.models.watch import NormSite, forward
from normgeom.survey.directions import unit
from torch import Tensor, nn

from experiments.real_models import LANGUAGE, LARGEST, PARTS, about, blocks, language_model, sites_of
from experiments.registry import experiment

DRAWN = 1000  # directions of each null


WINDOWS, LENGTH = 8, 256


@experiment(
    "published-angles",
    f"Angles in degrees and occupancies of 1 at the input of every norm, beside {DRAWN} vectors of signs and as many "
    "Gaussian ones.  below: how many of the signs have a lower occupancy; low, high: 90 % of resampled windows; "
    "dimensions: 1/tr C² (prop-matched); largest: the coordinate with the largest mean share of the squared length, "
    "top_share: that share, top_shares: of the three largest; clamped_…: with these three set to their means.",
    dict(model=LANGUAGE, text=PARTS),
    minutes=2,
    corpus=f"WikiText-2, {WINDOWS} windows of {LENGTH} tokens spread over each part, begun by BOS, which is 'first'",
    **about(*LANGUAGE),
)
def angles(model: str, text: str) -> pd.DataFrame:
    network, tokenizer = language_model(model)
    ids = blocks(tokenizer, text, WINDOWS, LENGTH)
    return measured(network, sites_of(network), [dict(input_ids=ids)])


class Moments:
    """Running sums over the vectors that enter one norm, each scaled to length 1."""

    def __init__(self, d: int):
        self.second, self.clamped = torch.zeros(2, d, d, dtype=torch.float64)
        self.sums = torch.zeros(4, dtype=torch.float64)  # count, angle, its square, length
        self.by_text: list[Tensor] = []  # the mean of cos² in each window
        self.large = self.means = None

    def add(self, x: Tensor) -> None:
        """Vectors ``(windows, positions, d)``."""
        length = x.norm(dim=-1, keepdim=True)
        units = x / length
        cos = units.sum(-1) / x.shape[-1] ** 0.5
        angle = cos.double().arccos().rad2deg()
        self.sums += torch.stack([torch.tensor(float(angle.numel())), angle.sum(), (angle**2).sum(), length.sum()])
        self.by_text += [*cos.double().square().mean(1)]
        units = units.flatten(0, -2)
        self.second += units.T @ units
        if self.large is None:  # found in the first batch
            self.large = self.second.diagonal().topk(LARGEST).indices
            self.means = x.flatten(0, -2)[:, self.large].mean(0)
        held = x.clone()
        held[..., self.large] = self.means
        held = (held / held.norm(dim=-1, keepdim=True)).flatten(0, -2)
        self.clamped += held.T @ held

    def row(self, seed: int = 0) -> dict[str, float]:
        """What a record holds of one norm and one text."""
        count, angle, square, length = self.sums.tolist()
        d, cos2 = len(self.second), torch.stack(self.by_text)
        generator = torch.Generator().manual_seed(seed)
        drawn = cos2[torch.randint(len(cos2), (1000, len(cos2)), generator=generator)].mean(1) * d
        omega, null = occupancies(self.second / count)
        held, held_null = occupancies(self.clamped / count)
        shares = self.second.diagonal() / count
        return dict(
            tokens=int(count),
            mean_deg=angle / count,
            std_deg=max(0.0, square / count - (angle / count) ** 2) ** 0.5,
            occupancy=omega,
            low=float(drawn.quantile(0.05)),
            high=float(drawn.quantile(0.95)),
            below=int((null["signs"] < omega).sum()),
            **{f"{kind}_q{q:02d}": float(v.quantile(q / 100)) for kind, v in null.items() for q in (5, 50, 95)},
            dimensions=float(count**2 / self.second.square().sum()),
            length=length / count,
            largest=int(self.large[0]),
            top_share=float(shares[self.large[0]]),
            top_shares=float(shares[self.large].sum()),
            clamped_occupancy=held,
            clamped_below=int((held_null["signs"] < held).sum()),
        )


def occupancies(second: Tensor) -> tuple[float, dict[str, Tensor]]:
    """d·E[cos²] of 1 and of the directions of each null, from the second moments of unit vectors (eq-occupancy)."""
    d = len(second)
    of = lambda u: d * ((u @ second) * u).sum(-1)  # noqa: E731
    return float(of(unit("uniform", d, 0))), {kind: of(drawn(kind, d)) for kind in ("signs", "random")}


@cache
def drawn(kind: str, d: int) -> Tensor:
    """The directions of one null, ``(1000, d)``."""
    return torch.stack([unit(f"{kind}_{i:03d}", d, 0) for i in range(DRAWN)])


def measured(
    model: nn.Module,
    sites: Sequence[NormSite],
    batches: Iterable[Mapping],
    rest: Callable[[Tensor], Tensor] = lambda x: x[:, 1:],
) -> pd.DataFrame:
    """A row a norm and kind of position: "first", of the first batch's first window, and "rest", which is chosen."""
    found: dict[str, Moments] = {}
    first: dict[str, Tensor] = {}

    def look(site: NormSite, x: Tensor, _: Tensor) -> None:
        first.setdefault(site.name, x[0, 0])
        if site.name not in found:
            found[site.name] = Moments(site.dim)
        found[site.name].add(rest(x))

    with ng.watch(model, sites, look):
        for batch in batches:
            forward(model, batch)
    rows = defaultdict(list)
    for site, positions in itertools.product(sites, ("rest", "first")):
        moments = found[site.name]
        if positions == "first":
            moments = Moments(site.dim)
            moments.add(first[site.name][None, None])
        rows[positions].append(dict(site=site.name, positions=positions) | moments.row())
    return pd.DataFrame([*rows["rest"], *rows["first"]])
