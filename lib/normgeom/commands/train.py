"""Twins from names alone: a size and a corpus go in, a folder with curves, measurements and weights comes out."""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from normgeom.commands.loading import check_files
from normgeom.jobs import Claim, claimed, now, usable_device, versions
from normgeom.text.corpora import Corpus, load_corpus
from normgeom.text.tokens import Encoder, TokenBatches, load_tokenizer, windows
from normgeom.training.trainer import fit_and_measure
from normgeom.training.twins import SIZES, Size, twin

TEXT, TWINS = "text.bin", ("layer", "rms")


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
    """Train two GPT-2 models that differ in the norm alone; the arguments are the command's options.

    Both start from the same weights and read the same windows in the same order.  ``out/layer/`` and ``out/rms/`` take
    ``curve``, ``loss``, ``survey``, ``gains`` and ``surface``, each a Parquet file, and ``model/``; ``out/text.bin`` is
    the corpus as token ids: so many as there are to train on, and ``held_out`` behind them to measure on.  Where the
    corpus ends before, windows are read more than once, each as often as the others.  The same call goes on where an
    earlier one stopped.

    Args:
        settings: what takes the place of the size's own: ``steps``, ``length``, ``eval_interval``, ``micro_batch``,
            ``precision``; None stands for it.
    """
    given = {name: value for name, value in dict(settings, batch=batch_size).items() if value is not None}
    out, size = Path(out), replace(SIZES[size], **given)
    if size.batch % (size.micro_batch or 1):
        raise ValueError(f"micro_batch: expected a divisor of {size.batch}, the batch, got {size.micro_batch}")
    check_files(Path(tokenizer))
    device, encoder, text_of = usable_device(device), load_tokenizer(tokenizer), load_corpus(corpus)
    asked = dict(
        size=asdict(size),
        tokenizer=dict(name=encoder.name, vocabulary=encoder.vocabulary),
        corpus=text_of.provenance,
        held_out=held_out,
        seed=seed,
        device=device.type,
        versions=versions(),
    )
    apart = max(1, held_out // size.length)
    with claimed(out, "training", asked) as claim:
        if not claim.check(TEXT):
            _write_text(text_of, encoder, apart, size, claim)
        text = np.memmap(out / TEXT, dtype=_id_type(encoder), mode="r")
        text, measured_on = text[: -apart * size.length], text[-apart * size.length :]
        batches = windows(torch.from_numpy(measured_on.astype(np.int64)), size.length, size.batch)
        for name in TWINS:  # one at a time: the largest fill a device
            model = twin(size.config(encoder.vocabulary), seed, name)
            fit_and_measure(model, text, batches, size, seed, out / name, device, progress, encoder.save)
        had = dict(
            tokens=len(text),
            epochs=size.steps * size.batch / (len(text) // size.length),
            loss={name: float(pd.read_parquet(out / name / "loss.parquet").loss.iloc[-1]) for name in TWINS},
            finished=now(),
        )
        return claim.save(had=had)


def _write_text(corpus: Corpus, encoder: Encoder, apart: int, size: Size, claim: Claim) -> None:
    """The corpus as token ids: windows to train on and ``apart`` to measure on, or as many as there are."""
    count, ids = (size.steps * size.batch + apart) * size.length, _id_type(encoder)
    batches = TokenBatches(corpus, encoder, count, size.length, size.batch)
    with claim.writing(TEXT) as part, part.open("wb") as file:
        had = sum(file.write(batch.numpy().astype(ids).tobytes()) for batch in batches) // ids.itemsize
        if had <= apart * size.length:
            raise ValueError(
                f"held_out: expected a window of {size.length} tokens to train on, got a corpus of {had} with "
                f"{apart * size.length} of them held out"
            )


def _id_type(encoder: Encoder) -> np.dtype:
    return np.min_scalar_type(encoder.vocabulary - 1)
