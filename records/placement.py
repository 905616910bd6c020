"""Where norms stand and whether training succeeds: learning rate × warm-up × placement × depth, and a deep stack."""

import json
import math
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import islice, product
from multiprocessing import get_context
from pathlib import Path

import click
import pandas as pd
import torch
from normgeom.models.placement import LanguageModel, Stack
from normgeom.records import FOLDER, record
from normgeom.text.corpora import load_corpus
from normgeom.text.tokens import byte_tokens, random_windows
from normgeom.training.fitting import fit
from tqdm.auto import tqdm

WIDTH, HEADS, LENGTH, BATCH, LAST = 64, 4, 65, 8, 20
SWEEP = dict(
    placement=("pre", "post", "deepnorm"), layers=(6, 18), rate=(3e-4, 1e-3, 3e-3), warmup=(0, 100), seed=(0, 1, 2)
)
DEEP = dict(placement=("pre", "post", "deepnorm"), layers=(48,), rate=(1e-3,), warmup=(0,), seed=(0, 1, 2))


def run(placement: str, layers: int, rate: float, warmup: int, seed: int, steps: int) -> list[float]:
    """The losses of one training run; its text and batches depend on the seed alone."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    model = LanguageModel(256, LENGTH, Stack(WIDTH, HEADS, layers, placement), scale=1 / math.sqrt(WIDTH))
    tokens = byte_tokens("".join(load_corpus("stdlib").texts()))
    return fit(model, islice(random_windows(tokens, LENGTH, BATCH, seed), steps), rate, warmup)


def curves(grid: dict, steps: int, kept: Path, processes: int) -> pd.DataFrame:
    """All runs of a grid, one row each, with ``losses``; those that stand in the file ``kept`` are not run again."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    lines = kept.read_text().splitlines() if kept.exists() else []
    done = {tuple(json.loads(line)["key"]): json.loads(line)["losses"] for line in lines}
    keys = [(*values, steps) for values in product(*grid.values())]
    todo = [key for key in keys if key not in done]
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool, kept.open("a") as out:
        jobs = {pool.submit(run, *key): key for key in todo}
        for job in tqdm(as_completed(jobs), total=len(jobs), unit="run"):
            done[jobs[job]] = job.result()
            out.write(json.dumps(dict(key=jobs[job], losses=job.result())) + "\n")
            out.flush()
    return pd.DataFrame([dict(zip(grid, key, strict=False), losses=done[key]) for key in keys])


@click.command()
@click.option("--steps", default=200, help="Updates of each run of the sweep.")
@click.option("--deep-steps", default=150, help="Updates of each run of the deep stack.")
@click.option("--processes", default=2, help="Runs at a time.")
@click.option("--folder", default=FOLDER, type=click.Path(path_type=Path), help="Where the records go.")
@click.option("--kept", default="_build/placement.jsonl", type=click.Path(path_type=Path), help="Finished runs.")
def main(steps: int, deep_steps: int, processes: int, folder: Path, kept: Path) -> None:
    """Write sweep-placement and deep-placement; an interrupted run goes on where it stopped."""
    common = dict(
        model=f"byte language model, {WIDTH} wide, {HEADS} heads, LayerNorm, Xavier-normal matrices, embeddings and "
        "head of standard deviation 1/√d",
        corpus="the standard library's documentation strings (corpus stdlib), "
        f"batches of {BATCH} windows of {LENGTH - 1} predicted bytes",
        optimizer="Adam, β = 0.9 and 0.98, no decay, no clipping, linear warm-up, then constant",
    )
    sweep = curves(SWEEP, steps, kept, processes)
    sweep["loss"] = sweep.losses.map(lambda losses: sum(losses[-LAST:]) / LAST)
    record(
        "sweep-placement",
        sweep.drop(columns="losses"),
        f"Loss in nats a byte, mean of the last {LAST} of {steps} updates, for each placement, number of blocks, "
        "learning rate, length of warm-up and seed.",
        folder,
        **common,
        seeds="0, 1, 2: of weights and batches",
    )
    deep = curves(DEEP, deep_steps, kept, processes)
    rows = [
        dict(placement=r.placement, layers=r.layers, seed=r.seed, step=i + 10, loss=sum(r.losses[i : i + 10]) / 10)
        for r in deep.itertuples()
        for i in range(0, deep_steps, 10)
    ]
    record(
        "deep-placement",
        pd.DataFrame(rows),
        f"Loss in nats a byte, means of ten updates, of stacks of {DEEP['layers'][0]} blocks without warm-up, at a "
        f"learning rate of {DEEP['rate'][0]:g}.",
        folder,
        **common,
        seeds="0, 1, 2: of weights and batches",
    )
    click.echo(sweep.pivot_table("loss", ["layers", "placement"], ["rate", "warmup"]).round(2).to_string())
