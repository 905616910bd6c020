"""Angles at every norm of a model, streamed: what one pass over a corpus leaves is a table of a few kilobytes."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from normgeom.geometry.uniform import uniform_vector
from normgeom.measure.tally import SIDES, Tally, measured_rows
from normgeom.measure.watch import watch
from normgeom.models.sites import NormSite, evaluating, find_norms, forward
from normgeom.norms import widen

_FORMAT = 1


class Survey:
    """Angles between a model's hidden vectors and fixed directions, before and after each norm.

    Args:
        model: any module whose norms :func:`normgeom.find_norms` finds.
        directions: ``"uniform"`` is the vector 1; every ``"random_…"`` is one Gaussian draw, hence uniform on the
            sphere, fixed by ``seed``, its name and the dimension.  Lengths play no part: an angle does not see them.
        seed: of the random directions.
        example_inputs: as in :func:`normgeom.find_norms`.

    Raises:
        ValueError: the model has no norms, there is no direction, or one is neither ``"uniform"`` nor ``"random_…"``.

    A vector with a NaN or Inf entry and a vector of length zero have no angle: they are counted apart
    (:meth:`excluded`) and enter no average.
    """

    def __init__(
        self,
        model: nn.Module,
        directions: Iterable[str] = ("uniform", "random_a", "random_b"),
        seed: int = 0,
        example_inputs: Tensor | Mapping | None = None,
    ):
        self.directions, self.seed = tuple(directions), seed
        if not self.directions:
            raise ValueError("directions: expected at least one, got none")
        for name in self.directions:
            if name != "uniform" and not name.startswith("random_"):
                raise ValueError(f"directions: expected 'uniform' or 'random_…', got {name!r}")
        self._model, self._found = model, find_norms(model, example_inputs)
        if not self._found:
            raise ValueError(f"model: this {type(model).__name__} runs no LayerNorm or RMSNorm")
        self.sites = [dict(site=s.name, kind=s.kind, dim=s.dim) for s in self._found]
        self.fingerprint = _fingerprint(model)
        self.tokens = 0
        self._index = {site.name: i for i, site in enumerate(self._found)}
        self._units: dict[tuple, Tensor] = {}
        self._state = [Tally.empty(len(self.directions)) for _ in self.sites]

    def run(self, batches: Iterable[Tensor | Mapping], progress: bool = True) -> Survey:
        """Measure every batch: token ids ``(batch, length)``, or a mapping passed as ``model(**batch)``.

        Where a mapping has an ``attention_mask``, padding is not measured.  A batch enters the state when all of it
        has been measured, so an interrupted run holds whole batches.

        Raises:
            ValueError: token ids outside of the model's vocabulary, or a survey loaded from a file.
            TypeError: token ids of a non-integer dtype.
        """
        if self._model is None:
            raise ValueError("model: a survey loaded from a file holds results only; make a new one and merge")
        with evaluating(self._model):
            for batch in tqdm(batches, desc="survey", unit="batch", disable=not progress):
                ids = _ids(batch)
                if ids is None or ids.numel() > 0:
                    self._check_ids(ids)
                    self._run_batch(batch)
        lost = int(self.excluded()["nonfinite"].sum())
        if lost:
            warnings.warn(f"{lost} vectors with NaN or Inf entries were left out; see Survey.excluded()", stacklevel=2)
        return self

    def _run_batch(self, batch: Tensor | Mapping) -> None:
        masks = {stream: _mask(batch, stream) for stream in ("", "decoder_")}
        two_streams = getattr(getattr(self._model, "config", None), "is_encoder_decoder", False)
        seen: dict[int, Tally] = {}
        measured = []

        def tally(site: NormSite, x_in: Tensor, x_out: Tensor) -> None:
            stream = "decoder_" if two_streams and "decoder" in site.name.split(".") else ""
            valid, first = measured_rows(x_in.shape, site.token_axis, masks[stream], x_in.device)
            measured.append(valid)
            counted = Tally.of([self._cosines(x) for x in (x_in, x_out)], valid, first)
            i = self._index[site.name]
            seen[i] = seen[i].merged(counted) if i in seen else counted

        with watch(self._model, self._found, tally):
            forward(self._model, batch)
        for i, counted in seen.items():
            self._state[i] = self._state[i].merged(counted)
        self.tokens += int(measured[0].sum()) if measured else 0

    def _cosines(self, x: Tensor) -> tuple[Tensor, Tensor]:
        rows = widen(x.reshape(-1, x.shape[-1]))
        norm = torch.linalg.vector_norm(rows, dim=-1)
        return (rows @ self._unit_directions(rows)).T / norm, norm

    def _unit_directions(self, rows: Tensor) -> Tensor:
        key = (rows.shape[-1], rows.dtype, rows.device)
        if key not in self._units:
            columns = [_direction(name, rows.shape[-1], self.seed) for name in self.directions]
            self._units[key] = torch.stack(columns, dim=1).to(rows)
        return self._units[key]

    def _check_ids(self, ids: Tensor | None) -> None:
        vocabulary = getattr(getattr(self._model, "config", None), "vocab_size", None)
        if ids is None or vocabulary is None:
            return
        if ids.is_floating_point():
            raise TypeError(f"batches: expected integer token ids, got {ids.dtype}")
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= vocabulary:
            raise ValueError(f"batches: expected token ids from 0 to {vocabulary - 1}, got {low} to {high}")

    def table(self) -> pd.DataFrame:
        """One row a (site, side, direction, positions).

        Columns: ``site``, ``side`` ("in" or "out"), ``direction``, ``positions`` ("first", "rest" or "all"; "first"
        is empty where tokens come flattened), ``kind``, ``dim``, ``tokens``; ``mean_deg``, ``std_deg`` of the angle;
        its quantiles ``q05_deg``, ``q50_deg``, ``q95_deg``, exact to the bin of 0.25 degrees; ``mean_abs_cos``;
        ``occupancy`` = d·E[cos²] (eq-occupancy); ``mean_norm``.  Moments are exact to rounding of float32
        cosines: an angle of δ degrees to a direction or its opposite is off by up to about 0.001/δ degrees.
        """
        rows = []
        for site, tally in zip(self.sites, self._state, strict=True):
            for positions, part in tally.map(Tensor.cpu).by_position().items():
                rows += self._site_rows(site, positions, part)
        order = dict(site=0, side=1, direction=2, positions=3)
        frame = pd.DataFrame(rows)
        return frame[[*order, *(c for c in frame.columns if c not in order)]]

    def _site_rows(self, site: dict, positions: str, part: Tally) -> list[dict]:
        mean, std = part.moments.mean, part.moments.std()
        mean = torch.where(part.moments.count > 0, mean, torch.nan)
        cut = part.angle_quantiles([0.05, 0.5, 0.95])
        return [
            dict(
                **site,
                side=side,
                direction=direction,
                positions=positions,
                tokens=int(part.moments.count[i, 0, j]),
                mean_deg=float(mean[i, 0, j]),
                std_deg=float(std[i, 0, j]),
                **dict(zip(("q05_deg", "q50_deg", "q95_deg"), cut[i, j].tolist(), strict=True)),
                mean_abs_cos=float(mean[i, 2, j]),
                occupancy=site["dim"] * float(mean[i, 1, j]),
                mean_norm=float(mean[i, 3, j]),
            )
            for i, side in enumerate(SIDES)
            for j, direction in enumerate(self.directions)
        ]

    def excluded(self) -> pd.DataFrame:
        """Vectors that have no angle: one row a (site, side), columns ``nonfinite`` and ``zero``."""
        return pd.DataFrame(
            dict(site=site["site"], side=side, nonfinite=int(n), zero=int(z))
            for site, tally in zip(self.sites, self._state, strict=True)
            for side, (n, z) in zip(SIDES, tally.excluded.tolist(), strict=True)
        )

    def save(self, path: str | os.PathLike) -> None:
        """Write the state to ``path``, all of it or, on an error, nothing."""
        path = Path(path)
        part = path.with_name(path.name + ".part")
        about = dict(
            format=_FORMAT,
            fingerprint=self.fingerprint,
            seed=self.seed,
            directions=self.directions,
            sites=self.sites,
            tokens=self.tokens,
        )
        arrays = {
            f"{i}/{name}": field.cpu().numpy()
            for i, tally in enumerate(self._state)
            for name, field in vars(tally).items()
        }
        try:
            with open(part, "wb") as file:
                np.savez_compressed(file, about=np.array(json.dumps(about)), **arrays)
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: str | os.PathLike) -> Survey:
        """What :meth:`save` wrote: for its table and for merging, not for measuring more.

        Raises:
            ValueError: the file is not a survey's state.
        """
        survey = cls.__new__(cls)
        survey._model = survey._found = None
        names = [field.name for field in fields(Tally)]
        try:
            with np.load(path) as file:
                about = json.loads(str(file["about"]))
                if about["format"] != _FORMAT:
                    raise ValueError(f"format {about['format']}")
                survey.directions, survey.seed, survey.tokens = (
                    tuple(about["directions"]),
                    about["seed"],
                    about["tokens"],
                )
                survey.sites, survey.fingerprint = about["sites"], about["fingerprint"]
                survey._state = [
                    Tally(*(torch.from_numpy(file[f"{i}/{name}"]) for name in names)) for i in range(len(survey.sites))
                ]
        except (KeyError, TypeError, ValueError, EOFError, AttributeError, zipfile.BadZipFile, zlib.error) as error:
            raise ValueError(f"path: {os.fspath(path)} is not the state of a survey") from error
        return survey

    def merge(self, other: Survey) -> Survey:
        """Both surveys as one; this one is changed and returned.

        Raises:
            ValueError: the other is of another model, other directions or another seed.
        """
        for name in ("sites", "directions", "seed", "fingerprint"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                raise ValueError(f"other: a survey with another {name}: expected {mine!r:.80}, got {theirs!r:.80}")
        self._state = [a.merged(b.map(Tensor.cpu)) for a, b in zip(self._state, other._state, strict=True)]
        self.tokens += other.tokens
        return self


def _ids(batch: Tensor | Mapping, stream: str = "") -> Tensor | None:
    if isinstance(batch, Mapping):
        return batch.get(f"{stream}input_ids")
    return None if stream else batch


def _mask(batch: Tensor | Mapping, stream: str) -> Tensor | None:
    """Which tokens are not padding; ``stream`` is "" or, in a decoder beside an encoder, "decoder_"."""
    given = batch.get(f"{stream}attention_mask") if isinstance(batch, Mapping) else None
    ids = _ids(batch, stream)
    return torch.ones_like(ids) if given is None and ids is not None and ids.dim() == 2 else given


def _direction(name: str, d: int, seed: int) -> Tensor:
    if name == "uniform":
        return uniform_vector(d, dtype=torch.float64) / d**0.5
    key = hashlib.sha256(f"{seed} {name} {d}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(key[:7], "big"))
    drawn = torch.randn(d, dtype=torch.float64, generator=generator)
    return drawn / torch.linalg.vector_norm(drawn)


def _fingerprint(model: nn.Module) -> str:
    """Tells two models apart without reading all of a large one: names, shapes, first entries."""
    digest = hashlib.sha256()
    for name, p in model.named_parameters():
        head = p.detach().flatten()[:16].float().cpu().numpy().tobytes()
        digest.update(f"{name} {tuple(p.shape)} {p.dtype}".encode() + head)
    return digest.hexdigest()[:16]
