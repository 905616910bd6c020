"""Angles at every norm of a model, measured in one pass over a corpus and kept in a table of a few kilobytes."""

from __future__ import annotations

import hashlib
import json
import operator
import os
import time
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path

import pandas as pd
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn
from tqdm.auto import tqdm

from normgeom.jobs import atomic_path
from normgeom.models.sites import NormSite, find_norms
from normgeom.models.watch import check_texts, entries, evaluating, forward, watch
from normgeom.survey.directions import DEFAULT, check_names, unit
from normgeom.survey.meter import OF_VECTOR, Meter

_SHARED = ("directions", "sites", "seed", "fingerprint")  # the same in surveys that are merged
_COUNTED = ("tokens", "batches", "digest")
_FORMAT = "normgeom survey 6"
_REMEDY = "delete it or name another"
SAVE_EVERY = 60  # seconds


class Survey:
    """Angles in degrees between a model's hidden vectors and fixed directions, before and after each norm.

    Args:
        model: any module whose norms :func:`normgeom.find_norms` finds; see the limits in :func:`normgeom.to_rms_norm`.
        directions: names.  ``"uniform"`` is the vector 1; ``"random_…"`` is a Gaussian draw; ``"signs_…"`` has random
            entries ±1 (prop-random-signs).  By default ``"uniform"`` and thirty sign vectors.
        vectors: directions of your own, ``(dim,)``, by name; at norms of another width their rows are NaN.
        seed: together with its name and width, it determines each random direction.
        example_inputs: as in :func:`normgeom.find_norms`.

    Raises:
        TypeError: the model is not a module, or it needs an example and none is given.
        ValueError: the model has no norms that can be measured; there is no direction, or its name is unknown; a
            vector has the width of no norm, or length 0.

    Vectors with a NaN or Inf entry and vectors of length zero have no angle and do not enter averages.

    Attributes:
        tokens: the number of tokens measured.
        batches: the number of batches measured.
        digest: a digest of the batches, in their order.
        fingerprint: a digest of the model, and of ``vectors``.

    >>> import torch, normgeom as ng
    >>> model = torch.nn.Sequential(torch.nn.Embedding(9, 4), torch.nn.LayerNorm(4))
    >>> batches = [torch.tensor([[1, 5, 2], [7, 0, 3]])]
    >>> survey = ng.Survey(model, ["uniform"], example_inputs=batches[0]).run(batches, progress=False)
    >>> rows = survey.table().query("side == 'out' and positions == 'all'")
    >>> rows[["site", "direction", "tokens", "mean_deg"]].round(3).to_dict("records")
    [{'site': '1', 'direction': 'uniform', 'tokens': 6, 'mean_deg': 90.0}]
    """

    def __init__(
        self,
        model: nn.Module,
        directions: Iterable[str] = DEFAULT,
        seed: int = 0,
        example_inputs: Tensor | Mapping | None = None,
        vectors: Mapping[str, Tensor] | None = None,
    ):
        vectors = vectors or {}
        self.directions = check_names(directions, vectors)
        self.seed = operator.index(seed)
        sites = find_norms(model, example_inputs)
        if not sites:
            raise ValueError(f"model: this {type(model).__name__} runs no LayerNorm or RMSNorm that can be measured")
        widths = sorted({site.dim for site in sites})
        if odd := next((name for name, vector in vectors.items() if len(vector) not in widths), None):
            raise ValueError(f"vectors: expected the width of a norm, {widths}, got {len(vectors[odd])} for {odd!r}")
        self.sites = [dict(site=site.name, kind=site.kind, dim=site.dim) for site in sites]
        self.fingerprint = _digest("", dict(model.named_parameters()))
        if vectors:
            self.fingerprint = _digest(self.fingerprint, vectors)
        self.tokens, self.batches, self.digest = 0, 0, ""
        statistics = 4 * len(self.directions) + len(OF_VECTOR)
        self._sums = torch.zeros(len(sites), 2, statistics, 2, dtype=torch.float64)  # of sides and positions
        self._model = model
        with torch.device("cpu"):
            drawn = {d: torch.stack([unit(name, d, self.seed, vectors) for name in self.directions]) for d in widths}
            self._meters = {site: (i, Meter(site, drawn[site.dim])) for i, site in enumerate(sites)}

    def run(
        self,
        batches: Iterable[Tensor | Mapping],
        progress: bool = True,
        checkpoint: str | os.PathLike | None = None,
    ) -> Survey:
        """Measure every batch: token ids ``(batch, length)``, or a mapping passed as ``model(**batch)``.

        A batch is added to the state only after all of it has been measured, so an interrupted run holds whole batches.

        Args:
            batches: texts without padding.
            checkpoint: a file to which the state is saved after the first batch, then once a minute, and when the run
                ends for any reason.  If it exists, ``batches`` must begin with its batches, which are not run again.

        Raises:
            ValueError: token ids are outside the model's vocabulary; an ``attention_mask`` leaves tokens out; the
                survey was loaded from a file; the checkpoint is of another survey or of other batches.
            TypeError: token ids are not a tensor, or have a non-integer dtype.
        """
        if self._model is None:
            raise ValueError("model: a survey loaded from a file holds results only; make a new one and merge")
        held = self._resume(checkpoint)
        number, digest = 0, "" if held else self.digest
        saved, due = self.batches, time.monotonic()
        try:
            for batch in tqdm(batches, desc="survey", unit="batch", disable=not progress):
                number += 1
                digest = _digest(digest, entries(batch))
                if number > held:
                    self._measure(batch, digest)
                elif number == held and digest != self.digest:
                    raise ValueError(f"checkpoint: {checkpoint} holds other batches than these; {_REMEDY}")
                if checkpoint is not None and self.batches > saved and time.monotonic() >= due:
                    self.save(checkpoint)
                    saved, due = self.batches, time.monotonic() + SAVE_EVERY
        finally:
            if checkpoint is not None and self.batches > saved:
                self.save(checkpoint)
        if number < held:
            raise ValueError(f"checkpoint: {checkpoint} holds {held} batches, more than these {number}; {_REMEDY}")
        if lost := int(self._sums[:, :, -1].sum()):
            warnings.warn(f"{lost} vectors with NaN or Inf entries were left out", stacklevel=2)
        return self

    def _resume(self, checkpoint: str | os.PathLike | None) -> int:
        """Load the state in a checkpoint, if there is one, and return the number of its batches."""
        if checkpoint is None or not Path(checkpoint).exists():
            return 0
        if self.batches:
            raise ValueError(f"checkpoint: {checkpoint} exists, and this survey holds batches already")
        held = Survey.load(checkpoint)
        self._check_same(held, f"checkpoint: {checkpoint} is of another survey", f"; {_REMEDY}")
        for name in (*_COUNTED, "_sums"):
            setattr(self, name, getattr(held, name))
        return self.batches

    def _measure(self, batch: Tensor | Mapping, digest: str) -> None:
        check_texts("batches", self._model, batch)
        device = next((p.device for p in self._model.parameters()), torch.device("cpu"))
        device = torch.device("cpu") if device.type == "mps" else device  # Apple's GPUs have no float64
        sums = self._sums.to(device, copy=True)
        members = {}

        def look(site: NormSite, x_in: Tensor, x_out: Tensor) -> None:
            layout = x_in.shape[:-1], site.token_axis
            if layout not in members:
                members[layout] = _members(*layout).to(device, non_blocking=True)  # no wait for a GPU
            i, meter = self._meters[site]
            sums[i] += meter.sums(x_in, x_out, members[layout])

        with evaluating(self._model), watch(self._model, self._meters, look):
            forward(self._model, batch)
        ids = entries(batch).get("input_ids")
        rows = next((member.shape[1] for member in members.values()), 0)  # of the first norm, if there are no ids
        tokens = self.tokens + (rows if ids is None or ids.is_floating_point() else ids.numel())
        # in one step, so that nothing is half done after an interrupt
        vars(self).update(_sums=sums, tokens=tokens, batches=self.batches + 1, digest=digest)

    def table(self) -> pd.DataFrame:
        """The results, with one row per (site, side, direction, positions).

        Columns: ``site``, ``side`` ("in" or "out"), ``direction``, ``positions`` ("first", "rest" or "all"; "first"
        is empty if tokens are flattened or the example holds images), ``kind``, ``dim``, ``tokens``; ``mean_deg`` and
        ``std_deg`` of the angle; ``mean_abs_cos``; ``occupancy`` = d·E[cos²] (eq-occupancy).
        Two columns do not depend on the direction: ``mean_norm``, the mean length of the vectors; and ``drop_error``,
        the mean change of the norm's output, relative to ‖γ⊙n‖, if the mean were not subtracted (eq-drop-error), which
        is NaN for RMSNorm and if each head has its own gain.  Products and sums are float64.
        """
        k, sites = len(self.directions), pd.DataFrame(self.sites).set_index("site")
        # axes: norm, position, side, and statistic, then direction, in the order of the rows
        sums = torch.cat([self._sums, self._sums.sum(-1, keepdim=True)], -1).movedim(-1, 1).cpu()
        of_vector = sums[..., 4 * k :, None].expand(*sums.shape[:-1], -1, k).unbind(-2)
        length, drop_error, with_drop_error, tokens, _ = of_vector
        off, square, cos_square, abs_cos = (of / tokens for of in sums[..., : 4 * k].split(k, -1))
        columns = dict(
            tokens=tokens.long(),
            mean_deg=90 + off,
            std_deg=(square - off.square()).clamp(min=0).sqrt(),
            mean_abs_cos=abs_cos,
            occupancy=cos_square * torch.tensor(sites.dim.tolist()).view(-1, 1, 1, 1),
            mean_norm=length / tokens,
            drop_error=drop_error / with_drop_error,
        )
        places = [sites.index, ["first", "rest", "all"], ["in", "out"], self.directions]
        table = pd.MultiIndex.from_product(places, names=["site", "positions", "side", "direction"])
        table = table.to_frame(index=False)[["site", "side", "direction", "positions"]].join(sites, on="site")
        return table.assign(**{name: column.flatten().numpy() for name, column in columns.items()})

    def save(self, path: str | os.PathLike) -> None:
        """Write the state to ``path``, a safetensors file; after an error nothing is written."""
        about = json.dumps({name: getattr(self, name) for name in (*_SHARED, *_COUNTED)})
        tensors = dict(sums=self._sums.cpu())
        with atomic_path(Path(path)) as part:
            part.write_bytes(save(tensors, dict(about=about, digest=_digest(_FORMAT + about, tensors))))

    @classmethod
    def load(cls, path: str | os.PathLike) -> Survey:
        """Load what :meth:`save` wrote, for its table and for merging; a loaded survey cannot measure more.

        Raises:
            ValueError: the file is not a survey's state, is damaged, or is of another version.
        """
        try:
            with safe_open(path, "pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except SafetensorError:
            metadata, tensors = {}, {}
        about = metadata.get("about", "")
        if metadata.get("digest") != _digest(_FORMAT + about, tensors):
            raise ValueError(f"path: {path} is not the state of a survey, is damaged or of another version; {_REMEDY}")
        survey = cls.__new__(cls)
        vars(survey).update(json.loads(about), _model=None, _sums=tensors["sums"])
        survey.directions = tuple(survey.directions)
        return survey

    def merge(self, other: Survey) -> Survey:
        """Add another survey to this one, which is changed and returned.

        Raises:
            ValueError: the other survey has another model, other directions or another seed.
        """
        self._check_same(other, "other")
        self._sums = self._sums + other._sums.to(self._sums.device)
        self.tokens += other.tokens
        self.batches += other.batches
        self.digest = hashlib.sha256("".join(sorted([self.digest, other.digest])).encode()).hexdigest()
        return self

    def _check_same(self, other: Survey, argument: str, remedy: str = "") -> None:
        for name in _SHARED:
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                raise ValueError(f"{argument}: expected the same {name}, {mine!r:.80}, got {theirs!r:.80}{remedy}")


def _members(lead: torch.Size, token_axis: int | None) -> Tensor:
    """``(2, rows)`` float64 for an input ``(*lead, d)``: 1 for rows at first positions of texts, and 1 for the rest."""
    first = torch.zeros(lead, dtype=torch.float64)
    if token_axis is not None:
        first.movedim(token_axis, 0)[:1] = 1
    return torch.stack([first, 1 - first]).flatten(1)


def _digest(before: str, values: Mapping[str, object]) -> str:
    """A digest of a text and of named tensors and other values, such as a batch after all batches before it."""
    digest = hashlib.sha256(before.encode())
    for name, value in sorted(values.items()):
        if isinstance(value, Tensor):
            digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
            digest.update(value.detach().cpu().flatten().contiguous().view(torch.uint8).numpy())
        else:
            digest.update(f"{name} {value!r}".encode())
    return digest.hexdigest()
