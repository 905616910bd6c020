"""One model trained on transformers' Trainer: measured on the way, and an interrupted training goes on."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback, ProgressCallback
from transformers.utils import logging

from normgeom.jobs import atomic_path
from normgeom.training.loop import adamw, warmup_cosine
from normgeom.training.stages import measure_stage
from normgeom.training.twins import Size, save_twin

# The paper's three, and the null that is exact for RMSNorm (cor-sign-null): a rank among 40.
DIRECTIONS = ("uniform", "random_a", "random_b", *(f"signs_{i}" for i in range(39)))


class Windows(Dataset):
    """``count`` windows of a text, ids ``(n,)``: each once an epoch, in an order that the seed alone decides."""

    def __init__(self, tokens: np.ndarray, length: int, count: int, seed: int):
        epoch = len(tokens) // length
        orders = [np.random.default_rng([seed, k]).permutation(epoch) for k in range(-(-count // epoch))]
        self.tokens, self.length, self.places = tokens, length, np.concatenate(orders)[:count]

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        start = self.places[index] * self.length
        ids = torch.from_numpy(self.tokens[start : start + self.length].astype(np.int64))
        return dict(input_ids=ids, labels=ids)


@dataclass(frozen=True)
class Run:
    """How one model is trained.

    ``micro_batch`` windows pass through the device together, by default the batch.  ``precision`` is ``"no"``
    or ``"bf16"``.  A checkpoint is written after every ``save_every`` steps, by default the size's ``eval_interval``.
    """

    size: Size
    seed: int = 0
    decay: float = 0.1
    precision: str = "no"
    micro_batch: int | None = None
    save_every: int | None = None

    def __post_init__(self):
        if self.precision not in ("no", "bf16"):
            raise ValueError(f"precision: expected 'no' or 'bf16', got {self.precision!r}")
        if self.size.batch % (self.micro_batch or 1):
            raise ValueError(f"micro_batch: expected a divisor of {self.size.batch}, the batch, got {self.micro_batch}")

    @property
    def stages(self) -> set[int]:
        """The steps after which the model is measured: the paper's, and the first and last."""
        each, last = self.size.eval_interval, self.size.steps
        return {step for step in (*range(0, 11 * each, each), *range(0, last, 10 * each)) if step < last} | {last}


def fit_and_measure(
    model: GPT2LMHeadModel,
    text: np.ndarray,
    held_out: Sequence[Tensor],
    run: Run,
    folder: Path,
    device: torch.device | str = "cpu",
    progress: bool = True,
) -> None:
    """Train a model in place, measure it at :attr:`Run.stages`, and write tables and weights; resumes in its folder.

    On a CPU an interrupted run ends in the same numbers, bit for bit, as one that was not.

    Args:
        text: token ids to train on.
        held_out: batches to measure on.
        folder: takes ``curve.parquet`` (step, loss, learning_rate, grad_norm), the tables of
            :func:`normgeom.training.stages.measure_stage` with a column ``step``, and at last ``model/``.

    Raises:
        OSError: a table or a checkpoint in the folder is damaged; the message says what to delete.
    """
    if (folder / "model").exists():
        return
    micro_batch = run.micro_batch or run.size.batch
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=run.size.steps,
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=run.size.batch // micro_batch,
        train_sampling_strategy="sequential",  # Windows has an order of its own
        seed=run.seed,
        bf16=run.precision == "bf16",
        use_cpu=torch.device(device).type == "cpu",
        logging_steps=max(1, run.size.steps // 1000),
        logging_nan_inf_filter=False,  # or a loss that is not a number would be logged as 0
        save_steps=run.save_every or run.size.eval_interval,
        save_total_limit=1,
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    arguments._n_gpu = min(arguments.n_gpu, 1)  # or Trainer gives each of several GPUs a batch of its own
    optimizer, stages = adamw(model, run.size.rate, run.decay), _Stages(run, held_out, folder)
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=Windows(text, run.size.length, run.size.steps * run.size.batch, run.seed),
        optimizers=(optimizer, warmup_cosine(optimizer, run.size.steps)),
        callbacks=[stages, *([_Bar()] if progress else [])],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.model_accepts_loss_kwargs = False  # the loss is the mean over L - 1, whatever Trainer counts
    logging.disable_progress_bar()  # of the files of a checkpoint
    logging.set_verbosity_error()  # it warns that tied weights are saved once, and of checkpoints in the same second
    # a checkpoint without this file, which is written last, was cut short
    saved = sorted(folder.glob("checkpoint-*/trainer_state.json"), key=os.path.getmtime)
    checkpoint = str(saved[-1].parent) if saved else None
    try:
        trainer.train(resume_from_checkpoint=checkpoint)
    except Exception as error:
        if checkpoint and not stages.begun:
            raise OSError(f"out: {checkpoint} is damaged ({error}); delete it and run the same command") from error
        raise
    curve = pd.DataFrame([line for line in trainer.state.log_history if "loss" in line])
    _write(folder / "curve.parquet", curve[["step", "loss", "learning_rate", "grad_norm"]])
    save_twin(model.eval(), folder / "part")
    os.replace(folder / "part", folder / "model")
    shutil.rmtree(folder / f"checkpoint-{run.size.steps}")


class _Stages(TrainerCallback):
    """Measures the model before the first step and after those that are asked for."""

    def __init__(self, run: Run, held_out: Sequence[Tensor], folder: Path):
        self.run, self.held_out, self.folder, self.begun = run, held_out, folder, False

    def on_train_begin(self, args, state, control, model=None, **_):
        if state.global_step == 0:
            self.on_step_end(args, state, control, model)

    def on_step_begin(self, *_, **__):
        self.begun = True

    def on_step_end(self, args, state, control, model=None, **_):
        if state.global_step in self.run.stages:
            self.folder.mkdir(parents=True, exist_ok=True)
            for name, table in measure_stage(model, self.held_out, DIRECTIONS, self.run.seed).items():
                self._add(self.folder / f"{name}.parquet", table.assign(step=state.global_step))

    def _add(self, path: Path, rows: pd.DataFrame) -> None:
        """Add rows to a table; those of their step and later ones are left from before an interruption."""
        try:
            earlier = pd.read_parquet(path) if path.exists() else rows
        except (ValueError, OSError) as error:
            raise OSError(f"out: {path} is damaged ({error}); delete its folder and run the same command") from error
        _write(path, pd.concat([earlier[earlier.step < rows.step.min()], rows]))


class _Bar(ProgressCallback):
    def on_log(self, *_, **__):
        """No line for each point of the curve."""


def _write(path: Path, table: pd.DataFrame) -> None:
    with atomic_path(path) as part:
        table.to_parquet(part, index=False)
