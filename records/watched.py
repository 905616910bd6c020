"""What measuring on the way adds to a training, at the paper's share of tokens."""

import tempfile
import time
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import click
import pandas as pd
import torch
from normgeom.records import FOLDER
from normgeom.text.corpora import load_corpus
from normgeom.text.tokens import byte_tokens, windows
from normgeom.training import trainer
from normgeom.training.twins import SIZES, twin
from normgeom_lab.common.recording import record
from tqdm.auto import tqdm

SIZE = "1M"
# Of tokens that are measured to tokens that are trained on between two measurements: a million to 1000 updates of 64
# windows of 1024.
SHARE = 10**6 / (1000 * 64 * 1024)


def seconds(norm: str, spacing: int) -> tuple[float, float]:
    """Processor time of a training of two spacings, and of its measurements but the one before the first update."""
    size = replace(SIZES[SIZE], steps=2 * spacing, eval_interval=spacing)
    text = byte_tokens(load_corpus("stdlib").text)
    apart = size.length * max(1, round(SHARE * spacing * size.batch))
    held_out = windows(text[-apart:], size.length, size.batch)
    model, spent, measure = twin(size.config(256), 0, norm), [], trainer.measure_stage

    def timed(*arguments):
        start = time.process_time()
        tables = measure(*arguments)
        spent.append(time.process_time() - start)
        return tables

    with tempfile.TemporaryDirectory() as scratch, patch.object(trainer, "measure_stage", timed):
        start = time.process_time()
        trainer.fit_and_measure(model, text.numpy(), held_out, size, 0, Path(scratch), progress=False)
        whole = time.process_time() - start
    return whole - spent[0], sum(spent[1:])


@click.command()
@click.option("--rounds", default=3, help="Trainings with each norm.")
@click.option("--spacing", default=200, help="Updates between two measurements.")
@click.option("--folder", default=FOLDER, type=click.Path(path_type=Path), help="Where the record goes.")
def main(rounds: int, spacing: int, folder: Path) -> None:
    """Write speed-training: processor time of whole trainings over what is left of them without the measurements."""
    torch.set_num_threads(1)
    rows = []
    for norm in ("layer", "rms"):
        times = [seconds(norm, spacing) for _ in tqdm(range(rounds), desc=norm)]
        ratio = pd.Series([whole / (whole - measuring) for whole, measuring in times])
        rows.append(dict(norm=norm, ratio=ratio.median(), lowest=ratio.min(), highest=ratio.max(), rounds=rounds))
    size = SIZES[SIZE]
    record(
        "speed-training",
        pd.DataFrame(rows),
        "Processor time of a training with its measurements over the same without the time spent in them.",
        folder,
        model=f"GPT-2, {size.layers} blocks, d = {size.width}, byte tokens",
        training=f"{2 * spacing} updates of {size.batch} windows of {size.length}, measured after each {spacing} on "
        f"{SHARE:.2%} of the tokens trained on since, the paper's share; {len(trainer.DIRECTIONS)} directions, "
        "held-out loss, gains and distances to the surface",
    )
    click.echo(pd.DataFrame(rows).round(3).to_string(index=False))
