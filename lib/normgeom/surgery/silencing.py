"""Gains set to zero for a while: which coordinates of each norm, and what a language model loses by it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import pandas as pd
import torch
from torch import Tensor, nn

from normgeom.models.calls import evaluating, forward
from normgeom.models.sites import NormSite, find_norms

ORDERS = ("smallest", "random", "largest")


def silencing_order(sites: Sequence[NormSite], order: str, seed: int = 0) -> dict[str, Tensor]:
    """For each norm its coordinates, in the order in which they are to be silenced.

    Args:
        sites: what :func:`normgeom.find_norms` found.
        order: one of :data:`ORDERS`: by rising |γ|, by falling |γ|, or drawn.
        seed: of the draw, one generator for all norms in turn, so that each has an order of its own.

    Returns:
        by the norm's name its coordinates, ``(dim,)`` int64, each once.

    Raises:
        ValueError: another ``order``; a norm whose heads have gains of their own.
    """
    if order not in ORDERS:
        raise ValueError(f"order: expected one of {', '.join(ORDERS)}, got {order!r}")
    for site in sites:
        _check_one_gain(site)
    if order == "random":
        generator = torch.Generator().manual_seed(seed)
        return {site.name: torch.randperm(site.dim, generator=generator) for site in sites}
    # not "descending", so that equal gains turn round as well
    rising = {site.name: site.weight.abs().argsort() for site in sites}
    return rising if order == "smallest" else {name: ranked.flip(0) for name, ranked in rising.items()}


@contextmanager
def silenced(sites: Sequence[NormSite], coordinates: Mapping[str, Tensor]) -> Iterator[None]:
    """While the block runs, the gains of these coordinates are zero: each puts out β alone (prop-zero-gains).

    Afterwards, after an error too, the gains are what they were, to the bit.

    Args:
        sites: the norms to change, as :func:`normgeom.find_norms` found them; their modules are changed in place.
        coordinates: for the name of each of them ``(k,)`` int64; further names are ignored.

    Raises:
        ValueError: a norm has no coordinates here, or some that it does not have; heads with gains of their own; a
            module whose parameter ``weight`` is not the gain that acts, as where this is ``1 + weight``.
    """
    for site in sites:
        _check_one_gain(site)
        weight = getattr(site.module, "weight", None)
        if not isinstance(weight, Tensor) or not _is_gain(weight, site.weight):
            raise ValueError(f"sites: expected norms whose weight is their gain, that of {site.name} is something else")
        if site.name not in coordinates:
            raise ValueError(f"coordinates: expected some for {site.name}, got those of {sorted(coordinates)}")
        index = coordinates[site.name]
        if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < site.dim:
            raise ValueError(f"coordinates: expected 0 to {site.dim - 1} for {site.name}, got {index.tolist()}")
    with ExitStack() as kept:
        for site in sites:
            weight = site.module.weight.data
            kept.callback(weight.copy_, weight.clone())
            weight[coordinates[site.name].to(weight.device)] = 0
        yield


def loss_without_gains(model: nn.Module, ids: Tensor, counts: Sequence[int], seed: int = 0) -> pd.DataFrame:
    """Loss of a language model when the same number of gains is zero in each of its norms, by which they are.

    Args:
        model: a causal language model of transformers whose norms have parameters for gains; unchanged afterwards.
        ids: token ids ``(batch, length)``, length at least 2.
        counts: how many gains of each norm, 0 to its dimension.
        seed: of the random order.

    Returns:
        mean cross-entropy of the next token in nats: a row a count, its index, a column each of :data:`ORDERS`
        (:func:`silencing_order`).

    Raises:
        ValueError: ids of another shape, no count or one that is out of range, a model without norms; as
            :func:`silenced`.
    """
    if ids.dim() != 2 or ids.shape[1] < 2:
        raise ValueError(f"ids: expected token ids (batch, length), length at least 2, got {tuple(ids.shape)}")
    sites = find_norms(model, ids[:2])
    if not sites:
        raise ValueError(f"model: expected one with norms, this {type(model).__name__} runs none")
    most = min(site.dim for site in sites)
    if not counts or not 0 <= min(counts) <= max(counts) <= most:
        raise ValueError(f"counts: expected numbers of gains from 0 to {most}, got {list(counts)}")
    losses = pd.DataFrame(index=pd.Index(counts, name="gains"), columns=ORDERS, dtype=float)
    with evaluating(model):
        for order in ORDERS:
            ranked = silencing_order(sites, order, seed)
            for count in counts:
                with silenced(sites, {name: index[:count] for name, index in ranked.items()}):
                    losses.loc[count, order] = float(forward(model, dict(input_ids=ids, labels=ids)).loss)
    return losses


def _check_one_gain(site: NormSite) -> None:
    if site.weight.dim() != 1:
        raise ValueError(f"sites: expected norms with one gain, that of {site.name} is {tuple(site.weight.shape)}")


def _is_gain(weight: Tensor, found: Tensor) -> bool:
    return weight.shape == found.shape and torch.allclose(weight.detach().to(found), found, rtol=1e-3, atol=1e-5)
