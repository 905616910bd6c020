"""The claims of the sources, in the order in which they stand there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import pandas as pd

from normgeom.claims.during import comparable_losses, little_at_checkpoints, no_growth
from normgeom.claims.evidence import Pair, only
from normgeom.claims.inference import little_along_one, much_along_one, ordinary
from normgeom.claims.judging import Judgement
from normgeom.claims.shapes import at_surface, axes_stay


class Claim(NamedTuple):
    """A claim of a source.

    Attributes:
        judge: the function that judges the rows that the claim speaks of.
        table: ``"survey"``, a table of :func:`normgeom.claims.models`, or a table of :class:`Pair`, by its name.
        of: the values that columns have in these rows.
        without: a model that the claim does not speak of.
    """

    judge: Callable[[pd.DataFrame], Judgement]
    table: str
    of: Mapping[str, str] = {}
    without: str = ""

    @property
    def needs(self) -> str:
        """What the claim speaks of, a ``"model"`` or a ``"pair"``."""
        return "model" if self.table == "survey" else "pair"

    def asked(self, evidence: pd.DataFrame | Pair) -> Judgement | None:
        """What a model's table or a pair says of the claim; None where the claim does not speak of this model."""
        if self.needs == "pair":
            table = getattr(evidence, self.table)
            return self.judge(None if table is None else only(table, self.of))
        rows = only(evidence, self.of)
        rows = rows[rows.model != self.without]
        return None if rows.empty else self.judge(rows)


CLAIMS: dict[str, Claim] = {
    # The geometry paper, abstract, section 3.2, figures 3 and 6: hidden vectors have on average no component along 1
    # before and after any norm, with a small spread; figures 6 and 7: before the norms of GPT-2 XL there is one.
    "before-layer": Claim(little_along_one, "survey", {"kind": "layer", "side": "in"}, without="gpt2-xl"),
    "after-layer": Claim(little_along_one, "survey", {"kind": "layer", "side": "out"}),
    "exception": Claim(much_along_one, "survey", {"model": "gpt2-xl", "kind": "layer", "side": "in"}),
    "before-rms": Claim(little_along_one, "survey", {"kind": "rms", "side": "in"}),
    "after-rms": Claim(little_along_one, "survey", {"kind": "rms", "side": "out"}),
    # The geometry paper, section 3.3, figures 4, 14, 17, 20, 23, 26, 29, 32 and 35: in training, hidden vectors are at
    # 90° to 1, from early checkpoints on and whatever the layer.
    "training-layer": Claim(little_at_checkpoints, "angles", {"norm": "layer", "side": "in"}),
    "training-rms": Claim(little_at_checkpoints, "angles", {"norm": "rms", "side": "in"}),
    # Ours, suggested by section 3.3: training leaves no more along 1 at the last norm than along a random direction.
    "growth-layer": Claim(no_growth, "angles", {"norm": "layer", "side": "in"}),
    "growth-rms": Claim(no_growth, "angles", {"norm": "rms", "side": "in"}),
    # The geometry paper, section 3.3, figures 4 and 7 to 13: 1 behaves as arbitrary vectors do.
    "ordinary-layer": Claim(ordinary, "survey", {"kind": "layer", "side": "in"}),
    "ordinary-rms": Claim(ordinary, "survey", {"kind": "rms", "side": "in"}),
    # The geometry paper, section 3.3: downstream performance with RMSNorm is comparable to that with LayerNorm.
    "losses": Claim(comparable_losses, "loss"),
    # The summary of the dynamics note, key results: typical outputs of LayerNorm lie near the surface of its ellipsoid.
    "surface": Claim(at_surface, "forms", {"norm": "layer"}),
    # Ours, suggested by the note's next checks: the principal axes by the middle of training are those of its end.
    "axes": Claim(axes_stay, "forms", {"norm": "layer"}),
}
