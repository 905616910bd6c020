"""From a model's name to a folder with the RMSNorm model that computes the same, checked on text before that."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from normgeom.commands.loading import described, load_config, load_model, most_tokens
from normgeom.jobs import claimed, now, remove, versions
from normgeom.models.flow import double_throughout
from normgeom.models.watch import evaluating, forward
from normgeom.surgery.converted import save_converted
from normgeom.surgery.surgery import to_rms_norm
from normgeom.text.corpora import load_corpus
from normgeom.text.tokens import TokenBatches, load_tokenizer

BOUND = 1e-10  # of a logit in float64
TOKENS, LENGTH = 1024, 512


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


def convert_model(model: str, out: str | os.PathLike) -> dict:
    """Convert a pre-norm LayerNorm model to RMSNorm, see that it computes the same, and write it to a new folder.

    :func:`normgeom.to_rms_norm` is applied twice, on the CPU: in float64, where the logits on 1024 tokens of the
    standard library's documentation must be what they were, and in the dtype of the saved weights, which is written.
    Of a folder where that is done already, all that happens is that its files are seen to be as they were left.

    Returns:
        what ``out/provenance.json`` holds: ``asked``, ``files``, and ``had`` with the entries of :class:`Agreement`.

    Raises:
        ValueError: the folder holds something else; the model cannot be converted, or computes something else
            afterwards.
        OSError: the model is out of reach or damaged, or the folder cannot be written.
    """
    out, config = Path(out), load_config(model)
    encoder, corpus = load_tokenizer(model, config), load_corpus("stdlib")
    asked = dict(model=described(model), tokenizer=encoder.name, corpus=corpus.provenance, versions=versions())
    with claimed(out, "conversion", asked, together=True) as claim:
        if "had" in claim.note and all(map(claim.check, claim.files)):
            warnings.warn(f"{out} holds this conversion already, nothing is written", stacklevel=2)
            return claim.note
        network = load_model(model, head=True)
        found = agreement(network, list(TokenBatches(corpus, encoder, TOKENS, most_tokens(config, LENGTH), 1)))
        if not found.exact <= BOUND:  # NaN, too
            raise ValueError(f"model: expected logits to differ by at most {BOUND:g} in float64, got {found.exact:.1e}")
        whole = out / "part"
        remove(whole)  # of a run that was killed
        save_converted(network, whole, encoder.save)
        for path in sorted(whole.iterdir()):
            with claim.writing(path.name) as part:
                os.replace(path, part)
        whole.rmdir()
        return claim.save(had=asdict(found) | dict(finished=now()))


def agreement(network: nn.Module, batches: Sequence[Tensor]) -> Agreement:
    """Convert a model in place, in its dtype, and compare it on the way with what it computes in float64.

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
