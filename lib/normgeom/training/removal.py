"""Take a language model's norms out one at a time, with a little training after each."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import pandas as pd
import torch
from torch import Tensor, nn

from normgeom.models.sites import find_norms
from normgeom.training.stages import held_out_loss
from normgeom.training.twins import adamw

if TYPE_CHECKING:
    from jaxtyping import Int

    Ids = Int[Tensor, "batch length"]


def removal_order(model: nn.Module, example: Ids) -> list[str]:
    """Names of a GPT-2's norms as they are best taken out: those of the MLPs, of attention, and the final one.

    Each group from the first block to the last.

    Args:
        example: token ids that the model takes.

    Source: Baroni et al. (2025), who take queries and keys out of attention's before values.
    """
    names = [site.name for site in find_norms(model, example)]
    groups = [[name for name in names if name.endswith(end)] for end in ("ln_2", "ln_1", "ln_f")]
    return list(itertools.chain(*groups))


def remove_norms(
    model: nn.Module,
    batches: Iterator[Ids],
    held_out: Sequence[Ids],
    freeze: Callable[[nn.Module, list[Ids], list[str]], object],
    rate: float,
    gap: int,
    settle: int,
    order: Sequence[str] = (),
) -> pd.DataFrame:
    """Freeze norms one by one, each on the next batch, and train a little after each.

    AdamW at one rate, gradients clipped to length 1, no decay.

    Args:
        model: a causal language model of transformers; trained in place, left in evaluation mode.
        batches: token ids to train on, as many as are asked for.
        held_out: batches of which the loss is measured.
        freeze: :func:`normgeom.freeze_norms`, or what else takes the norms of a model that are named out of it.
        rate: the learning rate.
        gap: updates after each norm.
        settle: updates after the last one, and with an empty ``order`` all that there are.
        order: names of norms.

    Returns:
        one row for the model as it is given, one for each norm taken out, by the number of updates so far: ``site``,
        ``frozen``, how many are out; ``loss`` of the held-out batches in nats a token as soon as it is out; and one row
        at the end, whose ``site`` is empty as the first one's.

    Raises:
        ValueError: a size below 1, or errors of ``freeze``.
    """
    for name, value in (("gap", gap), ("settle", settle)):
        if value < 1:
            raise ValueError(f"{name}: expected at least 1, got {value}")
    optimizer = adamw(model, rate, decay=0.0)
    rows = [dict(updates=0, site="", frozen=0, loss=held_out_loss(model, held_out))]
    done = 0
    for number, site in enumerate(order, 1):
        freeze(model, [next(batches)], [site])
        rows.append(dict(updates=done, site=site, frozen=number, loss=held_out_loss(model, held_out)))
        done += _tune(model, optimizer, batches, gap)
    done += _tune(model, optimizer, batches, settle)
    rows.append(dict(updates=done, site="", frozen=len(order), loss=held_out_loss(model, held_out)))
    return pd.DataFrame(rows)


def _tune(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Iterator[Ids], updates: int) -> int:
    model.train()
    for ids in itertools.islice(batches, updates):
        optimizer.zero_grad()
        model(ids, labels=ids).loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    model.eval()
    return updates
