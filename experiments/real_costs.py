"""The cost for a published language model if norms read their inputs without the component along a direction."""

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

NORMS = {"SmolLM2-135M-Instruct": 61, "gemma-3-270m": 73}  # the number of norms over the full width
COUNT, LENGTH = 20, 32  # the number of blocks read from each text, and of tokens per block
PREDICTED = {"gemma3_text": 6}  # predictions counted at the end of a block: 16; 6 for the large vocabulary of Gemma
SIGNS = [f"signs_{i:03d}" for i in range(19)]
FEW = SIGNS[:3]
ON = f"WikiText-2, {COUNT} blocks of {LENGTH} tokens spread over each part, each starting with BOS"
WHAT = (
    "cost: increase of the loss in nats per token; se: its standard error over blocks. direction: the norm's input "
    "loses its component along 1 (uniform), a sign vector (signs_…) or a Gaussian vector (random_…). In …_rest the "
    f"direction is zero at the {LARGEST} coordinates with most of the squared length, in uniform_… at {LARGEST} random "
    "ones. Position 0 is unchanged."
)


@experiment(
    "published-costs",
    f"One norm is changed at a time. {WHAT} cost_valid, se_test, …: for each text. angle: mean angle in degrees "
    "between the norm's input and the direction.",
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
    "Norms divide by the mean of their scales instead of each token's scale: one norm at a time, or all (norm -1). kl: "
    "divergence from the original predictions in nats, averaged over blocks. lost: number of blocks in which numbers "
    "overflow, which are not in the mean. Position 0 is unchanged.",
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
    "How far each norm's output moves if its input loses its component along a direction: mean square of the output's "
    "relative change. uniform, uniform_rest: directions as in published-costs; signs: mean over three sign vectors; "
    "predicted: average over all sign vectors (prop-dense-direction). Position 0 is left out.",
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
    f"All norms are changed at once. {WHAT} For the direction none, cost is the loss of the unchanged model.",
    dict(model=LANGUAGE),
    minutes=25,
    corpus=f"WikiText-2 (valid, test) and the standard library's documentation strings (stdlib), {COUNT} blocks of "
    f"{LENGTH} tokens spread over each text, each starting with BOS",
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
    """Average rows per direction and block over the ``count`` blocks of each text: one row per direction and text."""
    text = rows.block.map(lambda block: texts[block // count]).rename("text")
    return rows.groupby(["direction", text], sort=False).cost.agg(cost="mean", se="sem").reset_index()


@cache
def changeable(model: str, texts: tuple[str, ...]) -> "Changeable":
    network, tokenizer = language_model(model)
    return Changeable(network, torch.cat([blocks(tokenizer, text, COUNT, LENGTH) for text in texts]))


class Changeable:
    """A language model on blocks of text, and the cost of changing its norms; position 0 is left unchanged.

    Attributes:
        sites: the norms over the model's full width, in order.
        inputs: what enters each norm, ``(blocks, positions, d)``, by name.
        large: at each norm, the coordinates with the largest share of the squared length.
        logp: log-probabilities ``(blocks, predictions, vocabulary)`` of the unchanged model.
        loss: the losses of the true next tokens in nats, ``(blocks, predictions)``.
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
        """Return 1, three sign vectors, a Gaussian vector, and 1 without the coordinates with the largest shares."""
        found = {name: direction(name, site.dim) for name in ("uniform", *FEW, "random_000")}
        return found | dict(uniform_rest=direction("uniform", site.dim, self.large[site.name]))

    def more_directions(self, site: ng.NormSite) -> dict[str, Tensor]:
        """Return these, more sign vectors, some without the large coordinates, and 1 without random coordinates."""
        large, drawn = self.large[site.name], torch.randperm(site.dim, generator=torch.Generator().manual_seed(0))
        found = {name: direction(name, site.dim) for name in SIGNS}
        found |= {f"{name}_rest": direction(name, site.dim, large) for name in FEW}
        others = drawn.split(LARGEST)[: len(FEW)]
        found |= {f"uniform_{i:03d}": direction("uniform", site.dim, some) for i, some in enumerate(others)}
        return self.directions(site) | found

    def without_directions(self, sites: Sequence[ng.NormSite], of: Callable | None = None) -> pd.DataFrame:
        """Remove each direction that ``of`` gives from the inputs of these norms: one row per direction and block."""
        by_site, rows = {site: (of or self.directions)(site) for site in sites}, []
        for name in by_site[sites[0]]:
            change = removed({site.module: found[name] for site, found in by_site.items()}, True)
            rows.append(self.cost(change, sites).assign(direction=name))
        return pd.concat(rows)

    def frozen(self, sites: Sequence[ng.NormSite]) -> pd.DataFrame:
        """Let these norms divide by the means of their scales: one row per block."""
        frozen = {}
        for site in sites:
            scale = float(scales(site, self.inputs[site.name][:, 1:]).mean())
            frozen[site.module] = ReducedNorm(site, site.kind == "layer", scale)
        return self.cost(replaced(frozen, True), sites)

    def cost(self, change: AbstractContextManager, sites: Sequence[ng.NormSite]) -> pd.DataFrame:
        """Return what a change costs: increase of the loss, and divergence from the original predictions, per block."""
        with change:
            logp = self._predictions(min(self.resumed.block_of(site.module) for site in sites))
        kl = (self.logp.exp() * (self.logp - logp)).sum(-1)
        cost = (self._loss(logp) - self.loss).mean(1)
        return pd.DataFrame(dict(block=range(len(kl)), cost=cost, kl=kl.mean(1)))

    @torch.no_grad()
    def moved(self, site: ng.NormSite, u: Tensor) -> Tensor:
        """Return in each block the mean squared relative change of a norm's output if its input loses a direction."""
        x = self.inputs[site.name][:, 1:]
        y, changed = site.module(x), site.module(x - (x @ u)[..., None] * u)
        return ((changed - y).square().sum(-1) / y.square().sum(-1)).mean(1)

    def moved_by_signs(self, site: ng.NormSite) -> Tensor:
        """Return the average of :meth:`moved` over all sign vectors (prop-dense-direction)."""
        x = self.inputs[site.name][:, 1:]
        normalised = site.weight * (x / x.norm(dim=-1, keepdim=True))
        return (site.weight.square().sum() / site.dim**2 / normalised.square().sum(-1)).mean(1)

    @torch.no_grad()
    def _predictions(self, layer: int) -> Tensor:
        h = self.resumed.ends(layer)[-1]
        return self.head(h[:, :-1][:, self.predicted]).log_softmax(-1)

    def _loss(self, logp: Tensor) -> Tensor:
        return -logp.gather(-1, self.targets)[..., 0]
