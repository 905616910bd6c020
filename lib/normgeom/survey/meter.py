"""What a survey takes of one batch: at every norm, sums over its vectors, without keeping or copying them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from normgeom.models.sites import NormSite
from normgeom.survey.devices import fetched, of_sums, sent
from normgeom.survey.directions import Directions, seeded, signs
from normgeom.survey.passes import Passes
from normgeom.survey.tally import SIDES, Tally, apart
from normgeom.survey.vectors import drop_error, project

_WAITING = 2**20  # products that wait for their statistics, 8 MB


class Projected(NamedTuple):
    """What is taken at a norm while the model runs.

    Attributes:
        norm: its number.
        parts: which of its rows stand first in a text, and the rest.
        sides: of its inputs and of its outputs what :func:`normgeom.survey.vectors.project` gives.
    """

    norm: int
    parts: tuple[Tensor, Tensor]
    sides: tuple[tuple[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]


class Meter:
    """The norms ``sites`` of a model beside fixed directions; a pilot batch is run for the matched ones."""

    def __init__(self, model: nn.Module, sites: list[NormSite], directions: Directions, pilot: Tensor | Mapping | None):
        self.model, self.sites, self.directions = model, sites, directions
        self._index = {site.name: i for i, site in enumerate(sites)}
        self._passes = Passes(model, sites)
        self._cached: dict[tuple, object] = {}
        self._matched = self._match(pilot) if directions.matched else {}

    def measure(self, batch: Tensor | Mapping) -> tuple[int, dict[int, Tally]]:
        """How many tokens the batch has, and for each norm that ran, by its number, a tally.

        Raises:
            ValueError: token ids outside of the model's vocabulary, or padding in an input that does not show it.
            TypeError: token ids that are no tensor or of a non-integer dtype.
        """
        seen: dict[int, Tally] = {}
        counted: list[int] = []
        waiting: dict[tuple, list[Projected]] = {}  # norms of which statistics are taken at once

        def take() -> None:
            for group in waiting.values():
                for i, of_batch in zip([one.norm for one in group], apart(self._tally(group)), strict=True):
                    seen[i] = seen[i].merged(of_batch) if i in seen else of_batch
            waiting.clear()

        def look(site: NormSite, parts: tuple[Tensor, Tensor], x_in: Tensor, x_out: Tensor) -> None:
            counted.append(sum(map(len, parts)))
            one = self._project(self._index[site.name], parts, x_in, x_out)
            products = one.sides[0][0]
            waiting.setdefault((id(parts), products.shape), []).append(one)
            if products.numel() * sum(map(len, waiting.values())) > _WAITING:
                take()

        real = self._passes.run("batches", batch, look)
        take()
        return (counted or [0])[0] if real is None else int(real.sum()), seen  # rows of the first norm may be heads

    def _project(self, i: int, parts: tuple[Tensor, Tensor], x_in: Tensor, x_out: Tensor) -> Projected:
        """What is left of the vectors at a norm when it has run."""
        device = of_sums(x_in.device)
        sides = (project(x, self._columns(i, side, device)) for side, x in zip(SIDES, (x_in, x_out), strict=True))
        return Projected(i, parts, tuple(sides))

    def _tally(self, group: list[Projected]) -> Tally:
        """Of several norms whose inputs lie alike, along a leading axis."""
        (products_in, length_in, largest_in), (products_out, length_out, largest_out) = (
            map(torch.stack, zip(*side, strict=True)) for side in zip(*(one.sides for one in group), strict=True)
        )
        gain = torch.stack([self._gain(one.norm, length_in.device)[1] for one in group], dim=1).unsqueeze(-1)
        error = drop_error(
            products_in[:, -1], length_in, (products_out[:, -2], products_out[:, -1], length_out), tuple(gain)
        )
        length, largest = (torch.stack(both, dim=1) for both in ((length_in, length_out), (largest_in, largest_out)))
        cos = torch.stack([products_in[:, :-1], products_out[:, :-2]], dim=1) / length.unsqueeze(2)
        shares = (largest / length).square()
        return Tally.of(cos, torch.stack([length, shares, error.unsqueeze(1).expand_as(length)], dim=2), group[0].parts)

    def _columns(self, i: int, side: str, device: torch.device) -> Tensor:
        """The directions at one side of a norm, and what :func:`drop_error` asks for: 1/d, or gain and bias."""
        key = ("columns", i, side, device)
        if key not in self._cached:
            more = torch.full((1, d := self.sites[i].dim), 1 / d, dtype=torch.float64, device=device)
            more = more if side == "in" else self._gain(i, device)[0]
            self._cached[key] = torch.cat([self._units(i, side, device), more])
        return self._cached[key]

    def _units(self, i: int, side: str, device: torch.device) -> Tensor:
        """The directions, of length 1, at one side of a norm, ``(k, d)``."""
        d = self.sites[i].dim
        own = self._matched.get((i, side), {})
        key = ("units", d, device, (i, side) if own else None)
        if key not in self._cached:
            units = [own[name] if name in own else self.directions.unit(name, d) for name in self.directions.named(d)]
            self._cached[key] = sent(torch.stack(units), device)
        return self._cached[key]

    def _gain(self, i: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Gain and bias of a norm, and of these what :func:`drop_error` needs, ``(5,)``.

        NaN where no mean is subtracted, or each head has its own gain.
        """
        key = ("gain", i, device)
        if key not in self._cached:
            site = self.sites[i]
            known = site.kind == "layer" and site.weight.dim() == 1
            both = torch.stack([site.weight, site.bias]) if known else torch.full((2, site.dim), torch.nan)
            both = both.double()
            (gain_square, gain_bias), (_, bias_square) = (both @ both.T).tolist()
            numbers = (site.dim, site.eps, gain_square, gain_bias, bias_square)
            self._cached[key] = sent(both, device), sent(torch.tensor(numbers, dtype=torch.float64), device)
        return self._cached[key]

    def _match(self, pilot: Tensor | Mapping) -> dict[tuple[int, str], dict[str, Tensor]]:
        """At each side of each norm, for each matched name the pilot's vectors of length 1 summed with random signs.

        NaN at a norm that the pilot did not reach, and where the sum is zero.
        """
        names = self.directions.matched
        places = {(i, side): site.dim for i, site in enumerate(self.sites) for side in SIDES}
        drawn = {place: [seeded(self.directions.seed, name, *place) for name in names] for place in places}
        sums = {place: torch.zeros(len(names), d, dtype=torch.float64) for place, d in places.items()}

        def add(site: NormSite, parts: tuple[Tensor, Tensor], *both: Tensor) -> None:
            chosen = torch.cat(parts)
            device = chosen.device
            for side, x in zip(SIDES, both, strict=True):
                place = self._index[site.name], side
                vectors = x.reshape(-1, site.dim).to(device)[chosen].double()
                vectors = vectors.where(torch.isfinite(vectors).all(-1, keepdim=True), 0)
                random = sent(torch.stack([signs(len(vectors), generator) for generator in drawn[place]]), device)
                sums[place] = sent(sums[place], device) + random @ nn.functional.normalize(vectors, dim=-1)

        self._passes.run("pilot", pilot, add)
        sums = dict(zip(sums, fetched([*sums.values()]), strict=True))
        if not any(total.any() for total in sums.values()):
            raise ValueError("pilot: expected tokens that a norm sees, got none")
        lengths = {place: torch.linalg.vector_norm(total, dim=-1, keepdim=True) for place, total in sums.items()}
        return {place: dict(zip(names, total / lengths[place], strict=True)) for place, total in sums.items()}
