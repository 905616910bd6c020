"""From a model's name to a folder with the RMSNorm model that computes the same, checked on text before that."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from normgeom.commands.loading import described, load_config, load_model, most_tokens
from normgeom.jobs import PROVENANCE, atomic_path, now, versions, write_json
from normgeom.models.flow import double_throughout
from normgeom.models.watch import evaluating, forward
from normgeom.surgery.converted import save_converted
from normgeom.surgery.surgery import to_rms_norm
from normgeom.text.corpora import load_corpus
from normgeom.text.tokens import first_windows, load_tokenizer

BOUND = 1e-10  # of a logit in float64
TOKENS, LENGTH = 1024, 512


class Agreement(NamedTuple):
    """The largest difference of logits from those of the unconverted model, computed in float64 throughout."""

    exact: float  # of the model converted in float64: what the conversion costs
    converted: float  # of what is written, in its dtype
    unconverted: float  # of the model as it was, in that same dtype: what its own rounding costs
    largest: float  # the largest logit, for comparison
    tokens: int  # how many were read
    dtype: str  # in which the model is written


def convert_model(model: str, out: str | os.PathLike) -> dict:
    """Convert a pre-norm LayerNorm model to RMSNorm, check that it computes the same, and write it to a new folder.

    :func:`normgeom.to_rms_norm` is applied twice, on the CPU: in float64, where the logits on 1024 tokens of the
    standard library's documentation must stay the same, and in the dtype of the saved weights, which is written.
    Returns what ``out/provenance.json`` holds; ``had`` has the entries of :class:`Agreement`.
    """
    out = Path(out).resolve()
    if out.exists() and any(out.iterdir()):
        raise ValueError(f"out: expected a new or empty folder, got {out}; name another")
    config = load_config(model)
    encoder = load_tokenizer(model, config)
    corpus = load_corpus("stdlib")
    network = load_model(model, head=True)
    found = agreement(network, first_windows(corpus, encoder, TOKENS, most_tokens(config, LENGTH), 1))
    if not found.exact <= BOUND:  # NaN, too
        raise ValueError(f"model: expected logits to differ by at most {BOUND:g} in float64, got {found.exact:.1e}")
    asked = dict(work="conversion", model=described(model), tokenizer=encoder.name, versions=versions())
    note = dict(asked=asked, had=found._asdict() | dict(finished=now()))
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(out) as part:
        save_converted(network, part)
        encoder.save(part)
        write_json(part / PROVENANCE, note)
    return note


def agreement(network: nn.Module, batches: Sequence[Tensor]) -> Agreement:
    """Convert a model in place, in its dtype, and compare its logits before and after with those in float64.

    Args:
        network: a pre-norm LayerNorm language model on the CPU; a ValueError if it cannot be converted.
        batches: token ids ``(batch, length)``.
    """
    exact = copy.deepcopy(network).double()
    with double_throughout():
        before = _logits(exact, batches)
        exact = _difference(before, _logits(to_rms_norm(exact), batches))
    unconverted = _difference(before, _logits(network, batches))
    converted = _difference(before, _logits(to_rms_norm(network), batches))
    largest = max(float(logits.abs().max()) for logits in before)
    count = sum(batch.numel() for batch in batches)
    dtype = str(network.dtype).removeprefix("torch.")
    return Agreement(exact, converted, unconverted, largest, count, dtype)


def _logits(model: nn.Module, batches: Iterable[Tensor]) -> list[Tensor]:
    with evaluating(model):
        return [forward(model, batch).logits.double() for batch in batches]


def _difference(a: list[Tensor], b: list[Tensor]) -> float:
    # torch's maximum, unlike Python's, keeps a NaN
    return float(torch.stack([(x - y).abs().max() for x, y in zip(a, b, strict=True)]).max())
