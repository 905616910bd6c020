"""All that a GPU is for, in the order of its worth, in as many minutes as there are."""

import hashlib
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import click
import torch
from normgeom.jobs import locked, versions, write_json
from normgeom.records import FOLDER
from normgeom.text.corpora import load_corpus

from records.steps import Step, run_all

TESTS = "tests/lib/norms/test_cuda.py"


@dataclass(frozen=True)
class Plan:
    """Sizes for a device.

    Attributes:
        seconds: that steps may take, by their names.
        norms: options of ``python -m records norms``.
        twins: by their size, seconds that a training of both norms may take, and options of ``normgeom train``.
        seeds: of the twins.
    """

    seconds: dict[str, int]
    norms: str
    twins: dict[str, tuple[int, str]]
    seeds: tuple[int, ...]


# On a CPU sizes are tiny: that only tries everything.
PLANS = {
    "cuda": Plan(
        seconds=dict(tests=120, norms=480, survey=90, converted=90),
        norms="--rounds 15 --processes 2",
        twins={
            # thirteen epochs of the standard library's documentation; beyond, such models learn it by heart
            "10M": (240, "--steps 1000 --held-out 131072"),
            "70M": (300, "--steps 1000 --length 256 --eval-interval 50 --held-out 131072"),
        },
        seeds=(0, 1),
    ),
    "cpu": Plan(
        seconds=dict(tests=30, norms=30, survey=30, converted=30),
        norms="--rounds 2 --processes 1 --shape 32 64 --threads 1 --no-compiler",
        twins={"0.2M": (30, "--steps 4 --batch-size 2 --length 16 --eval-interval 2 --held-out 64")},
        seeds=(0,),
    ),
}


def plan_steps(device: str, corpus: str, kept: Path, folder: Path) -> list[Step]:
    """What is run on a device, that of the most worth first.

    Args:
        corpus: as in :func:`normgeom.text.corpora.load_corpus`.
        kept: where trainings are kept.
        folder: where the records go.
    """
    plan, python, to = PLANS[device], (sys.executable, "-m"), ("--device", device, "--folder", str(folder))
    tests = (*python, "pytest", "-p", "no:cacheprovider", TESTS)
    norms = (*python, "records", "norms", *plan.norms.split(), *to)
    forward = (*python, "records", "forward")
    measured = [
        ("tests", "the library's tests on a GPU", tests, ""),
        ("norms", "the norms against torch's, the compiler and a copy", norms, "--shape 4096 768, --no-compiler"),
        ("survey", "what a survey adds to a forward pass", (*forward, "speed-survey", *to), ""),
        ("converted", "what conversion to RMSNorm saves", (*forward, "speed-converted", *to), ""),
    ]
    steps = [
        Step(name, what, plan.seconds[name], command, smaller=smaller or Step.smaller)
        for name, what, command, smaller in measured
    ]
    for size, (seconds, options) in plan.twins.items():
        folders = [kept / f"{size}-{Path(corpus).stem}-{seed}" for seed in plan.seeds]
        for seed, out in zip(plan.seeds, folders, strict=True):
            asked = dict(
                size=size, out=out, corpus=corpus, seed=seed, device=device, tokenizer="bytes", precision="bf16"
            )
            given = [word for name, value in asked.items() for word in (f"--{name}", str(value))]
            steps.append(
                Step(
                    f"twins-{size}-{seed}",
                    f"twins of {size} in bfloat16, seed {seed}",
                    seconds,
                    (*python, "normgeom", "train", *given, *options.split()),
                    (*python, "records", "pairs", size, *map(str, folders), "--folder", str(folder)),
                    resumes=True,
                    smaller="--micro-batch 8, in another --out",
                )
            )
    return steps


def claim(kept: Path, device: str) -> Path:
    """The folder, in ``kept``, of this device and these versions; a word if there are others."""
    about = dict(device=torch.cuda.get_device_name() if device == "cuda" else "CPU", versions=versions())
    digest = hashlib.sha256(json.dumps(about).encode()).hexdigest()[:8]
    mine = kept / f"{re.sub(r'[^A-Za-z0-9]+', '-', about['device'])}-{digest}"
    others = [path.parent for path in kept.glob("*/circumstances.json") if path.parent != mine]
    if others and not mine.exists():
        click.echo(f"Another device or other versions than in {', '.join(map(str, others))}: all begins anew in {mine}")
    mine.mkdir(parents=True, exist_ok=True)
    write_json(mine / "circumstances.json", about)
    return mine


def check(device: str, corpus: str, folder: Path) -> None:
    """Refuse before any work what cannot be."""
    if device == "cuda" and not torch.cuda.is_available():
        raise click.UsageError(
            f"device: expected a GPU that torch can use, torch {torch.__version__} finds none.  "
            "make gpu DEVICE=cpu tries everything at tiny sizes on the CPU."
        )
    if device == "cpu" and folder.resolve() == FOLDER.resolve():
        raise click.UsageError(f"folder: expected another than the book's on a CPU, whose sizes are tiny, got {folder}")
    try:
        load_corpus(corpus)
    except (OSError, ValueError, ImportError) as error:
        raise click.UsageError(str(error)) from error


@click.command()
@click.option("--minutes", default=40.0, type=click.FloatRange(min=0), help="After which nothing is begun or goes on.")
@click.option("--device", default="cuda", type=click.Choice(list(PLANS)), help="On a CPU sizes are tiny.")
@click.option("--corpus", default="stdlib", help="What twins are trained on: stdlib or a text file.")
@click.option("--kept", default="_build/gpu", type=click.Path(path_type=Path), help="Trainings, and what is finished.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    help="Where the records go.  [default: the book's; on a CPU the folder records of --kept]",
)
def main(minutes: float, device: str, corpus: str, kept: Path, folder: Path | None) -> None:
    """Run the tests on a GPU, measure norms, surveys and conversion there, and train twins.

    Writes speed-norms-cuda, speed-survey-cuda, speed-converted-cuda, and pair-10M-… and pair-70M-….  The same command
    goes on with what is missing.
    """
    kept = kept.resolve()
    folder = folder.resolve() if folder else FOLDER if device == "cuda" else kept / "records"
    check(device, corpus, folder)
    corpus = str(Path(corpus).resolve()) if Path(corpus).is_file() else corpus
    try:
        with locked(kept):
            mine = claim(kept, device)
            became = run_all(plan_steps(device, corpus, mine, folder), mine, 60 * minutes)
    except BlockingIOError as error:
        raise click.ClickException(str(error)) from error
    click.echo("; ".join(f"{name}: {what}" for name, what in became.items()))
    if {"skipped", "stopped", "failed"} & {*became.values()}:
        click.echo("The same command goes on with what is missing.")
    sys.exit("failed" in became.values())
