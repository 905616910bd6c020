"""What a survey adds to a forward pass, beside other ways to the same vectors; and that its memory does not grow."""

import copy
import multiprocessing
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path

import click
import normgeom as ng
import pandas as pd
import torch
from normgeom.records import FOLDER
from normgeom_lab.common.recording import record
from torch import Tensor, nn
from tqdm.auto import tqdm
from transformers import GPT2Config, GPT2LMHeadModel

from records.ways import DIRECTIONS, SEED, WAYS, importable


@dataclass(frozen=True)
class Shape:
    """What is timed: sizes of a GPT-2, small's where nothing is said, and texts and tokens of a batch.

    ``goal`` is what a survey of every norm may take at most, over the bare forward pass; ``rounds`` those of
    one run: one round's ratio scatters by about 8 %, so the median of 60 is known to about 1.3 %.
    """

    name: str
    sizes: dict[str, int]
    batch: tuple[int, int]
    rounds: int
    goal: float


BYTES = dict(n_layer=6, n_embd=384, n_head=6, vocab_size=257, bos_token_id=None, eos_token_id=None)
SHAPES = (
    Shape("GPT-2 small", {}, (4, 256), 12, 1.05),
    Shape("GPT-2 small", {}, (1, 128), 60, 1.05),
    Shape("6 layers of 384, bytes", BYTES, (16, 128), 20, 1.15),
    Shape("6 layers of 384, bytes", BYTES, (1, 128), 120, 1.30),
)
NARROW = dict(n_embd=32, n_head=2, vocab_size=509, bos_token_id=None, eos_token_id=None)  # of the one whose tokens grow
TOKENS, NARROW_BATCH = (10**4, 10**5, 10**6), (20, 250)
CELL = ["model", "texts", "length", "way"]


def gpt2(sizes: dict[str, int]) -> GPT2LMHeadModel:
    """A GPT-2 of small's shape, but for ``sizes``, with random weights, in evaluation mode."""
    torch.manual_seed(SEED)
    return GPT2LMHeadModel(GPT2Config(use_cache=False, **sizes)).eval()


def batches(model: GPT2LMHeadModel, shape: tuple[int, int], number: int) -> Iterable[Tensor]:
    """Random token ids."""
    generator = torch.Generator().manual_seed(SEED)
    return (torch.randint(model.config.vocab_size, shape, generator=generator) for _ in range(number))


@torch.no_grad()
def race(shape: Shape) -> pd.DataFrame:
    """All ways that are present in turns, each round on a batch of its own: one row a way and round.

    Times are of the processor, so that another program's turns do not count; for a process of its own.
    """
    torch.set_num_threads(1)
    model = gpt2(shape.sizes)
    ways = [name for name, way in WAYS.items() if way.present]
    prepared = {name: WAYS[name].prepare(_twin(model)) for name in ways}
    for ids in batches(model, shape.batch, 1):
        for run, _ in prepared.values():
            run(ids)
    seconds = []
    for i, ids in enumerate(tqdm(batches(model, shape.batch, shape.rounds), total=shape.rounds, unit="round")):
        order = ways[i % len(ways) :] + ways[: i % len(ways)]
        seconds.append({name: _seconds(prepared[name][0], ids) for name in order})
    vectors = {name: len(table()[["site", "side"]].drop_duplicates()) for name, (_, table) in prepared.items()}
    cell = dict(zip(CELL, (shape.name, *shape.batch), strict=False), goal=shape.goal)
    return pd.DataFrame(
        dict(**cell, way=name, vectors=vectors[name], round=i, seconds=taken, ratio=taken / each["bare forward"])
        for i, each in enumerate(seconds)
        for name, taken in each.items()
    )


def ratios(seen: pd.DataFrame) -> pd.DataFrame:
    """One row a way: medians over the rounds of all runs; lowest and highest round; worst: the largest of the runs'."""
    by_run = seen.groupby([*CELL, "run"], sort=False).ratio.median()
    cells = seen.assign(lowest=seen.ratio, highest=seen.ratio).groupby(CELL, sort=False)
    kinds = dict(seconds="median", ratio="median", lowest="min", highest="max")
    table = cells.agg(dict(vectors="first", round="size", **kinds, goal="first")).rename(columns={"round": "rounds"})
    table.insert(table.columns.get_loc("goal"), "worst", by_run.groupby(level=CELL, sort=False).max())
    table = table.reset_index()
    return table.assign(goal=table.goal.where(table.way == "Survey", 0.0))


def _twin(model: nn.Module) -> nn.Module:
    """A copy with the same parameters: some of the tools change the modules that they are given."""
    return copy.deepcopy(model, {id(p): p for p in model.parameters()})


def _seconds(run: Callable[[Tensor], object], ids: Tensor) -> float:
    start = time.process_time()
    run(ids)
    return time.process_time() - start


@torch.no_grad()
def alone(name: str, shape: Shape) -> float:
    """How far two batches raise the peak memory, in megabytes; for a process of its own."""
    torch.set_num_threads(1)
    model = gpt2(shape.sizes)
    run, _ = WAYS[name].prepare(model)
    for ids in batches(model, (1, 8), 1):
        run(ids)

    def work() -> None:
        for ids in batches(model, shape.batch, 2):
            run(ids)

    before, highest = peak(work)
    return highest - before


def growth(tokens: int) -> dict[str, float]:
    """A survey of so many tokens, every norm of a narrow GPT-2 of 12 layers; for a process of its own."""
    torch.set_num_threads(1)
    model = gpt2(NARROW)
    ng.Survey(model, DIRECTIONS, SEED).run(batches(model, NARROW_BATCH, 4), progress=False)  # what first calls load
    measured = ng.Survey(model, DIRECTIONS, SEED)
    number = tokens // (NARROW_BATCH[0] * NARROW_BATCH[1])
    start = time.process_time()
    _, highest = peak(lambda: measured.run(batches(model, NARROW_BATCH, number), progress=False))
    seconds = time.process_time() - start
    with tempfile.TemporaryDirectory() as folder:
        measured.save(Path(folder) / "state.safetensors")
        state = sum(file.stat().st_size for file in Path(folder).iterdir())
    vectors = len(measured.table()[["site", "side"]].drop_duplicates())
    return dict(tokens=tokens, batches=number, vectors=vectors, seconds=seconds, megabytes=highest, state_bytes=state)


def peak(work: Callable[[], object]) -> tuple[float, float]:
    """What this process holds before ``work``, and the most that it holds meanwhile, in megabytes; on Linux."""
    Path("/proc/self/clear_refs").write_text("5")  # from here on the peak counts anew
    before = _peak_megabytes()
    work()
    return before, _peak_megabytes()


def _peak_megabytes() -> float:
    return int(re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024


@click.command()
@click.option("--processes", default=3, help="Runs of each shape, one after the other, each in a process of its own.")
@click.option("--folder", default=FOLDER, type=click.Path(path_type=Path), help="Where the records go.")
def main(processes: int, folder: Path) -> None:
    """Write speed-survey and size-survey and print them.

    TransformerLens and nnsight take part where they can be imported.
    """
    torch.set_num_threads(1)  # as in each of the processes; the record says so
    fresh = partial(ProcessPoolExecutor, 1, multiprocessing.get_context("spawn"), max_tasks_per_child=1)
    with fresh() as pool:
        runs = [(i, pool.submit(race, shape)) for i in range(processes) for shape in SHAPES]
        table = ratios(pd.concat([run.result().assign(run=i) for i, run in tqdm(runs, unit="run")]))
    os.environ["MALLOC_MMAP_THRESHOLD_"] = str(2**20)  # in glibc: large tensors that are freed are given back at once
    with fresh() as pool:
        shapes = {(shape.name, *shape.batch): shape for shape in SHAPES}
        rises = [pool.submit(alone, way, shapes[tuple(cell)]) for *cell, way in table[CELL].itertuples(index=False)]
        table["megabytes"] = [rise.result() for rise in tqdm(rises, unit="process")]
        sizes = pd.DataFrame(tqdm(pool.map(growth, TOKENS), total=len(TOKENS), unit="survey"))
    table["megabytes"] -= table.groupby(CELL[:-1], sort=False).megabytes.transform("first")
    click.echo(table.round(4).to_string(index=False))
    click.echo(sizes.round(2).to_string(index=False))
    packages = dict.fromkeys(way.package for way in WAYS.values() if way.package)
    found = {name: metadata.version(name) for name in packages if importable(name)}
    absent = [name for name in packages if name not in found]
    record(
        "speed-survey",
        table,
        "Processor time of one batch, over that of the bare forward pass of the same round, in which all ways ran in "
        "turns: the median of all runs' rounds, the lowest and highest round, and the worst of the runs' medians; "
        "vectors that a way sees of each token; and how much higher than the bare pass's its peak memory rises, in "
        "megabytes, in a process of its own. A goal of 0 is none.",
        folder,
        models="; ".join(dict.fromkeys(f"{shape.name}: {words(shape.sizes)}" for shape in SHAPES)),
        batches="random tokens, float32",
        runs=f"{processes}, each of a shape in a process of its own",
        threads=1,
        seed=SEED,
        statistics="Survey takes its own; all other ways share one plain piece of code: angles to three directions "
        "(moments, histogram), occupancy and lengths as in Survey, but with float32 products, and without first "
        "positions apart, NaN, largest coordinates and the error of dropping the mean",
        tools=", ".join(f"{name} {version}" for name, version in found.items()) or "none",
        absent=", ".join(absent) or "none",
        read="; ".join(f"{name}: {way.read}" for name, way in WAYS.items() if way.read and way.package in found),
    )
    record(
        "size-survey",
        sizes,
        "A survey of every norm, in and out: processor time, the peak memory of the process, in megabytes, program and "
        "model included, and the size of the saved state.",
        folder,
        model=words(NARROW),
        batch=f"{NARROW_BATCH[0]} texts of {NARROW_BATCH[1]} random tokens, float32",
        seed=SEED,
    )


def words(sizes: dict[str, int]) -> str:
    """A GPT-2 of such sizes, for a record."""
    config = GPT2Config(**sizes)
    return (
        f"GPT-2 with random weights: {config.n_layer} layers, {config.n_embd} wide, {config.n_head} heads, "
        f"{config.vocab_size} words, with its language-model head"
    )
