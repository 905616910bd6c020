"""Norms taken out of a trained network: each alone, all at once, and one at a time with a little training."""

import copy
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import click
import pandas as pd
import torch
from normgeom.models.sites import find_norms
from normgeom.records import FOLDER
from normgeom.surgery.ablation import freeze_norms
from normgeom.text.tokens import random_windows, windows
from normgeom.training.loop import adamw
from normgeom.training.stages import held_out_loss
from normgeom_lab.common.recording import record
from normgeom_lab.common.typed import recorded_twins
from torch import Tensor, nn

from records.placement import text

LENGTH, BATCH, RATE, GAP, SETTLE, SEEDS, APART = 128, 32, 1e-3, 50, 300, (0, 1, 2, 3, 4), 16384


def removal_order(model: nn.Module, ids: Tensor) -> list[str]:
    """Names of a GPT-2's norms as they are best taken out: those of the MLPs, of attention, and the final one.

    Each group from the first block to the last.  Source: Baroni et al. (2025), who take queries and keys out of
    attention's before values.
    """
    names = [site.name for site in find_norms(model, ids)]
    return [name for end in ("ln_2", "ln_1", "ln_f") for name in names if name.endswith(end)]


def remove_norms(
    model: nn.Module,
    batches: Iterator[Tensor],
    held_out: Sequence[Tensor],
    lr: float,
    gap: int,
    settle: int,
    order: Sequence[str] = (),
) -> pd.DataFrame:
    """Freeze the norms named in ``order`` one by one, each on the next batch of ids, and train a little after each.

    ``gap`` steps after each and ``settle`` after the last one, with AdamW at one learning rate, gradients clipped to
    length 1, no decay.

    Returns:
        one row for the model as it is given, one for each norm taken out, by the number of steps so far, ``updates``:
        ``site``, ``frozen``, how many are out; ``loss`` of the held-out batches in nats per token as soon as it is out;
        and one row at the end, whose ``site`` is empty as the first one's.
    """
    optimizer, rows = adamw(model, lr, decay=0.0), []

    def measure(site, frozen, updates):
        rows.append(dict(updates=updates, site=site, frozen=frozen, loss=held_out_loss(model, held_out)))

    def tune(steps):
        model.train()
        for ids in islice(batches, steps):
            optimizer.zero_grad()
            model(ids, labels=ids).loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        model.eval()

    measure("", 0, 0)
    for number, site in enumerate(order):
        freeze_norms(model, [next(batches)], [site])
        measure(site, number + 1, number * gap)
        tune(gap)
    tune(settle)
    measure("", len(order), len(order) * gap + settle)
    return pd.DataFrame(rows)


@click.command()
@click.option("--gap", default=GAP, help="Updates after each norm.")
@click.option("--settle", default=SETTLE, help="Updates after the last one.")
@click.option("--folder", default=FOLDER, type=click.Path(path_type=Path), help="Where the records go.")
def main(gap: int, settle: int, folder: Path) -> None:
    """Write the records of norms taken out of the pages' network with LayerNorm."""
    torch.set_num_threads(1)
    model = recorded_twins()["layer"]
    ids = text()
    training, held_out = ids[:-APART], windows(ids[-APART:], LENGTH, BATCH)
    order = removal_order(model, held_out[0])
    about = dict(
        model="the pages' GPT-2 with LayerNorm (record twins): 4 layers, 64 wide, 3000 updates",
        corpus=f"the standard library's documentation strings (corpus stdlib); losses on the last {APART} bytes, "
        "which its training has not seen",
    )

    measure = next(random_windows(training, LENGTH, BATCH, 0))
    frozen = {name: freeze_norms(copy.deepcopy(model), [measure], [name]) for name in order}
    together = freeze_norms(copy.deepcopy(model), [measure], order)
    alone = pd.DataFrame(
        dict(site=name, scale=float(other.get_submodule(name).scale), loss=held_out_loss(other, held_out))
        for name, other in frozen.items()
    )
    record(
        "removal-alone",
        alone.assign(all=held_out_loss(together, held_out), none=held_out_loss(model, held_out)),
        "Loss in nats a byte of the network with one norm frozen to its mean scale, and that scale; and with all of "
        "them, or none, frozen.",
        folder,
        **about,
        seeds="0: of the text that scales are measured on",
    )

    runs = []
    for seed in SEEDS:
        for arm, sites, rest in (("removed", order, settle), ("kept", [], settle + gap * len(order))):
            other = copy.deepcopy(model)
            batches = random_windows(training, LENGTH, BATCH, seed + 1)
            table = remove_norms(other, batches, held_out, RATE, gap, rest, sites)
            runs.append(table.assign(arm=arm, seed=seed, site=table.site.replace("", "none")))
    record(
        "removal-training",
        pd.concat(runs, ignore_index=True),
        f"Loss in nats a byte of the network while its norms are frozen one by one, {gap} updates after each and "
        f"{settle} after the last (removed); and after as many updates with all its norms (kept).",
        folder,
        **about,
        optimizer=f"AdamW, β = 0.9 and 0.95, rate {RATE:g}, no decay, gradients clipped to length 1, batches of "
        f"{BATCH} windows of {LENGTH} bytes",
        seeds=f"{', '.join(map(str, SEEDS))}: of the batches",
    )
