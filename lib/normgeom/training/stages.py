"""What is measured of a model while it trains: loss, angles, gains, and how near to their surface outputs lie."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import pandas as pd
import torch
from torch import Tensor, nn

from normgeom.models.calls import evaluating
from normgeom.models.sites import NormSite, find_norms
from normgeom.models.watch import watch
from normgeom.norms.formula import center
from normgeom.survey.survey import Survey

QUANTILES = {"q05": 0.05, "q50": 0.5, "q95": 0.95}
_MOST = 2**16  # tokens whose distance to the surface is held


def measure_stage(
    model: nn.Module, batches: Sequence[Tensor], directions: Iterable[str], seed: int
) -> dict[str, pd.DataFrame]:
    """Four tables of a model as it is: ``loss``, ``survey``, ``gains`` and ``surface``; nothing of the model changes.

    Args:
        model: a transformers language model.
        batches: token ids ``(batch, length)`` that it was not trained on.
        directions, seed: as in :class:`normgeom.Survey`.

    Returns:
        ``loss``: one row, ``loss`` in nats a token.  ``survey``: :meth:`normgeom.Survey.table`.  ``gains``: one row a
        coordinate of a norm, ``site``, ``coordinate``, ``weight``, ``bias``.  ``surface``: :func:`surface`, of some
        65536 tokens at most.  The last three are empty for a model without norms.
    """
    tables = {"loss": pd.DataFrame([dict(loss=held_out_loss(model, batches))])}
    example = batches[0][:2]  # find_norms' own may be longer than the windows
    sites = find_norms(model, example)
    if not sites:
        return tables | {name: pd.DataFrame() for name in ("survey", "gains", "surface")}
    tables["survey"] = Survey(model, directions, seed, example).run(batches, progress=False).table()
    tables["gains"] = pd.concat([_gains(site) for site in sites], ignore_index=True)
    tables["surface"] = surface(model, batches[: max(1, _MOST // batches[0].numel())], sites)
    return tables


@torch.no_grad()
def held_out_loss(model: nn.Module, batches: Iterable[Tensor]) -> float:
    """Mean cross-entropy in nats of each token but the first of its window, given those before it."""
    total, count = 0.0, 0
    with evaluating(model):
        for ids in batches:
            ids = ids.to(model.device)
            here = ids[:, 1:].numel()
            total += here * float(model(ids, labels=ids).loss)
            count += here
    return total / count


@torch.no_grad()
def surface(model: nn.Module, batches: Iterable[Tensor], sites: Sequence[NormSite]) -> pd.DataFrame:
    """Quantiles of ‖n‖/√d, 1 on the surface and below it inside, at each norm (cor-radius).

    Returns:
        one row a norm: ``site``, ``q05``, ``q50``, ``q95``, and ``near``, the share of tokens with ‖n‖/√d ≥ 0.95.
    """
    found = defaultdict(list)

    def keep(site: NormSite, x: Tensor, _: Tensor) -> None:
        x = x.double()
        square = (center(x) if site.kind == "layer" else x).square().mean(-1)
        found[site.name].append((square / (square + site.eps)).sqrt().flatten().cpu())

    with evaluating(model), watch(model, sites, keep):
        for ids in batches:
            model(ids.to(model.device))
    rows = []
    for site, batches_of_radii in found.items():
        radii = torch.cat(batches_of_radii)
        cuts = {name: float(radii.quantile(q)) for name, q in QUANTILES.items()}
        rows.append(dict(site=site, **cuts, near=float((radii >= 0.95).double().mean())))
    return pd.DataFrame(rows)


def _gains(site: NormSite) -> pd.DataFrame:
    weight, bias = site.weight.flatten().numpy(), site.bias.flatten().numpy()
    return pd.DataFrame(dict(site=site.name, coordinate=range(len(weight)), weight=weight, bias=bias))
