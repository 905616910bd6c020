"""Twins and their variants, trained: losses at two rates, angles over time, gains, distance to the surface."""

from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from itertools import product
from multiprocessing import get_context
from pathlib import Path

import click
import pandas as pd
import torch
from normgeom.models.flow import stream_writers
from normgeom.records import FOLDER
from normgeom.text.corpora import load_corpus
from normgeom.text.tokens import byte_tokens, windows
from normgeom.training.trainer import DIRECTIONS, fit_and_measure
from normgeom.training.twins import SIZES
from normgeom_lab.common.recording import record
from normgeom_lab.common.variants import NORMS, variants
from normgeom_lab.training import centre
from torch import nn
from tqdm.auto import tqdm

from records.pairs import ANGLES, FORMS, KEY, angles, angles_at_stages, at_stages, course, ends, forms

SIZE, SMALL, SEEDS, HELD_OUT = "1M", "0.2M", (0, 1, 2), 8192
VARIANTS = ("layer", "rms", "layer-plain", "rms-plain", "none")
STARTS = (
    "drawn: as GPT-2's; centred: what writes to the stream without its mean; shifted: the token embedding with its "
    "standard deviation added to each entry"
)
DRAWN = (0.1,), ("drawn",)
GRID = {
    "main": list(product(VARIANTS, (1e-3,), *DRAWN, SEEDS)),
    "freedom": [
        (norm, 1e-3, decay, start, seed)
        for decay, start in ((0.0, "drawn"), (0.1, "centred"), (0.1, "shifted"))
        for norm, seed in product(("layer", "rms"), SEEDS)
    ],
    "ranks": [*product(("rms",), (3e-3,), *DRAWN, range(40)), *product(("layer",), (3e-3,), *DRAWN, range(10))],
    "rates": [  # all with five seeds, the twins with ten
        (norm, rate, 0.1, "drawn", seed)
        for seed, rate, norm in product(range(10), (3e-3, 1e-3), NORMS)
        if seed < 5 or norm in ("layer", "rms")
    ],
}
# Of each part: a size, and after how many percents of its updates a model is measured.
PLANS = {"main": (SIZE, 1), "freedom": (SIZE, 10), "ranks": (SMALL, 100), "rates": (SIZE, 100)}


@torch.no_grad()
def prepare(model: nn.Module, start: str) -> None:
    """Move the initial weights along 1: ``centred`` takes it from all that writes, ``shifted`` adds to embeddings."""
    if start == "shifted":
        embedding = model.transformer.wte.weight
        embedding += embedding.std()
    if start == "centred":
        centre(stream_writers(model))


def run(part: str, key: tuple, steps: int | None, kept: Path) -> Path:
    """Train one model; a folder that holds it is left as it is."""
    norm, rate, decay, start, seed = key
    torch.set_num_threads(1)
    name, percents = PLANS[part]
    steps = steps or SIZES[name].steps
    size = replace(SIZES[name], lr=rate, decay=decay, steps=steps, eval_interval=max(1, percents * steps // 100))
    text = byte_tokens(load_corpus("stdlib").text)
    held_out = windows(text[-HELD_OUT:], size.length, size.batch)
    model = variants(size.config(256), seed, (norm,))[norm]
    prepare(model, start)
    folder = kept / part / "-".join(map(str, (*key, steps)))
    fit_and_measure(model, text[:-HELD_OUT].numpy(), held_out, size, seed, folder, progress=False)
    return folder


def train_all(parts: list[str], steps: int | None, kept: Path, processes: int) -> dict[str, dict[tuple, Path]]:
    """The folder of each run of some parts; those that are there are not run again."""
    grid = {part: GRID[part] for part in parts}
    found = {part: {} for part in grid}
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        jobs = {pool.submit(run, part, key, steps, kept): (part, key) for part, keys in grid.items() for key in keys}
        for job in tqdm(as_completed(jobs), total=len(jobs), unit="run"):
            part, key = jobs[job]
            found[part][key] = job.result()
    return {part: {key: found[part][key] for key in keys} for part, keys in grid.items()}


def write_rates(folders: dict[tuple, Path], steps: int | None, folder: Path) -> None:
    """Write training-rates."""
    losses = ends(folders)
    what = "Held-out loss in nats a byte after training, of every variant at two rates, from the drawn start."
    _write(folder, "training-rates", SIZE, steps, losses[["loss", "norm", "rate", "seed"]], what)
    click.echo(losses.groupby(["norm", "rate"]).loss.agg(["count", "mean", "sem"]).round(4).to_string())


@click.command()
@click.option("--part", type=click.Choice(["twins", "rates"]), help="Only one of the two.  [default: both]")
@click.option("--steps", type=int, help="Updates of each run.  [default: its size's]")
@click.option("--processes", default=2, help="Runs at a time.")
@click.option("--folder", default=FOLDER, type=click.Path(path_type=Path), help="Where the records go.")
@click.option("--kept", default="_build/training", type=click.Path(path_type=Path), help="Finished runs.")
def main(part: str | None, steps: int | None, processes: int, folder: Path, kept: Path) -> None:
    """Write training-rates, and of twins training-loss, -curve, -angles, -freedom, -ranks and -forms.

    Finished runs are not run again.
    """
    wanted = [name for name in GRID if part is None or (name == "rates") == (part == "rates")]
    runs = train_all(wanted, steps, kept, processes)
    if "rates" in runs:
        write_rates(runs.pop("rates"), steps, folder)
    if runs:
        write_twins(runs, steps, folder)


def write_twins(runs: dict[str, dict[tuple, Path]], steps: int | None, folder: Path) -> None:
    """Write what is not of the part rates."""
    twins = {key: path for key, path in runs["main"].items() if key[0] in ("layer", "rms")}
    losses = pd.concat([ends(folders).assign(part=part) for part, folders in runs.items()])
    what = f"Held-out loss in nats a byte after training; those of the part ranks are of the smaller size {SMALL}."
    _write(folder, "training-loss", SIZE, steps, losses, what)
    what = "Training loss in nats a byte, means of ten updates, at a rate of 0.001 and a decay of 0.1."
    _write(folder, "training-curve", SIZE, steps, course(runs["main"]), what)
    _write(folder, "training-angles", SIZE, steps, angles_at_stages(twins), ANGLES)
    free = angles(twins | runs["freedom"]).query("direction == 'uniform' and side == 'in'")
    free = at_stages(free, (10, 20, 50, 100)).drop(columns=["rate", "direction", "side", "std_deg"])
    free = free[free.site == free.site.iloc[-1]]
    what = (
        "Occupancy of the uniform direction at the last norm's input, with and without weight decay, from three starts."
    )
    _write(folder, "training-freedom", SIZE, steps, free, what)
    ranks = angles(runs["ranks"]).query("direction == 'uniform' and side == 'in'")
    ranks = ranks[["norm", "seed", "step", "site", "occupancy", "median", "rank"]]
    what = f"Rank of the uniform direction's occupancy among itself and {len(DIRECTIONS) - 3} sign vectors, many seeds."
    _write(folder, "training-ranks", SMALL, steps, ranks, what)
    _write(folder, "training-forms", SIZE, steps, forms(twins), FORMS)
    click.echo(losses.groupby(["part", *KEY[:-1]]).loss.agg(["mean", "min", "max"]).round(3).to_string())


def _write(folder: Path, name: str, size: str, steps: int | None, table: pd.DataFrame, what: str) -> None:
    of = SIZES[size]
    record(
        name,
        table,
        what,
        folder,
        model=f"GPT-2, {of.layers} blocks, d = {of.width}, {of.heads} heads, byte tokens, no dropout, head tied; "
        "norms of normgeom_lab.common.variants.NORMS",
        corpus="the standard library's documentation strings (corpus stdlib); its last "
        f"{HELD_OUT} bytes are held out and measured",
        training=f"{steps or of.steps} updates of {of.batch} windows of {of.length} bytes; AdamW, β = 0.9 and 0.95, "
        "matrices and embeddings decay, gradients clipped to norm 1, linear warm-up over a tenth, cosine to a tenth",
        **({"starts": STARTS} if "start" in table else {}),
        seeds=f"{sorted(set(table.seed))}: of weights, order of windows and directions",
    )
