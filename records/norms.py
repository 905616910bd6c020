"""The norms against torch's own, transformers' class and the compiler, as ratios to a copy of the same bytes."""

import multiprocessing
import os
import shutil
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path

import click
import normgeom as ng
import pandas as pd
import torch
import torch.nn.functional as F
from normgeom.records import FOLDER
from normgeom_lab.common.recording import record
from normgeom_lab.precision import in_turns, peak_bytes
from torch import Tensor
from tqdm.auto import tqdm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

# Rows and features.  On a GPU the first is the one whose share of a copy's bandwidth is told.
SHAPES = {
    "cpu": ((4096, 768), (4096, 4096), (512, 16384), (16, 768)),
    "cuda": ((8192, 4096), (4096, 768), (512, 16384)),
}
DTYPES = torch.float32, torch.bfloat16
# For glibc: keep what is freed.  As it is set, it clears fresh pages for every large tensor, which takes longer than
# the norms do, in some rounds and not in others.
KEEP = dict(MALLOC_MMAP_THRESHOLD_=2**32, MALLOC_TRIM_THRESHOLD_=2**33, MALLOC_TOP_PAD_=2**28)
# How many times as many rounds: among the large tensors, the smaller scatter more, and their rounds are shorter.
MORE_ROUNDS = {(4096, 768): 5, (512, 16384): 2}
# Results that stay where they are, more than a cache holds: as in a network, no output takes the last one's place.
KEPT = 8
# Times of torch's over ours: (norm, dtype, with the backward pass).  On a GPU ours are to be no slower, to 5 %.
GOALS = {
    "cpu": {
        ("rms", "float32", False): 1.5,
        ("rms", "bfloat16", False): 2.5,
        ("rms", "float32", True): 2.0,
        ("rms", "bfloat16", True): 2.5,
        ("layer", "float32", False): 0.95,
        ("layer", "float32", True): 0.95,
    },
    "cuda": dict.fromkeys(product(("layer", "rms"), ("float32", "bfloat16"), (False, True)), 0.95),
}

CELL = ["threads", "rows", "d", "dtype", "backward"]

Norm = Callable[[Tensor, Tensor, Tensor], Tensor]


def norms(d: int, compiler: bool) -> dict[tuple[str, str], Norm]:
    """``{(norm, way): function of input, gain and bias}``; RMSNorm leaves the bias alone."""
    ways = {
        ("layer", "normgeom"): ng.layer_norm,
        ("layer", "torch"): lambda x, w, b: F.layer_norm(x, (d,), w, b),
        ("rms", "normgeom"): lambda x, w, b: ng.rms_norm(x, w),
        ("rms", "torch"): lambda x, w, b: F.rms_norm(x, (d,), w, 1e-6),
        ("rms", "transformers"): _transformers(d),
    }
    if compiler:
        torch.compiler.reset()  # or graphs of other races count, and beyond a limit there is an error
        for norm in ("layer", "rms"):
            ways[norm, "compiled"] = torch.compile(ways[norm, "normgeom"], fullgraph=True)
        ways["layer", "compiled torch"] = torch.compile(ways["layer", "torch"], fullgraph=True)  # which centres once
    return ways


def _transformers(d: int) -> Norm:
    module = LlamaRMSNorm(d, 1e-6)
    del module.weight  # an attribute from here on, so that it may be any tensor

    def norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        module.weight = weight
        return module(x)

    return norm


def race(
    rows: int, d: int, dtype: torch.dtype, backward: bool, rounds: int, compiler: bool, device: str
) -> pd.DataFrame:
    """All ways in turns, and a copy of the input among them: one row a way and round."""
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(shape, generator=generator).to(device, dtype).requires_grad_(backward)  # noqa: E731
    x, weight, bias, cotangent = draw(rows, d), draw(d), draw(d), draw(rows, d).detach()

    def work(norm: Norm, leaves: tuple[Tensor, ...]) -> object:
        y = norm(x, weight, bias)
        return torch.autograd.grad(y, leaves, cotangent) if backward else y

    ways = norms(d, compiler)
    leaves = {"layer": (x, weight, bias), "rms": (x, weight)}
    calls = {(norm, way): lambda n=norm, f=f: work(f, leaves[n]) for (norm, way), f in ways.items()}
    with torch.set_grad_enabled(backward):
        calls = {("copy", "torch"): lambda: torch.empty_like(x).copy_(x.detach()), **calls}
        seconds = in_turns(calls, rounds, fill=0.02, kept=KEPT)
        peaks = {key: peak_bytes(call) / x.nbytes if device == "cpu" else torch.nan for key, call in calls.items()}
    size = dict(rows=rows, d=d, dtype=str(dtype).removeprefix("torch."), backward=backward)
    return pd.DataFrame(
        [
            dict(**size, norm=norm, way=way, round=i, seconds=taken, peak=peaks[norm, way])
            for norm, way in calls
            for i, taken in enumerate(seconds[norm, way])
        ]
    )


def races(threads: int, shapes: Iterable[tuple[int, int]], rounds: int, compiler: bool, device: str) -> pd.DataFrame:
    """Every shape, dtype and pass; for a process of its own."""
    torch.set_num_threads(threads)
    cells = [(*cell, rounds * MORE_ROUNDS.get(cell[0], 1)) for cell in product(shapes, DTYPES, (False, True))]
    progress = tqdm(cells, unit="cell", desc=f"{threads} thread(s)")
    return pd.concat([race(*shape, *others, compiler, device) for shape, *others in progress])


def ratios(seen: pd.DataFrame, goals: dict[tuple[str, str, bool], float]) -> pd.DataFrame:
    """One row a way: medians over the rounds of all runs, of times and of ratios within a round; worst: of the runs."""
    turn = [*CELL, "process", "round"]
    copies = seen.query("norm == 'copy'")[[*turn, "seconds"]]
    rivals = seen.query("way == 'torch'")[[*turn, "norm", "seconds"]]
    seen = seen.merge(copies, on=turn, suffixes=("", "_copy"))
    seen = seen.merge(rivals, on=[*turn, "norm"], suffixes=("", "_torch"))
    seen["over_copy"] = seen.seconds / seen.seconds_copy
    seen["torch_over_this"] = seen["lowest"] = seen.seconds_torch / seen.seconds
    kinds = dict(seconds="median", over_copy="median", torch_over_this="median", lowest="min", peak="first")
    table = seen.groupby([*CELL, "norm", "way"], sort=False, as_index=False).agg(dict(round="size", **kinds))
    table = table.rename(columns={"round": "rounds"})
    by_run = seen.groupby([*CELL, "norm", "way", "process"], sort=False).torch_over_this.median()
    table["worst"] = by_run.groupby(level=[*CELL, "norm", "way"], sort=False).min().to_numpy()
    large = (table.way == "normgeom") & (table.rows * table.d > 10**6)
    keys = zip(table.norm, table.dtype, table.backward, strict=True)
    return table.assign(goal=large * [goals.get(key, 0.0) for key in keys])


def machine(threads: int) -> dict[str, float]:
    """Operations a second of a product of matrices, in 10⁹."""
    torch.set_num_threads(threads)
    a = torch.randn(2048, 2048)
    seconds = in_turns({"product": lambda: a @ a}, 15)["product"].median()
    return dict(threads=threads, gflop_per_s=2 * 2048**3 / seconds / 1e9)


@click.command()
@click.option("--rounds", default=30, help="Rounds in a process; at some shapes a multiple.")
@click.option(
    "--processes",
    default=3,
    help="Runs, one after the other, each in a process that lays out memory and compiles anew.",
)
@click.option("--shape", "shapes", type=(int, int), multiple=True, help="Rows and features.  [default: the device's]")
@click.option("--threads", type=int, multiple=True, default=(1, 2), help="Threads of torch.")
@click.option("--compiler/--no-compiler", default=None, help="With torch.compile; if there is a compiler, unless said.")
@click.option("--device", default="cpu", type=click.Choice(list(SHAPES)), help="Where they run.")
@click.option("--folder", default=FOLDER, type=click.Path(path_type=Path), help="Where the record goes.")
def main(rounds: int, processes: int, shapes, threads, compiler: bool | None, device: str, folder: Path) -> None:
    """Write speed-norms (speed-norms-cuda) and print where ours stands."""
    shapes = shapes or SHAPES[device]
    if compiler is None:
        compiler = any(map(shutil.which, (os.environ.get("CXX", "g++"), "clang++")))
    os.environ.update({name: str(value) for name, value in KEEP.items()})  # read when a process starts
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as fresh:
        settings = threads if device == "cpu" else threads[:1]
        runs = [
            (number, i, fresh.submit(races, number, shapes, rounds, compiler, device))
            for i in range(processes)
            for number in settings
        ]
        roofs = [fresh.submit(machine, number) for number in settings] if device == "cpu" else []
        seen = pd.concat([run.result().assign(threads=number, process=i) for number, i, run in runs])
        roof = pd.DataFrame([r.result() for r in roofs])
    table = ratios(seen, GOALS[device])
    if device == "cpu":
        record(
            "speed-machine",
            roof,
            "Operations a second, in 10⁹, of a product of two float32 matrices of 2048 × 2048: the median of 15.",
            folder,
            seed="none",
        )
    ours = table[table.way == "normgeom"].drop(columns="way")
    click.echo(ours.round(3).to_string(index=False))
    name = "speed-norms" if device == "cpu" else f"speed-norms-{device}"
    record(
        name,
        table if device == "cpu" else table.drop(columns="peak"),
        "Time of each way over that of a copy of its input, and of torch's own function over that of the way: medians "
        "of rounds in which all ran in turns; the worst of the runs' medians of the latter; the most memory that "
        "tensors made on the way hold, over that of the "
        "input. Forward without gradients, or forward and backward with gradients by input, gain and (LayerNorm) bias. "
        "A goal of 0 is none.",
        folder,
        processes=processes,
        results=f"the last {KEPT} stay where they are, so that no output is in a cache before it is written",
        memory="the C library told to keep what is freed, so that no round clears fresh pages",
        processor=torch.cuda.get_device_name() if device == "cuda" else "CPU",
        seed=0,
    )
