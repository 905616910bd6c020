"""What the sources claim, judged from recorded tables: each claim holds, fails, or cannot be told."""

import os

import pandas as pd

from normgeom.claims.evidence import Pair, check_record, models, pairs
from normgeom.claims.judging import FAILS, HOLDS, UNTOLD, Claim, Judgement
from normgeom.claims.overview import ends, observations, overview
from normgeom.claims.stated import CLAIMS
from normgeom.records import FOLDER

__all__ = [
    "CLAIMS",
    "FAILS",
    "HOLDS",
    "UNTOLD",
    "Claim",
    "Judgement",
    "Pair",
    "check_record",
    "ends",
    "judged",
    "models",
    "observations",
    "overview",
    "pairs",
]

COLUMNS = ("claim", "evidence", *Judgement._fields)


def judged(folder: str | os.PathLike = FOLDER) -> pd.DataFrame:
    """Every claim asked of every record in a folder that it speaks of.

    Returns:
        one row a claim and a record, in the order of :data:`CLAIMS`: ``claim``, its label; ``evidence``, the model's
        name or the pair's size; ``verdict``, ``number``, ``null``, ``spread``, ``sentence`` as in :class:`Judgement`.

    Raises:
        ValueError: a record is malformed (:func:`check_record`).
    """
    evidence = {"model": models(folder), "pair": pairs(folder)}
    rows = [
        (label, name, *found)
        for label, claim in CLAIMS.items()
        for name, tables in evidence[claim.needs].items()
        if (found := claim.asked(tables)) is not None
    ]
    return pd.DataFrame(rows, columns=COLUMNS)
