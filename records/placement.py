"""Whether training succeeds: placement × depth × learning rate × warm-up; a deep stack; many seeds; norms × scale."""

import json
import math
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from itertools import product
from multiprocessing import get_context
from pathlib import Path

import click
import pandas as pd
import torch
from normgeom.records import FOLDER
from normgeom.text.corpora import load_corpus
from normgeom.text.tokens import byte_tokens, random_windows
from normgeom_lab.common.recording import record
from normgeom_lab.placement import BYTE_HEADS, BYTE_LENGTH, BYTE_WIDTH, first_over_last, train_bytes, varying_share
from torch import Tensor
from tqdm.auto import tqdm

BATCH, LAST = 8, 20
SWEEP = dict(
    placement=("pre", "post", "post-small", "deepnorm"),
    layers=(6, 18),
    rate=(3e-4, 1e-3, 3e-3),
    warmup=(0, 100),
    seed=(0, 1, 2),
)
DEEP = dict(placement=SWEEP["placement"], layers=(48,), rate=(1e-3,), warmup=(0,), seed=(0, 1, 2))
STARTS = dict(rate=(1.5e-3, 2e-3, 3e-3), seed=tuple(range(21)), placement=("post", "deepnorm"))
SCALES = dict(norm=("layer", "rms", "none"), scale=(0.5, 1.0, 2.0), rate=(1e-3, 3e-3, 1e-2, 3e-2), seed=(0, 1, 2))


@cache
def text() -> Tensor:
    """What all models here learn, as bytes."""
    return byte_tokens("".join(load_corpus("stdlib").texts()))


def run(placement: str, layers: int, rate: float, warmup: int, seed: int, steps: int) -> list[float]:
    """The losses of one training run; its text and batches depend on the seed alone."""
    torch.set_num_threads(1)
    return train_bytes(text(), placement, layers, rate, steps, seed, warmup, BATCH)[1]


def start(rate: float, seed: int, placement: str, steps: int) -> list[float]:
    """Of a run as the chapter makes it: the loss, the share that varies, the first block's gradient over the last's."""
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)  # in which the chapter draws weights
    model, losses = train_bytes(text(), placement, 6, rate, steps, seed)
    probe = next(random_windows(text(), BYTE_LENGTH, 64, seed + 1000))
    return [sum(losses[-10:]) / 10, varying_share(model, probe), first_over_last(model, probe)]


def scaled_run(norm: str, scale: float, rate: float, seed: int, steps: int) -> list[float]:
    """The losses of a pre-norm model of 6 blocks, with its initial matrices multiplied by ``scale``."""
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    design = {"layer": "pre", "rms": "pre-rms", "none": "none"}[norm]
    return train_bytes(text(), design, 6, rate, steps, seed, scale=scale)[1]


def curves(grid: dict, steps: int, kept: Path, processes: int, run: Callable[..., list[float]]) -> pd.DataFrame:
    """What ``run`` gives for each of a grid, a row each, ``losses``; what stands in ``kept`` is not run again."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    lines = kept.read_text().splitlines() if kept.exists() else []
    done = {tuple(json.loads(line)["key"]): json.loads(line)["losses"] for line in lines}
    keys = [(*values, steps) for values in product(*grid.values())]
    todo = [key for key in keys if key not in done]
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool, kept.open("a") as out:
        jobs = {pool.submit(run, **dict(zip([*grid, "steps"], key, strict=True))): key for key in todo}
        for job in tqdm(as_completed(jobs), total=len(jobs), unit="run"):
            done[jobs[job]] = job.result()
            out.write(json.dumps(dict(key=jobs[job], losses=job.result())) + "\n")
            out.flush()
    return pd.DataFrame([dict(zip(grid, key, strict=False), losses=done[key]) for key in keys])


def swept(*how: object) -> pd.DataFrame:
    """One row a run of :data:`SWEEP`, with its loss; ``how`` is what :func:`curves` takes behind the grid."""
    return _ends(curves(SWEEP, *how, run))


def deep_losses(steps: int, *how: object) -> pd.DataFrame:
    """One row for each ten steps of a run of :data:`DEEP`."""
    rows = [
        dict(placement=r.placement, layers=r.layers, seed=r.seed, step=i + 10, loss=sum(r.losses[i : i + 10]) / 10)
        for r in curves(DEEP, steps, *how, run).itertuples()
        for i in range(0, steps, 10)
    ]
    return pd.DataFrame(rows)


def started(*how: object) -> pd.DataFrame:
    """One row a run of :data:`STARTS`, with what :func:`start` gives."""
    return measured(curves(STARTS, *how, start), ["loss", "varying", "first_over_last"])


def at_scales(*how: object) -> pd.DataFrame:
    """One row a run of :data:`SCALES`, with its loss, infinite where it was not a number."""
    return _ends(curves(SCALES, *how, scaled_run)).fillna(math.inf)


def measured(runs: pd.DataFrame, names: list[str]) -> pd.DataFrame:
    """The runs with a column for each number that they gave."""
    return runs.drop(columns="losses").join(pd.DataFrame(runs.losses.tolist(), columns=names))


def _ends(runs: pd.DataFrame) -> pd.DataFrame:
    loss = runs.losses.map(lambda losses: sum(losses[-LAST:]) / LAST)
    return runs.drop(columns="losses").assign(loss=loss)


# Name → its rows, the steps of each run, windows a batch, and what the rows are.
RECORDS = {
    "sweep-placement": (
        swept,
        200,
        BATCH,
        "Loss in nats a byte, mean of the last {last} of {steps} updates, for each placement, number of blocks, "
        "learning rate, length of warm-up and seed.",
    ),
    "deep-placement": (
        deep_losses,
        150,
        BATCH,
        f"Loss in nats a byte, means of ten updates, of stacks of {DEEP['layers'][0]} blocks without warm-up, at a "
        f"learning rate of {DEEP['rate'][0]:g}.",
    ),
    "starts-placement": (
        started,
        120,
        4,
        "Of stacks of 6 blocks after {steps} updates without warm-up: loss in nats a byte, mean of the last ten; share "
        "of the final stream's mean square that varies from token to token; length of the gradient of the first "
        "block's W₂ over that of the last one's.",
    ),
    "scales-placement": (
        at_scales,
        120,
        4,
        "Loss in nats a byte, mean of the last {last} of {steps} updates, of pre-norm stacks of 6 blocks with "
        "LayerNorm, RMSNorm or no norm anywhere, without warm-up, for each factor on the initial matrices of the "
        "branches, learning rate and seed; infinite where one of these losses was not a number.",
    ),
}


def setting(batch: int, layer_norm: str, rest: str = "") -> dict[str, str]:
    """What all records of byte models say of model, corpus and optimizer."""
    return dict(
        model=f"byte language model, {BYTE_WIDTH} wide, {BYTE_HEADS} heads, {layer_norm}, Xavier-normal matrices, "
        f"embeddings and head of standard deviation 1/√d{rest}",
        corpus="the standard library's documentation strings (corpus stdlib), "
        f"batches of {batch} windows of {BYTE_LENGTH - 1} predicted bytes",
        optimizer="Adam, β = 0.9 and 0.98, no decay, no clipping, linear warm-up, then constant",
    )


@click.command()
@click.option("--only", type=click.Choice(list(RECORDS)), multiple=True, help="Which records to write; all by default.")
@click.option("--steps", type=int, help="Steps of each run, instead of the record's own number.")
@click.option("--processes", default=2, help="Runs at a time.")
@click.option("--folder", default=FOLDER, type=click.Path(path_type=Path), help="Where the records go.")
@click.option("--kept", default="_build/placement.jsonl", type=click.Path(path_type=Path), help="Finished runs.")
def main(only: tuple[str, ...], steps: int | None, processes: int, folder: Path, kept: Path) -> None:
    """Write the records of placements; an interrupted run goes on where it stopped."""
    for name in only or RECORDS:
        rows, usual, batch, what = RECORDS[name]
        table = rows(steps or usual, kept, processes)
        seeds = f"{', '.join(map(str, sorted(set(table.seed))))}: of weights and batches"
        about = setting(batch, "LayerNorm unless said otherwise")
        record(name, table, what.format(last=LAST, steps=steps or usual), folder, **about, seeds=seeds)
