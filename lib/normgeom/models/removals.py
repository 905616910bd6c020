"""What the parts of a model's last stream do to its predictions: as attributions say, and when they are taken out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pandas as pd
import torch
from torch import Tensor, nn

from normgeom.models.calls import evaluating, forward
from normgeom.models.stream import Effects, Readout, components, effects, silenced

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    Ids = Int[Tensor, "batch length"]
    Stream = Float[Tensor, "batch inner d"]
    Numbers = Float[Tensor, "batch inner"]


@dataclass(frozen=True)
class Predictions:
    """How a pre-norm model predicts the tokens of some texts, its last stream taken apart.

    Only inner positions count: the first of a text is unlike all others, and behind the last no token is known.

    Attributes:
        model: that :func:`normgeom.models.layouts.layout_of` knows.
        ids: ``(batch, length)``.
        readout: its final norm and head.
        parts: of the last stream, ``(batch, length − 2, d)`` each (:func:`normgeom.models.stream.components`).
        logits: the model's own, ``(batch, length − 2, vocabulary)``.
    """

    model: nn.Module
    ids: Ids
    readout: Readout
    parts: dict[str, Stream]
    logits: Tensor

    @classmethod
    def of(cls, model: nn.Module, ids: Ids) -> Predictions:
        """Run the model twice on ``ids`` ``(batch, length)``, for its parts and for its logits.

        Raises:
            ValueError: texts of fewer than 3 tokens, or what :func:`normgeom.models.stream.components` refuses.
        """
        if ids.dim() != 2 or ids.shape[1] < 3:
            raise ValueError(f"ids: expected (batch, length) with length at least 3, got {tuple(ids.shape)}")
        parts = {name: part[:, 1:-1] for name, part in components(model, ids).items()}
        return cls(model, ids, Readout.of(model), parts, _inner_logits(model, ids))

    @property
    def stream(self) -> Stream:
        """The sum of the parts, ``(batch, length − 2, d)``."""
        return sum(self.parts.values())

    @property
    def following(self) -> Tensor:
        """The token that comes next in the text, ``(batch, length − 2)``."""
        return self.ids[:, 2:].to(self.logits.device)

    @property
    def rival(self) -> Tensor:
        """The likeliest token except :attr:`following`, ``(batch, length − 2)``."""
        first, second = self.logits.topk(2, -1).indices.unbind(-1)
        return torch.where(first == self.following, second, first)

    @property
    def above_mean(self) -> Stream:
        """Along which n raises the logit of the next token above the mean logit (:meth:`Readout.direction`)."""
        return self.readout.direction(self.following)

    @property
    def against_rival(self) -> Stream:
        """Along which n raises the logit of the next token above that of its rival."""
        return self.above_mean - self.readout.direction(self.rival)

    def lead(self, logits: Tensor) -> Numbers:
        """The logit of the next token above the mean logit, of any ``(batch, length − 2, vocabulary)`` logits."""
        return _pick(logits, self.following) - logits.mean(-1)

    def gap(self) -> Numbers:
        """The logit of the next token less that of its rival."""
        return self._apart(self.logits)

    def _apart(self, logits: Stream) -> Numbers:
        return _pick(logits, self.following) - _pick(logits, self.rival)

    def effects(self, w: Stream) -> dict[str, Effects]:
        """:func:`normgeom.models.stream.effects` of each part on what ``w`` ``(batch, length − 2, d)`` reads."""
        x, readout = self.stream, self.readout
        return {name: effects(c, x, w, readout.eps, readout.centered) for name, c in self.parts.items()}

    def faded(self, name: str, kept: Sequence[float] = tuple(k / 20 for k in range(20, -1, -1))) -> pd.DataFrame:
        """The logit of the next token above the mean one while a part fades at the final norm, averaged over positions.

        Columns ``logit``, without the readout's constant; ``frozen``, with the scale held; ``tangent``, by the slope at
        the whole part; and what the ``part`` and the ``others`` then bring to ``logit``.

        Args:
            name: of the part, which becomes the name of the index.
            kept: the factors of the part, which are the rows.
        """
        x, w, c, how = self.stream, self.above_mean, self.parts[name], (self.readout.eps, self.readout.centered)
        whole, frozen = (effects(v, x, w, *how).frozen for v in (x, c))
        rows = {}
        for left in kept:
            gone = effects((1 - left) * c, x, w, *how)
            logit, part = whole - gone.removed, left * frozen / gone.ratio
            answers = (logit, whole - gone.frozen, whole - gone.slope, part, logit - part)
            names = ("logit", "frozen", "tangent", "part", "others")
            rows[left] = {name: float(answer.mean()) for name, answer in zip(names, answers, strict=True)}
        return pd.DataFrame.from_dict(rows, orient="index").rename_axis(name)

    @property
    def whole(self) -> Numbers:
        """:meth:`lead` of the logits without the readout's constant: what the parts add up to."""
        return self.lead(self.logits - self.readout.constant)

    def sizes(self) -> dict[str, float]:
        """Root mean squares over positions of the two wholes that parts are asked about, without the constant."""
        difference = self._apart(self.logits - self.readout.constant)
        return {"the logit above the mean": rms(self.whole), "the difference": rms(difference)}

    def spreads(self) -> dict[str, float]:
        """Standard deviations over tokens: of the readout's constant, and of the logits, averaged over positions."""
        return {"the constant": float(self.readout.constant.std()), "final logits": float(self.logits.std(-1).mean())}

    def total_effects(self) -> dict[str, Numbers]:
        """By how much each part raises :meth:`lead`: with it less without it, all that comes later reacting.

        Runs the model once for each part.
        """
        found = {}
        for name in self.parts:
            with silenced(self.model, name):
                found[name] = self.lead(self.logits) - self.lead(_inner_logits(self.model, self.ids))
        return found


def answers_by_part(found: Mapping[str, Effects], total: Mapping[str, Numbers]) -> pd.DataFrame:
    """Four answers to what each part does, one row a part: their means over positions, and how they disagree.

    Columns ``share κ``, ``frozen``, ``slope``, ``direct`` (:attr:`Effects.removed`), ``total``, and ``s'/s`` are means;
    then come those of :func:`errors_by_part`, and ``direct off total``, as far as direct is off total relative to it.

    Args:
        found: as :meth:`Predictions.effects` gives them.
        total: as :meth:`Predictions.total_effects` does, of the same parts.
    """
    means = {
        name: {
            "share κ": float(e.share.mean()),
            "frozen": float(e.frozen.mean()),
            "slope": float(e.slope.mean()),
            "direct": float(e.removed.mean()),
            "total": float(total[name].mean()),
            "s'/s": float(e.ratio.mean()),
        }
        for name, e in found.items()
    }
    answers = pd.DataFrame.from_dict(means, orient="index").join(errors_by_part(found))
    answers["direct off total"] = [relative_rms(e.removed, total[name]) for name, e in found.items()]
    return answers


def added_up(answers: pd.DataFrame, run: Predictions) -> pd.DataFrame:
    """Columns of :func:`answers_by_part`, each the sum over parts; below ``frozen`` the mean of the logit itself."""
    sums = {"all parts": answers.sum(), "the logit itself": {"frozen": float(run.whole.mean())}}
    return pd.DataFrame(sums).T[answers.columns]


def errors_by_part(found: Mapping[str, Effects], where: Tensor | None = None) -> pd.DataFrame:
    """How far the two attributions of each part are off its direct effect, one row a part.

    Columns ``error of frozen`` and ``error of slope``, relative to direct (:func:`relative_rms`), and ``rank
    correlation``, that of frozen with direct (:func:`rank_correlation`).

    Args:
        found: as :meth:`Predictions.effects` gives them.
        where: at which positions, true or false as ``(batch, inner)``; by default at all.
    """
    rows = {}
    for name, e in found.items():
        frozen, slope, direct = (a if where is None else a[where] for a in (e.frozen, e.slope, e.removed))
        rows[name] = {
            "error of frozen": relative_rms(frozen, direct),
            "error of slope": relative_rms(slope, direct),
            "rank correlation": rank_correlation(frozen, direct),
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def rms(a: Tensor) -> float:
    """The root of the mean square of all entries."""
    return float(a.square().mean().sqrt())


def relative_rms(a: Tensor, b: Tensor) -> float:
    """The root mean square of ``a − b`` in units of that of ``b``."""
    return rms(a - b) / rms(b)


def rank_correlation(a: Tensor, b: Tensor) -> float:
    """Spearman's, over all entries; ties share the mean of their ranks."""
    first, second = (pd.Series(t.flatten().tolist()).rank() for t in (a, b))
    return float(first.corr(second))


def _inner_logits(model: nn.Module, ids: Ids) -> Tensor:
    with evaluating(model):
        return forward(model, ids).logits[:, 1:-1]


def _pick(logits: Tensor, tokens: Tensor) -> Tensor:
    return logits.gather(-1, tokens[..., None]).squeeze(-1)
