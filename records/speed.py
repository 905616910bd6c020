"""Speed as ratios: each of ours against its alternative, in turns in one run, medians."""

import multiprocessing
import re
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click
import normgeom as ng
import pandas as pd
import torch
from normgeom_lab.common.recording import record
from normgeom_lab.precision import in_turns
from tqdm.auto import tqdm


@dataclass(frozen=True)
class Race:
    """Two ways to the same result; ``goal`` is the ratio of times, theirs over ours, that is to be reached."""

    what: str
    against: str
    d: int
    goal: float
    ours: Callable[[], object]
    theirs: Callable[[], object]
    rounds: int


def geometry(d: int) -> Iterable[Race]:
    """Semi-axes, axes and Jacobian products at width ``d``, in float64 as their alternatives."""
    generator = torch.Generator().manual_seed(0)
    gain, x, v, eps = (*(torch.randn(d, generator=generator, dtype=torch.float64) for _ in range(3)), 1e-5)
    gain = 1 + 0.1 * gain
    dense = torch.diag(gain**2) - torch.outer(gain, gain) / d
    norm = partial(torch.nn.functional.layer_norm, normalized_shape=(d,), weight=gain, eps=eps)
    jacobian = ng.NormJacobian(x, gain, eps)
    few = dict(rounds=3)  # the dense solvers take seconds
    yield Race(
        "semi-axes", "torch.linalg.eigvalsh", d, 40, lambda: ng.Ellipsoid(gain).semi_axes,
        lambda: torch.linalg.eigvalsh(dense), **few,
    )  # fmt: skip
    yield Race(
        "axes", "torch.linalg.eigh", d, 25, lambda: ng.Ellipsoid(gain).axes(), lambda: torch.linalg.eigh(dense), **few
    )
    yield Race(
        "product J v", "torch.func.jvp", d, 20, lambda: jacobian.matvec(v), lambda: torch.func.jvp(norm, (x,), (v,)),
        rounds=31,
    )  # fmt: skip


def race(entry: Race) -> dict[str, object]:
    """Medians over rounds in which both run, one after the other, each as often as fills some milliseconds."""
    rounds = in_turns({"ours": entry.ours, "theirs": entry.theirs}, entry.rounds, fill=0.005)
    ratios = rounds.theirs / rounds.ours
    return {
        "what": entry.what,
        "against": entry.against,
        "d": entry.d,
        "seconds": rounds.ours.median(),
        "ratio": ratios.median(),
        "lowest": ratios.min(),
        "goal": entry.goal,
    }


def alone(d: int) -> dict[str, float]:
    """Seconds and further peak memory of all semi-axes at width ``d``; for a process of its own."""
    torch.set_num_threads(1)
    gain = 1 + 0.1 * torch.randn(d, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ng.Ellipsoid(gain[:64]).axes()  # what a first call loads
    Path("/proc/self/clear_refs").write_text("5")  # from here on the peak counts anew
    before, start = _peak_megabytes(), time.perf_counter()
    axes = ng.Ellipsoid(gain).semi_axes
    seconds = time.perf_counter() - start
    return {"d": d, "axes": len(axes), "seconds": seconds, "megabytes": _peak_megabytes() - before}


def _peak_megabytes() -> float:
    return int(re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024


@click.command()
@click.option("--threads", default=1, help="Threads of torch.")
def main(threads: int) -> None:
    """Write speed-geometry and size-geometry to figures/data and print them."""
    torch.set_num_threads(threads)
    table = pd.DataFrame([race(entry) for entry in tqdm(list(geometry(4096)))])
    click.echo(table.round(4).to_string(index=False))
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as fresh:
        sizes = pd.DataFrame(fresh.map(alone, (1024, 4096, 16384)))
    click.echo(sizes.round(2).to_string(index=False))
    record(
        "size-geometry",
        sizes,
        "All semi-axes alone: seconds, and how far the process's peak memory rose above what it was before.",
        seed=0,
    )
    record(
        "speed-geometry",
        table,
        "Time of the alternative over ours: the median ratio, and the lowest, of rounds in which both ran in turns, in "
        "float64; the Jacobian is there already when products are timed.",
        seed=0,
    )
