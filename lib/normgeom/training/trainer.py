"""One model trained on transformers' Trainer: measured on the way, and an interrupted training goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback, ProgressCallback
from transformers.utils import logging

from normgeom.jobs import Claim
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
    claim: Claim,
    device: torch.device | str = "cpu",
    progress: bool = True,
    tokenizer: Callable[[Path], object] = lambda folder: None,
) -> None:
    """Train a model in place, measure it at :attr:`Size.stages`, and write tables and weights; resumes in its folder.

    On a CPU an interrupted run ends in the same numbers, bit for bit, as one that was not.

    Args:
        text: token ids to train on.
        held_out: batches to measure on.
        claim: of a folder, which takes ``curve.parquet`` (step, loss, learning_rate, grad_norm), the tables of
            :func:`normgeom.training.stages.measure_stage` with a column ``step``, at last ``model/``; until then a
            checkpoint of transformers with the tables so far.
        tokenizer: writes its files to the folder that it is called with, ``model/``.

    Raises:
        OSError: what the folder holds was altered; the message says what to delete.
    """
    there = [name for name in claim.files if claim.check(name)]
    if "model" not in there or len(there) < len(claim.files):
        checkpoints = [str(claim.folder / name) for name in there if name.startswith("checkpoint-")]
        stages = _Stages(size, seed, held_out, claim)
        trainer = _trainer(model, text, size, seed, claim.folder, torch.device(device).type == "cpu")
        trainer.add_callback(stages)
        if progress:
            trainer.add_callback(_Bar())
        if checkpoints:
            stages.tables = {path.stem: pd.read_parquet(path) for path in Path(checkpoints[-1]).glob("*.parquet")}
        trainer.train(resume_from_checkpoint=checkpoints[-1] if checkpoints else None)
        curve = pd.DataFrame([line for line in trainer.state.log_history if "loss" in line])
        stages.tables["curve"] = curve[["step", "loss", "learning_rate", "grad_norm"]]
        for name, table in stages.tables.items():
            with claim.writing(f"{name}.parquet") as part:
                table.to_parquet(part, index=False)
        with claim.writing("model") as part:
            save_twin(model.eval(), part)
            tokenizer(part)
    for path in claim.folder.glob("checkpoint-*"):
        claim.drop(path.name)


def _trainer(model: GPT2LMHeadModel, text: np.ndarray, size: Size, seed: int, folder: Path, on_cpu: bool) -> Trainer:
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
    optimizer = adamw(model, size.lr, size.decay)
    data = Windows(text, size.length, size.steps * size.batch, seed)
    schedule = warmup_cosine(optimizer, size.steps)
    trainer = Trainer(model, arguments, train_dataset=data, optimizers=(optimizer, schedule))
    trainer.remove_callback(PrinterCallback)
    trainer.model_accepts_loss_kwargs = False  # the loss is the mean over L - 1, whatever Trainer counts
    logging.disable_progress_bar()  # of the files of a checkpoint
    logging.set_verbosity_error()  # it warns that tied weights are saved once, and of checkpoints in the same second
    return trainer


class _Stages(TrainerCallback):
    """Measures the model before the first step and after those that are asked for; checkpoints take the tables."""

    def __init__(self, size: Size, seed: int, held_out: Sequence[Tensor], claim: Claim):
        self.size = size
        self.seed = seed
        self.held_out = held_out
        self.claim = claim
        self.tables: dict[str, pd.DataFrame] = {}

    def on_train_begin(self, args, state, control, model=None, **_):
        if state.global_step == 0:
            self.on_step_end(args, state, control, model)

    def on_step_end(self, args, state, control, model=None, **_):
        if state.global_step in self.size.stages:
            for name, table in measure_stage(model, self.held_out, DIRECTIONS, self.seed).items():
                table = table.assign(step=state.global_step)
                self.tables[name] = pd.concat([self.tables.get(name), table], ignore_index=True)

    def on_save(self, args, state, control, **_):
        checkpoint = f"checkpoint-{state.global_step}"
        for name, table in self.tables.items():
            table.to_parquet(self.claim.folder / checkpoint / f"{name}.parquet", index=False)
        self.claim.keep(checkpoint)
        for name in list(self.claim.files):
            if name.startswith("checkpoint-") and name != checkpoint:
                self.claim.drop(name)


class _Bar(ProgressCallback):
    def on_log(self, *_, **__):
        """No line for each point of the curve."""
