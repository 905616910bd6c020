"""A survey from names alone: a model and a corpus go in, a folder with a table and its provenance comes out."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from accelerate import PartialState
from torch import nn

from normgeom.commands.loading import described, load_config, load_model, most_tokens
from normgeom.jobs import Claim, claimed, now, usable_device, versions
from normgeom.survey.directions import DEFAULT
from normgeom.survey.directions import nulls as names_of_nulls
from normgeom.survey.survey import Survey
from normgeom.text.corpora import load_corpus
from normgeom.text.tokens import TokenBatches, load_tokenizer

TABLE, STATE = "table.parquet", "state-{}-of-{}.safetensors"
_LENGTH = 512


def survey_model(
    model: str,
    out: str | os.PathLike,
    tokens: int = 1_000_000,
    corpus: str = "wikipedia",
    length: int | None = None,
    batch_size: int = 8,
    nulls: int = 0,
    seed: int = 0,
    device: str | None = None,
    dtype: str = "auto",
    progress: bool = True,
) -> dict | None:
    """Survey a transformers model and write what was found to a folder; the arguments are the command's options.

    ``table.parquet`` is the table of :class:`normgeom.Survey`.  ``provenance.json`` says what was asked for, from
    before the first batch on, and in the end what was had.  ``state-<rank>-of-<n>.safetensors``, one a process, is
    saved on the way: the same call goes on where an earlier one stopped.  Under ``torchrun`` or ``accelerate launch``
    each process takes its share of the batches, and the first writes the result, which the others do not return.
    """
    out, config = Path(out), load_config(model)
    if config.is_encoder_decoder:
        raise ValueError(f"model: expected one that reads one text, got a {type(config).__name__}")
    most = most_tokens(config, length or _LENGTH)
    if length is not None and length > most:
        raise ValueError(f"length: expected at most {most}, which the model takes, got {length}")
    batches = TokenBatches(load_corpus(corpus), load_tokenizer(model, config), tokens, most, batch_size)
    pilot = next(iter(batches), None)
    if pilot is None:
        raise ValueError(f"corpus: expected {corpus} to hold a window of {most} tokens, it has fewer")
    device = usable_device(device)
    processes = PartialState(cpu=device.type == "cpu", timeout=timedelta(days=30))  # they wait for the slowest
    first, several = processes.is_main_process, processes.num_processes > 1
    asked = dict(
        model=described(model),
        corpus=batches.corpus.provenance,
        tokenizer=batches.encoder.name,
        windows=dict(tokens=tokens, length=most, batch_size=batch_size),
        nulls=nulls,
        seed=seed,
        dtype=dtype,
        device=device.type,
        processes=processes.num_processes,
        versions=versions(),
    )
    with claimed(out, "survey", asked) if first else nullcontext() as claim:
        processes.wait_for_everyone()
        batches = replace(batches, rank=processes.process_index, of=processes.num_processes)
        directions = [*DEFAULT, *names_of_nulls(nulls)]
        network = load_model(model, dtype).to(processes.device if several else device)
        survey, state = Survey(network, directions, seed, pilot=pilot), out / STATE.format(batches.rank, batches.of)
        with _held(state):
            survey.run(batches, progress=progress and first, checkpoint=state)
        survey.save(state)  # a share without a batch has one too
        processes.wait_for_everyone()
        provenance = _finish(claim, network, batches) if first else None
    processes.destroy_process_group()
    return provenance


@contextmanager
def _held(state: Path) -> Iterator[None]:
    """Where a state is not this survey's, or damaged, say what to delete."""
    try:
        yield
    except ValueError as error:
        if str(error).startswith(("checkpoint: ", "path: ", "other: ")):  # the arguments of Survey that a state is
            said = f"out: {state} is not as this run left it; delete it and run the same command ({error})"
            raise OSError(said) from error
        raise


def _finish(claim: Claim, network: nn.Module, batches: TokenBatches) -> dict:
    """Merge the states of all processes, and write the table and what was had."""
    merged = None
    for rank in range(batches.of):
        state = claim.folder / STATE.format(rank, batches.of)
        with _held(state):
            merged = merged.merge(Survey.load(state)) if merged else Survey.load(state)
    with claim.writing(TABLE) as part:
        merged.table().to_parquet(part, index=False)
    had = {name: getattr(merged, name) for name in ("tokens", "batches", "digest", "fingerprint")}
    had |= dict(network=type(network).__name__, dtype=str(network.dtype).removeprefix("torch."), finished=now())
    return claim.save(had=had)
