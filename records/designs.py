"""What has taken LayerNorm's place, trained alike: design × depth × learning rate × warm-up × seed."""

import math
from pathlib import Path
from time import perf_counter

import click
import pandas as pd
import torch
from normgeom.records import FOLDER, record
from normgeom.text.tokens import random_windows
from normgeom_lab.common.stacks import choose
from normgeom_lab.common.tiny import next_token_loss
from normgeom_lab.placement import BYTE_HEADS, BYTE_LENGTH, BYTE_WIDTH, largest_score, last_update, train_bytes

from records.placement import BATCH, LAST, curves, text

# Name → placement and norm.
DESIGNS = {
    "pre": ("pre", "layer"),
    "pre-rms": ("pre", "rms"),
    "post": ("post", "layer"),
    "deepnorm": ("deepnorm", "layer"),
    "sandwich": ("sandwich", "layer"),
    "branch-out": ("branch-out", "layer"),
    "mix": ("mix", "layer"),
    "hybrid": ("hybrid", "layer"),
    "scaled": ("scaled", "layer"),
    "keel": ("keel", "layer"),
    "qk": ("qk", "layer"),
    "sphere": ("sphere", "layer"),
    "dyt": ("pre", "dyt"),
    "derf": ("pre", "derf"),
    "none": ("pre", "none"),
    "post-small": ("post-small", "layer"),
    "hybrid-small": ("hybrid-small", "layer"),
    "post-alpha": ("post-alpha", "layer"),
    "pre-post": ("pre-post", "layer"),
}
LAYERS, RATES, WARMUPS, PROBED = (6, 18, 24), (3e-4, 1e-3, 3e-3, 1e-2), (0, 100), 64
# Settings are chosen on these seeds, one of everything and three of the shallowest; two designs bear higher rates.
CHOSEN_ON = tuple(
    dict(design=designs, layers=layers, rate=rates, warmup=WARMUPS, seed=seeds)
    for designs, rates in ((tuple(DESIGNS), RATES), (("sphere", "post-alpha"), (3e-2, 1e-1)))
    for layers, seeds in ((LAYERS, (0,)), (LAYERS[:1], (1, 2)))
)
# Means are of these, which no setting was chosen on.
SEEDS = (3, 4, 5, 6, 7)
MEASURED = ("loss", "held_out", "score", "update")
CELL, SETTING = ["design", "layers"], ["warmup", "rate"]


def run(design: str, layers: int, rate: float, warmup: int, seed: int, steps: int) -> list[float]:
    """Of one training run what :data:`MEASURED` names; its text and batches depend on the seed alone."""
    torch.set_num_threads(1)
    placement, norm = choose("design", design, DESIGNS)
    model, losses = train_bytes(text(), placement, layers, rate, steps, seed, warmup, BATCH, norm)
    probe = next(random_windows(text(), BYTE_LENGTH, PROBED, seed + 1000))
    with torch.no_grad():
        held_out = float(next_token_loss(model, probe))
    return [sum(losses[-LAST:]) / LAST, held_out, largest_score(model, probe), last_update(model, probe)]


def runs(grids: tuple[dict, ...], steps: int, kept: Path, processes: int) -> pd.DataFrame:
    """A row a run: of the grids, and of :data:`SEEDS` where a design of a depth has its lowest held-out loss there."""
    tables = [curves(grid, steps, kept, processes, run) for grid in grids]
    first = pd.concat(tables, ignore_index=True)
    loss = first.losses.map(lambda measured: measured[MEASURED.index("held_out")]).fillna(math.inf)
    mean = first.assign(loss=loss).groupby([*CELL, *SETTING], sort=False).loss.mean()
    for design, layers, warmup, rate in mean.groupby(level=CELL, sort=False).idxmin():
        cell = dict(design=(design,), layers=(layers,), rate=(rate,), warmup=(warmup,), seed=SEEDS)
        tables.append(curves(cell, steps, kept, processes, run))
    every = pd.concat(tables, ignore_index=True)
    measured = pd.DataFrame(every.losses.tolist(), columns=MEASURED).fillna(math.inf)
    return pd.concat([every.drop(columns="losses"), measured], axis=1)


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
@click.option("--steps", default=200, help="Updates of each run.")
@click.option("--processes", default=2, help="Runs at a time.")
@click.option("--folder", default=FOLDER, type=click.Path(path_type=Path), help="Where the record goes.")
@click.option("--kept", default="_build/designs.jsonl", type=click.Path(path_type=Path), help="Finished runs.")
def main(steps: int, processes: int, folder: Path, kept: Path) -> None:
    """Write the record of designs; an interrupted run goes on where it stopped."""
    table = runs(CHOSEN_ON, steps, kept, processes)
    seconds = [_seconds(layers, steps) for layers in LAYERS]
    record(
        "designs-training",
        table,
        WHAT.format(steps),
        folder,
        model=f"byte language model, {BYTE_WIDTH} wide, {BYTE_HEADS} heads, LayerNorm where nothing else is said, "
        "Xavier-normal matrices, embeddings and head of standard deviation 1/√d; DeepNorm with its β, on the sphere "
        "rows or columns of length 1, W_O and W₂ of post-small and hybrid-small times 1/√(2M) for M blocks",
        corpus="the standard library's documentation strings (corpus stdlib), "
        f"batches of {BATCH} windows of {BYTE_LENGTH - 1} predicted bytes",
        optimizer="Adam, β = 0.9 and 0.98, no decay, no clipping, linear warm-up, then constant",
        seeds="of weights and batches; to choose rate and warm-up by held-out loss, 0 to 2 with 6 blocks and 0 with 18 "
        "and 24; at the chosen ones 3 to 7",
        time=f"{len(table)} runs; one with pre-norm takes {', '.join(f'{s:.0f}' for s in seconds)} s with "
        f"{', '.join(map(str, LAYERS))} blocks",
    )
