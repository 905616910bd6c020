"""What is measured of a model while it trains: loss, angles, gains, and how near to their surface outputs lie."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import pandas as pd
import torch
from torch import Tensor, nn

from normgeom.models.held import projected
from normgeom.models.sites import NormSite, find_norms
from normgeom.models.watch import evaluating, watch
from normgeom.survey.survey import Survey
from normgeom.training.loop import next_token_loss


def measure_stage(
    model: nn.Module, batches: Sequence[Tensor], directions: Iterable[str], seed: int
) -> dict[str, pd.DataFrame]:
    """Tables of a model on token ids ``(batch, length)`` that it was not trained on; nothing of the model changes.

    ``loss`` has one row, in nats a token; ``survey`` is that of :class:`normgeom.Survey`; ``gains`` has one row for
    each coordinate of a norm; ``surface`` is :func:`surface`.  Of a model without norms there is only the loss.
    """
    tables = {"loss": pd.DataFrame([dict(loss=held_out_loss(model, batches))])}
    example = batches[0][:2]  # find_norms' own may be longer than the windows
    if sites := find_norms(model, example):
        gains = [
            pd.DataFrame(dict(site=s.name, coordinate=range(s.dim), weight=s.weight.flatten(), bias=s.bias.flatten()))
            for s in sites
        ]
        tables["survey"] = Survey(model, directions, seed, example).run(batches, progress=False).table()
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
    """Of ‖n‖/√d at each norm, 1 on the surface: the 5 % quantile, and the share of at least 0.95 (cor-radius)."""
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
