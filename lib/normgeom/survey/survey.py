"""Angles at every norm of a model, streamed: what one pass over a corpus leaves is a table of a few kilobytes."""

from __future__ import annotations

import hashlib
import itertools
import json
import operator
import os
import time
import warnings
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path

import pandas as pd
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn
from tqdm.auto import tqdm

from normgeom.jobs import atomic_path
from normgeom.models.sites import NormSite, find_norms
from normgeom.models.watch import entries, evaluating, forward, watch
from normgeom.survey.directions import DEFAULT, MATCHED, SIDES, at_width, matched, named
from normgeom.survey.meter import BINS, OF_VECTOR, Meter, measure, quantiles

_SHARED = ("directions", "sites", "seed", "vectors", "fingerprint")  # the same in surveys that are merged
_COUNTED = ("tokens", "batches", "digest")
_FORMAT = "normgeom survey 5"
SAVE_EVERY = 60  # seconds
_ROWS = 2**12  # of several norms, whose statistics are taken together: one by one they cost twice the time
POSITIONS = ("first", "rest", "all")


class Survey:
    """Angles in degrees between a model's hidden vectors and fixed directions, before and after each norm.

    Args:
        model: any module whose norms :func:`normgeom.find_norms` finds.
        directions: names, or a mapping from names to vectors ``(d,)`` of one's own, each measured at the norms of its
            width, and to None for these: ``"uniform"`` is the vector 1; ``"random_…"`` a Gaussian draw; ``"signs_…"``
            has random entries ±1 (prop-random-signs); ``"matched_…"`` is the sum, with random signs, of the vectors of
            ``pilot`` at that side of that norm, scaled to length 1: a draw with their second moments.  By default
            ``"uniform"`` and thirty sign vectors.
        seed: fixes, with its name and width, what is drawn.
        example_inputs: as in :func:`normgeom.find_norms`.
        pilot: a batch as :meth:`run` takes it, run once for the matched directions.

    Raises:
        TypeError: the model is no module; it needs an example and has none.
        ValueError: the model has no norms that can be measured; there is no direction, or its name is none of these;
            a vector is not one-dimensional, finite and non-zero, or fits no norm; a matched direction has no pilot.

    Vectors with a NaN or Inf entry and vectors of length zero have no angle: they are counted apart (:meth:`excluded`)
    and enter no average.

    Attributes:
        tokens: how many were measured.
        batches: likewise.
        digest: of the batches, in their order.
        fingerprint: of the model.

    >>> import torch
    >>> import normgeom as ng
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
        directions: Iterable[str] | Mapping[str, Tensor | None] = DEFAULT,
        seed: int = 0,
        example_inputs: Tensor | Mapping | None = None,
        pilot: Tensor | Mapping | None = None,
    ):
        given = named(directions)
        to_match = [name for name, vector in given.items() if vector is None and name.startswith(MATCHED)]
        if to_match and pilot is None:
            raise ValueError(f"pilot: expected a batch to match {to_match[0]!r} with, got none")
        self.directions, self.seed = (*given,), operator.index(seed)
        sites = find_norms(model, example_inputs)
        if not sites:
            raise ValueError(f"model: this {type(model).__name__} runs no LayerNorm or RMSNorm that can be measured")
        units = {d: at_width(given, d, self.seed) for d in sorted({site.dim for site in sites})}
        for name, vector in given.items():
            if vector is not None and len(vector) not in units:
                expected = f"{name!r} to have the width of a norm, {[*units]}"
                raise ValueError(f"directions: expected {expected}, got {len(vector)}")
        fitting = {d: [name for name, v in given.items() if v is None or len(v) == d] for d in units}
        self.sites = [dict(site=s.name, kind=s.kind, dim=s.dim, directions=fitting[s.dim]) for s in sites]
        self.fingerprint = _digest("", dict(model.named_parameters()))[:16]
        own = {name: vector for name, vector in given.items() if vector is not None}
        self.vectors = _digest(_digest("", own), entries(pilot) if to_match else {})
        self.tokens, self.batches, self.digest = 0, 0, ""
        self._empty()
        by_place = {}
        if to_match:
            _check("pilot", model, pilot)
            if _padded(pilot, "attention_mask") is not None:
                raise ValueError("pilot: expected texts without padding, an attention_mask leaves tokens out")
            by_place = matched(model, sites, to_match, self.seed, pilot)
        self._model, self._sites, self._meters = model, sites, []
        for site in sites:
            of_sides = ({**units[site.dim], **by_place.get((site.name, side), {})}.values() for side in SIDES)
            self._meters.append(Meter(site, torch.stack([torch.stack([*vectors]) for vectors in of_sides])))

    def _empty(self) -> None:
        """Sums ``(norm, side, statistic, position)`` and histograms ``(norm, side, direction, position, bin)``."""
        n, k = len(self.sites), len(self.directions)
        self._sums = torch.zeros(n, 2, 4 * k + len(OF_VECTOR), 2, dtype=torch.float64)
        self._counts = torch.zeros(n, 2, k, 2, BINS + 1, dtype=torch.int64)

    def run(
        self,
        batches: Iterable[Tensor | Mapping],
        progress: bool = True,
        checkpoint: str | os.PathLike | None = None,
    ) -> Survey:
        """Measure every batch: token ids ``(batch, length)``, or a mapping passed as ``model(**batch)``.

        A batch enters the state when all of it has been measured, so an interrupted run holds whole batches.

        Args:
            batches: tokens that an ``attention_mask`` ``(batch, length)`` leaves out are not counted.
            checkpoint: a file that takes the state after the first batch, then once a minute, and at the end of the
                run, whatever ends it.  Where it exists already, the batches that it holds are taken from it and not
                measured again; ``batches`` must begin with them.

        Raises:
            ValueError: token ids outside of the model's vocabulary; padding that a norm's input does not show; a survey
                loaded from a file; a checkpoint of another survey, or of other batches.
            TypeError: token ids that are no tensor, or of a non-integer dtype.
        """
        if self._model is None:
            raise ValueError("model: a survey loaded from a file holds results only; make a new one and merge")
        held = self._take(checkpoint)
        number, digest, saved, due = 0, "" if held else self.digest, self.batches, time.monotonic()
        try:
            for batch in tqdm(batches, desc="survey", unit="batch", disable=not progress):
                number, digest = number + 1, _digest(digest, entries(batch))
                if number > held:
                    self._measure(batch, digest)
                elif number == held and digest != self.digest:
                    raise ValueError(f"checkpoint: {os.fspath(checkpoint)} holds other batches than these")
                if checkpoint is not None and self.batches > saved and time.monotonic() >= due:
                    self.save(checkpoint)
                    saved, due = self.batches, time.monotonic() + SAVE_EVERY
        finally:
            if checkpoint is not None and self.batches > saved:
                self.save(checkpoint)
        if number < held:
            raise ValueError(f"checkpoint: {os.fspath(checkpoint)} holds {held} batches, got {number}")
        lost = self.excluded().groupby("site", sort=False).nonfinite.sum()
        if lost.any():
            left_out = f"{lost.sum()} vectors with NaN or Inf entries were left out"
            where = ", ".join(lost.index[lost > 0])
            warnings.warn(f"{left_out}, at {where:.200}; see Survey.excluded()", stacklevel=2)
        return self

    def _take(self, checkpoint: str | os.PathLike | None) -> int:
        """Become the survey in a checkpoint that exists, and say how many batches it holds."""
        if checkpoint is None or not Path(checkpoint).exists():
            return 0
        if self.batches:
            raise ValueError(f"checkpoint: {os.fspath(checkpoint)} exists, and this survey holds batches already")
        held = Survey.load(checkpoint)
        self._check_same(held, "checkpoint")
        vars(self).update({name: getattr(held, name) for name in (*_COUNTED, "_sums", "_counts")})
        return self.batches

    def _measure(self, batch: Tensor | Mapping, digest: str) -> None:
        _check("batches", self._model, batch)
        device = next((p.device for p in self._model.parameters()), torch.device("cpu"))
        device = torch.device("cpu") if device.type == "mps" else device  # Apple's GPUs have no float64
        self._sums, self._counts = self._sums.to(device), self._counts.to(device)
        sums, number = self._sums.clone(), {site: i for i, site in enumerate(self._sites)}
        bins, rows = [self._counts.new_empty(0)], []
        waiting: dict[Tensor, list] = defaultdict(list)
        mask = _padded(batch, "attention_mask")

        def take(member: Tensor) -> None:
            numbers, projected = zip(*waiting.pop(member), strict=True)
            found = measure([self._meters[i] for i in numbers], projected, member)
            for i, of_norm, places in zip(numbers, *found, strict=True):
                sums[i] += of_norm
                bins.append(places.flatten() + i * self._counts[i].numel())

        def look(site: NormSite, x_in: Tensor, x_out: Tensor) -> None:
            i, member = number[site], _members(x_in.shape[:-1], site.token_axis, mask, device)
            waiting[member].append((i, self._meters[i].project(x_in, x_out, device)))
            rows.append(member.shape[1])
            if len(waiting[member]) * member.shape[1] > _ROWS:
                take(member)

        with evaluating(self._model), watch(self._model, self._sites, look):
            forward(self._model, batch)
        for member in [*waiting]:
            take(member)
        ids, bins = entries(batch).get("input_ids"), torch.cat(bins)
        tokens = sum(rows[:1]) if ids is None or ids.is_floating_point() else ids.numel()  # not heads
        tokens = tokens if mask is None else int(mask.sum())
        # Nothing is half done after an interrupt: one step for the sums, one for all histograms.
        vars(self).update(_sums=sums, tokens=self.tokens + tokens, batches=self.batches + 1, digest=digest)
        self._counts.view(-1).scatter_add_(0, bins, bins.new_ones(1).expand(len(bins)))

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
        exceed (``method="inverted_cdf"`` of ``numpy.quantile``), to the bin of 0.25 degrees.
        """
        k, places = len(self.directions), (self.sites, POSITIONS, SIDES, self.directions)  # in the order of rows
        sums = torch.cat([self._sums, self._sums.sum(-1, keepdim=True)], -1).movedim(-1, 1).cpu()
        tokens, cuts = map(torch.stack, zip(*map(_quantiles, self._counts.cpu()), strict=True))
        of_direction = sums[..., : 4 * k].unflatten(-1, (4, k)).unbind(-2)
        off, square, cos2, abs_cos = (of / tokens for of in of_direction)
        length, share, drop, with_drop, count = (sums[..., 4 * k + i, None].expand(tokens.shape) for i in range(5))
        columns = dict(tokens=tokens, mean_deg=90 + off, std_deg=(square - off.square()).clamp(min=0).sqrt())
        columns |= dict(zip(("q05_deg", "q50_deg", "q95_deg"), cuts.unbind(-1), strict=True))
        width = torch.tensor([site["dim"] for site in self.sites]).view(-1, 1, 1, 1)
        columns |= dict(mean_abs_cos=abs_cos, occupancy=cos2 * width, mean_norm=length / count)
        columns |= dict(top_share=share / count, drop_error=drop / with_drop)
        rows = (
            (site["site"], side, direction, positions, site["kind"], site["dim"], direction in site["directions"])
            for site, positions, side, direction in itertools.product(*places)
        )
        table = pd.DataFrame(rows, columns=["site", "side", "direction", "positions", "kind", "dim", "fits"])
        table = table.assign(**{name: column.flatten().numpy() for name, column in columns.items()})
        return table[table.pop("fits")].reset_index(drop=True)

    def excluded(self) -> pd.DataFrame:
        """Vectors that have no angle: one row a (site, side), columns ``nonfinite`` and ``zero``."""
        places = itertools.product([site["site"] for site in self.sites], SIDES)
        nonfinite, zero = self._sums[:, :, -2:].sum(-1).long().cpu().flatten(0, 1).T.numpy()
        return pd.DataFrame(places, columns=["site", "side"]).assign(nonfinite=nonfinite, zero=zero)

    def save(self, path: str | os.PathLike) -> None:
        """Write the state to ``path``, a safetensors file: all of it or, on an error, nothing."""
        about = json.dumps({name: getattr(self, name) for name in (*_SHARED, *_COUNTED)})
        counts = self._counts.cpu().flatten()
        bins = counts.nonzero().flatten()  # nearly all are zero
        tensors = dict(sums=self._sums.cpu(), bins=bins, counts=counts[bins])
        with atomic_path(Path(path)) as part:
            part.write_bytes(save(tensors, dict(about=about, digest=_digest(_FORMAT + about, tensors))))

    @classmethod
    def load(cls, path: str | os.PathLike) -> Survey:
        """What :meth:`save` wrote: for its table and for merging, not for measuring more.

        Raises:
            ValueError: the file is not a survey's state, is damaged, or is of another version.
        """
        try:
            with safe_open(path, "pt") as file:
                names, metadata = file.keys(), file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in names}
        except SafetensorError:
            metadata, tensors = {}, {}
        about = metadata.get("about", "")
        if metadata.get("digest") != _digest(_FORMAT + about, tensors):
            raise ValueError(f"path: {os.fspath(path)} is not the state of a survey, is damaged or of another version")
        survey = cls.__new__(cls)
        vars(survey).update(json.loads(about), _model=None)
        survey.directions = (*survey.directions,)
        survey._empty()
        survey._sums = tensors["sums"]
        survey._counts.view(-1)[tensors["bins"]] = tensors["counts"]
        return survey

    def merge(self, other: Survey) -> Survey:
        """Both surveys as one; this one is changed and returned.

        Raises:
            ValueError: the other is of another model, other directions or another seed.
        """
        self._check_same(other, "other")
        self._sums = self._sums + other._sums.to(self._sums.device)
        self._counts = self._counts + other._counts.to(self._counts.device)
        self.tokens, self.batches = self.tokens + other.tokens, self.batches + other.batches
        self.digest = hashlib.sha256("".join(sorted([self.digest, other.digest])).encode()).hexdigest()
        return self

    def _check_same(self, other: Survey, argument: str) -> None:
        for name in _SHARED:
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                raise ValueError(f"{argument}: expected the same {name}, {mine!r:.80}, got {theirs!r:.80}")


@lru_cache(maxsize=16)
def _members(lead: torch.Size, token_axis: int | None, mask: Tensor | None, device: torch.device) -> Tensor:
    """``(2, rows)`` float64: 1 for rows of an input ``(*lead, d)`` at first positions of texts, and for the rest.

    ``mask``, ``(batch, length)``, is false for padding, which is in neither; None where there is none.
    """
    batch_axis = 1 if token_axis == 0 else 0
    shape = None if token_axis is None else (lead[batch_axis], lead[token_axis])
    if mask is not None and mask.shape != shape:
        raise ValueError(f"batches: a norm's input of shape {(*lead, 'd')} does not show which rows are padding")
    if token_axis is None:
        first, rest = torch.zeros(lead), torch.ones(lead)
    else:
        mask = torch.ones(shape, dtype=torch.bool) if mask is None else mask
        first = mask & (mask.cumsum(1) == 1)
        view = [size if axis in (batch_axis, token_axis) else 1 for axis, size in enumerate(lead)]
        laid = (of.T if token_axis == 0 else of for of in (first, mask & ~first))
        first, rest = (of.reshape(view).expand(lead) for of in laid)
    return torch.stack([first, rest]).flatten(1).double().to(device, non_blocking=True)  # no wait for a GPU


def _padded(batch: Tensor | Mapping, name: str) -> Tensor | None:
    """The mask of this name, on the CPU, if it leaves tokens out."""
    mask = entries(batch).get(name)
    return None if mask is None or mask.all() else mask.bool().cpu()


def _check(argument: str, model: nn.Module, batch: Tensor | Mapping) -> None:
    """Refuse a decoder's padding, and token ids that the model does not know: on a GPU these end the process."""
    given = entries(batch)
    if _padded(batch, "decoder_attention_mask") is not None:
        raise ValueError(f"{argument}: expected texts without padding in a decoder_attention_mask")
    ids, vocabulary = given.get("input_ids"), getattr(getattr(model, "config", None), "vocab_size", None)
    if ids is None or vocabulary is None:
        return
    if not isinstance(ids, Tensor) or ids.is_floating_point() or ids.dim() < 2:
        got = f"{ids.dtype} of shape {tuple(ids.shape)}" if isinstance(ids, Tensor) else type(ids).__name__
        raise TypeError(f"{argument}: expected integer token ids (batch, length), got {got}")
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= vocabulary:
        expected = f"{argument}: expected token ids from 0 to {vocabulary - 1}, got {low} to {high}"
        raise ValueError(f"{expected}; is the tokenizer another model's?")


def _quantiles(counts: Tensor) -> tuple[Tensor, Tensor]:
    """Of one norm's histograms, first positions, the rest and all: totals and 5 %, 50 % and 95 % quantiles."""
    counts = torch.cat([counts, counts.sum(-2, keepdim=True)], -2).movedim(-2, 0)[..., :BINS]
    return counts.sum(-1), quantiles(counts, 0, 180, torch.tensor([0.05, 0.5, 0.95], dtype=torch.float64))


def _digest(before: str, values: Mapping[str, object]) -> str:
    """Of a text and of tensors and other values by name, such as a batch after all batches before it."""
    digest = hashlib.sha256(before.encode())
    for name, value in sorted(values.items()):
        if isinstance(value, Tensor) and not value.is_meta:
            digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
            digest.update(value.detach().cpu().flatten().view(torch.uint8).numpy())
        else:
            digest.update(f"{name} {value!r}".encode())
    return digest.hexdigest()
