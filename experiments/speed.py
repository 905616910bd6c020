"""Speed as ratios of times measured in turns: norms, their geometry, and surveys."""

import ctypes
import os
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product

import normgeom as ng
import pandas as pd
import torch
import torch.nn.functional as F
from normgeom_lab.precision import in_turns
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from experiments.registry import experiment

# norms

SHAPES = ((4096, 768), (4096, 4096), (512, 16384), (16, 768))  # rows and features
# Factors on the number of rounds: times of the smaller large tensors vary more, and their rounds are shorter.
MORE_ROUNDS = {(4096, 768): 2, (512, 16384): 2}
# Results that are kept, more than a cache holds: as in a network, no output reuses the memory of the last one.
KEPT = 8
CELL = ["threads", "rows", "d", "dtype", "backward"]
OF_NORMS = (
    "Medians over rounds, in each of which all implementations (ways) ran in turns. over_copy: time divided by that of "
    "a copy of the input. torch_over_this: time of torch's function divided by this way's; worst: lowest median of a "
    "process. backward: with gradients with respect to input, gain and (LayerNorm) bias; otherwise only forward."
)
ABOUT_NORMS = dict(
    results=f"the last {KEPT} results are kept, so that no output is in a cache before it is written", seed=0
)


def norms(rows: int, d: int) -> dict[tuple[str, str], Callable[..., Tensor]]:
    """Return ``{(norm, way): function of input, gain, bias}``, compiled ways only for large inputs with a compiler."""
    ways = {
        ("layer", "normgeom"): ng.layer_norm,
        ("layer", "torch"): lambda x, w, b: F.layer_norm(x, (d,), w, b),
        ("rms", "normgeom"): lambda x, w, b: ng.rms_norm(x, w),
        ("rms", "torch"): lambda x, w, b: F.rms_norm(x, (d,), w, 1e-6),
        ("rms", "transformers"): _transformers(d),
    }
    if rows > 16 and any(map(shutil.which, (os.environ.get("CXX", "g++"), "clang++"))):
        torch.compiler.reset()  # else graphs of earlier races count towards a limit on their number
        for norm in ("layer", "rms"):
            ways[norm, "compiled"] = torch.compile(ways[norm, "normgeom"], fullgraph=True)
        ways["layer", "compiled torch"] = torch.compile(ways["layer", "torch"], fullgraph=True)  # it centres only once
    return ways


def _transformers(d: int) -> Callable[..., Tensor]:
    module = LlamaRMSNorm(d, 1e-6)
    del module.weight  # from now on a plain attribute, which can be any tensor

    def norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        module.weight = weight
        return module(x)

    return norm


def race(rows: int, d: int, dtype: torch.dtype, backward: bool, rounds: int, device: str) -> list[dict]:
    """Time all ways and a copy of the input in turns: one row per way and round."""
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
    """Return one row per way: medians over all rounds of times and of ratios within a round; worst: over processes."""
    turn = [*CELL, "process", "round"]
    copies = seen.query("norm == 'copy'")[[*turn, "seconds"]]
    rivals = seen.query("way == 'torch'")[[*turn, "norm", "seconds"]]
    seen = seen.merge(copies, on=turn, suffixes=("", "_copy"))
    seen = seen.merge(rivals, on=[*turn, "norm"], suffixes=("", "_torch"))
    seen["over_copy"] = seen.seconds / seen.seconds_copy
    seen["torch_over_this"] = seen.seconds_torch / seen.seconds
    kinds = dict(seconds="median", over_copy="median", torch_over_this="median")
    table = seen.groupby([*CELL, "norm", "way"], sort=False, as_index=False).agg(dict(round="size", **kinds))
    table = table.rename(columns={"round": "rounds"})
    by_run = seen.groupby([*CELL, "norm", "way", "process"], sort=False).torch_over_this.median()
    worst = by_run.groupby(level=[*CELL, "norm", "way"], sort=False).min()
    return table.assign(worst=worst.to_numpy())


def speed_of_norms(process: int, threads: int, rounds: int, shapes: Sequence, device: str) -> list[dict]:
    torch.set_num_threads(threads)
    # Make glibc keep freed memory (mallopt(3): M_MMAP_MAX, M_TRIM_THRESHOLD, M_TOP_PAD).  Otherwise fresh pages are
    # cleared for every large tensor, which takes longer than the norms, in some rounds and not in others.
    for option, value in ((-4, 0), (-1, 2**31 - 1), (-2, 2**28)):
        ctypes.CDLL(None).mallopt(option, value)
    rows = []
    for shape, dtype, backward in product(shapes, (torch.float32, torch.bfloat16), (False, True)):
        rows += race(*shape, dtype, backward, rounds * MORE_ROUNDS.get(shape, 1), device)
    return rows


experiment(
    "speed-norms",
    OF_NORMS,
    dict(process=(0, 1, 2), threads=(1, 2)),
    minutes=14,
    workers=1,
    summary=ratios,
    processes=3,
    memory="the C library keeps freed memory, so that no round has to clear fresh pages",
    processor="CPU",
    **ABOUT_NORMS,
)(partial(speed_of_norms, rounds=12, shapes=SHAPES, device="cpu"))
experiment(
    "speed-norms-cuda",
    OF_NORMS,
    dict(process=(0, 1), threads=(1,)),
    minutes=8,
    workers=1,
    summary=ratios,
    processes=2,
    needs=lambda: "" if torch.cuda.is_available() else "a GPU",
    **ABOUT_NORMS,
)(partial(speed_of_norms, rounds=15, shapes=((8192, 4096), (4096, 768), (512, 16384)), device="cuda"))


# geometry


@experiment(
    "speed-geometry",
    "Time of torch's function (against) divided by the time of ours, in float64: median and lowest ratio of rounds in "
    "which both ran in turns. seconds: our median time. For the product J v, the Jacobian is constructed beforehand.",
    dict(what=("semi-axes", "axes", "product J v"), d=(4096,)),
    minutes=3,
    workers=1,
    seed=0,
)
def geometry(what: str, d: int) -> dict:
    generator = torch.Generator().manual_seed(0)
    gain, x, v, eps = (*(torch.randn(d, generator=generator, dtype=torch.float64) for _ in range(3)), 1e-5)
    gain = 1 + 0.1 * gain
    dense = torch.diag(gain**2) - torch.outer(gain, gain) / d
    norm = partial(F.layer_norm, normalized_shape=(d,), weight=gain, eps=eps)
    jacobian = ng.NormJacobian(x, gain, eps)
    races = {  # torch's function, rounds, our call, and the solver; solvers take seconds
        "semi-axes": ("torch.linalg.eigvalsh", 3, lambda: ng.Ellipsoid(gain).semi_axes, torch.linalg.eigvalsh),
        "axes": ("torch.linalg.eigh", 3, lambda: ng.Ellipsoid(gain).axes(), torch.linalg.eigh),
        "product J v": ("torch.func.jvp", 31, lambda: jacobian.matvec(v), None),
    }
    against, rounds, ours, solver = races[what]
    theirs = partial(solver, dense) if solver else lambda: torch.func.jvp(norm, (x,), (v,))
    seconds = in_turns({"ours": ours, "theirs": theirs}, rounds, fill=0.005)
    ratio = seconds.theirs / seconds.ours
    return dict(against=against, seconds=seconds.ours.median(), ratio=ratio.median(), lowest=ratio.min())


# surveys

SURVEYED = ((4, 256), (1, 128))  # texts per batch and tokens per text
DIRECTIONS = ("uniform", "random_a", "random_b")


def of_runs(runs: pd.DataFrame) -> pd.DataFrame:
    """Return one row per batch: medians of the processes' medians, and the lowest and highest ratio of a round."""
    medians = dict(seconds=("seconds", "median"), ratio=("ratio", "median"))
    rounds = dict(lowest=("lowest", "min"), highest=("highest", "max"))
    return runs.groupby(["texts", "length"], sort=False, as_index=False).agg(**medians, **rounds)


@experiment(
    "speed-survey",
    "Time of ng.Survey on one batch divided by the time of the forward pass alone in the same round. ratio: median of "
    "the processes' medians; lowest, highest: ratios of single rounds. seconds: median time of the survey.",
    dict(process=(0, 1, 2)),
    minutes=4,
    workers=1,
    summary=of_runs,
    model="GPT-2 small with its head, random weights, float32",
    batches="random tokens",
    runs="3 runs of 15 rounds, each in its own process",
    directions=", ".join(DIRECTIONS),
    seed=0,
)
@torch.no_grad()
def survey_over_bare(process: int, batches: Sequence = SURVEYED, rounds: int = 15, **sizes: int) -> list[dict]:
    """Return one row per batch, for a GPT-2 with the shape of GPT-2 small except for ``sizes``."""
    torch.manual_seed(0)
    model, rows = GPT2LMHeadModel(GPT2Config(use_cache=False, **sizes)).eval(), []
    survey = ng.Survey(model, DIRECTIONS)
    for texts, length in batches:
        ids = torch.randint(model.config.vocab_size, (texts, length))
        calls = {"bare": partial(model, ids), "survey": partial(survey.run, [ids], progress=False)}
        seconds = in_turns(calls, rounds)
        ratio = seconds.survey / seconds.bare
        found = dict(seconds=seconds.survey.median(), ratio=ratio.median(), lowest=ratio.min(), highest=ratio.max())
        rows.append(dict(texts=texts, length=length, **found))
    return rows
