"""Forward passes on a device: what a survey adds to them, and what conversion to RMSNorm saves.

On a CPU the models are tiny: that only tries the program.  There ``overhead`` and ``dropping`` record both.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click
import pandas as pd
import torch
from normgeom.records import FOLDER
from normgeom_lab.common.recording import record
from normgeom_lab.precision import in_turns, peak_bytes
from torch import Tensor
from transformers import GPT2LMHeadModel

from records.dropping import converted, over_original, passes
from records.overhead import batches, gpt2, words
from records.ways import SEED, WAYS


@dataclass(frozen=True)
class Model:
    """A GPT-2 of so many sizes, small's where nothing is said, in a format, and batches of texts and tokens."""

    sizes: dict[str, int]
    dtype: torch.dtype
    batches: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Plan:
    """What is timed on a device: models, rounds, and seconds that each way fills in a round."""

    models: dict[str, Model]
    rounds: int
    fill: float


BATCHES = (8, 1024), (4, 256), (1, 128)
TINY = dict(n_layer=2, n_embd=32, n_head=2, vocab_size=64, n_positions=32, bos_token_id=None, eos_token_id=None)
PLANS = {
    "cuda": Plan(
        {
            "GPT-2 small": Model({}, torch.float32, BATCHES),
            "GPT-2 small, bfloat16": Model({}, torch.bfloat16, BATCHES),
        },
        rounds=20,
        fill=0.1,
    ),
    "cpu": Plan({"tiny": Model(TINY, torch.float32, ((2, 16),))}, rounds=3, fill=0.0),
}


def peak_on_gpu(call: Callable[[], object]) -> int:
    """The most bytes that tensors made during a call hold at once on the GPU."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    return torch.cuda.max_memory_allocated() - before


PEAKS = {"cpu": peak_bytes, "cuda": peak_on_gpu}


@torch.no_grad()
def survey(device: str) -> pd.DataFrame:
    """One row a model, batch and way to its vectors: time and memory of a pass, over those of the bare pass."""
    rows = []
    for name, of in PLANS[device].models.items():
        model = gpt2(of.sizes).to(device, of.dtype)
        for shape in of.batches:
            (ids,) = batches(model, shape, 1)
            cell = dict(model=name, texts=shape[0], length=shape[1])
            rows += [dict(**cell, **row) for row in _ways(model, ids.to(device))]
    return pd.DataFrame(rows)


def _ways(model: GPT2LMHeadModel, ids: Tensor) -> Iterator[dict]:
    device = ids.device.type
    plan = PLANS[device]
    prepared = {name: way.prepare(model) for name, way in WAYS.items() if way.package is None}
    calls = {name: partial(run, ids) for name, (run, _) in prepared.items()}
    seconds = in_turns(calls, plan.rounds, plan.fill)
    peaks = {name: PEAKS[device](call) / 2**20 for name, call in calls.items()}
    for name, (_, table) in prepared.items():
        ratios = seconds[name] / seconds["bare forward"]
        vectors = len(table()[["site", "side"]].drop_duplicates())
        times = dict(seconds=seconds[name].median(), ratio=ratios.median(), lowest=ratios.min(), highest=ratios.max())
        more = peaks[name] - peaks["bare forward"]
        yield dict(way=name, vectors=vectors, rounds=plan.rounds, **times, megabytes=more)


@torch.no_grad()
def conversion(device: str) -> pd.DataFrame:
    """One row a model, batch and way: time of a pass over that of the model unconverted."""
    plan, rows = PLANS[device], []
    for name, of in plan.models.items():
        model = gpt2(of.sizes)
        versions = {way: version.to(device, of.dtype) for way, version in converted(model).items()}
        for shape in of.batches:
            (ids,) = batches(model, shape, 1)
            seconds = in_turns(passes(versions, ids.to(device)), plan.rounds, plan.fill)
            rows += over_original(seconds, model=name, batch=shape[0], length=shape[1])
    return pd.DataFrame(rows)


# What is measured, by the beginning of its record's name, and what that says.
PARTS = {
    "speed-survey": (
        survey,
        "Time of a forward pass with what looks at its vectors, over that of the bare pass of the same round, in which "
        "all ways ran in turns: median, lowest and highest; vectors that a way sees of each token; and how much more "
        "memory tensors hold at once than in the bare pass, in megabytes of 2²⁰ bytes.",
    ),
    "speed-converted": (
        conversion,
        "Time of a forward pass over that of the same model unconverted, median, lowest and highest of rounds in which "
        "the versions ran in turns: converted to RMSNorm by to_rms_norm, and with no norms at all, the bound on what "
        "any replacement can save.",
    ),
}


@click.command()
@click.argument("part", type=click.Choice(list(PARTS)))
@click.option("--device", default="cuda", type=click.Choice(list(PLANS)), help="On a CPU the models are tiny.")
@click.option("--folder", default=FOLDER, type=click.Path(path_type=Path), help="Where the record goes.")
def main(part: str, device: str, folder: Path) -> None:
    """Write the record PART-cuda (PART-cpu) and print it."""
    measure, what = PARTS[part]
    plan, table = PLANS[device], measure(device)
    record(
        f"{part}-{device}",
        table,
        what,
        folder,
        models="; ".join(f"{name}: {words(of.sizes)}, {of.dtype}" for name, of in plan.models.items()),
        batches="random tokens",
        rounds=f"{plan.rounds}, of {plan.fill} seconds or one call a way",
        processor=torch.cuda.get_device_name() if device == "cuda" else "CPU",
        seed=SEED,
    )
    click.echo(table.round(4).to_string(index=False))
