"""One model trained on a text: measured on the way, and an interrupted training goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from tqdm.auto import tqdm
from transformers import GPT2LMHeadModel

from normgeom.jobs import Claim
from normgeom.training.loop import adamw, fit, warmup_cosine
from normgeom.training.stages import measure_stage
from normgeom.training.twins import Size, save_twin

# The paper's three, and the null that is exact for RMSNorm (cor-sign-null): a rank among 40.
DIRECTIONS = ("uniform", "random_a", "random_b", *(f"signs_{i}" for i in range(39)))
CHECKPOINT = "checkpoint-"  # and the number of steps, the name of its folder


def reading_order(count: int, epoch: int, seed: int) -> Tensor:
    """Which of the ``epoch`` windows of a text are read, ``(count,)``: each once an epoch, as the seed decides."""
    orders = [np.random.default_rng([seed, k]).permutation(epoch) for k in range(-(-count // epoch))]
    return torch.from_numpy(np.concatenate(orders)[:count])


def fit_and_measure(
    model: GPT2LMHeadModel,
    text: Tensor,
    held_out: Sequence[Tensor],
    size: Size,
    seed: int,
    claim: Claim,
    device: torch.device | str = "cpu",
    progress: bool = True,
    tokenizer: Callable[[Path], object] = lambda folder: None,
) -> None:
    """Train a model in place, measure it at :attr:`Size.stages`, and write tables and weights; resumes in its folder.

    On a CPU an interrupted run ends in the same numbers, bit for bit, as one that was not.

    Args:
        text: token ids to train on, ``(n,)``.
        held_out: batches to measure on.
        claim: of a folder, which takes ``curve.parquet`` (step, loss), the tables of
            :func:`normgeom.training.stages.measure_stage` with a column ``step``, at last ``model/``; until then a
            checkpoint with the tables so far.
        tokenizer: writes its files to the folder that it is called with, ``model/``.

    Raises:
        OSError: what the folder holds was altered; the message says what to delete.
    """
    missing = [name for name in claim.files if not claim.check(name)]
    if missing or "model" not in claim.files:
        claim.drop("model", *missing)
        run = _Run(model.to(device), size)
        for checkpoint in [name for name in claim.files if name.startswith(CHECKPOINT)]:
            run.load(claim.folder / checkpoint)
        text = text[: len(text) // size.length * size.length].reshape(-1, size.length)
        order = reading_order(size.steps * size.batch, len(text), seed).split(size.batch)
        for places in tqdm(order[run.step :], "train", size.steps, initial=run.step, disable=not progress):
            if run.step in size.stages:
                run.add(measure_stage(model, held_out, DIRECTIONS, seed))
            run.learn(text[places].long().to(device))
            if run.step % size.eval_interval == 0:
                run.save(claim)
        run.add(measure_stage(model, held_out, DIRECTIONS, seed))
        for name, table in run.tables.items():
            with claim.writing(f"{name}.parquet") as part:
                table.to_parquet(part, index=False)
        with claim.writing("model") as part:
            save_twin(model.eval(), part)
            tokenizer(part)
    claim.drop(*(path.name for path in claim.folder.glob(f"{CHECKPOINT}*")))


class _Run:
    """What a checkpoint holds: a model, its optimizer and schedule, and the tables after ``step`` steps."""

    def __init__(self, model: GPT2LMHeadModel, size: Size):
        self.model = model
        self.optimizer = adamw(model, size.lr, size.decay)
        self.schedule = warmup_cosine(self.optimizer, size.steps)
        self.tables: dict[str, pd.DataFrame] = {}

    @property
    def step(self) -> int:
        """The number of steps so far."""
        return self.schedule.last_epoch

    def learn(self, ids: Tensor) -> None:
        """One step on windows ``(batch, length)``, its gradients clipped to norm 1, and its line of the curve."""
        losses = fit(self.model.train(), [ids], self.optimizer, self.schedule, clip=1.0)
        self.add(dict(curve=pd.DataFrame(dict(loss=losses.tolist()))))

    def add(self, tables: dict[str, pd.DataFrame]) -> None:
        """Rows of this step to the tables."""
        for name, rows in tables.items():
            self.tables[name] = pd.concat([self.tables.get(name), rows.assign(step=self.step)], ignore_index=True)

    def save(self, claim: Claim) -> None:
        """Write a checkpoint, and delete those before."""
        before = [path.name for path in claim.folder.glob(f"{CHECKPOINT}*")]
        with claim.writing(f"{CHECKPOINT}{self.step}") as part:
            part.mkdir()
            torch.save(
                {name: getattr(self, name).state_dict() for name in ("model", "optimizer", "schedule")},
                part / "state.pt",
            )
            for name, table in self.tables.items():
                table.to_parquet(part / f"{name}.parquet", index=False)
        claim.drop(*before)

    def load(self, checkpoint: Path) -> None:
        for name, state in torch.load(checkpoint / "state.pt", map_location="cpu").items():
            getattr(self, name).load_state_dict(state)
        self.tables = {path.stem: pd.read_parquet(path) for path in checkpoint.glob("*.parquet")}
