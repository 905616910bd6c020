"""The fixed directions of a survey: 1, and the directions that it is compared with."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from normgeom.geometry.uniform import uniform_vector
from normgeom.models.watch import listed

RANDOM, SIGNS = "random_", "signs_"
DEFAULT = ("uniform", *(f"{SIGNS}{i:03d}" for i in range(30)))  # 1, and enough random signs for a quantile


def nulls(count: int) -> list[str]:
    """The names of ``count`` directions of each null: Gaussian (``random_000``, …), and random signs."""
    return [f"{null}{i:03d}" for null in (RANDOM, SIGNS) for i in range(count)]


def check_names(directions: Iterable[str], vectors: Mapping[str, Tensor]) -> tuple[str, ...]:
    """The names of directions, each once, and then those of ``vectors``; a ValueError if one of them is unusable."""
    names = tuple(dict.fromkeys(listed(directions)))
    if not (names or vectors):
        raise ValueError("directions: expected at least one, got none")
    for name in names:
        if not isinstance(name, str) or not (name == "uniform" or name.startswith((RANDOM, SIGNS))):
            kinds = f"expected 'uniform', '{RANDOM}…' or '{SIGNS}…'"
            raise ValueError(f"directions: {kinds}, got {name!r:.40}; vectors takes your own")
    for name, vector in vectors.items():
        if name in names or vector.dim() != 1 or not 0 < vector.norm() < torch.inf:
            expected = "expected names other than those of directions, and finite vectors (dim,)"
            raise ValueError(f"vectors: {expected}, got {name!r} of shape {tuple(vector.shape)}")
    return (*names, *vectors)


def unit(name: str, d: int, seed: int, vectors: Mapping[str, Tensor] | None = None) -> Tensor:
    """The direction of this name, of length 1, ``(d,)`` float64 on the CPU; NaN for a vector of another width."""
    digest = hashlib.sha256(f"{seed} {name} {d}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
    if vectors and name in vectors:
        own = vectors[name].detach().cpu().double()
        vector = own if len(own) == d else torch.full((d,), torch.nan, dtype=torch.float64)
    elif name == "uniform":
        vector = uniform_vector(d, dtype=torch.float64)
    elif name.startswith(RANDOM):
        vector = torch.randn(d, dtype=torch.float64, generator=generator)
    else:  # prop-random-signs
        vector = torch.randint(2, (d,), generator=generator).double() * 2 - 1
    return nn.functional.normalize(vector, dim=0)
