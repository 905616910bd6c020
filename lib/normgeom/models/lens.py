"""The logit lens: the stream on its way, read as if it were the last."""

from __future__ import annotations

import pandas as pd
from torch import Tensor

from normgeom.models.removals import Predictions


def lenses(run: Predictions) -> pd.DataFrame:
    """Read the stream behind each part through the final norm and head, with its own scale and with the final one.

    One row a part, in the order in which they are written; means over positions.  Columns: ``scale`` of the stream;
    ``KL, own scale / nats`` and ``KL, final scale / nats``, the :func:`divergence` of the lens from the model's
    prediction; ``first choice right, own`` and ``first choice right, final``, how often it is the model's; ``both
    choose the same``, how often the two lenses agree.
    """
    readout, last, h = run.readout, run.readout.scale(run.stream), 0
    rows = {}
    for name, part in run.parts.items():
        h = h + part
        own, final = readout.logits(h), readout.logits(h, last)
        rows[name] = {
            "scale": float(readout.scale(h).mean()),
            "KL, own scale / nats": divergence(run.logits, own),
            "KL, final scale / nats": divergence(run.logits, final),
            "first choice right, own": _agree(own, run.logits),
            "first choice right, final": _agree(final, run.logits),
            "both choose the same": _agree(own, final),
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def divergence(logits: Tensor, others: Tensor) -> float:
    r"""The Kullback–Leibler divergence :math:`\sum_tp_t\ln(p_t/q_t)` of ``others`` q from ``logits`` p, in nats.

    The vocabulary is the last axis; the mean over all others.
    """
    log_p, log_q = logits.log_softmax(-1), others.log_softmax(-1)
    return float((log_p.exp() * (log_p - log_q)).sum(-1).mean())


def _agree(logits: Tensor, others: Tensor) -> float:
    """The share of positions at which both have their largest entry at the same token."""
    return float((logits.argmax(-1) == others.argmax(-1)).double().mean())
