"""The fixed directions of a survey: 1, and the directions that it is compared with."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from normgeom.geometry.uniform import uniform_vector
from normgeom.models.watch import NormSite, evaluating, forward, listed, watch

SIDES = ("in", "out")
RANDOM, SIGNS, MATCHED = "random_", "signs_", "matched_"
DEFAULT = ("uniform", *(f"{SIGNS}{i:03d}" for i in range(30)))  # 1, and enough random signs for a quantile


def nulls(count: int) -> list[str]:
    """The names of ``count`` directions of each null: Gaussian, random signs, and matched, which needs a pilot.

    >>> from normgeom.survey.directions import nulls
    >>> nulls(1)
    ['random_000', 'signs_000', 'matched_000']
    """
    return [f"{null}{i:03d}" for null in (RANDOM, SIGNS, MATCHED) for i in range(count)]


def check_names(directions: Iterable[str], vectors: Mapping[str, Tensor]) -> tuple[str, ...]:
    """The names of directions, each once, those of own vectors last; a ValueError if they are not as they must be."""
    names = tuple(dict.fromkeys(listed(directions)))
    if not (names or vectors):
        raise ValueError("directions: expected at least one, got none")
    for name in names:
        known = isinstance(name, str) and (name == "uniform" or name.startswith((RANDOM, SIGNS, MATCHED)))
        if not known:
            kinds = f"expected 'uniform', '{RANDOM}…', '{SIGNS}…' or '{MATCHED}…'"
            raise ValueError(f"directions: {kinds}, got {name!r:.40}; vectors takes your own")
    for name, vector in vectors.items():
        if name in names or vector.dim() != 1 or not 0 < vector.norm() < torch.inf:
            expected = "expected names other than those of directions, and finite vectors (dim,)"
            raise ValueError(f"vectors: {expected}, got {name!r} of shape {tuple(vector.shape)}")
    return (*names, *vectors)


def units(names: Iterable[str], d: int, seed: int, vectors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The directions of these names as :func:`unit` has them, own vectors scaled to length 1."""
    found = {name: unit(name, d, seed) for name in names if name not in vectors}
    for name, vector in vectors.items():
        own = nn.functional.normalize(vector.detach().cpu().double(), dim=0)
        found[name] = own if len(own) == d else torch.full((d,), torch.nan, dtype=torch.float64)
    return found


def unit(name: str, d: int, seed: int) -> Tensor:
    """The direction of this name, of length 1, ``(d,)`` float64 on the CPU; NaN for a matched one."""
    generator = _seeded(seed, name, d)
    if name == "uniform":
        vector = uniform_vector(d, dtype=torch.float64)
    elif name.startswith(RANDOM):
        vector = torch.randn(d, dtype=torch.float64, generator=generator)
    elif name.startswith(SIGNS):
        vector = _signs(d, generator)
    else:
        return torch.full((d,), torch.nan, dtype=torch.float64)
    return nn.functional.normalize(vector, dim=0)


def matched(
    model: nn.Module, sites: Sequence[NormSite], names: Sequence[str], seed: int, pilot: Tensor | Mapping
) -> dict[tuple[str, str], dict[str, Tensor]]:
    """For each (norm, side) that the pilot reaches and each name, the sum of its unit vectors with random signs.

    The sums are scaled to length 1; if the signs cancel they are NaN.
    """
    places = {(site.name, side): (i, side) for i, site in enumerate(sites) for side in SIDES}
    generators = {place: [_seeded(seed, name, *key) for name in names] for place, key in places.items()}
    sums: dict[tuple[str, str], Tensor] = {}

    def add(site: NormSite, *both: Tensor) -> None:
        for side, x in zip(SIDES, both, strict=True):
            # those that stand first in a text get the first signs
            parts = [x] if site.token_axis is None else x.tensor_split([1], dim=site.token_axis)
            vectors = torch.cat([part.reshape(-1, site.dim) for part in parts]).cpu().double()
            vectors = vectors.where(vectors.isfinite().all(-1, keepdim=True), 0)
            place = site.name, side
            random = torch.stack([_signs(len(vectors), generator) for generator in generators[place]])
            sums[place] = sums.get(place, 0) + random @ nn.functional.normalize(vectors, dim=-1)

    with evaluating(model), watch(model, sites, add):
        forward(model, pilot)
    units = {place: total / torch.linalg.vector_norm(total, dim=-1, keepdim=True) for place, total in sums.items()}
    return {place: dict(zip(names, of_place, strict=True)) for place, of_place in units.items()}


def _signs(n: int, generator: torch.Generator) -> Tensor:
    """Entries ±1 (prop-random-signs)."""
    return torch.randint(2, (n,), generator=generator).double() * 2 - 1


def _seeded(*key: object) -> torch.Generator:
    digest = hashlib.sha256(" ".join(map(str, key)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
