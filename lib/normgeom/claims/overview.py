"""Verdicts side by side, those that nobody has reached among them; and the book's observations on other networks."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from normgeom.claims.during import of_main_part
from normgeom.claims.evidence import Pair, only, read
from normgeom.claims.stated import CLAIMS
from normgeom.records import FOLDER

# The models of the paper's table 1, by the names of their files in reruns/ and of their records.
MODELS = ("gpt2-xl", "gpt-neo-1.3b", "pythia-1.4b", "gpt-j-6b", "pythia-6.9b", "llama-2-7b", "llama-3-8b")
PAIRS = ("70M", "160M", "410M", "1B")  # the sizes of the paper's table 2, by the names of their files in reruns/


def overview(found: pd.DataFrame, needs: str) -> pd.DataFrame:
    """One row a model or a pair, those of the sources first, with a verdict on each claim that speaks of it.

    Args:
        found: as :func:`normgeom.claims.judged` gives it.
        needs: ``"model"`` or ``"pair"``.

    Returns:
        a column a claim, None where it does not speak of the row or where nobody has measured it; and ``measured``,
        ``"yes"`` or the command that measures it.  Of a model, which has norms of one kind, claims that differ in that
        kind alone share a column.
    """
    labels = {label: re.sub("-(layer|rms)$", "", label) if needs == "model" else label for label in _asking(needs)}
    rows = found[found.claim.isin(labels)]
    asked = {"model": MODELS, "pair": PAIRS}[needs]
    evidence = list(dict.fromkeys([*asked, *rows.evidence]))
    table = rows.assign(claim=rows.claim.map(labels)).pivot(index="evidence", columns="claim", values="verdict")
    table = table.reindex(index=evidence, columns=list(dict.fromkeys(labels.values()))).astype(object)
    table = table.where(table.notna(), None)
    measured = set(rows.evidence)
    return table.assign(measured=["yes" if name in measured else f"make scale ONLY={name}" for name in evidence])


def _asking(needs: str) -> list[str]:
    return [label for label, claim in CLAIMS.items() if claim.needs == needs]


def ends(found: Mapping[str, Pair]) -> pd.DataFrame:
    """How each pair ends: losses on held-out text, and what lies along 1 at the last norm.

    Args:
        found: as :func:`normgeom.claims.pairs` gives it.

    Returns:
        one row a pair that has angles and losses: ``seeds``, how many; for each norm its mean loss in nats a token, and
        ``along 1``, the occupancy of 1 over the median of random signs, the median over seeds.
    """
    rows = {}
    for size, pair in found.items():
        if pair.angles is None or pair.loss is None:
            continue
        last = only(pair.angles, {"direction": "uniform", "side": "in"})
        last = last[(last.step == last.step.max()) & (last.site == last.site.iloc[-1])]
        along = (last.occupancy / last["median"]).groupby(last.norm).median()
        loss = of_main_part(pair.loss).groupby("norm").loss.mean()
        rows[size] = {"seeds": last.seed.nunique()}
        for norm, title in (("layer", "LayerNorm"), ("rms", "RMSNorm")):
            rows[size] |= {f"loss, {title}": loss[norm], f"along 1, {title}": along[norm]}
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("pair")


def observations(folder: str | os.PathLike = FOLDER) -> pd.DataFrame:
    """The book's own observations on other networks beside the chapters' small ones, in units of their bounds.

    Returns:
        one row a claim: ``small``, the largest deviation of the chapter's networks over the seeds that it was tried at;
        and a column for each network, by the NAME in ``observed-NN-NAME``, NaN where it was not judged.  An observation
        holds where the number is at most 1.

    Raises:
        FileNotFoundError, ValueError: as :func:`normgeom.claims.evidence.read`.
    """
    small, others = {}, {}
    for path in sorted(Path(folder).glob("observed-*.csv")):
        _, chapter, name = path.stem.split("-", 2)
        judged = read(path, "observed").table.set_index("claim")
        others.setdefault(name, {}).update(judged.deviation / judged.bound)
        tried = pd.read_csv(Path(folder) / f"claims-{chapter}.csv").groupby("claim", sort=False).deviation.max()
        small.update(tried[[claim for claim in tried.index if claim in judged.index]])
    return pd.DataFrame({"small": small, **others}).rename_axis("claim")
