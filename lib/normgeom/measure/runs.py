"""A survey from names alone: a model and a corpus go in, a folder with a table and its provenance comes out."""

from __future__ import annotations

import json
import math
import os
import platform
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import reduce
from importlib import metadata
from pathlib import Path

import torch
from accelerate import PartialState
from huggingface_hub import hf_hub_download
from torch import nn
from transformers import AutoConfig

from normgeom.measure.corpora import load_corpus
from normgeom.measure.directions import Directions
from normgeom.measure.reading import Encoder, TokenBatches, load_encoder
from normgeom.measure.survey import Survey
from normgeom.models.loading import load_model, reading

TABLE, PROVENANCE, STATE = "table.parquet", "provenance.json", "state-{}-of-{}.npz"
DTYPES = ("auto", "float64", "float32", "bfloat16", "float16")
DEVICE_MAPS = ("auto", "balanced", "balanced_low_0", "sequential")
_LENGTH = 512
_PATIENCE = timedelta(days=30)  # of processes that wait for the slowest


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
) -> dict | None:
    """Survey a transformers model, by its name on the hub or its folder, and write what was found to a folder.

    ``table.parquet`` is the table of :class:`normgeom.Survey`.  ``provenance.json`` says what was asked for, from
    before the first batch on, and in the end what was had.  ``state-<rank>-of-<n>.npz``, one a process, is saved after
    every batch: the same call goes on where an earlier one stopped.  Under ``torchrun`` or ``accelerate launch`` each
    process takes its share of the batches, and the first writes the result; they share the folder.

    Args:
        tokens: at most so many are read, in whole windows; fewer where the corpus ends, with a warning.
        corpus: as in :func:`normgeom.measure.corpora.load_corpus`.
        length: of the windows; by default 512, or the most that the model takes if that is less.
        directions, seed: as in :class:`normgeom.Survey`; the pilot of matched directions is the corpus's first batch.
        device: by default an accelerator where there is one.
        dtype: one of :data:`DTYPES`; ``"auto"`` is that of the saved weights.
        device_map: one of :data:`DEVICE_MAPS`: transformers spreads the model over the devices of one process.
        revision: a branch, tag or commit of a model on the hub.

    Returns:
        what ``provenance.json`` holds; None in a process that is not the first.

    Raises:
        ValueError: an argument that cannot be, a corpus of less than a window, a folder that holds another survey.
        OSError: model, corpus or folder are out of reach, or the disk is full; what was saved stays.
        ImportError: the corpus needs a package that is not installed.
    """
    out = Path(out)
    _check_choice("dtype", dtype, DTYPES)
    _check_choice("device_map", device_map, (None, *DEVICE_MAPS))
    matched = Directions(directions, seed).matched
    with _processes(device, device_map) as (processes, device):
        commit, encoder, length = _read_config(model, revision, length)
        share = processes.process_index, processes.num_processes
        batches = TokenBatches(load_corpus(corpus), encoder, tokens, length, batch_size, *share)
        pilot = next(iter(replace(batches, rank=0, of=1)), None)
        if pilot is None:
            raise ValueError(f"corpus: expected {corpus} to hold a window of {length} tokens, it has fewer")
        asked = dict(
            model=dict(name=model if commit else Path(model).resolve().name, revision=revision, commit=commit),
            corpus=batches.corpus.provenance,
            windows=batches.provenance,
            directions=list(directions),
            seed=seed,
            dtype=dtype,
            device=device_map or device.type,
            processes=processes.num_processes,
            versions=_versions(),
        )
        with _writing(out):
            if processes.is_main_process:
                _claim(out, asked)
            processes.wait_for_everyone()
            network = load_model(model, revision=commit, dtype=dtype, device_map=device_map or {"": device})
            survey = Survey(network, directions, seed, pilot=pilot if matched else None)
            state = out / STATE.format(*share)
            survey.run(batches, progress=processes.is_main_process, checkpoint=state)
            survey.save(state)  # a share without a batch has one too
            processes.wait_for_everyone()
            return _finish(out, network, batches) if processes.is_main_process else None


def _check_choice(name: str, value: str | None, choices: Sequence[str | None]) -> None:
    if value not in choices:
        raise ValueError(f"{name}: expected one of {', '.join(filter(None, choices))}, got {value!r}")


@contextmanager
def _processes(device: str | None, device_map: str | None) -> Iterator[tuple[PartialState, torch.device]]:
    """The processes that were launched together, often one, and the device of this one."""
    if device is not None:
        if device_map is not None:
            raise ValueError(f"device_map: expected no device beside it, got {device!r}")
        try:
            torch.zeros(1, device=device).item()
        except (RuntimeError, AssertionError) as error:
            raise ValueError(f"device: expected 'cpu', 'cuda', 'mps' or the like, got {device!r} ({error})") from error
    on_cpu = device.startswith("cpu") if device else not torch.accelerator.is_available()
    processes = PartialState(cpu=on_cpu, timeout=_PATIENCE)
    try:
        count, launched = processes.num_processes, int(os.environ.get("WORLD_SIZE", 1))
        if count < launched:
            raise ValueError(f"device: expected 'cpu' where {launched} processes run, got {processes.device.type!r}")
        if count > 1 and device_map is not None:
            raise ValueError(f"device_map: expected one process, got {count}")
        if count > 1 and device is not None and torch.device(device).index is not None:
            raise ValueError(f"device: expected no number where {count} processes run, got {device!r}")
        yield processes, torch.device(device) if device and count == 1 else processes.device
    finally:
        processes.destroy_process_group()


def _read_config(model: str, revision: str | None, length: int | None) -> tuple[str | None, Encoder, int]:
    """The commit of a model on the hub (of a folder None), its tokenizer, and the length of windows."""
    commit = None
    if Path(model).is_dir():
        if revision:
            raise ValueError(f"revision: expected none for a model in a folder, got {revision!r}")
    else:
        with reading(model):
            commit = Path(hf_hub_download(model, "config.json", revision=revision)).parent.name
    with reading(model):
        config = AutoConfig.from_pretrained(model, revision=commit)
        text = config.get_text_config()
    vocabulary = getattr(text, "vocab_size", None)
    if vocabulary is None or config.is_encoder_decoder:
        raise ValueError(f"model: expected one that reads one text, got a {type(config).__name__}")
    most = getattr(text, "max_position_embeddings", None) or 0
    most = most if most > 0 else math.inf
    length = min(_LENGTH, most) if length is None else length
    if length > most:
        raise ValueError(f"length: expected at most {most}, which the model takes, got {length}")
    return commit, load_encoder(model, vocabulary, commit), length


def _versions() -> dict[str, str]:
    packages = ("torch", "transformers", "tokenizers", "normgeom")
    return dict(python=platform.python_version()) | {name: metadata.version(name) for name in packages}


@contextmanager
def _writing(out: Path) -> Iterator[None]:
    """An error of the file system names the folder, and says what became of the survey."""
    try:
        yield
    except OSError as error:
        if error.strerror is None:
            raise
        what = f"{error.strerror} ({Path(error.filename).name})" if error.filename else error.strerror
        raise OSError(
            f"out: {out}: {what}; states saved before are whole, and the same command goes on from them"
        ) from error


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A path to write to, which becomes ``path`` when the block is left without an error."""
    part = path.with_name(path.name + ".part")
    try:
        yield part
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def _claim(out: Path, asked: dict) -> None:
    """Make ``out`` the folder of this survey; one that holds the results of another is refused and left as it is."""
    path = out / PROVENANCE
    results = sorted(file.name for pattern in (STATE.format("*", "*"), TABLE) for file in out.glob(pattern))
    there = _asked(path) if path.exists() else None
    here = _flat(json.loads(json.dumps(asked)))
    if results and there is None:
        raise ValueError(f"out: {out} holds {results[0]} without {PROVENANCE}; name another folder")
    differing = [key for key in {**there, **here} if there.get(key) != here.get(key)] if results else []
    if differing:
        parts = "; ".join(f"{key}: {there.get(key)!r} there, {here.get(key)!r} asked for" for key in differing)
        raise ValueError(f"out: {out} holds another survey ({parts}); name another folder")
    if there != here:
        out.mkdir(parents=True, exist_ok=True)
        _note(path, dict(asked=asked, started=_now()))


def _asked(path: Path) -> dict:
    try:
        return _flat(json.loads(path.read_text("utf-8"))["asked"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"out: {path} is not the provenance of a survey; name another folder") from error


def _finish(out: Path, network: nn.Module, batches: TokenBatches) -> dict:
    """Merge the states of all processes, and write the table and what was had."""
    merged = reduce(Survey.merge, (Survey.load(out / STATE.format(rank, batches.of)) for rank in range(batches.of)))
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
        finished=_now(),
    )
    provenance = dict(json.loads((out / PROVENANCE).read_text("utf-8")), had=had)
    _note(out / PROVENANCE, provenance)
    asked = batches.tokens // batches.length * batches.length
    if batches.had < asked:
        warnings.warn(f"the corpus ended: {batches.had} tokens of the {asked} asked for were read", stacklevel=2)
    return provenance


def _device_name(device: int | str | torch.device) -> str:
    if device == "disk":
        return "disk"
    device = torch.device(device)
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _note(path: Path, provenance: dict) -> None:
    with whole(path) as part:
        part.write_text(json.dumps(provenance, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _flat(nested: dict, prefix: str = "") -> dict:
    """A dict in a dict as one, its keys joined by dots."""
    flat = {}
    for key, value in nested.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat
