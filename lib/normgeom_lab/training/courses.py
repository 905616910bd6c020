"""Small GPT-2 models trained on a text, and what is measured during training."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from normgeom.models.held import projected
from normgeom.models.sites import NormSite, find_norms
from normgeom.models.watch import evaluating, watch
from normgeom.survey.survey import Survey
from normgeom.text.tokens import windows
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from normgeom_lab.common.loop import next_token_loss, train
from normgeom_lab.common.tiny import gpt2

# The paper's three, and a null of sign vectors, exact for RMSNorm (cor-sign-null): ranks among 40.
DIRECTIONS = ("uniform", "random_a", "random_b", *(f"signs_{i}" for i in range(39)))


@dataclass(frozen=True)
class Size:
    """A GPT-2 and how it is trained; ``lr`` is the peak learning rate, ``batch`` the windows per step."""

    layers: int
    width: int
    heads: int
    lr: float
    steps: int
    batch: int
    length: int
    eval_interval: int

    def config(self, vocabulary: int) -> GPT2Config:
        return gpt2(vocabulary, self.length, self.width, self.layers, self.heads)

    @property
    def stages(self) -> set[int]:
        """The steps after which the model is measured: 0 to 10 intervals, then every tenth interval, and the last."""
        each, last = self.eval_interval, self.steps
        return {step for step in (*range(0, 11 * each, each), *range(0, last, 10 * each)) if step < last} | {last}


SIZES = {
    "0.2M": Size(4, 64, 4, 3e-3, 120, batch=16, length=64, eval_interval=3),
    "1M": Size(4, 128, 4, 1e-3, 600, batch=8, length=128, eval_interval=6),
    "5M": Size(6, 256, 8, 1e-3, 1_500, batch=16, length=256, eval_interval=15),
    "10M": Size(6, 384, 6, 1e-3, 5_000, batch=64, length=256, eval_interval=50),
}


def course(
    model: GPT2LMHeadModel, ids: Tensor, held_out: int, size: Size, seed: int, description: str | None = None
) -> dict[str, pd.DataFrame]:
    """Train a model in place on a text's ids ``(n,)`` except the last ``held_out``; measure it on those.

    Each window of the text is read once per epoch.

    Returns:
        the tables of :func:`measure_stage` at :attr:`Size.stages` with a column ``step``, and ``curve`` (step, loss).
    """
    text, apart = ids.tensor_split([-held_out])
    text = torch.cat(windows(text, size.length, 1))
    kept, tables = windows(apart, size.length, size.batch), defaultdict(list)

    def measure(step: int) -> None:
        for name, table in measure_stage(model, kept, seed).items():
            tables[name].append(table.assign(step=step))

    def batches() -> Iterator[Tensor]:
        order = reading_order(size.steps * size.batch, len(text), seed).split(size.batch)
        for step, places in enumerate(order):
            if step in size.stages:
                measure(step)
            yield text[places]

    losses = train(model, batches(), size.steps, size.lr, description)
    measure(size.steps)
    tables["curve"] = [pd.DataFrame(dict(loss=losses, step=range(1, size.steps + 1)))]
    return {name: pd.concat(parts, ignore_index=True) for name, parts in tables.items()}


def reading_order(count: int, epoch: int, seed: int) -> Tensor:
    """The order ``(count,)`` in which a text's ``epoch`` windows are read: each once per epoch, shuffled by seed."""
    orders = [np.random.default_rng([seed, k]).permutation(epoch) for k in range(-(-count // epoch))]
    return torch.from_numpy(np.concatenate(orders)[:count])


def measure_stage(model: nn.Module, batches: Sequence[Tensor], seed: int) -> dict[str, pd.DataFrame]:
    """Measure a model on batches of held-out token ids ``(batch, length)``; nothing in the model changes.

    ``loss`` has one row, in nats per token; ``survey`` is that of :class:`normgeom.Survey` for :data:`DIRECTIONS`;
    ``gains`` has one row for each gain of a norm; ``surface`` is :func:`surface`.  For a model without norms there is
    only the loss.
    """
    tables = {"loss": pd.DataFrame([dict(loss=held_out_loss(model, batches))])}
    example = batches[0][:2]  # find_norms' own example may be longer than the windows
    if sites := find_norms(model, example):
        gains = [pd.DataFrame(dict(site=site.name, weight=site.weight.flatten())) for site in sites]
        tables["survey"] = Survey(model, DIRECTIONS, seed, example).run(batches, progress=False).table()
        tables["gains"] = pd.concat(gains, ignore_index=True)
        tables["surface"] = surface(model, batches[: max(1, 2**16 // batches[0].numel())], sites)
    return tables


@torch.no_grad()
def held_out_loss(model: nn.Module, batches: Iterable[Tensor]) -> float:
    """Mean cross-entropy in nats of each token but the first of its window, given those before it."""
    total, count = 0.0, 0
    with evaluating(model):
        for ids in batches:
            predicted = ids[:, 1:].numel()
            total += predicted * float(next_token_loss(model, ids.to(model.device)))
            count += predicted
    return total / count


@torch.no_grad()
def surface(model: nn.Module, batches: Iterable[Tensor], sites: Sequence[NormSite]) -> pd.DataFrame:
    """For ‖n‖/√d at each norm, 1 on the surface: the 5 % quantile, and the share of at least 0.95 (cor-radius)."""
    found = defaultdict(list)

    def keep(site: NormSite, x: Tensor, _: Tensor) -> None:
        square = projected(site, x.double()).square().mean(-1)
        found[site.name].append((square / (square + site.eps)).sqrt().flatten().cpu())

    with evaluating(model), watch(model, sites, keep):
        for ids in batches:
            model(ids.to(model.device))
    radii = pd.DataFrame({name: torch.cat(parts).numpy() for name, parts in found.items()})
    table = pd.DataFrame(dict(q05=radii.quantile(0.05), near=(radii >= 0.95).mean()))
    return table.rename_axis("site").reset_index()
