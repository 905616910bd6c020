"""A training of a few seconds, and ways to disturb it: killed, with a full disk, by two processes.

As a program, ``tiny_training.py FOLDER`` trains once undisturbed and once for each of :data:`KILLED`: there a forked
process is killed, and a second one is given the same call.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from normgeom.jobs import folders
from normgeom.training import trainer
from normgeom.training.trainer import Run, fit_and_measure
from normgeom.training.twins import Size, variants

VOCABULARY = 64
# Measured after 0, 4 and 8 updates, a checkpoint after every second.  An epoch of 15 windows ends within an update.
SIZE = Size(layers=1, width=16, heads=2, rate=1e-2, steps=8, batch=4, length=16, spacing=4)
TEXT = np.random.default_rng(5).integers(0, VOCABULARY, 15 * SIZE.length + 3).astype(np.uint8)
HELD_OUT = list(torch.randint(0, VOCABULARY, (5, SIZE.length), generator=torch.Generator().manual_seed(6)).split(3))
DIRECTIONS = ("uniform", "signs_0")
TABLES = ("curve", "loss", "survey", "gains", "surface")


def model(norm="rms", size=SIZE, seed=3):
    return variants(size.config(VOCABULARY), seed, (norm,))[norm]


def fit(folder, norm="rms", text=TEXT, held_out=HELD_OUT, network=None, **changes):
    """A trained model; its tables are in ``folder``."""
    run = Run(**(dict(size=SIZE, seed=3, save_every=2, directions=DIRECTIONS) | changes))
    return fit_and_measure(network or model(norm, run.size, 3), text, held_out, run, folder, progress=False)


def tables(folder):
    return {name: pd.read_parquet(folder / f"{name}.parquet") for name in TABLES}


def losses(folder):
    return torch.tensor(pd.read_parquet(folder / "curve.parquet").loss.to_numpy())


def weights(network):
    return {name: value.clone() for name, value in network.state_dict().items()}


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


@contextmanager
def limited(size: int = 1200) -> Iterator[None]:
    """No file can grow beyond so many bytes: the system refuses to write, as it does on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def disturb(patch: pytest.MonkeyPatch, owner, name: str, at: int, disturbance: Callable) -> None:
    """``disturbance(works, *args)`` instead of the call of ``owner.name`` of that number; the others work."""
    works, calls = getattr(owner, name), []

    def call(*args, **kwargs):
        calls.append(args)
        return disturbance(works, *args, **kwargs) if len(calls) == at else works(*args, **kwargs)

    patch.setattr(owner, name, call)


def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)


def work_and_die(works, *args, **kwargs):
    works(*args, **kwargs)
    die()


def remove_half_and_die(works, path, *_, **__):
    (Path(path) / "model.safetensors").unlink()
    die()


# What is called for the how manieth time when the process is killed, and how; the steps of the checkpoints left.
KILLED = {
    "before the first checkpoint": (torch.optim.AdamW, "step", 2, die),
    "in the middle": (torch.optim.AdamW, "step", 6, die),
    "after the weights of a checkpoint": (trainer.Trainer, "save_model", 3, work_and_die),
    "while an old checkpoint is removed": (trainer.shutil, "rmtree", 2, remove_half_and_die),
    "after the last checkpoint": (trainer, "_write", 1, die),
    "while tables are written": (folders.os, "replace", 3 * 4 + 4 + 3, die),  # tables, and marks of checkpoints
    "before the clearing": (trainer, "_clear", 1, die),
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


def train_in(folder: Path) -> None:
    torch.save(weights(fit(folder)), folder / "weights.pt")


def killed_in(folder: Path, owner, name: str, at: int, disturbance: Callable) -> None:
    with pytest.MonkeyPatch.context() as patch:
        disturb(patch, owner, name, at, disturbance)
        train_in(folder)


if __name__ == "__main__":
    into = Path(sys.argv[1])
    assert forked(lambda: train_in(into / "undisturbed")) == 0
    for case, how in KILLED.items():
        status = forked(lambda folder=into / case, how=how: killed_in(folder, *how))
        assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, f"{case}: not killed"
        left = sorted(path.name for path in (into / case).rglob("*"))
        (into / f"{case}.txt").write_text("\n".join(left))
        assert forked(lambda folder=into / case: train_in(folder)) == 0, f"{case}: the same call failed"
