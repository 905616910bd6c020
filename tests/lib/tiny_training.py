"""A training of a second, and ways to disturb it.

As a program, ``tiny_training.py FOLDER`` trains once undisturbed and once for each of :data:`KILLED`: there a forked
process is killed, and a second one is given the same call.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from normgeom.training import trainer
from normgeom.training.trainer import Run, fit_and_measure
from normgeom.training.twins import Size, load_twin, variants

VOCABULARY = 64
# Measured after 0, 4 and 8 steps, a checkpoint after every second.  An epoch of 15 windows ends within a step.
SIZE = Size(layers=1, width=16, heads=2, rate=1e-2, steps=8, batch=4, length=16, eval_interval=4)
TEXT = np.random.default_rng(5).integers(0, VOCABULARY, 15 * SIZE.length + 3).astype(np.uint8)
HELD_OUT = list(torch.randint(0, VOCABULARY, (5, SIZE.length), generator=torch.Generator().manual_seed(6)).split(3))
TABLES = ("curve", "loss", "survey", "gains", "surface")


def model(norm="rms", size=SIZE, seed=3):
    return variants(size.config(VOCABULARY), seed, (norm,))[norm]


def fit(folder, norm="rms", text=TEXT, held_out=HELD_OUT, network=None, **changes):
    """A trained model as it was saved; its tables are in ``folder``."""
    run = Run(**(dict(size=SIZE, seed=3, save_every=2) | changes))
    fit_and_measure(network or model(norm, run.size), text, held_out, run, folder, progress=False)
    return load_twin(folder / "model")


def tables(folder):
    return {name: pd.read_parquet(folder / f"{name}.parquet") for name in TABLES}


def losses(folder):
    return torch.tensor(pd.read_parquet(folder / "curve.parquet").loss.to_numpy())


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
    theirs = load_twin(expected / "model").state_dict()
    for name, value in load_twin(got / "model").state_dict().items():
        assert torch.equal(value, theirs[name]), f"{name}: another order, another step, another start?"


def disturb(patch: pytest.MonkeyPatch, owner, name: str, at: int, disturbance: Callable) -> None:
    """``disturbance(works, *args)`` instead of the call of ``owner.name`` of that number; the others work."""
    works, calls = getattr(owner, name), []

    def call(*args, **kwargs):
        calls.append(args)
        return disturbance(works, *args, **kwargs) if len(calls) == at else works(*args, **kwargs)

    patch.setattr(owner, name, call)


def interrupt(*_, **__):
    raise KeyboardInterrupt


def stopped(folder: Path, at: int) -> None:
    """A training that was stopped in that step."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        disturb(patch, torch.optim.AdamW, "step", at, interrupt)
        fit(folder)


def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)


def work_and_die(works, *args, **kwargs):
    works(*args, **kwargs)
    die()


# What is called for the how manieth time when the process is killed, and how.
KILLED = {
    "before the first checkpoint": (torch.optim.AdamW, "step", 2, die),
    "after the weights of a checkpoint": (trainer.Trainer, "save_model", 3, work_and_die),
    "while tables are written": (pd.DataFrame, "to_parquet", 6, die),
    "after the last checkpoint": (trainer, "save_twin", 1, die),
    "before the clearing": (trainer.shutil, "rmtree", 1, die),
}


def forked(work: Callable) -> int:
    """The exit status of ``work`` in a process of its own."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    try:
        work()
    except BaseException:
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    os._exit(0)


def killed_in(folder: Path, owner, name: str, at: int, disturbance: Callable) -> None:
    with pytest.MonkeyPatch.context() as patch:
        disturb(patch, owner, name, at, disturbance)
        fit(folder)


if __name__ == "__main__":
    into = Path(sys.argv[1])
    assert forked(lambda: fit(into / "undisturbed")) == 0
    for case, how in KILLED.items():
        status = forked(lambda folder=into / case, how=how: killed_in(folder, *how))
        assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, f"{case}: not killed"
        assert forked(lambda folder=into / case: fit(folder)) == 0, f"{case}: the same call failed"
