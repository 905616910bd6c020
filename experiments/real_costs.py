"""What it costs a published language model when norms read their inputs without the component along one direction."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cache

import normgeom as ng
import pandas as pd
import torch
from normgeom.models.watch import forward
from normgeom.surgery.ablation import ReducedNorm, scales
from torch import Tensor, nn

from experiments.real_models import (
    LANGUAGE,
    LARGEST,
    PARTS,
    Resumed,
    about,
    blocks,
    direction,
    language_model,
    removed,
    replaced,
    shares,
    sites_of,
)
from experiments.registry import experiment

NORMS = {"SmolLM2-135M-Instruct": 61, "gemma-3-270m": 73}  # over the model's full width
COUNT, LENGTH = 20, 32  # how many blocks of each text are read, and their tokens
PREDICTED = {"gemma3_text": 6}  # the last predictions of a block count: 16, or 6 of Gemma's large vocabulary
SIGNS = [f"signs_{i:03d}" for i in range(19)]
FEW = SIGNS[:3]
ON = f"WikiText-2, {COUNT} blocks of {LENGTH} tokens spread over each of its parts, begun by BOS"
WHAT = (
    "cost: increase of the loss in nats a token; se: its standard error over blocks.  uniform, signs_…, random_…: the "
    f"component along this direction is taken from what the norm reads; …_rest: without the {LARGEST} coordinates that "
    f"hold most of the squared length there; uniform_…: without {LARGEST} random coordinates.  The first position is "
    "spared."
)


@experiment(
    "published-costs",
    f"One norm at a time.  {WHAT}  cost_valid, se_valid and the like: in each text.  angle: the mean angle of the "
    "norm's input to the direction.",
    [dict(model=[name], norm=range(count)) for name, count in NORMS.items()],
    minutes=12,
    corpus=ON,
    **about(*LANGUAGE),
)
def one_norm(model: str, norm: int) -> pd.DataFrame:
    network = changeable(model, PARTS)
    site = network.sites[norm]
    costs = mean_costs(network.without_directions([site]), PARTS, COUNT)
    by_text = costs.pivot(index="direction", columns="text", values=["cost", "se"])
    by_text.columns = by_text.columns.map("_".join)
    x = network.inputs[site.name][:, 1:]
    angles = {name: float(ng.angle(x, u).mean()) for name, u in network.directions(site).items()}
    return by_text.assign(angle=pd.Series(angles)).reset_index()


@experiment(
    "published-frozen",
    "Norms divide by the mean of their scales, one norm at a time or all (norm -1).  kl: divergence from the unchanged "
    "predictions in nats, the mean over blocks.  lost: blocks in which numbers overflow, left out of the mean.  The "
    "first position is spared.",
    [dict(model=[name], norm=range(-1, count)) for name, count in NORMS.items()],
    minutes=20,
    corpus=ON,
    **about(*LANGUAGE),
)
def one_frozen(model: str, norm: int) -> dict:
    network = changeable(model, PARTS)
    kl = network.frozen(network.sites if norm == -1 else [network.sites[norm]]).kl
    finite = kl[kl.abs() < torch.inf]
    return dict(kl=finite.mean(), lost=len(kl) - len(finite))


@experiment(
    "published-moved",
    "How far a norm's output moves when a direction is taken from its input, at every norm: the mean square of its "
    "relative change, for directions as in published-costs and for the mean of three vectors of signs.  predicted: the "
    "same on average over all signs (prop-dense-direction).  The first position is left out.",
    dict(model=LANGUAGE, text=PARTS),
    minutes=1,
    corpus=ON,
    **about(*LANGUAGE),
)
def moved_outputs(model: str, text: str) -> list[dict]:
    network, rows = changeable(model, (text,)), []
    for number, site in enumerate(network.sites):
        moved = {name: float(network.moved(site, u).mean()) for name, u in network.directions(site).items()}
        row = dict(norm=number, predicted=float(network.moved_by_signs(site).mean()))
        row["signs"] = sum(moved[name] for name in FEW) / len(FEW)
        rows.append(row | {name: moved[name] for name in ("uniform", "uniform_rest")})
    return rows


@experiment(
    "published-removed",
    f"All norms at once.  {WHAT}  none: the loss itself.",
    dict(model=LANGUAGE),
    minutes=25,
    corpus=f"WikiText-2 and the standard library's documentation strings, {COUNT} blocks of {LENGTH} tokens spread "
    "over each text, begun by BOS",
    **about(*LANGUAGE),
)
def all_norms(model: str) -> pd.DataFrame:
    texts = (*PARTS, "stdlib")
    network = changeable(model, texts)
    loss = network.loss.mean(1)
    unchanged = pd.DataFrame(dict(direction="none", block=range(len(loss)), cost=loss))
    changed = network.without_directions(network.sites, network.more_directions)
    return mean_costs(pd.concat([unchanged, changed]), texts, COUNT)


def mean_costs(rows: pd.DataFrame, texts: Sequence[str], count: int) -> pd.DataFrame:
    """A row a direction and text, of ``count`` blocks each, out of a row a direction and block."""
    text = rows.block.map(lambda block: texts[block // count]).rename("text")
    return rows.groupby(["direction", text], sort=False).cost.agg(cost="mean", se="sem").reset_index()


@cache
def changeable(model: str, texts: tuple[str, ...]) -> "Changeable":
    network, tokenizer = language_model(model)
    return Changeable(network, torch.cat([blocks(tokenizer, text, COUNT, LENGTH) for text in texts]))


class Changeable:
    """A language model on blocks of text, and what changes of its norms cost; the first position is spared.

    Attributes:
        sites: the norms over the model's full width, in order.
        inputs: what enters each norm, ``(blocks, positions, d)``, by name.
        large: at each norm, the coordinates with the largest share of the squared length.
        logp: log-probabilities ``(blocks, predictions, vocabulary)`` of the unchanged model.
        loss: of the true next tokens, in nats, ``(blocks, predictions)``.
    """

    def __init__(self, model: nn.Module, ids: Tensor):
        self.head, self.sites, self.inputs = model.lm_head, sites_of(model), {}
        self.predicted = slice(-PREDICTED.get(model.config.model_type, 16), None)
        self.targets = ids[:, 1:][:, self.predicted, None]

        def keep(site: ng.NormSite, x: Tensor, _) -> None:
            self.inputs[site.name] = x

        inner, inputs = model.model, dict(input_ids=ids, use_cache=False)
        with ng.watch(model, self.sites, keep):
            self.resumed = Resumed([*inner.layers, inner.norm], lambda: forward(inner, inputs))
        self.large = {name: shares(x).topk(LARGEST).indices for name, x in self.inputs.items()}
        self.logp = self._predictions(len(inner.layers))
        self.loss = self._loss(self.logp)

    def directions(self, site: ng.NormSite) -> dict[str, Tensor]:
        """1, signs and a Gaussian one; then 1 without the coordinates that hold most."""
        found = {name: direction(name, site.dim) for name in ("uniform", *FEW, "random_000")}
        return found | dict(uniform_rest=direction("uniform", site.dim, self.large[site.name]))

    def more_directions(self, site: ng.NormSite) -> dict[str, Tensor]:
        """These, more signs, signs without the coordinates that hold most, and 1 without others drawn at random."""
        large, drawn = self.large[site.name], torch.randperm(site.dim, generator=torch.Generator().manual_seed(0))
        found = {name: direction(name, site.dim) for name in SIGNS}
        found |= {f"{name}_rest": direction(name, site.dim, large) for name in FEW}
        others = drawn.split(LARGEST)[: len(FEW)]
        found |= {f"uniform_{i:03d}": direction("uniform", site.dim, some) for i, some in enumerate(others)}
        return self.directions(site) | found

    def without_directions(self, sites: Sequence[ng.NormSite], of: Callable | None = None) -> pd.DataFrame:
        """The inputs of these norms lose each direction ``of`` a norm: a row a direction and block."""
        by_site, rows = {site: (of or self.directions)(site) for site in sites}, []
        for name in by_site[sites[0]]:
            change = removed({site.module: found[name] for site, found in by_site.items()}, True)
            rows.append(self.cost(change, sites).assign(direction=name))
        return pd.concat(rows)

    def frozen(self, sites: Sequence[ng.NormSite]) -> pd.DataFrame:
        """These norms divide by the means of their scales: a row a block."""
        frozen = {}
        for site in sites:
            scale = float(scales(site, self.inputs[site.name][:, 1:]).mean())
            frozen[site.module] = ReducedNorm(site, site.kind == "layer", scale)
        return self.cost(replaced(frozen, True), sites)

    def cost(self, change: AbstractContextManager, sites: Sequence[ng.NormSite]) -> pd.DataFrame:
        """What a change of some norms costs: loss and divergence from the unchanged predictions, a row a block."""
        with change:
            logp = self._predictions(min(self.resumed.block_of(site.module) for site in sites))
        kl = (self.logp.exp() * (self.logp - logp)).sum(-1)
        cost = (self._loss(logp) - self.loss).mean(1)
        return pd.DataFrame(dict(block=range(len(kl)), cost=cost, kl=kl.mean(1)))

    @torch.no_grad()
    def moved(self, site: ng.NormSite, u: Tensor) -> Tensor:
        """Mean square in each block of the relative change of a norm's output, if its input loses a direction."""
        x = self.inputs[site.name][:, 1:]
        y, changed = site.module(x), site.module(x - (x @ u)[..., None] * u)
        return ((changed - y).square().sum(-1) / y.square().sum(-1)).mean(1)

    def moved_by_signs(self, site: ng.NormSite) -> Tensor:
        """What :meth:`moved` is on average over all vectors of signs (prop-dense-direction)."""
        x = self.inputs[site.name][:, 1:]
        normalised = site.weight * (x / x.norm(dim=-1, keepdim=True))
        return (site.weight.square().sum() / site.dim**2 / normalised.square().sum(-1)).mean(1)

    @torch.no_grad()
    def _predictions(self, layer: int) -> Tensor:
        h = self.resumed.ends(layer)[-1]
        return self.head(h[:, :-1][:, self.predicted]).log_softmax(-1)

    def _loss(self, logp: Tensor) -> Tensor:
        return -logp.gather(-1, self.targets)[..., 0]
