"""Twins from names alone: a size and a corpus go in, a folder with curves, measurements and weights comes out."""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from normgeom.jobs import Claim, claimed, now, usable_device, versions
from normgeom.text.corpora import Corpus, load_corpus
from normgeom.text.tokens import Encoder, load_tokenizer, token_ids, windows
from normgeom.training.trainer import fit_and_measure
from normgeom.training.twins import SIZES, Size, twin

TEXT, ID = "text.bin", np.dtype(np.uint32)
TWINS = ("layer", "rms")


def train_twins(
    size: str,
    out: str | os.PathLike,
    corpus: str = "openwebtext",
    tokenizer: str = "gpt2",
    seed: int = 0,
    held_out: int = 1_000_000,
    device: str | None = None,
    progress: bool = True,
    batch_size: int | None = None,
    **settings: object,
) -> dict:
    """Train two GPT-2 models that differ only in the norm; the arguments are the command's options.

    Both start from the same weights and read the same windows in the same order.  ``out/layer/`` and ``out/rms/`` get
    what :func:`normgeom.training.trainer.fit_and_measure` writes; ``out/text.bin`` is the corpus as token ids: first
    those to train on, then ``held_out`` to measure on.  If the corpus is too short, windows are read more than once,
    all equally often.  The same call resumes an earlier one.

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
        if not claim.check(TEXT):
            _write_text(text_of, encoder, apart, size, claim)
        text = np.memmap(out / TEXT, dtype=ID, mode="r")
        text, measured_on = text[:-apart], text[-apart:]
        batches = windows(torch.from_numpy(measured_on.astype(np.int64)), size.length, size.batch)
        for norm in TWINS:  # one at a time: the largest fill a device
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


def _write_text(corpus: Corpus, encoder: Encoder, apart: int, size: Size, claim: Claim) -> None:
    """The corpus as token ids: as many as all steps read, and ``apart`` more; or all of it, in whole windows."""
    with claim.writing(TEXT) as part, part.open("wb") as file:
        for ids in token_ids(corpus, encoder, size.steps * size.batch * size.length + apart):
            file.write(ids.numpy().astype(ID).tobytes())
        count = file.tell() // ID.itemsize
        if count < apart + size.length:
            raise ValueError(
                f"held_out: expected a window of {size.length} tokens to train on, got a corpus of {count} with "
                f"{apart} of them held out"
            )
        file.truncate(count // size.length * size.length * ID.itemsize)
