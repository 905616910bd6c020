"""What it costs a published language model when norms read their inputs without the component along one direction."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import cache

import normgeom as ng
import pandas as pd
import torch
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

DRAWN = 3  # vectors of signs
KEPT = {"gemma3_text": 6}  # predictions that count in a block: Gemma's vocabulary is the dearest part


NORMS = dict(zip(LANGUAGE, (61, 73), strict=True))
EACH, EVERYWHERE = (6, 12), (20, 32)  # blocks of each text, and their tokens
ON_EACH = "WikiText-2, {} blocks of {} tokens spread over each of its parts, begun by BOS"
WHAT = (
    "cost: increase of the loss in nats a token.  uniform, signs_…, random_…: the component along this direction is "
    f"taken from what the norm reads; uniform_rest: along 1 without the {LARGEST} coordinates that hold most of the "
    "squared length there.  The first position is spared."
)


@cache
def costs(model: str, texts: tuple[str, ...], count: int, length: int) -> "Costs":
    network, tokenizer = language_model(model)
    ids = torch.cat([blocks(tokenizer, text, count, length) for text in texts])
    return Costs(network, sites_of(network), ids)


@experiment(
    "published-costs",
    f"One norm at a time.  {WHAT}  cost_valid, cost_test: in each text.  angle: the mean angle of the norm's input to "
    "the direction.",
    [dict(model=[name], norm=range(count)) for name, count in NORMS.items()],
    minutes=12,
    corpus=ON_EACH.format(*EACH),
    **about(*LANGUAGE),
)
def one_norm(model: str, norm: int) -> pd.DataFrame:
    of = costs(model, PARTS, *EACH)
    rows = of.at([*of.sites][norm])
    by_text = mean_costs(rows, PARTS, EACH[0]).pivot(index="direction", columns="text", values="cost")
    return by_text.add_prefix("cost_").assign(angle=rows.groupby("direction").angle.mean()).reset_index()


@experiment(
    "published-frozen",
    "Norms divide by the mean of their scales, one norm at a time or all (norm -1).  kl: divergence from the unchanged "
    "predictions in nats, the mean over blocks.  lost: blocks in which numbers overflow, left out of the mean.  The "
    "first position is spared.",
    [dict(model=[name], norm=range(-1, count)) for name, count in NORMS.items()],
    minutes=20,
    corpus=ON_EACH.format(*EVERYWHERE),
    **about(*LANGUAGE),
)
def one_frozen(model: str, norm: int) -> dict:
    of = costs(model, PARTS, *EVERYWHERE)
    kl = of.frozen([*of.sites.values()][norm : norm + 1] if norm >= 0 else of.sites.values()).kl
    kept = kl[kl.abs() < torch.inf]
    return dict(kl=kept.mean(), lost=len(kl) - len(kept))


@experiment(
    "published-moved",
    "How far a norm's output moves when a direction is taken from its input, at every norm: the mean square of its "
    "relative change, for directions as in published-costs and for the mean of three vectors of signs.  predicted: the "
    "same on average over all signs (prop-dense-direction).  The first position is left out.",
    dict(model=LANGUAGE, text=PARTS),
    minutes=1,
    corpus=ON_EACH.format(*EVERYWHERE),
    **about(*LANGUAGE),
)
def moved_outputs(model: str, text: str) -> list[dict]:
    of, rows = costs(model, (text,), *EVERYWHERE), []
    for norm, site in enumerate(of.sites.values()):
        moved = {which: [float(v.mean()) for v in of.change(site, u)] for which, u in of.directions(site)}
        signs = [of_one for which, (of_one, _) in moved.items() if which.startswith("signs_")]
        row = dict(norm=norm, predicted=moved["uniform"][1], signs=sum(signs) / len(signs))
        rows.append(row | {which: moved[which][0] for which in ("uniform", "uniform_rest")})
    return rows


@experiment(
    "published-removed",
    f"All norms at once.  {WHAT}  none: the loss itself.",
    dict(model=LANGUAGE),
    minutes=6,
    corpus="WikiText-2 and the standard library's documentation strings, {} blocks of {} tokens spread over each text, "
    "begun by BOS".format(*EVERYWHERE),
    **about(*LANGUAGE),
)
def all_norms(model: str) -> pd.DataFrame:
    texts = (*PARTS, "stdlib")
    of = costs(model, texts, *EVERYWHERE)
    unchanged = pd.DataFrame(dict(direction="none", block=range(len(of.resumed.loss)), cost=of.resumed.loss.mean(1)))
    return mean_costs(pd.concat([unchanged, of.everywhere()]), texts, EVERYWHERE[0])


def mean_costs(rows: pd.DataFrame, texts: Sequence[str], count: int) -> pd.DataFrame:
    """A row a direction and text, of ``count`` blocks each, out of a row a direction and block."""
    text = rows.block.map(lambda block: texts[block // count]).rename("text")
    return rows.groupby(["direction", text], sort=False).cost.mean().reset_index()


class Costs:
    """A model on blocks of text of which the first position is spared: costs at one norm, or at many.

    Attributes:
        inputs: what enters each norm, ``(blocks, positions, d)``, by name.
        large: at each norm, the coordinates with the largest share of the squared length.
    """

    def __init__(self, model: nn.Module, sites: Sequence[ng.NormSite], ids: Tensor):
        self.sites, self.inputs = {site.name: site for site in sites}, {}
        keep = lambda site, x, _: self.inputs.update({site.name: x})  # noqa: E731
        count = KEPT.get(model.config.model_type, 16)
        with ng.watch(model, sites, keep):
            self.resumed = Resumed(model, ids, slice(-count, None))
        self.large = {name: shares(x).topk(LARGEST).indices for name, x in self.inputs.items()}

    def directions(self, site: ng.NormSite) -> Iterator[tuple[str, Tensor]]:
        """1, signs and a Gaussian one; then 1 without the coordinates that hold most."""
        for name in ("uniform", *(f"signs_{i:03d}" for i in range(DRAWN)), "random_000"):
            yield name, direction(name, site.dim)
        yield "uniform_rest", direction("uniform", site.dim, self.large[site.name])

    def at(self, name: str) -> pd.DataFrame:
        """One norm: a row a direction and block, with cost and divergence."""
        site, rows = self.sites[name], []
        for which, u in self.directions(site):
            angle = ng.angle(self.inputs[name][:, 1:], u).mean(1)
            rows.append(self._row(removed({site.module: u}, True), self.layer(name), direction=which, angle=angle))
        return pd.concat(rows)

    def layer(self, name: str) -> int:
        """The block in which a norm is; one more than the last for the final norm."""
        parts = name.split(".")
        return int(parts[2]) if parts[1] == "layers" else len(self.resumed.layers)

    def _row(self, changed: AbstractContextManager, layer: int, **about: object) -> pd.DataFrame:
        with changed:
            more, kl = self.resumed.run(layer)
        return pd.DataFrame(about | dict(block=range(len(more)), cost=more.mean(1), kl=kl.mean(1)))

    def scale(self, site: ng.NormSite) -> float:
        return float(scales(site, self.inputs[site.name][:, 1:]).mean())

    @torch.no_grad()
    def change(self, site: ng.NormSite, u: Tensor) -> tuple[Tensor, Tensor]:
        """Mean square of the relative change of the norm's output in each block, measured and predicted.

        The prediction is the mean over directions of signs (prop-dense-direction), whatever ``u`` is.
        """
        x = self.inputs[site.name][:, 1:]
        y, cut = site.module(x), site.module(x - (x @ u)[..., None] * u)
        moved = ((cut - y).square().sum(-1) / y.square().sum(-1)).mean(1)
        unit = x / x.norm(dim=-1, keepdim=True)
        held = (site.weight * unit).square().sum(-1)
        return moved, (site.weight.square().sum() / site.dim**2 / held).mean(1)

    def everywhere(self) -> pd.DataFrame:
        """All norms at once: a row a direction and block."""
        each, rows = {site: dict(self.directions(site)) for site in self.sites.values()}, []
        for which in next(iter(each.values())):
            cut = removed({site.module: of_site[which] for site, of_site in each.items()}, True)
            rows.append(self._row(cut, 0, direction=which))
        return pd.concat(rows)

    def frozen(self, sites: Iterable[ng.NormSite]) -> pd.DataFrame:
        """These norms divide by the means of their scales: a row a block."""
        held = {site.module: ReducedNorm(site, site.kind == "layer", self.scale(site)) for site in sites}
        return self._row(replaced(held, True), min(self.layer(site.name) for site in sites), direction="frozen")
