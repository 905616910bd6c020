"""The fixed directions of a survey, and those it is to be compared with."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from normgeom.geometry.uniform import uniform_vector


def gaussian(d: int, generator: torch.Generator) -> Tensor:
    """Uniform on the sphere: the isotropic null."""
    return torch.randn(d, dtype=torch.float64, generator=generator)


def signs(d: int, generator: torch.Generator) -> Tensor:
    """Entries ±1: what 1 would be if the coordinates had other signs (prop-random-signs)."""
    return torch.randint(2, (d,), generator=generator).double() * 2 - 1


DRAWN: dict[str, Callable[[int, torch.Generator], Tensor]] = {"random_": gaussian, "signs_": signs}
MATCHED = "matched_"
_KNOWN = "'uniform', 'random_…', 'signs_…', 'matched_…' or a name of vectors"


class Directions:
    """Names of directions, and the vector of each for a width.

    Args:
        names: as in :class:`normgeom.Survey`.
        seed: of what is drawn.
        vectors: directions of the user's own, each for the norms of its width.

    Raises:
        ValueError: an unknown name, none at all, or a vector that is not one-dimensional, finite and non-zero.
    """

    def __init__(self, names: Iterable[str], seed: int, vectors: Mapping[str, Tensor] | None = None):
        self.seed = seed
        self.vectors = {name: _checked(name, vector) for name, vector in (vectors or {}).items()}
        self.names = (*dict.fromkeys((*names, *self.vectors)),)
        if not self.names:
            raise ValueError("directions: expected at least one, got none")
        for name in self.names:
            if name not in self.vectors and not _reserved(name):
                raise ValueError(f"directions: expected {_KNOWN}, got {name!r}")
        self.matched = [name for name in self.names if name.startswith(MATCHED)]

    def check_widths(self, widths: set[int]) -> None:
        """Raises ValueError where one of the user's own vectors has none of these widths."""
        for name, vector in self.vectors.items():
            if len(vector) not in widths:
                raise ValueError(
                    f"vectors: expected {name!r} to have the width of a norm, {sorted(widths)}, got {len(vector)}"
                )

    def named(self, d: int) -> list[str]:
        """Those that are measured at a norm of width ``d``."""
        return [name for name in self.names if len(self.vectors.get(name, range(d))) == d]

    def unit(self, name: str, d: int) -> Tensor:
        """A direction that does not depend on the model, of length 1, ``(d,)`` float64 on the CPU."""
        if name in self.vectors:
            vector = self.vectors[name]
        elif name == "uniform":
            vector = uniform_vector(d, dtype=torch.float64)
        else:
            draw = next(draw for prefix, draw in DRAWN.items() if name.startswith(prefix))
            vector = draw(d, seeded(self.seed, name, d))
        return vector / torch.linalg.vector_norm(vector)

    def digest(self) -> str:
        """Of the user's own vectors."""
        digest = hashlib.sha256()
        for name, vector in sorted(self.vectors.items()):
            digest.update(name.encode() + vector.numpy().tobytes())
        return digest.hexdigest()[:16]


def nulls(count: int) -> list[str]:
    """Names of ``count`` directions of each null: Gaussian, random signs, and matched ones, which need a pilot."""
    return [f"{null}{i:03d}" for null in (*DRAWN, MATCHED) for i in range(count)]


def seeded(*key: object) -> torch.Generator:
    """A generator on the CPU, fixed by ``key``."""
    digest = hashlib.sha256(" ".join(map(str, key)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


def _reserved(name: str) -> bool:
    return name == "uniform" or name.startswith((*DRAWN, MATCHED))


def _checked(name: str, vector: Tensor) -> Tensor:
    if _reserved(name):
        raise ValueError(f"vectors: expected a name that is not a direction's already, got {name!r}")
    vector = torch.as_tensor(vector).detach().cpu().double()  # in this order: Apple's GPUs have no float64
    if vector.dim() != 1 or not torch.isfinite(vector).all() or not vector.any():
        raise ValueError(
            f"vectors: expected {name!r} to be one-dimensional, finite and not zero, got shape {tuple(vector.shape)}"
        )
    return vector / vector.abs().amax()  # a copy, and no square of it under- or overflows
