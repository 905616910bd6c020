"""Twins from names alone: a size and a corpus go in, a folder with curves, measurements and weights comes out."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from normgeom.jobs import PROVENANCE, atomic_path, claimed, now, usable_device, versions, write_json
from normgeom.text.corpora import Corpus, load_corpus
from normgeom.text.tokens import Encoder, TokenBatches, load_tokenizer, windows
from normgeom.training.trainer import Run, fit_and_measure
from normgeom.training.twins import SIZES, Size, variants

TEXT, TWINS = "text.bin", ("layer", "rms")


def train_twins(
    size: str,
    out: str | os.PathLike,
    corpus: str = "openwebtext",
    tokenizer: str = "gpt2",
    seed: int = 0,
    steps: int | None = None,
    batch_size: int | None = None,
    length: int | None = None,
    eval_interval: int | None = None,
    precision: str = "no",
    micro_batch: int | None = None,
    held_out: int = 1_000_000,
    device: str | None = None,
    progress: bool = True,
) -> dict:
    """Train two GPT-2 models that differ in the norm alone; the arguments are the command's options.

    Both start from the same weights and read the same windows in the same order.  ``out/layer/`` and ``out/rms/`` take
    ``curve``, ``loss``, ``survey``, ``gains`` and ``surface``, each a Parquet file, and ``model/``; ``out/text.bin`` is
    the corpus as token ids: so many as there are to train on, and ``held_out`` behind them to measure on.  Where the
    corpus ends before, windows are read more than once, each as often as the others.  The same call goes on where an
    earlier one stopped.
    """
    given = dict(steps=steps, batch=batch_size, length=length, eval_interval=eval_interval)
    size = replace(SIZES[size], **{name: value for name, value in given.items() if value is not None})
    out, run = Path(out), Run(size, seed, precision=precision, micro_batch=micro_batch)
    device, encoder, text_of = usable_device(device), load_tokenizer(tokenizer), load_corpus(corpus)
    asked = dict(
        size=asdict(size),
        tokenizer=dict(name=encoder.name, vocabulary=encoder.vocabulary),
        corpus=text_of.provenance,
        held_out=held_out,
        seed=seed,
        decay=run.decay,
        precision=precision,
        device=device.type,
        micro_batch=micro_batch,
        versions=versions(),
    )
    apart = max(1, held_out // size.length)
    with claimed(out, "training", asked):
        if not (out / TEXT).exists():
            _write_text(text_of, encoder, apart, size, out / TEXT)
        text = np.memmap(out / TEXT, dtype=_id_type(encoder), mode="r")
        text, measured_on = text[: -apart * size.length], text[-apart * size.length :]
        batches = windows(torch.from_numpy(measured_on.astype(np.int64)), size.length, size.batch)
        for name in TWINS:  # one at a time: the largest fill a device
            model = variants(size.config(encoder.vocabulary), seed, (name,))[name]
            fit_and_measure(model, text, batches, run, out / name, device, progress)
            if encoder.save is not None:
                encoder.save(out / name / "model")
        had = dict(
            tokens=len(text),
            epochs=size.steps * size.batch / (len(text) // size.length),
            loss={name: float(pd.read_parquet(out / name / "loss.parquet").loss.iloc[-1]) for name in TWINS},
            finished=now(),
        )
        provenance = dict(json.loads((out / PROVENANCE).read_text("utf-8")), had=had)
        write_json(out / PROVENANCE, provenance)
    return provenance


def _write_text(corpus: Corpus, encoder: Encoder, apart: int, size: Size, path: Path) -> None:
    """The corpus as token ids: windows to train on and ``apart`` to measure on, or as many as there are."""
    count, ids = (size.steps * size.batch + apart) * size.length, _id_type(encoder)
    batches = TokenBatches(corpus, encoder, count, size.length, size.batch)
    with atomic_path(path) as part, part.open("wb") as file:
        had = sum(file.write(batch.numpy().astype(ids).tobytes()) for batch in batches) // ids.itemsize
        if had <= apart * size.length:
            raise ValueError(
                f"held_out: expected a window of {size.length} tokens to train on, got a corpus of {had} with "
                f"{apart * size.length} of them held out"
            )


def _id_type(encoder: Encoder) -> np.dtype:
    return np.min_scalar_type(encoder.vocabulary - 1)
