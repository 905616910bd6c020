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
from pathlib import Path

import pandas as pd
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn
from tqdm.auto import tqdm

from normgeom.models.sites import find_norms
from normgeom.models.watch import entries, evaluating
from normgeom.survey.directions import DEFAULT, MATCHED, SIDES, at_width, matched, named
from normgeom.survey.meter import Meter, Tally, chosen, merged, quantiles
from normgeom.survey.passes import Passes, device_of_sums

_SHARED = ("directions", "sites", "seed", "vectors", "pilot", "fingerprint")  # the same in surveys that are merged
_COUNTED = ("tokens", "batches", "digest")
_FORMAT = "normgeom survey 4"
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
        self.vectors = _digest("", {name: vector for name, vector in given.items() if vector is not None})
        self.pilot = _digest("", entries(pilot)) if to_match else ""
        self.tokens, self.batches, self.digest = 0, 0, ""
        self._tally = Tally.empty(len(sites), len(given))
        self._passes = Passes(model, sites)
        with evaluating(model):
            by_place = matched(self._passes, to_match, self.seed, pilot) if to_match else {}
        of_places = ({**units[s.dim], **by_place.get((s.name, side), {})} for s in sites for side in SIDES)
        stacked = [torch.stack([vectors[name] for name in given]) for vectors in of_places]
        self._meter = Meter(sites, [torch.stack(both) for both in zip(stacked[::2], stacked[1::2], strict=True)])

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
            checkpoint: a file that takes the state after the first batch, then once a minute, and at the end of the
                run, whatever ends it.  Where it exists already, the batches that it holds are taken from it and not
                measured again; ``batches`` must begin with them.

        Raises:
            ValueError: token ids outside of the model's vocabulary; padding in a norm's input that does not show which
                rows it is; a survey loaded from a file; a checkpoint of another survey, or of other batches.
            TypeError: token ids that are no tensor, or of a non-integer dtype.
        """
        if self._passes is None:
            raise ValueError("model: a survey loaded from a file holds results only; make a new one and merge")
        held = self._held(checkpoint)
        number, digest, begun = 0, self.digest, held.batches if held else self.batches
        due = time.monotonic()
        try:
            for batch in tqdm(batches, desc="survey", unit="batch", disable=not progress):
                number, digest = number + 1, _digest(digest, entries(batch))
                if held is None or number > held.batches:
                    self._measure(batch, digest)
                elif number == held.batches:
                    if digest != held.digest:
                        raise ValueError(f"checkpoint: {os.fspath(checkpoint)} holds other batches than these")
                    vars(self).update({name: getattr(held, name) for name in (*_COUNTED, "_tally")})
                if checkpoint is not None and self.batches > begun and time.monotonic() >= due:
                    self.save(checkpoint)
                    due = time.monotonic() + SAVE_EVERY
        finally:
            if checkpoint is not None and self.batches > begun:
                self.save(checkpoint)
        if held is not None and number < held.batches:
            raise ValueError(f"checkpoint: {os.fspath(checkpoint)} holds {held.batches} batches, got {number}")
        lost = self._tally.excluded()[..., 0].sum(1)
        if lost.any():
            where = ", ".join(self.sites[i]["site"] for i in lost.nonzero().flatten())
            left_out = f"{lost.sum()} vectors with NaN or Inf entries were left out"
            warnings.warn(f"{left_out}, at {where:.200}; see Survey.excluded()", stacklevel=2)
        return self

    def _held(self, checkpoint: str | os.PathLike | None) -> Survey | None:
        """The survey in a checkpoint that exists."""
        if checkpoint is None or not Path(checkpoint).exists():
            return None
        if self.batches:
            raise ValueError(f"checkpoint: {os.fspath(checkpoint)} exists, and this survey holds batches already")
        held = Survey.load(checkpoint)
        self._check_same(held, "checkpoint")
        return held

    def _measure(self, batch: Tensor | Mapping, digest: str) -> None:
        model = self._passes.model
        device = next((p.device for p in model.parameters()), torch.device("cpu"))
        held = self._tally = self._tally.to(device_of_sums(device))
        after, found = Tally(held.sums.clone(), held.squares.clone(), held.bins), [held.bins.new_empty(0)]
        number = {site["site"]: i for i, site in enumerate(self.sites)}
        waiting = defaultdict(dict)

        def take() -> None:
            for (member, _), projected in waiting.items():
                at = [*projected]
                of_some = self._meter.measure(at, [*projected.values()], member)
                sums, squares, bins = (tensor.to(held.bins.device) for tensor in of_some)
                both = merged(chosen(after.sums, at), chosen(after.squares, at), sums, squares)
                for i, *of_norm in zip(at, *both, strict=True):
                    after.sums[i], after.squares[i] = of_norm
                found.append(bins.flatten())
            waiting.clear()

        def look(site, member, x_in, x_out):
            i = number[site.name]
            times = sum(i in projected for projected in waiting.values())
            waiting[member, times][i] = self._meter.project(i, x_in, x_out, member.device)
            if sum(map(len, waiting.values())) * member.shape[1] > _ROWS:
                take()

        with evaluating(model):
            tokens = self._passes.run("batches", batch, look)
        take()
        bins = torch.cat(found)
        one = bins.new_ones(1).expand(len(bins))
        # Nothing is half done after an interrupt: one step for the sums, one for all histograms.
        vars(self).update(_tally=after, tokens=self.tokens + tokens, batches=self.batches + 1, digest=digest)
        after.bins.scatter_add_(0, bins, one)

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
        tally, k = self._tally.to("cpu"), len(self.directions)
        of_both = merged(*(part[..., at] for at in ([0], [1]) for part in (tally.sums, tally.squares)))
        sums, squares = (
            torch.cat(parts, -1).movedim(-1, 1) for parts in zip((tally.sums, tally.squares), of_both, strict=True)
        )  # (norm, positions, side, …), in the order of rows
        tokens, cut = zip(*map(_quantiles, tally.counts), strict=True)
        tokens, cut = torch.stack(tokens), torch.stack(cut)
        count = sums[..., -1:]
        angle, cos2, abs_cos = (sums[..., : 3 * k] / count).where(tokens.repeat(1, 1, 1, 3) > 0, torch.nan).split(k, -1)
        length, share, drop, with_drop = (sums[..., 3 * k + i, None].expand(tokens.shape) for i in range(4))
        columns = dict(
            tokens=tokens,
            **dict(mean_deg=angle, std_deg=(squares / tokens).sqrt()),
            **dict(zip(("q05_deg", "q50_deg", "q95_deg"), cut.unbind(-1), strict=True)),
            **dict(
                mean_abs_cos=abs_cos, occupancy=cos2 * torch.tensor([s["dim"] for s in self.sites])[:, None, None, None]
            ),
            **dict(mean_norm=length / count, top_share=share / count, drop_error=drop / with_drop),
        )
        rows = (
            (site["site"], side, direction, positions, site["kind"], site["dim"], direction in site["directions"])
            for site, positions, side, direction in itertools.product(self.sites, POSITIONS, SIDES, self.directions)
        )
        table = pd.DataFrame(rows, columns=["site", "side", "direction", "positions", "kind", "dim", "fits"])
        table = table.assign(**{name: column.flatten().numpy() for name, column in columns.items()})
        return table[table.pop("fits")].reset_index(drop=True)

    def excluded(self) -> pd.DataFrame:
        """Vectors that have no angle: one row a (site, side), columns ``nonfinite`` and ``zero``."""
        places = itertools.product([site["site"] for site in self.sites], SIDES)
        counts = self._tally.excluded().flatten(0, 1).T.numpy()
        return pd.DataFrame(places, columns=["site", "side"]).assign(nonfinite=counts[0], zero=counts[1])

    def save(self, path: str | os.PathLike) -> None:
        """Write the state to ``path``, a safetensors file: all of it or, on an error, nothing."""
        about = json.dumps({name: getattr(self, name) for name in (*_SHARED, *_COUNTED)})
        tally = self._tally.to("cpu")
        bins = tally.bins.nonzero().flatten()  # nearly all are zero
        tensors = dict(sums=tally.sums, squares=tally.squares, bins=bins, counted=tally.bins[bins])
        path = Path(path)
        part = path.with_name(path.name + ".part")
        try:
            part.write_bytes(save(tensors, dict(about=about, digest=_digest(_FORMAT + about, tensors))))
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)

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
        vars(survey).update(json.loads(about), _passes=None)
        survey.directions = (*survey.directions,)
        survey._tally = Tally.empty(len(survey.sites), len(survey.directions))
        survey._tally.sums, survey._tally.squares = tensors["sums"], tensors["squares"]
        survey._tally.bins[tensors["bins"]] = tensors["counted"]
        return survey

    def merge(self, other: Survey) -> Survey:
        """Both surveys as one; this one is changed and returned.

        Raises:
            ValueError: the other is of another model, other directions or another seed.
        """
        self._check_same(other, "other")
        mine, theirs = self._tally, other._tally.to(self._tally.bins.device)
        both = merged(mine.sums, mine.squares, theirs.sums, theirs.squares)
        self._tally = Tally(*both, mine.bins + theirs.bins)
        self.tokens, self.batches = self.tokens + other.tokens, self.batches + other.batches
        self.digest = hashlib.sha256("".join(sorted([self.digest, other.digest])).encode()).hexdigest()
        return self

    def _check_same(self, other: Survey, argument: str) -> None:
        for name in _SHARED:
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                raise ValueError(f"{argument}: expected the same {name}, {mine!r:.80}, got {theirs!r:.80}")


def _quantiles(counts: Tensor) -> tuple[Tensor, Tensor]:
    """Of one norm's histograms, first positions, the rest and all: totals and 5 %, 50 % and 95 % quantiles."""
    counts = torch.cat([counts, counts.sum(-2, keepdim=True)], -2).movedim(-2, 0)
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
