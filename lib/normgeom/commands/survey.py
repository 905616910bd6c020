"""A survey from names alone: a model and a corpus go in, a folder with a table and its provenance comes out."""

from __future__ import annotations

import errno
import json
import os
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import reduce
from pathlib import Path

import torch
from torch import nn

from normgeom.commands.finding import find_commit
from normgeom.commands.loading import load_config, load_model, most_tokens
from normgeom.jobs.folders import PROVENANCE, claiming, damaged, note, now, place, versions, whole, writing
from normgeom.jobs.processes import check_choice, launched
from normgeom.survey.directions import MATCHED, named
from normgeom.survey.survey import Survey
from normgeom.text.corpora import load_corpus
from normgeom.text.tokens import Encoder, TokenBatches, load_tokenizer

TABLE, STATE = "table.parquet", "state-{}-of-{}.safetensors"
_RESULTS = (STATE.format("*", "*"), TABLE)
DTYPES = ("auto", "float64", "float32", "bfloat16", "float16")
DEVICE_MAPS = ("auto", "balanced", "balanced_low_0", "sequential")
_LENGTH = 512


def survey_model(
    model: str,
    out: str | os.PathLike,
    tokens: int = 1_000_000,
    corpus: str = "wikipedia",
    length: int | None = None,
    batch_size: int = 8,
    directions: Sequence[str] = ("uniform", "random_a", "random_b"),
    seed: int = 0,
    device: str | None = None,
    dtype: str = "auto",
    device_map: str | None = None,
    revision: str | None = None,
    tokenizer: str | None = None,
    allow_missing: bool = False,
) -> dict | None:
    """Survey a transformers model, by its name on the hub or its folder, and write what was found to a folder.

    ``table.parquet`` is the table of :class:`normgeom.Survey`.  ``provenance.json`` says what was asked for, from
    before the first batch on, and in the end what was had.  ``state-<rank>-of-<n>.safetensors``, one a process, is
    saved on the way: the same call goes on where an earlier one stopped.  Under ``torchrun`` or ``accelerate launch``
    each process takes its share of the batches, and the first writes the result; they share the folder.

    Args:
        tokens: at most so many are read, in whole windows; fewer where the corpus ends, with a warning.
        corpus: as in :func:`normgeom.text.corpora.load_corpus`.
        length: of the windows; by default 512, or the number of positions that the model's configuration states if
            that is less; required if it states none.
        directions, seed: as in :class:`normgeom.Survey`; the pilot of matched directions is the corpus's first batch.
        device: by default an accelerator where there is one.
        dtype: one of :data:`DTYPES`; ``"auto"`` is that of the saved weights.
        device_map: one of :data:`DEVICE_MAPS`: transformers spreads the model over the devices of one process.
        revision: a branch, tag or commit of a model on the hub.
        tokenizer: as in :func:`normgeom.text.tokens.load_tokenizer`; by default the model's.
        allow_missing: as in :func:`normgeom.commands.loading.load_model`.

    Returns:
        what ``provenance.json`` holds; None in a process that is not the first.

    Raises:
        ValueError: an argument that cannot be, a corpus of less than a window, weights that are missing, a folder that
            holds something else.
        OSError: model, corpus or folder are out of reach, damaged or in use, or the disk is full; what was saved stays.
        ImportError: the corpus needs a package that is not installed.
    """
    out = place(out)
    check_choice("dtype", dtype, DTYPES)
    check_choice("device_map", device_map, (None, *DEVICE_MAPS))
    matched = any(name.startswith(MATCHED) for name in named(directions))
    with launched(device, device_map) as (processes, device):
        share, first = (processes.process_index, processes.num_processes), processes.is_main_process
        with claiming(out, "survey", _RESULTS) if first else nullcontext() as claim:
            commit, encoder, length = read_config(model, revision, length, tokenizer)
            batches = TokenBatches(load_corpus(corpus), encoder, tokens, length, batch_size, *share)
            pilot = next(iter(replace(batches, rank=0, of=1)), None)
            if pilot is None:
                raise ValueError(f"corpus: expected {corpus} to hold a window of {length} tokens, it has fewer")
            asked = dict(
                model=dict(name=model if commit else Path(model).resolve().name, revision=revision, commit=commit),
                tokenizer=batches.encoder.name,
                corpus=batches.corpus.provenance,
                windows=batches.provenance,
                directions=list(directions),
                seed=seed,
                dtype=dtype,
                device=device_map or device.type,
                processes=processes.num_processes,
                allow_missing=allow_missing,
                versions=versions(),
            )
            with writing(out):
                if (out / TABLE).is_dir():
                    raise IsADirectoryError(errno.EISDIR, "a folder is in the way", TABLE)
                if first:
                    claim(asked)
                processes.wait_for_everyone()
                places = device_map or {"": device}
                network = load_model(model, dtype, places, allow_missing=allow_missing, revision=commit)
                survey = Survey(network, directions, seed, pilot=pilot if matched else None)
                state = out / STATE.format(*share)
                if state.exists() and _load(state).fingerprint != survey.fingerprint:
                    raise ValueError(f"out: {out} holds a survey of other weights under this name; name another folder")
                survey.run(batches, progress=first, checkpoint=state)
                survey.save(state)  # a share without a batch has one too
                processes.wait_for_everyone()
                return _finish(out, network, batches) if first else None


def _load(state: Path) -> Survey:
    try:
        return Survey.load(state)
    except ValueError as error:
        how = "run the same command, which reads its batches again"
        raise damaged(state, "it is not the state of a survey", how) from error


def read_config(
    model: str, revision: str | None, length: int | None, tokenizer: str | None = None
) -> tuple[str | None, Encoder, int]:
    """The commit of a model on the hub (of a folder None), its tokenizer or another, and the length of windows."""
    commit = find_commit(model, revision)
    config = load_config(model, revision=commit)
    text = config.get_text_config()
    vocabulary = getattr(text, "vocab_size", None)
    if vocabulary is None or config.is_encoder_decoder:
        raise ValueError(f"model: expected one that reads one text, got a {type(config).__name__}")
    most = most_tokens(config)
    if length is None and most is None:
        raise ValueError(
            f"length: expected a number of tokens, because the configuration of {model!r} states no number of positions"
        )
    if length is not None and most is not None and length > most:
        raise ValueError(f"length: expected at most {most}, which the model takes, got {length}")
    length = min(_LENGTH, most) if length is None else length
    if tokenizer is None:
        return commit, load_tokenizer(model, vocabulary, commit), length
    return commit, load_tokenizer(tokenizer, vocabulary), length


def _finish(out: Path, network: nn.Module, batches: TokenBatches) -> dict:
    """Merge the states of all processes, and write the table and what was had."""
    merged = reduce(Survey.merge, (_load(out / STATE.format(rank, batches.of)) for rank in range(batches.of)))
    with whole(out / TABLE) as part:
        merged.table().to_parquet(part, index=False)
    excluded = merged.excluded()
    placed = getattr(network, "hf_device_map", None) or {"": network.device}
    had = dict(
        tokens=merged.tokens,
        tokens_read=batches.had,
        batches=merged.batches,
        digest=merged.digest,
        fingerprint=merged.fingerprint,
        network=type(network).__name__,
        dtype=str(network.dtype).removeprefix("torch."),
        devices=sorted({_device_name(device) for device in placed.values()}),
        excluded=excluded[excluded[["nonfinite", "zero"]].any(axis=1)].to_dict("records"),
        finished=now(),
    )
    provenance = dict(json.loads((out / PROVENANCE).read_text("utf-8")), had=had)
    note(out / PROVENANCE, provenance)
    asked = batches.tokens // batches.length * batches.length
    if batches.had < asked:
        warnings.warn(f"the corpus ended: {batches.had} tokens of the {asked} asked for were read", stacklevel=2)
    return provenance


def _device_name(device: int | str | torch.device) -> str:
    if device == "disk":
        return "disk"
    device = torch.device(device)
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
