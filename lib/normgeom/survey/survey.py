"""Angles at every norm of a model, streamed: what one pass over a corpus leaves is a table of a few kilobytes."""

from __future__ import annotations

import hashlib
import math
import operator
import os
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from normgeom.models.calls import entries, evaluating
from normgeom.models.sites import find_norms
from normgeom.survey import state
from normgeom.survey.devices import fetched
from normgeom.survey.directions import Directions
from normgeom.survey.meter import Meter
from normgeom.survey.tally import OF_ANGLE, SIDES, Tally, merged_each, on_cpu

# What two surveys must share to be merged, and what a message calls it.
_SHARED = {
    "directions": "directions",
    "sites": "sites",
    "seed": "seed",
    "given": "vectors or pilot",
    "fingerprint": "fingerprint",
}
_COUNTED = ("tokens", "batches", "digest")
_AT_ONCE = 2**24  # weights that are taken from a device together


class Survey:
    """Angles between a model's hidden vectors and fixed directions, before and after each norm.

    Args:
        model: any module whose norms :func:`normgeom.find_norms` finds.
        directions: ``"uniform"`` is the vector 1.  Every ``"random_…"`` is one Gaussian draw, hence uniform on the
            sphere; every ``"signs_…"`` has entries ±1 (prop-random-signs); both are fixed by ``seed``, their name and
            the dimension.  Every ``"matched_…"`` is the sum, with random signs, of the vectors of ``pilot`` at that
            side of that norm, each scaled to length 1: a direction drawn with their second moments.  The length of a
            direction plays no part: an angle does not see it.
        seed: of what is drawn.
        example_inputs: as in :func:`normgeom.find_norms`.
        vectors: more directions by name, ``(d,)``, each measured at the norms of its width.
        pilot: a batch as :meth:`run` takes it, run once for the matched directions.

    Raises:
        TypeError: the model is no module; it needs an example and has none.
        ValueError: the model has no norms that can be measured; there is no direction, or its name is none of these;
            a vector is not one-dimensional, finite and non-zero, or fits no norm; a matched direction has no pilot;
            there are more directions than memory holds.

    A vector with a NaN or Inf entry and a vector of length zero have no angle: they are counted apart
    (:meth:`excluded`) and enter no average.

    Attributes:
        tokens: how many were measured.
        batches: how many were measured.
        digest: of all batches, in their order.
        fingerprint: of the model.
    """

    def __init__(
        self,
        model: nn.Module,
        directions: Iterable[str] = ("uniform", "random_a", "random_b"),
        seed: int = 0,
        example_inputs: Tensor | Mapping | None = None,
        vectors: Mapping[str, Tensor] | None = None,
        pilot: Tensor | Mapping | None = None,
    ):
        chosen = Directions(directions, seed, vectors)
        if chosen.matched and pilot is None:
            raise ValueError(f"pilot: expected a batch to match {chosen.matched[0]!r} with, got none")
        found = find_norms(model, example_inputs)
        if not found:
            raise ValueError(f"model: this {type(model).__name__} runs no LayerNorm or RMSNorm that can be measured")
        chosen.check_widths({site.dim for site in found})
        self.directions, self.seed = chosen.names, operator.index(seed)
        self.sites = [dict(site=s.name, kind=s.kind, dim=s.dim, directions=chosen.named(s.dim)) for s in found]
        self.fingerprint = _fingerprint(model)
        self.given = [chosen.digest(), _digest("", pilot) if chosen.matched else ""]
        self.tokens, self.batches, self.digest = 0, 0, ""
        _check_memory(self.sites)
        self._tallies = [Tally.empty(len(site["directions"])) for site in self.sites]
        with evaluating(model):
            self._meter = Meter(model, found, chosen, pilot)

    def run(
        self,
        batches: Iterable[Tensor | Mapping],
        progress: bool = True,
        checkpoint: str | os.PathLike | None = None,
    ) -> Survey:
        """Measure every batch: token ids ``(batch, length)``, or a mapping passed as ``model(**batch)``.

        Padding that an ``attention_mask`` of the mapping marks, or for a decoder a ``decoder_attention_mask``, is not
        measured.  A batch enters the state when all of it has been measured, so an interrupted run holds whole batches.

        Args:
            checkpoint: a file that takes the state after the first batch, then as often as a hundredth of the time
                allows, and at the end of the run, whatever ends it.  Where it exists already, the batches that it
                holds are taken from it and not measured again; ``batches`` must begin with them.

        Raises:
            ValueError: token ids outside of the model's vocabulary; padding that another mask marks, or in a norm's
                input that does not show which rows it is; a mapping within a mapping; a survey loaded from a file; a
                checkpoint of another survey, or of other batches.
            TypeError: token ids that are no tensor, or of a non-integer dtype.
        """
        if self._meter is None:
            raise ValueError("model: a survey loaded from a file holds results only; make a new one and merge")
        held = self._held(checkpoint)
        number, digest = 0, self.digest
        with evaluating(self._meter.model), state.kept(checkpoint, self.save) as measured:
            for batch in tqdm(batches, desc="survey", unit="batch", disable=not progress):
                number, digest = number + 1, _digest(digest, batch)
                if held is None or number > held.batches:
                    self._measure(batch, digest)
                    measured()
                elif number == held.batches:
                    if digest != held.digest:
                        raise ValueError(f"checkpoint: {os.fspath(checkpoint)} holds other batches than these")
                    self._take(held)
        if held is not None and number < held.batches:
            raise ValueError(f"checkpoint: {os.fspath(checkpoint)} holds {held.batches} batches, got {number}")
        nonfinite = [int(excluded[:, 0].sum()) for excluded in self._excluded()]
        if any(nonfinite):
            where = ", ".join(site["site"] for site, n in zip(self.sites, nonfinite, strict=True) if n)
            lost = f"{sum(nonfinite)} vectors with NaN or Inf entries were left out"
            warnings.warn(f"{lost}, at {where:.200}; see Survey.excluded()", stacklevel=2)
        return self

    def _measure(self, batch: Tensor | Mapping, digest: str) -> None:
        tokens, seen = self._meter.measure(batch)
        merged = merged_each({i: (self._tallies[i], of_batch) for i, of_batch in seen.items()})
        tallies = [merged.get(i, tally) for i, tally in enumerate(self._tallies)]
        # In one step: what is saved after an interrupt holds whole batches.
        vars(self).update(_tallies=tallies, tokens=self.tokens + tokens, batches=self.batches + 1, digest=digest)

    def _held(self, checkpoint: str | os.PathLike | None) -> Survey | None:
        """The survey in a checkpoint that exists."""
        if checkpoint is None or not Path(checkpoint).exists():
            return None
        if self.batches:
            raise ValueError(f"checkpoint: {os.fspath(checkpoint)} exists, and this survey holds batches already")
        held = Survey.load(checkpoint)
        self._check_same(held, "checkpoint")
        return held

    def _take(self, other: Survey) -> None:
        self._tallies = other._tallies
        for name in _COUNTED:
            setattr(self, name, getattr(other, name))

    def table(self) -> pd.DataFrame:
        """One row a (site, side, direction, positions).

        Columns: ``site``, ``side`` ("in" or "out"), ``direction``, ``positions`` ("first", "rest" or "all"; "first"
        is empty where tokens come flattened and where the example holds images), ``kind``, ``dim``,
        ``tokens``; ``mean_deg``, ``std_deg`` of the angle; its quantiles ``q05_deg``, ``q50_deg``, ``q95_deg``;
        ``mean_abs_cos``; ``occupancy`` = d·E[cos²] (eq-occupancy).  Of the vectors, whatever the direction:
        ``mean_norm``; ``top_share``, the mean share of the squared length in the largest coordinate; ``drop_error``,
        the mean change, relative to ‖γ⊙n‖, of the norm's output if it did not subtract the mean (eq-drop-error), NaN
        for RMSNorm and where each head has a gain of its own.  Products and sums are float64.

        The quantile q is the smallest angle of a counted vector that at least the share q of the vectors does not
        exceed (``method="inverted_cdf"`` of ``numpy.quantile``), to the bin of 0.25 degrees.  A quantile that is
        interpolated between two vectors, numpy's default, lies elsewhere between them, which shows where vectors are
        few: among 24, neighbours may be degrees apart.
        """
        rows = []
        for site, tally in zip(self.sites, on_cpu(self._tallies), strict=True):
            for positions, part in tally.by_position().items():
                rows += _rows(site, positions, part)
        return pd.DataFrame(rows)

    def excluded(self) -> pd.DataFrame:
        """Vectors that have no angle: one row a (site, side), columns ``nonfinite`` and ``zero``."""
        return pd.DataFrame(
            dict(site=site["site"], side=side, nonfinite=int(n), zero=int(z))
            for site, excluded in zip(self.sites, self._excluded(), strict=True)
            for side, (n, z) in zip(SIDES, excluded.tolist(), strict=True)
        )

    def _excluded(self) -> list[Tensor]:
        """Those of every norm, on the CPU."""
        return fetched([tally.excluded for tally in self._tallies])

    def save(self, path: str | os.PathLike) -> None:
        """Write the state to ``path``, all of it or, on an error, nothing."""
        state.write(path, {name: getattr(self, name) for name in (*_SHARED, *_COUNTED)}, self._tallies)

    @classmethod
    def load(cls, path: str | os.PathLike) -> Survey:
        """What :meth:`save` wrote: for its table and for merging, not for measuring more.

        Raises:
            ValueError: the file is not a survey's state.
        """
        about, tallies = state.read(path)
        if about.keys() != {*_SHARED, *_COUNTED}:
            raise ValueError(f"path: {os.fspath(path)} is not the state of a survey")
        survey = cls.__new__(cls)
        survey._meter, survey._tallies = None, tallies
        vars(survey).update(about, directions=tuple(about["directions"]))
        return survey

    def merge(self, other: Survey) -> Survey:
        """Both surveys as one; this one is changed and returned.

        Raises:
            ValueError: the other is of another model, other directions or another seed.
        """
        self._check_same(other, "other")
        mine, theirs = on_cpu(self._tallies), on_cpu(other._tallies)
        self._tallies = [a.merged(b) for a, b in zip(mine, theirs, strict=True)]
        self.tokens, self.batches = self.tokens + other.tokens, self.batches + other.batches
        self.digest = hashlib.sha256("".join(sorted([self.digest, other.digest])).encode()).hexdigest()
        return self

    def _check_same(self, other: Survey, argument: str) -> None:
        for name, called in _SHARED.items():
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                raise ValueError(
                    f"{argument}: a survey with another {called}: expected {mine!r:.80}, got {theirs!r:.80}"
                )


def _rows(site: dict, positions: str, part: Tally) -> list[dict]:
    """One norm's rows of the table; statistics of nothing are NaN."""
    names, (count, std) = site["directions"], (part.moments.count, part.moments.std())
    mean = torch.where(count > 0, part.moments.mean, torch.nan)
    cut = part.angle_quantiles([0.05, 0.5, 0.95])
    rows = []
    for i, side in enumerate(SIDES):
        split = len(OF_ANGLE) * len(names)
        angle, cos2, abs_cos = mean[i, :split].view(len(OF_ANGLE), -1).tolist()
        norm, top_share, drop_error = mean[i, split:].tolist()
        rows += [
            dict(
                site=site["site"],
                side=side,
                direction=name,
                positions=positions,
                kind=site["kind"],
                dim=site["dim"],
                tokens=int(count[i, j]),
                mean_deg=angle[j],
                std_deg=float(std[i, j]),
                **dict(zip(("q05_deg", "q50_deg", "q95_deg"), cut[i, j].tolist(), strict=True)),
                mean_abs_cos=abs_cos[j],
                occupancy=site["dim"] * cos2[j],
                mean_norm=norm,
                top_share=top_share,
                drop_error=drop_error,
            )
            for j, name in enumerate(names)
        ]
    return rows


def _digest(before: str, batch: Tensor | Mapping) -> str:
    """Of all batches before and this one."""
    digest = hashlib.sha256(before.encode())
    for name, value in entries(batch).items():
        if isinstance(value, Tensor):
            digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
            digest.update(value.detach().cpu().flatten().view(torch.uint8).numpy().tobytes())
        else:
            digest.update(f"{name} {value!r}".encode())
    return digest.hexdigest()


def _check_memory(sites: list[dict]) -> None:
    """Raise a ValueError if the sums of so many directions, and those of a batch, are more than a machine holds."""
    with torch.device("meta"):
        tallies = [Tally.empty(len(site["directions"])) for site in sites]
    needed = 2 * sum(t.nbytes for tally in tallies for t in vars(tally).values())
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else math.inf
    if needed > there:
        number = max(len(site["directions"]) for site in sites)
        raise ValueError(
            f"directions: the sums of {number} at {len(sites)} norms take {needed / 1e9:.2g} GB, and the machine "
            f"has {there / 1e9:.2g}; ask for fewer"
        )


def _fingerprint(model: nn.Module) -> str:
    """Tells two models apart: a digest of all parameters, but for those that are loaded when they are needed."""
    digest = hashlib.sha256()
    for name, p in model.named_parameters():
        digest.update(f"{name} {tuple(p.shape)} {p.dtype}".encode())
        if not p.is_meta:
            for rows in p.detach().reshape(-1).split(_AT_ONCE):
                digest.update(rows.cpu().contiguous().view(torch.uint8).numpy())
    return digest.hexdigest()[:16]
