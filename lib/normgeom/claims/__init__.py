"""What the sources claim, judged from recorded tables: each claim holds, fails, or cannot be told."""

import os

import pandas as pd

from normgeom.claims.evidence import models, pairs
from normgeom.claims.judging import FAILS, HOLDS, UNTOLD, Judgement
from normgeom.claims.overview import ends, observations, overview
from normgeom.claims.stated import CLAIMS
from normgeom.records import FOLDER

__all__ = ["CLAIMS", "FAILS", "HOLDS", "UNTOLD", "ends", "judged", "models", "observations", "overview", "pairs"]


def judged(folder: str | os.PathLike = FOLDER) -> pd.DataFrame:
    """Every claim asked of every record in a folder that it speaks of.

    Returns:
        one row a claim and a record, in the order of :data:`CLAIMS`: ``claim``, its label; ``evidence``, the model's
        name or the pair's size; ``verdict`` and ``sentence`` as in :class:`normgeom.claims.judging.Judgement`.

    Raises:
        FileNotFoundError: a table is there without its provenance, or a model's angles without its nulls.
        ValueError: a table lacks a column.
    """
    evidence = {"model": models(folder), "pair": pairs(folder)}
    rows = [
        (label, name, *found)
        for label, claim in CLAIMS.items()
        for name, tables in evidence[claim.needs].items()
        if (found := claim.asked(tables)) is not None
    ]
    return pd.DataFrame(rows, columns=["claim", "evidence", *Judgement._fields])
