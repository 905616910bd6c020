"""One model trained on transformers' Trainer: measured on the way, and an interrupted training goes on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback, ProgressCallback
from transformers.utils import logging

from normgeom.jobs import Claim, claimed, versions
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


def fit_and_measure(
    model: GPT2LMHeadModel,
    text: np.ndarray,
    held_out: Sequence[Tensor],
    size: Size,
    seed: int,
    folder: Path,
    device: torch.device | str = "cpu",
    progress: bool = True,
    tokenizer: Callable[[Path], object] | None = None,
) -> None:
    """Train a model in place, measure it at :attr:`Size.stages`, and write tables and weights; resumes in its folder.

    On a CPU an interrupted run ends in the same numbers, bit for bit, as one that was not.

    Args:
        text: token ids to train on.
        held_out: batches to measure on.
        folder: takes ``curve.parquet`` (step, loss, learning_rate, grad_norm), the tables of
            :func:`normgeom.training.stages.measure_stage` with a column ``step``, at last ``model/``, and a note of
            what made them.
        tokenizer: writes its files to the folder that it is called with, ``model/``.

    Raises:
        ValueError: the folder is another training's.
        OSError: what the folder holds was altered; the message says what to delete.
    """
    device = torch.device(device)
    made_by = dict(weights=_digest(*(p.detach().cpu().numpy() for p in model.parameters())), text=_digest(text))
    asked = dict(norm=model.config.norm, size=asdict(size), seed=seed, device=device.type, **made_by)
    with claimed(folder, "training of a model", asked | dict(versions=versions()), together=True) as claim:
        saved = [folder / name for name in claim.files if claim.check(name) and name.startswith("checkpoint-")]
        done = claim.check("model")
        for path in folder.glob("checkpoint-*"):  # those of a kill, too
            if done or path not in saved:
                claim.drop(path.name)
        if done:
            return
        callbacks = [_Stages(size, seed, held_out, claim), *([_Bar()] if progress else [])]
        trainer = _trainer(model, text, size, seed, folder, device.type == "cpu", callbacks)
        trainer.train(resume_from_checkpoint=str(saved[-1]) if saved else None)
        curve = pd.DataFrame([line for line in trainer.state.log_history if "loss" in line])
        _write(claim, "curve.parquet", curve[["step", "loss", "learning_rate", "grad_norm"]])
        with claim.writing("model") as part:
            save_twin(model.eval(), part)
            if tokenizer is not None:
                tokenizer(part)
        claim.drop(f"checkpoint-{size.steps}")


def _trainer(
    model: GPT2LMHeadModel, text: np.ndarray, size: Size, seed: int, folder: Path, on_cpu: bool, callbacks: list
) -> Trainer:
    micro_batch = size.micro_batch or size.batch
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=size.steps,
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=size.batch // micro_batch,
        train_sampling_strategy="sequential",  # Windows has an order of its own
        seed=seed,
        bf16=size.precision == "bf16",
        use_cpu=on_cpu,
        logging_steps=max(1, size.steps // 1000),
        logging_nan_inf_filter=False,  # or a loss that is not a number would be logged as 0
        save_steps=size.eval_interval,
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    arguments._n_gpu = min(arguments.n_gpu, 1)  # or Trainer gives each of several GPUs a batch of its own
    optimizer, data = adamw(model, size.lr, size.decay), Windows(text, size.length, size.steps * size.batch, seed)
    optimizers = (optimizer, warmup_cosine(optimizer, size.steps))
    trainer = Trainer(model, arguments, train_dataset=data, optimizers=optimizers, callbacks=callbacks)
    trainer.remove_callback(PrinterCallback)
    trainer.model_accepts_loss_kwargs = False  # the loss is the mean over L - 1, whatever Trainer counts
    logging.disable_progress_bar()  # of the files of a checkpoint
    logging.set_verbosity_error()  # it warns that tied weights are saved once, and of checkpoints in the same second
    return trainer


class _Stages(TrainerCallback):
    """Measures the model before the first step and after those that are asked for, and notes what is written."""

    def __init__(self, size: Size, seed: int, held_out: Sequence[Tensor], claim: Claim):
        self.size, self.seed, self.held_out, self.claim = size, seed, held_out, claim

    def on_train_begin(self, args, state, control, model=None, **_):
        if state.global_step == 0:
            self.on_step_end(args, state, control, model)

    def on_step_end(self, args, state, control, model=None, **_):
        if state.global_step in self.size.stages:
            for name, table in measure_stage(model, self.held_out, DIRECTIONS, self.seed).items():
                self._add(f"{name}.parquet", table.assign(step=state.global_step))

    def _add(self, name: str, rows: pd.DataFrame) -> None:
        """Add rows to a table; those of their step and later ones are left from before an interruption."""
        path = self.claim.folder / name
        earlier = pd.read_parquet(path) if path.exists() else rows
        _write(self.claim, name, pd.concat([earlier[earlier.step < rows.step.min()], rows]))

    def on_save(self, args, state, control, **_):
        earlier = [name for name in self.claim.files if name.startswith("checkpoint-")]
        self.claim.keep(f"checkpoint-{state.global_step}")
        for name in earlier:
            self.claim.drop(name)


class _Bar(ProgressCallback):
    def on_log(self, *_, **__):
        """No line for each point of the curve."""


def _write(claim: Claim, name: str, table: pd.DataFrame) -> None:
    with claim.writing(name) as part:
        table.to_parquet(part, index=False)


def _digest(*arrays: np.ndarray) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array))
    return digest.hexdigest()
