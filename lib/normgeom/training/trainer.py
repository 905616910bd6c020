"""One model trained on transformers' Trainer: measured on the way, and a restart changes nothing."""

from __future__ import annotations

import errno
import json
import os
import shutil
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from accelerate import PartialState
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.utils.data import Dataset, SequentialSampler
from tqdm.auto import tqdm
from transformers import GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback, ProgressCallback
from transformers.utils import logging

from normgeom.jobs.folders import damaged, digest, note, whole
from normgeom.training.stages import measure_stage
from normgeom.training.twins import Size, adamw, load_twin, save_twin, warmup_cosine

TABLES = ("curve", "loss", "survey", "gains", "surface")
# The paper's three, and the null that is exact for RMSNorm (cor-sign-null): a rank among 40.
DIRECTIONS = ("uniform", "random_a", "random_b", *(f"signs_{i}" for i in range(39)))
_MODEL, _WHOLE, _AGAIN = "model", "whole", "run the same command, which trains it again"


class Windows(Dataset):
    """Windows of a text, each once an epoch, in an order that the seed decides and nothing else does.

    Args:
        tokens: ids ``(n,)``, in memory or on disk.
        length: of the windows; what is left after the last is left out.
        count: how many windows, over as many epochs as that takes.
        seed: of the order of every epoch.

    Raises:
        ValueError: there is no whole window.
    """

    def __init__(self, tokens: np.ndarray, length: int, count: int, seed: int):
        self.tokens, self.length, self.count, self.seed = tokens, length, count, seed
        self.an_epoch = len(tokens) // length
        if not self.an_epoch:
            raise ValueError(f"tokens: expected at least one window of {length}, got {len(tokens)}")
        self._order = lru_cache(maxsize=1)(self._draw_order)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        epoch, place = divmod(index, self.an_epoch)
        start = int(self._order(epoch)[place]) * self.length
        ids = torch.from_numpy(self.tokens[start : start + self.length].astype(np.int64))
        return dict(input_ids=ids, labels=ids)

    def _draw_order(self, epoch: int) -> np.ndarray:
        return np.random.default_rng([self.seed, epoch]).permutation(self.an_epoch)


@dataclass(frozen=True)
class Run:
    """How one model is trained; defaults are those of the book.

    ``at_once`` windows pass through a device at a time; gradients accumulate until ``size.batch`` have passed through
    all of them.  Every ``save_every`` updates a checkpoint is written, and the one before it removed.
    """

    size: Size
    seed: int = 0
    decay: float = 0.1
    precision: str = "no"
    at_once: int | None = None
    save_every: int | None = None
    directions: tuple[str, ...] = DIRECTIONS

    @property
    def stages(self) -> list[int]:
        """The updates after which the model is measured: the paper's, and the first and last."""
        near = [k * self.size.spacing for k in range(11)]
        far = range(20 * self.size.spacing, self.size.steps, 10 * self.size.spacing)
        return sorted({*(step for step in near if step < self.size.steps), *far, self.size.steps})

    def arguments(self, folder: Path, device: torch.device, processes: int) -> TrainingArguments:
        share, rest = divmod(self.size.batch, processes)
        if rest or not share:
            raise ValueError(
                f"batch_size: expected a multiple of the {processes} processes that run, got {self.size.batch}"
            )
        at_once = self.at_once or share
        if share % at_once:
            each = f" in each of {processes} processes" if processes > 1 else ""
            raise ValueError(f"at_once: expected a divisor of {share}, the windows of an update{each}, got {at_once}")
        if self.precision == "fp16" and device.type == "cpu":
            raise ValueError("precision: expected 'no' or 'bf16' on a CPU, got 'fp16'")
        logged = max(1, self.size.steps // 1000)
        kept = self.save_every or self.size.spacing
        arguments = TrainingArguments(
            output_dir=str(folder),
            max_steps=self.size.steps,
            per_device_train_batch_size=at_once,
            gradient_accumulation_steps=share // at_once,
            max_grad_norm=1.0,
            seed=self.seed,
            bf16=self.precision == "bf16",
            fp16=self.precision == "fp16",
            use_cpu=device.type == "cpu",
            logging_steps=logged,
            logging_nan_inf_filter=False,  # or a loss that is not a number would be logged as 0
            save_steps=-(-kept // logged) * logged,  # between two checkpoints are whole lines of the curve
            report_to="none",
            disable_tqdm=True,
            dataloader_pin_memory=device.type == "cuda",
        )
        arguments._n_gpu = min(arguments.n_gpu, 1)  # or Trainer gives each of several GPUs a batch of its own
        return arguments


def fit_and_measure(
    model: GPT2LMHeadModel,
    text: np.ndarray,
    held_out: Sequence[Tensor],
    run: Run,
    folder: Path,
    device: torch.device | str = "cpu",
    processes: int = 1,
    progress: bool = True,
) -> GPT2LMHeadModel:
    """Train one model, measure it at :attr:`Run.stages`, and write tables and weights to a folder; resumes there.

    Args:
        model: trained in place; its initial weights are those of the first call, also when a later one resumes.
        text: token ids to train on.
        held_out: batches to measure on; if there are none, nothing is measured.
        folder: takes ``curve.parquet`` (step, loss, rate, grad_norm), the tables of
            :func:`normgeom.training.stages.measure_stage` with a column ``step``, and ``model/``.  One that holds a
            model is finished: that model is loaded.

    A checkpoint that is not what was written is passed over, with a warning, where there is a whole one before it.

    Raises:
        OSError: a checkpoint, a table or the model in the folder is damaged; the message says what to delete.

    On one CPU process an interrupted run ends in the same numbers, bit for bit, as one that was not.  In mixed
    precision what is measured is the network as it trains.  The global random states are set to the seed.
    """
    kept = folder / _MODEL
    if kept.exists():
        _clear(folder)  # an earlier call may have been killed before it came to that
        if not _as_written(folder):
            raise damaged(folder, "its tables are not what was written", _AGAIN)
        try:
            return load_twin(kept).to(device)
        except ValueError as error:
            raise damaged(folder, error, _AGAIN) from error
    windows = Windows(text, run.size.length, run.size.steps * run.size.batch, run.seed)
    trainer = _Trainer(
        model=model,
        args=run.arguments(folder, torch.device(device), processes),
        train_dataset=windows,
        optimizers=(optimizer := adamw(model, run.size.rate, run.decay), warmup_cosine(optimizer, run.size.steps)),
        callbacks=[_Stages(run, held_out, folder), _Finished(), *([_Bar(folder.name)] if progress else [])],
    )
    with _silent():
        trainer.train(resume_from_checkpoint=_last_whole(folder))
        if trainer.is_world_process_zero():
            _write(model, trainer.state.log_history, folder, run.stages if held_out else [])
    trainer.accelerator.wait_for_everyone()
    return trainer.accelerator.unwrap_model(model, keep_fp32_wrapper=False).eval()


@contextmanager
def _saving() -> Iterator[None]:
    """What safetensors and torch raise when they cannot write is an error of the file system."""
    try:
        yield
    except (SafetensorError, RuntimeError) as error:
        raise OSError(errno.EIO, f"weights cannot be written: {error}") from error


@contextmanager
def _silent() -> Iterator[None]:
    """Without the progress bars of transformers' files."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


class _Trainer(Trainer):
    """Transformers' Trainer with a loss that is a mean over what is predicted, and without its own printing."""

    def __init__(self, **options):
        super().__init__(**options)
        self.model_accepts_loss_kwargs = False  # the loss is the mean over L − 1, whatever Trainer counts
        for printer in (PrinterCallback, ProgressCallback):
            self.remove_callback(printer)

    def _get_train_sampler(self, *_):
        return SequentialSampler(self.train_dataset)  # Windows has an order of its own

    def _save_checkpoint(self, *arguments):
        with _saving():
            super()._save_checkpoint(*arguments)

    def _issue_warnings_after_load(self, loaded):
        tied = self.model.all_tied_weights_keys  # saved once, under the other name
        super()._issue_warnings_after_load(
            loaded._replace(missing_keys=[key for key in loaded.missing_keys if key not in tied])
        )


class _Stages(TrainerCallback):
    """Measures the model before the first update and after those that are asked for, in the first process."""

    def __init__(self, run: Run, held_out: Sequence[Tensor], folder: Path):
        self.run, self.held_out, self.folder = run, held_out, folder

    def on_train_begin(self, args, state, control, model=None, **_):
        if state.global_step == 0:
            self._measure(state, model)

    def on_step_end(self, args, state, control, model=None, **_):
        self._measure(state, model)

    def _measure(self, state, model: nn.Module) -> None:
        if self.held_out and state.is_world_process_zero and state.global_step in self.run.stages:
            tables = measure_stage(model, self.held_out, self.run.directions, self.run.seed)
            for name, table in tables.items():
                path = _stage(self.folder, name, state.global_step)
                path.parent.mkdir(parents=True, exist_ok=True)
                with whole(path) as part:
                    table.assign(step=state.global_step).to_parquet(part, index=False)


class _Finished(TrainerCallback):
    """Marks a checkpoint as whole once all of it is written, and only then removes those before it."""

    def on_step_end(self, args, state, control, **_):
        control.should_log |= state.global_step == state.max_steps  # the curve ends with the training

    def on_save(self, args, state, control, **_):
        PartialState().wait_for_everyone()  # each process writes a file of it
        if state.is_world_process_zero:
            last = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            note(last / _WHOLE, _digests(last.iterdir()))
            for path in set(last.parent.glob("checkpoint-*")) - {last}:
                (path / _WHOLE).unlink(missing_ok=True)
                shutil.rmtree(path)


class _Bar(TrainerCallback):
    """A progress bar with loss and learning rate."""

    def __init__(self, description: str):
        self.description, self.bar = description, None

    def on_train_begin(self, args, state, control, **_):
        if state.is_world_process_zero:
            self.bar = tqdm(total=state.max_steps, initial=state.global_step, desc=self.description)

    def on_log(self, args, state, control, logs=None, **_):
        if self.bar is not None and "loss" in logs:
            self.bar.set_postfix(loss=f"{logs['loss']:.3f}", rate=f"{logs['learning_rate']:.1e}", refresh=False)

    def on_step_end(self, args, state, control, **_):
        if self.bar is not None:
            self.bar.update()

    def on_train_end(self, args, state, control, **_):
        if self.bar is not None:
            self.bar.close()


def _last_whole(folder: Path) -> str | None:
    """The last checkpoint that is what was written; an OSError if there are some, and none is."""
    marked = sorted(folder.glob(f"checkpoint-*/{_WHOLE}"), key=lambda mark: -int(mark.parent.name.split("-")[1]))
    for mark in marked:
        if _as_written(mark.parent):
            return str(mark.parent)
        wrong = damaged(mark.parent, "its files are not what was written")
        if mark == marked[-1]:
            raise wrong
        warnings.warn(f"{mark.parent} is damaged; going on from the one before it", stacklevel=3)
    return None


def _digests(paths: Iterable[Path]) -> dict[str, str]:
    return {path.name: digest(path) for path in sorted(paths)}


def _as_written(folder: Path) -> bool:
    """Whether the files that were noted are there, and what they were."""
    try:
        noted = json.loads((folder / _WHOLE).read_text("utf-8"))
        return bool(noted) and noted == _digests(folder / name for name in noted)
    except (ValueError, TypeError, OSError):
        return False


def _write(model: GPT2LMHeadModel, history: list[dict], folder: Path, stages: list[int]) -> None:
    """The tables, then the model, which says that all is there; what was kept for resuming is removed."""
    curve = pd.DataFrame([line for line in history if "loss" in line])
    curve = curve.rename(columns=dict(learning_rate="rate"))[["step", "loss", "rate", "grad_norm"]]
    measured = TABLES[1:] if stages else ()
    tables = {
        name: pd.concat([read_table(_stage(folder, name, step), folder) for step in stages], ignore_index=True)
        for name in measured
    }
    paths = {name: folder / f"{name}.parquet" for name in ("curve", *measured)}
    for name, table in {"curve": curve, **tables}.items():
        with whole(paths[name]) as part:
            table.to_parquet(part, index=False)
    note(folder / _WHOLE, _digests(paths.values()))
    draft = folder / f"{_MODEL}.part"
    shutil.rmtree(draft, ignore_errors=True)
    with _saving():
        save_twin(model, draft)
    os.replace(draft, folder / _MODEL)
    _clear(folder)


def _stage(folder: Path, name: str, step: int) -> Path:
    return folder / f"{name}-{step:07d}.parquet"


def read_table(path: Path, folder: Path) -> pd.DataFrame:
    """A table in a training's folder.

    Raises:
        OSError: it is damaged: what it holds is measured anew when the folder is deleted.
    """
    try:
        return pd.read_parquet(path)
    except (ValueError, OSError) as error:
        raise damaged(folder, f"{path.name}: {error}", _AGAIN) from error


def _clear(folder: Path) -> None:
    """Remove what was kept for resuming."""
    for path in folder.glob("*-*.parquet"):
        path.unlink(missing_ok=True)
    for path in folder.glob("checkpoint-*"):
        shutil.rmtree(path, ignore_errors=True)
