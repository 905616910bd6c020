"""What has taken LayerNorm's place, trained alike: design × depth × learning rate × warm-up × seed."""

import math
from pathlib import Path
from time import perf_counter

import click
import pandas as pd
import torch
from normgeom.records import FOLDER
from normgeom.text.tokens import random_windows
from normgeom.training.loop import next_token_loss
from normgeom_lab.common.recording import record
from normgeom_lab.common.stacks import DESIGNS, LanguageModel
from normgeom_lab.placement import BYTE_LENGTH, train_bytes
from torch import Tensor

from records.placement import BATCH, LAST, curves, measured, setting, text

LAYERS, RATES, WARMUPS, PROBED = (6, 18, 24), (3e-4, 1e-3, 3e-3, 1e-2), (0, 100), 64
# Settings are chosen on these seeds, one of everything and three of the shallowest; two designs bear higher rates.
CHOSEN_ON = tuple(
    dict(design=designs, layers=layers, rate=rates, warmup=WARMUPS, seed=seeds)
    for designs, rates in ((tuple(DESIGNS), RATES), (("sphere", "post-alpha"), (3e-2, 1e-1)))
    for layers, seeds in ((LAYERS, (0,)), (LAYERS[:1], (1, 2)))
)
# Means are of these, which no setting was chosen on.
SEEDS = (3, 4, 5, 6, 7)
MEASURED = ["loss", "held_out", "score", "update"]
CELL, SETTING = ["design", "layers"], ["warmup", "rate"]


@torch.no_grad()
def last_update(model: LanguageModel, ids: Tensor) -> float:
    """The mean length of what the last block changes, over that of the stream before it."""
    x, _, y = model.stack.streams(model.embed(ids))[-3:]
    return float((y - x).norm(dim=-1).mean() / x.norm(dim=-1).mean())


@torch.no_grad()
def largest_score(model: LanguageModel, ids: Tensor) -> float:
    """The largest absolute value of which attention takes a softmax, in any block, head and position; NaN if one is."""
    x, largest = model.embed(ids), torch.tensor(0.0)
    for block in model.stack.blocks:
        scores, _ = block.attention.branch.scores_and_values(block.attention.read(x))
        largest = torch.maximum(largest, scores[~scores.isneginf()].abs().max())
        x = block(x)
    return float(largest)


def run(design: str, layers: int, rate: float, warmup: int, seed: int, steps: int) -> list[float]:
    """Of one training run what :data:`MEASURED` names; its text and batches depend on the seed alone."""
    torch.set_num_threads(1)
    model, losses = train_bytes(text(), design, layers, rate, steps, seed, warmup, BATCH)
    probe = next(random_windows(text(), BYTE_LENGTH, PROBED, seed + 1000))
    with torch.no_grad():
        held_out = float(next_token_loss(model, probe))
    return [sum(losses[-LAST:]) / LAST, held_out, largest_score(model, probe), last_update(model, probe)]


def runs(grids: tuple[dict, ...], steps: int, kept: Path, processes: int) -> pd.DataFrame:
    """A row a run: of the grids, and of :data:`SEEDS` where a design of a depth has its lowest held-out loss there."""

    def rows(grid):
        return measured(curves(grid, steps, kept, processes, run), MEASURED).fillna(math.inf)

    first = pd.concat([rows(grid) for grid in grids], ignore_index=True)
    mean = first.groupby([*CELL, *SETTING], sort=False).held_out.mean()
    tables = [first]
    for design, layers, warmup, rate in mean.groupby(level=CELL, sort=False).idxmin():
        tables.append(rows(dict(design=(design,), layers=(layers,), rate=(rate,), warmup=(warmup,), seed=SEEDS)))
    return pd.concat(tables, ignore_index=True)


def _seconds(layers: int, steps: int) -> float:
    start = perf_counter()
    run("pre", layers, RATES[0], 0, SEEDS[0], steps)
    return perf_counter() - start


WHAT = (
    "Of each design, number of blocks, learning rate, length of warm-up and seed, after {} updates: loss in nats a "
    f"byte, mean of the last {LAST} updates, and on {PROBED} windows that it was not trained on; there too the largest "
    "absolute score before the softmax of attention, and the mean length of what the last block changes over that of "
    "the stream before it. Infinite where it was not a number."
)


@click.command()
@click.option("--steps", default=200, help="Steps of each run.")
@click.option("--processes", default=2, help="Runs at a time.")
@click.option("--folder", default=FOLDER, type=click.Path(path_type=Path), help="Where the record goes.")
@click.option("--kept", default="_build/designs.jsonl", type=click.Path(path_type=Path), help="Finished runs.")
def main(steps: int, processes: int, folder: Path, kept: Path) -> None:
    """Write the record of designs; an interrupted run goes on where it stopped."""
    table = runs(CHOSEN_ON, steps, kept, processes)
    seconds = [_seconds(layers, steps) for layers in LAYERS]
    controls = (
        "; DeepNorm with its β, on the sphere rows or columns of length 1, W_O and W₂ of post-small and hybrid-small "
        "times 1/√(2M) for M blocks"
    )
    record(
        "designs-training",
        table,
        WHAT.format(steps),
        folder,
        **setting(BATCH, "LayerNorm where nothing else is said", controls),
        seeds="of weights and batches; to choose rate and warm-up by held-out loss, 0 to 2 with 6 blocks and 0 with 18 "
        "and 24; at the chosen ones 3 to 7",
        time=f"{len(table)} runs; one with pre-norm takes {', '.join(f'{s:.0f}' for s in seconds)} s with "
        f"{', '.join(map(str, LAYERS))} blocks",
    )
