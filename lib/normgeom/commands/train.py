"""Twins from names alone: a size and a corpus go in, a folder with curves, measurements and weights comes out."""

from __future__ import annotations

import json
import math
import os
import warnings
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from tqdm.auto import tqdm

from normgeom.jobs.folders import PROVENANCE, claiming, damaged, digest, note, now, place, versions, whole, writing
from normgeom.jobs.processes import check_choice, launched
from normgeom.text.corpora import Corpus, load_corpus
from normgeom.text.tokens import Encoder, TokenBatches, load_tokenizer, windows
from normgeom.training.trainer import Run, fit_and_measure
from normgeom.training.twins import NORMS, SIZES, Size, variants

PRECISIONS = ("no", "bf16")
_TEXT = "text.bin"
_RESULTS = (_TEXT, *NORMS)


def train_twins(
    size: str,
    out: str | os.PathLike,
    norm: str = "both",
    corpus: str = "openwebtext",
    tokenizer: str = "gpt2",
    seed: int = 0,
    steps: int | None = None,
    batch_size: int | None = None,
    length: int | None = None,
    rate: float | None = None,
    spacing: int | None = None,
    decay: float = 0.1,
    precision: str = "no",
    at_once: int | None = None,
    held_out: int = 1_000_000,
    survey_corpus: str | None = None,
    device: str | None = None,
    progress: bool = True,
) -> dict | None:
    """Train GPT-2 models that differ in the norm alone, and write curves, measurements and weights to a folder.

    All start from the same weights and read the same windows in the same order.  ``out/<norm>/`` takes ``curve``,
    ``loss``, ``survey``, ``gains`` and ``surface``, each a Parquet file, and ``model/``; ``out/text.bin`` is the corpus
    as token ids.  ``provenance.json`` says what was asked for.  The same call goes on where an earlier one
    stopped.

    Args:
        size: one of :data:`normgeom.training.twins.SIZES`, whose steps, batch, length, rate and eval_interval
            other arguments replace.
        norm: ``"both"`` is LayerNorm and RMSNorm; ``"all"`` or one of :data:`normgeom.training.twins.NORMS`.
        corpus: as in :func:`normgeom.text.corpora.load_corpus`; so many of its tokens are read as there are to
            train on, and fewer where it ends: windows are then read more than once, each as often as the others.
        tokenizer: ``"bytes"``, or as in ``AutoTokenizer.from_pretrained``.
        seed: of the initial weights, of the order of windows, and of the directions.
        spacing: updates between two checkpoints; after 1 to 10 times as many, and then after each ten times as many,
            the model is measured.
        at_once: windows that pass through a device together; a divisor of the batch.
        held_out: tokens that losses and surveys are measured on: the last that are read of the corpus.
        survey_corpus: another corpus to measure on.
        device: by default an accelerator where there is one.

    Returns:
        what ``provenance.json`` holds; None in a process that is not the first.

    Raises:
        ValueError: an argument that cannot be, a corpus too short, a folder that holds something else.
        OSError: corpus, tokenizer or folder are out of reach, damaged or in use, or the disk is full; finished
            checkpoints stay.
    """
    out = place(out)
    check_choice("norm", norm, ("both", "all", *NORMS))
    check_choice("precision", precision, PRECISIONS)
    if device is not None and ":" in device:
        raise ValueError(f"device: expected no number (CUDA_VISIBLE_DEVICES chooses), got {device!r}")
    given = dict(steps=steps, batch=batch_size, length=length, rate=rate, eval_interval=spacing)
    size = _choose(size, at_once, held_out, seed, decay, **given)
    norms = dict(both=("layer", "rms"), all=tuple(NORMS)).get(norm, (norm,))
    run = Run(size, seed, decay, precision, at_once)
    with launched(device) as (processes, device):
        first = processes.is_main_process
        if processes.num_processes > 1:
            raise ValueError(f"processes: expected one, got {processes.num_processes}; only surveys share their work")
        holding = claiming(out, "training", _RESULTS) if first else nullcontext()
        with holding as claim, writing(out):
            encoder = load_tokenizer(tokenizer)
            text_of, survey_of = load_corpus(corpus), load_corpus(survey_corpus) if survey_corpus else None
            asked = dict(
                size=asdict(size),
                tokenizer=dict(name=encoder.name, vocabulary=encoder.vocabulary),
                corpus=text_of.provenance,
                held_out=held_out,
                survey_corpus=survey_of and survey_of.provenance,
                seed=seed,
                decay=decay,
                precision=precision,
                device=device.type,
                processes=processes.num_processes,
                at_once=at_once,
                versions=versions(),
            )
            survey = _read_survey(survey_of, survey_corpus, encoder, held_out, size)
            if first:
                claim(asked)
                apart = 0 if survey else _windows(held_out, size)
                _provide_text(text_of, encoder, apart, size, out, progress)
            processes.wait_for_everyone()
            text = np.memmap(out / _TEXT, dtype=_id_type(encoder), mode="r")
            text, measured_on = (text, survey) if survey else _split(text, _windows(held_out, size), size)
            for name in norms:  # one at a time: the largest fill a device
                model = variants(size.config(encoder.vocabulary), seed, (name,))[name]
                fit_and_measure(model, text, measured_on, run, out / name, device, progress)
                if encoder.save is not None and first:
                    encoder.save(out / name / "model")
            return _finish(out, len(text), size) if first else None


def _choose(size: str, at_once: int | None, held_out: int, seed: int, decay: float, **given: float | None) -> Size:
    """The size with what was given in place of its own; numbers that cannot be are refused."""
    check_choice("size", size, tuple(SIZES))
    for name, value in dict(given, at_once=at_once, held_out=held_out).items():
        if value is not None and not 0 < value < math.inf:
            option = dict(batch="batch_size", eval_interval="spacing").get(name, name)
            raise ValueError(f"{option}: expected a positive number, got {value}")
    if given["length"] == 1:
        raise ValueError("length: expected at least 2, so that a token is predicted, got 1")
    if not 0 <= seed < 2**32:
        raise ValueError(f"seed: expected a number from 0 to 2³² − 1, got {seed}")
    if not 0 <= decay < math.inf:
        raise ValueError(f"decay: expected a number >= 0, got {decay}")
    return replace(SIZES[size], **{name: value for name, value in given.items() if value is not None})


def _finish(out: Path, tokens: int, size: Size) -> dict:
    provenance = json.loads((out / PROVENANCE).read_text("utf-8"))
    paths = {name: out / name / "loss.parquet" for name in NORMS}  # also those of earlier calls
    provenance["had"] = dict(
        tokens=tokens,
        epochs=size.steps * size.batch / (tokens // size.length),
        loss={name: _last_loss(path) for name, path in paths.items() if (path.parent / "model").exists()},
        finished=now(),
    )
    for name, loss in provenance["had"]["loss"].items():
        if not math.isfinite(loss):
            warnings.warn(f"{name}: the loss is {loss}: the training diverged; try a smaller --rate", stacklevel=2)
    note(out / PROVENANCE, provenance)
    return provenance


def _last_loss(path: Path) -> float:
    table = pd.read_parquet(path)
    if "loss" not in table or table.empty:
        raise damaged(path.parent, f"{path.name} holds no loss", "run the same command, which trains it again")
    return float(table.loss.iloc[-1])


def _windows(held_out: int, size: Size) -> int:
    return max(1, held_out // size.length)


def _provide_text(corpus: Corpus, encoder: Encoder, apart: int, size: Size, out: Path, progress: bool) -> None:
    """``text.bin``, written or, where its provenance has it, found to be what was written."""
    path, provenance = out / _TEXT, json.loads((out / PROVENANCE).read_text("utf-8"))
    if path.exists() and "text" in provenance:
        if digest(path) != provenance["text"]["sha256"]:
            raise damaged(path, "it is not what was written")
        return
    _write_text(corpus, encoder, apart, size, path, progress)
    note(out / PROVENANCE, dict(provenance, text=dict(sha256=digest(path), bytes=path.stat().st_size)))


def _write_text(corpus: Corpus, encoder: Encoder, apart: int, size: Size, path: Path, progress: bool) -> None:
    """The corpus as token ids: windows to train on and ``apart`` to measure on, or as many as there are."""
    count = (size.steps * size.batch + apart) * size.length
    batches = TokenBatches(corpus, encoder, count, size.length, size.batch)
    with whole(path) as part, part.open("wb") as file:
        for ids in tqdm(batches, desc="tokens", unit="batch", disable=not progress):
            file.write(ids.numpy().astype(_id_type(encoder)).tobytes())
        if batches.had <= apart * size.length:
            raise ValueError(
                f"{'held_out' if apart else 'corpus'}: expected a window of {size.length} tokens to train on, got a "
                f"corpus of {batches.had} with {apart * size.length} of them held out"
            )
    if batches.had < count:
        warnings.warn(
            f"the corpus ended: {batches.had} tokens of {count}; windows are read more than once", stacklevel=3
        )


def _read_survey(corpus: Corpus | None, name: str | None, encoder: Encoder, held_out: int, size: Size) -> list[Tensor]:
    """Batches of another corpus to measure on."""
    if corpus is None:
        return []
    count = _windows(held_out, size) * size.length
    batches = list(TokenBatches(corpus, encoder, count, size.length, size.batch))
    if not batches:
        raise ValueError(f"survey_corpus: expected {name} to hold a window of {size.length} tokens, it has fewer")
    return batches


def _split(text: np.ndarray, apart: int, size: Size) -> tuple[np.ndarray, list[Tensor]]:
    """What is trained on, on disk, and the last windows as batches to measure on."""
    cut = len(text) - apart * size.length
    held_out = torch.from_numpy(text[cut:].astype(np.int64))
    return text[:cut], windows(held_out, size.length, size.batch)


def _id_type(encoder: Encoder) -> np.dtype:
    return np.min_scalar_type(encoder.vocabulary - 1)
