"""Norms taken out of a trained network: each alone, all at once, and one at a time with a little training."""

import copy
from collections.abc import Iterator, Sequence
from itertools import islice

import pandas as pd
from normgeom.models.sites import find_norms
from normgeom.surgery.ablation import freeze_norms
from normgeom.text.tokens import random_windows, windows
from normgeom.training.loop import adamw, fit
from normgeom.training.stages import held_out_loss
from normgeom_lab.common.typed import recorded_twins
from torch import Tensor, nn

from experiments.placement import text
from experiments.registry import experiment

LENGTH, BATCH = 128, 32  # bytes of a window, windows of a step
RATE = 1e-3
GAP, SETTLE = 50, 300  # steps after each norm, and after the last one
HELD_OUT = 16384  # bytes
ABOUT = dict(
    model="the pages' GPT-2 with LayerNorm (record twins): 4 layers, 64 wide, 3000 updates",
    corpus=f"the standard library's documentation strings (corpus stdlib); losses on the last {HELD_OUT} bytes, which "
    "its training has not seen",
)


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
        one row for the model as it is given, one for each norm as soon as it is out and one at the end: ``updates`` so
        far, ``site``, empty in the first and the last, ``frozen``, how many are out, and the held-out ``loss``.
    """
    optimizer, rows = adamw(model, lr, decay=0.0), []

    def measure(site, frozen, updates):
        rows.append(dict(updates=updates, site=site, frozen=frozen, loss=held_out_loss(model, held_out)))

    def tune(steps):
        model.train()
        fit(model, islice(batches, steps), optimizer, clip=1.0)
        model.eval()

    measure("", 0, 0)
    for number, site in enumerate(order):
        freeze_norms(model, [next(batches)], [site])
        measure(site, number + 1, number * gap)
        tune(gap)
    tune(settle)
    measure("", len(order), len(order) * gap + settle)
    return pd.DataFrame(rows)


def network() -> tuple[nn.Module, Tensor, list[Tensor], list[str]]:
    """The pages' network, the text that it was trained on, batches that it was not, and the order of its norms."""
    model, ids = recorded_twins()["layer"], text()
    held_out = windows(ids[-HELD_OUT:], LENGTH, BATCH)
    return model, ids[:-HELD_OUT], held_out, removal_order(model, held_out[0])


@experiment(
    "removal-alone",
    "Loss in nats a byte of the network with one norm frozen to its mean scale, and that scale; and with all of them, "
    "or none, frozen.",
    {},
    minutes=1,
    **ABOUT,
    seeds="0: of the text that scales are measured on",
)
def alone() -> list[dict]:
    model, training, held_out, order = network()
    measure = next(random_windows(training, LENGTH, BATCH, 0))
    together = held_out_loss(freeze_norms(copy.deepcopy(model), [measure], order), held_out)
    rows = []
    for name in order:
        other = freeze_norms(copy.deepcopy(model), [measure], [name])
        scale = float(other.get_submodule(name).scale)
        rows.append(dict(site=name, scale=scale, loss=held_out_loss(other, held_out), all=together))
    return [row | dict(none=held_out_loss(model, held_out)) for row in rows]


@experiment(
    "removal-training",
    f"Loss in nats a byte of the network while its norms are frozen one by one, {GAP} updates after each and {SETTLE} "
    "after the last (removed); and after as many updates with all its norms (kept).",
    dict(arm=("removed", "kept"), seed=range(5)),
    minutes=25,
    **ABOUT,
    optimizer=f"AdamW, β = 0.9 and 0.95, rate {RATE:g}, no decay, gradients clipped to length 1, batches of {BATCH} "
    f"windows of {LENGTH} bytes",
    seeds="0 to 4: of the batches",
)
def removed(arm: str, seed: int, gap: int = GAP, settle: int = SETTLE) -> pd.DataFrame:
    model, training, held_out, order = network()
    sites, rest = (order, settle) if arm == "removed" else ([], settle + gap * len(order))
    table = remove_norms(model, random_windows(training, LENGTH, BATCH, seed + 1), held_out, RATE, gap, rest, sites)
    return table.assign(site=table.site.replace("", "none"))
