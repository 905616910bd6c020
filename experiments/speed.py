"""Speed as ratios, all ways in turns: norms, their geometry, converted models, and trainings that are measured."""

import copy
import ctypes
import os
import re
import shutil
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path

import normgeom as ng
import pandas as pd
import torch
import torch.nn.functional as F
from normgeom.models.watch import replace_module
from normgeom_lab.precision import in_turns
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from experiments.registry import experiment

# norms

SHAPES = ((4096, 768), (4096, 4096), (512, 16384), (16, 768))  # rows and features
# How many times as many rounds: among the large tensors, the smaller scatter more, and their rounds are shorter.
MORE_ROUNDS = {(4096, 768): 2, (512, 16384): 2}
# Results that stay where they are, more than a cache holds: as in a network, no output takes the last one's place.
KEPT = 8
# Times of torch's over ours: (norm, dtype, with the backward pass).
GOALS = {
    ("rms", "float32", False): 1.5,
    ("rms", "bfloat16", False): 2.5,
    ("rms", "float32", True): 2.0,
    ("rms", "bfloat16", True): 2.5,
    ("layer", "float32", False): 0.95,
    ("layer", "float32", True): 0.95,
}
CELL = ["threads", "rows", "d", "dtype", "backward"]
OF_NORMS = (
    "Time of each way over that of a copy of its input, and of torch's own function over that of the way: medians of "
    "rounds in which all ran in turns; the worst of the runs' medians of the latter. Forward without gradients, or "
    "forward and backward with gradients by input, gain and (LayerNorm) bias. A goal of 0 is none."
)
ABOUT_NORMS = dict(
    results=f"the last {KEPT} stay where they are, so that no output is in a cache before it is written", seed=0
)


def norms(rows: int, d: int) -> dict[tuple[str, str], Callable[..., Tensor]]:
    """``{(norm, way): function of input, gain and bias}``; compiled ones of large inputs, where there is a compiler."""
    ways = {
        ("layer", "normgeom"): ng.layer_norm,
        ("layer", "torch"): lambda x, w, b: F.layer_norm(x, (d,), w, b),
        ("rms", "normgeom"): lambda x, w, b: ng.rms_norm(x, w),
        ("rms", "torch"): lambda x, w, b: F.rms_norm(x, (d,), w, 1e-6),
        ("rms", "transformers"): _transformers(d),
    }
    if rows > 16 and any(map(shutil.which, (os.environ.get("CXX", "g++"), "clang++"))):
        torch.compiler.reset()  # or graphs of other races count, and beyond a limit there is an error
        for norm in ("layer", "rms"):
            ways[norm, "compiled"] = torch.compile(ways[norm, "normgeom"], fullgraph=True)
        ways["layer", "compiled torch"] = torch.compile(ways["layer", "torch"], fullgraph=True)  # which centres once
    return ways


def _transformers(d: int) -> Callable[..., Tensor]:
    module = LlamaRMSNorm(d, 1e-6)
    del module.weight  # an attribute from here on, so that it may be any tensor

    def norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        module.weight = weight
        return module(x)

    return norm


def race(rows: int, d: int, dtype: torch.dtype, backward: bool, rounds: int, device: str) -> list[dict]:
    """All ways in turns, and a copy of the input among them: one row a way and round."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device, dtype).requires_grad_(backward)

    x, weight, bias, cotangent = draw(rows, d), draw(d), draw(d), draw(rows, d).detach()

    def work(norm: Callable[..., Tensor], leaves: Sequence[Tensor]) -> object:
        y = norm(x, weight, bias)
        return torch.autograd.grad(y, leaves, cotangent) if backward else y

    leaves = {"layer": (x, weight, bias), "rms": (x, weight)}
    calls = {(norm, way): partial(work, function, leaves[norm]) for (norm, way), function in norms(rows, d).items()}
    with torch.set_grad_enabled(backward):
        calls = {("copy", "torch"): lambda: torch.empty_like(x).copy_(x.detach()), **calls}
        seconds = in_turns(calls, rounds, fill=0.02, kept=KEPT)
    cell = dict(rows=rows, d=d, dtype=str(dtype).removeprefix("torch."), backward=backward)
    return [
        dict(**cell, norm=norm, way=way, round=i, seconds=taken)
        for norm, way in calls
        for i, taken in enumerate(seconds[norm, way])
    ]


def ratios(seen: pd.DataFrame) -> pd.DataFrame:
    """One row a way: medians over the rounds of all runs, of times and of ratios within a round; worst: of the runs."""
    turn = [*CELL, "process", "round"]
    copies = seen.query("norm == 'copy'")[[*turn, "seconds"]]
    rivals = seen.query("way == 'torch'")[[*turn, "norm", "seconds"]]
    seen = seen.merge(copies, on=turn, suffixes=("", "_copy"))
    seen = seen.merge(rivals, on=[*turn, "norm"], suffixes=("", "_torch"))
    seen["over_copy"] = seen.seconds / seen.seconds_copy
    seen["torch_over_this"] = seen["lowest"] = seen.seconds_torch / seen.seconds
    kinds = dict(seconds="median", over_copy="median", torch_over_this="median", lowest="min")
    table = seen.groupby([*CELL, "norm", "way"], sort=False, as_index=False).agg(dict(round="size", **kinds))
    table = table.rename(columns={"round": "rounds"})
    by_run = seen.groupby([*CELL, "norm", "way", "process"], sort=False).torch_over_this.median()
    table["worst"] = by_run.groupby(level=[*CELL, "norm", "way"], sort=False).min().to_numpy()
    large = (table.way == "normgeom") & (table.rows * table.d > 10**6)
    keys = zip(table.norm, table.dtype, table.backward, strict=True)
    return table.assign(goal=large * [GOALS.get(key, 0.0) for key in keys])


def speed_of_norms(process: int, threads: int, rounds: int, shapes: Sequence, device: str) -> list[dict]:
    torch.set_num_threads(threads)
    # glibc is told to keep what is freed: else it clears fresh pages for every large tensor, which takes longer than
    # the norms do, in some rounds and not in others
    malloc(M_MMAP_MAX=0, M_TRIM_THRESHOLD=2**31 - 1, M_TOP_PAD=2**28)
    rows = []
    for shape, dtype, backward in product(shapes, (torch.float32, torch.bfloat16), (False, True)):
        rows += race(*shape, dtype, backward, rounds * MORE_ROUNDS.get(shape, 1), device)
    return rows


def malloc(**settings: int) -> None:
    """Tell glibc how to get and return memory, as in mallopt(3)."""
    numbers = dict(M_TRIM_THRESHOLD=-1, M_TOP_PAD=-2, M_MMAP_THRESHOLD=-3, M_MMAP_MAX=-4)
    for name, value in settings.items():
        ctypes.CDLL(None).mallopt(numbers[name], value)


experiment(
    "speed-norms",
    OF_NORMS,
    dict(process=(0, 1, 2), threads=(1, 2)),
    minutes=14,
    workers=1,
    summary=ratios,
    processes=3,
    memory="the C library told to keep what is freed, so that no round clears fresh pages",
    processor="CPU",
    **ABOUT_NORMS,
)(partial(speed_of_norms, rounds=12, shapes=SHAPES, device="cpu"))
experiment(
    "speed-norms-cuda",
    OF_NORMS,
    dict(process=(0, 1), threads=(1,)),
    minutes=8,
    workers=1,
    summary=lambda seen: ratios(seen).assign(goal=lambda table: 0.95 * (table.way == "normgeom")),
    processes=2,
    needs=lambda: "" if torch.cuda.is_available() else "a GPU",
    optional=True,
    **ABOUT_NORMS,
)(partial(speed_of_norms, rounds=15, shapes=((8192, 4096), (4096, 768), (512, 16384)), device="cuda"))


# geometry


@experiment(
    "speed-geometry",
    "Time of the alternative over ours: the median ratio, and the lowest, of rounds in which both ran in turns, in "
    "float64; the Jacobian is there already when products are timed.",
    dict(what=("semi-axes", "axes", "product J v"), d=(4096,)),
    minutes=3,
    workers=1,
    summary=lambda table: table[["what", "against", "d", "seconds", "ratio", "lowest", "goal"]],
    seed=0,
)
def geometry(what: str, d: int) -> dict:
    generator = torch.Generator().manual_seed(0)
    gain, x, v, eps = (*(torch.randn(d, generator=generator, dtype=torch.float64) for _ in range(3)), 1e-5)
    gain = 1 + 0.1 * gain
    dense = torch.diag(gain**2) - torch.outer(gain, gain) / d
    norm = partial(F.layer_norm, normalized_shape=(d,), weight=gain, eps=eps)
    jacobian = ng.NormJacobian(x, gain, eps)
    races = {  # the other way, the goal, rounds, and both calls; the dense solvers take seconds
        "semi-axes": ("torch.linalg.eigvalsh", 40, 3, lambda: ng.Ellipsoid(gain).semi_axes, torch.linalg.eigvalsh),
        "axes": ("torch.linalg.eigh", 25, 3, lambda: ng.Ellipsoid(gain).axes(), torch.linalg.eigh),
        "product J v": ("torch.func.jvp", 20, 31, lambda: jacobian.matvec(v), None),
    }
    against, goal, rounds, ours, solver = races[what]
    theirs = partial(solver, dense) if solver else lambda: torch.func.jvp(norm, (x,), (v,))
    seconds = in_turns({"ours": ours, "theirs": theirs}, rounds, fill=0.005)
    ratio = seconds.theirs / seconds.ours
    times = dict(seconds=seconds.ours.median(), ratio=ratio.median(), lowest=ratio.min())
    return dict(against=against, **times, goal=goal)


@experiment(
    "size-geometry",
    "All semi-axes alone: seconds, and how far the process's peak memory rose above what it was before.",
    dict(d=(1024, 4096, 16384)),
    minutes=0.5,
    workers=1,
    seed=0,
)
def size_of_geometry(d: int) -> dict:
    gain = 1 + 0.1 * torch.randn(d, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ng.Ellipsoid(gain[:64]).axes()  # what a first call loads
    start, found = time.perf_counter(), []
    before, highest = peak(lambda: found.append(ng.Ellipsoid(gain).semi_axes))
    return dict(axes=len(found[0]), seconds=time.perf_counter() - start, megabytes=highest - before)


def peak(work: Callable[[], object]) -> tuple[float, float]:
    """What this process holds before ``work``, and the most that it holds meanwhile, in megabytes; on Linux."""

    def megabytes() -> float:
        return int(re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024

    Path("/proc/self/clear_refs").write_text("5")  # from here on the peak counts anew
    before = megabytes()
    work()
    return before, megabytes()


# converted models

SMALL = dict(n_layer=4, n_embd=128, n_head=4, vocab_size=256)


@experiment(
    "speed-converted",
    "Time of a forward pass over that of the same model unconverted, median, lowest and highest of rounds in which the "
    "versions ran in turns: converted to RMSNorm by to_rms_norm, and with no norms at all, the bound on what any "
    "replacement can save.",
    [dict(model=("GPT-2 small",), shapes=[((4, 256), (1, 1))]), dict(model=("small",), shapes=[((8, 128), (1, 1))])],
    minutes=5,
    workers=1,
    summary=lambda table: table.drop(columns="shapes"),
    model="GPT-2 of random weights with its head, float32; GPT-2 small: 12 layers of 768; small: 4 of 128",
    rounds=15,
    norms="torch.nn.LayerNorm in the original, normgeom.RMSNorm in the converted model",
)
@torch.no_grad()
def converted(model: str, shapes: Sequence, rounds: int = 15) -> list[dict]:
    """One row a batch and way: medians of the rounds, and of the ratios within a round to the original."""
    torch.manual_seed(0)
    config = GPT2Config(use_cache=False, bos_token_id=None, eos_token_id=None, **(SMALL if model == "small" else {}))
    network, rows = GPT2LMHeadModel(config).eval(), []
    bare, converted = copy.deepcopy(network), ng.to_rms_norm(copy.deepcopy(network))
    versions = {"original": network, "converted": converted, "no norms": bare}
    for site in ng.find_norms(bare):
        replace_module(bare, site.module, nn.Identity())
    for batch, length in shapes:
        ids = torch.randint(config.vocab_size, (batch, length))
        seconds = in_turns({way: partial(version, ids) for way, version in versions.items()}, rounds, fill=0.2)
        ratios = seconds.div(seconds.original, axis=0).agg(["median", "min", "max"])
        for way, of in ratios.set_axis(["ratio", "lowest", "highest"]).items():
            rows.append(dict(batch=batch, length=length, way=way, seconds=seconds[way].median(), **of))
    return rows
