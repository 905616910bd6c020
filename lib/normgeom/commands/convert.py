"""From a model's name to a folder with the RMSNorm model that computes the same, checked on text before that."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from normgeom.commands.loading import check_unconverted, load_with_head
from normgeom.commands.survey import DTYPES, read_config
from normgeom.jobs.folders import held, versions
from normgeom.jobs.processes import check_choice
from normgeom.models.flow import double_throughout
from normgeom.models.watch import evaluating, forward
from normgeom.surgery.converted import check_free, save_converted
from normgeom.surgery.surgery import refusal, to_rms_norm
from normgeom.text.corpora import load_corpus
from normgeom.text.tokens import TokenBatches


@dataclass(frozen=True)
class Agreement:
    """How far logits are from those of the unconverted model, computed in float64 throughout: the largest difference.

    Attributes:
        exact: of the model converted in float64: what the conversion costs.
        converted: of what is written, in its dtype.
        unconverted: of the model as it was, in that same dtype: what its own rounding costs.
        largest: the largest logit, for comparison.
        tokens: how many were read.
        dtype: in which the model is written.
    """

    exact: float
    converted: float
    unconverted: float
    largest: float
    tokens: int
    dtype: str


def convert_model(
    model: str,
    out: str | os.PathLike,
    bound: float = 1e-10,
    tokens: int = 1024,
    length: int | None = None,
    corpus: str = "stdlib",
    dtype: str = "auto",
    revision: str | None = None,
    tokenizer: str | None = None,
) -> Agreement:
    """Convert a pre-norm LayerNorm model to RMSNorm, see that it computes the same, and write it to a folder.

    :func:`normgeom.to_rms_norm` is applied twice, on the CPU: in float64, where the logits on the first ``tokens`` of
    ``corpus`` must be what they were, and in ``dtype``, which is written.  :func:`normgeom.load_converted` loads it;
    ``AutoModelForCausalLM`` refuses it.
    Memory holds the weights three times, twice of them in float64.

    Args:
        model: a name on the hub or a folder.
        out: a folder that does not exist or is empty, or a link to one that is.  It takes weights, configuration and
            tokenizer, all or nothing.
        bound: of the largest difference between two logits in float64.
        tokens, length, corpus: what is read; ``length`` as in :func:`normgeom.commands.survey.survey_model`.
        dtype: one of ``normgeom.commands.survey.DTYPES``; ``"auto"`` is that of the saved weights.
        revision: a branch, tag or commit of a model on the hub.
        tokenizer: as in :func:`normgeom.text.tokens.load_tokenizer`; by default the model's.

    Raises:
        ValueError: an argument that cannot be; a model that cannot be converted; a difference above ``bound``.
            Nothing has been written then.
        OSError: model or corpus are out of reach or damaged, or the folder cannot be written or is in use.
    """
    out = check_free(out)
    check_choice("dtype", dtype, DTYPES)
    if not bound >= 0:
        raise ValueError(f"bound: expected a number >= 0, got {bound}")
    if tokens < 1:
        raise ValueError(f"tokens: expected at least 1, got {tokens}")
    check_unconverted(model)
    with held(out, out.with_name(f".{out.name}.lock")):
        check_free(out)  # since then another run may have filled it
        commit, encoder, window = read_config(model, revision, length, tokenizer)
        read = load_corpus(corpus)
        network = load_with_head(model, revision=commit, dtype=dtype)
        if reason := refusal(network):
            raise ValueError(reason)
        if length is None:
            window = min(window, tokens)
        batches = list(TokenBatches(read, encoder, tokens, window, 1))
        if not batches:
            raise ValueError(f"corpus: expected {corpus} to hold a window of {window} tokens, it has fewer")
        found = agreement(network, batches)
        if not 0 < found.largest < math.inf:
            raise ValueError(f"model: expected logits to compare on this text, the largest is {found.largest}")
        if not found.exact <= bound:  # NaN, too
            raise ValueError(f"bound: expected logits to differ by at most {bound:g}, got {found.exact:.1e}")
        about = dict(
            model=dict(name=model if commit else Path(model).resolve().name, revision=revision, commit=commit),
            corpus=read.provenance,
            tokenizer=encoder.name,
            agreement=asdict(found),
            versions=versions(),
        )
        save_converted(network, out, about, encoder.save)
        return found


def agreement(network: nn.Module, batches: Sequence[Tensor]) -> Agreement:
    """Convert a model in place, in its dtype, and compare it on the way with what it computes in float64.

    Args:
        network: a pre-norm LayerNorm language model on the CPU; :func:`normgeom.to_rms_norm` is applied to it.
        batches: token ids ``(batch, length)``.

    Returns:
        how far its logits are from those in float64, before and after.

    Raises:
        ValueError: it cannot be converted, or there is no batch; nothing has been changed then.
    """
    if not batches:
        raise ValueError("batches: expected at least one, got none")
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
