"""A training of a second, and a way to stop it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from normgeom.commands.loading import load_model
from normgeom.jobs import claimed
from normgeom.training.trainer import fit_and_measure
from normgeom.training.twins import Size, twin
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast

VOCABULARY = 64
# Measured, with a checkpoint, after every second step.  An epoch of 15 windows ends within a step.
SIZE = Size(layers=1, width=16, heads=2, lr=1e-2, steps=8, batch=4, length=16, eval_interval=2)
# Of a whole command: four updates of four windows, measured after 0, 2 and 4.
SHORT = Size(layers=1, width=16, heads=2, lr=1e-2, steps=4, batch=4, length=16, eval_interval=2)
TEXT = torch.from_numpy(np.random.default_rng(5).integers(0, VOCABULARY, 15 * SIZE.length + 3))
HELD_OUT = list(torch.randint(0, VOCABULARY, (5, SIZE.length), generator=torch.Generator().manual_seed(6)).split(3))
TABLES = ("curve", "loss", "survey", "gains", "surface")


def save_words(folder: Path) -> None:
    """Write a tokenizer of a few words to a folder."""
    known = {word: i for i, word in enumerate(["?", ":", "γ", "⊙", "n", "as", "it"])}
    words = Tokenizer(WordLevel(known, unk_token="?"))
    words.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="?").save_pretrained(folder)


def model(norm="rms", size=SIZE, seed=3):
    return twin(size.config(VOCABULARY), seed, norm)


def fit(folder, norm="rms", text=TEXT, held_out=HELD_OUT, network=None, seed=3, size=SIZE):
    """A trained model as it was saved; its tables are in ``folder``."""
    with claimed(folder, dict(norm=norm, seed=seed, size=asdict(size))) as claim:
        fit_and_measure(network or model(norm, size, seed), text, held_out, size, seed, claim, progress=False)
    return saved(folder)


def saved(folder):
    return load_model(str(folder / "model"), head=True)


def tables(folder):
    return {name: pd.read_parquet(folder / f"{name}.parquet") for name in TABLES}


def recorded(network):
    """The token ids of each forward pass in training."""
    seen = []

    def note(module, args, kwargs):
        if module.training:
            seen.append((args[0] if args else kwargs["input_ids"]).clone())

    network.register_forward_pre_hook(note, with_kwargs=True)
    return seen


def same_results(got, expected):
    """Two folders of results, bit for bit."""
    for name, table in tables(expected).items():
        pd.testing.assert_frame_equal(tables(got)[name], table, check_exact=True, obj=name)
    theirs = saved(expected).state_dict()
    for name, value in saved(got).state_dict().items():
        assert torch.equal(value, theirs[name]), f"{name}: another order, another step, another start?"


def disturb(patch: pytest.MonkeyPatch, owner, name: str, at: int, disturbance: Callable) -> None:
    """``disturbance(works, *args)`` instead of the call of ``owner.name`` of that number; the others work."""
    works, calls = getattr(owner, name), []

    def call(*args, **kwargs):
        calls.append(args)
        return disturbance(works, *args, **kwargs) if len(calls) == at else works(*args, **kwargs)

    patch.setattr(owner, name, call)


def stopped(folder: Path, at: int, owner=torch.optim.AdamW, name: str = "step", done: bool = False, **changes) -> None:
    """A training that was stopped in that call, by default of a step, or as soon as that call was done."""

    def stop(works, *args, **kwargs):
        if done:
            works(*args, **kwargs)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        disturb(patch, owner, name, at, stop)
        fit(folder, **changes)
