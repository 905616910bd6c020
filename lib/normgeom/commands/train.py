"""Twins from names alone: a size and a corpus go in, a folder with curves, measurements and weights comes out."""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from pathlib import Path

import pandas as pd
from torch import Tensor

from normgeom.jobs import claimed, now, usable_device, versions
from normgeom.text.corpora import Corpus, load_corpus
from normgeom.text.tokens import Encoder, load_tokenizer, token_ids, windows
from normgeom.training.trainer import fit_and_measure
from normgeom.training.twins import SIZES, Size, twin

TWINS = ("layer", "rms")


def train_twins(
    size: str,
    out: str | os.PathLike,
    corpus: str = "stdlib",
    tokenizer: str = "bytes",
    seed: int = 0,
    held_out: int = 8192,
    device: str | None = None,
    progress: bool = True,
    batch_size: int | None = None,
    **settings: object,
) -> dict:
    """Train two GPT-2 models that differ only in the norm; the arguments are the command's options.

    Both start from the same weights and read the same windows in the same order.  ``out/layer/`` and ``out/rms/`` get
    what :func:`normgeom.training.trainer.fit_and_measure` writes.  The last ``held_out`` tokens that are read are
    measured on.  If the corpus is too short, windows are read more than once, all equally often.  The same call resumes
    an earlier one.

    Args:
        settings: values that replace the size's own, such as ``steps``; None keeps it.
    """
    given = {name: value for name, value in dict(settings, batch=batch_size).items() if value is not None}
    out = Path(out)
    size = replace(SIZES[size], **given)
    device = usable_device(device)
    encoder = load_tokenizer(tokenizer)
    text_of = load_corpus(corpus)
    asked = dict(
        work="training",
        size=asdict(size),
        tokenizer=dict(name=encoder.name, vocabulary=encoder.vocabulary),
        corpus=text_of.provenance,
        held_out=held_out,
        seed=seed,
        device=device.type,
        versions=versions(),
    )
    apart = max(1, held_out // size.length) * size.length
    with claimed(out, asked) as claim:
        text, measured_on = _token_ids(text_of, encoder, apart, size).tensor_split([-apart])
        batches = windows(measured_on, size.length, size.batch)
        for norm in TWINS:
            model = twin(size.config(encoder.vocabulary), seed, norm)
            with claimed(out / norm, dict(asked, norm=norm)) as own:
                fit_and_measure(model, text, batches, size, seed, own, device, progress, encoder.save)
        had = dict(
            tokens=len(text),
            epochs=size.steps * size.batch / (len(text) // size.length),
            loss={norm: float(pd.read_parquet(out / norm / "loss.parquet").loss.iloc[-1]) for norm in TWINS},
            finished=now(),
        )
        return claim.save(had=had)


def _token_ids(corpus: Corpus, encoder: Encoder, apart: int, size: Size) -> Tensor:
    """As many token ids as all steps read, and ``apart`` more; or those of the whole corpus, in whole windows."""
    ids = token_ids(corpus, encoder, size.steps * size.batch * size.length + apart)
    if len(ids) < apart + size.length:
        raise ValueError(
            f"held_out: expected a window of {size.length} tokens to train on, got a corpus of {len(ids)} with "
            f"{apart} of them held out"
        )
    return ids[: len(ids) // size.length * size.length]
