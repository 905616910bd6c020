"""What it costs a published language model when norms read their inputs without the component along one direction."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import cache

import normgeom as ng
import pandas as pd
import torch
from normgeom.models.watch import hooked
from normgeom.surgery.ablation import scales
from torch import Tensor, nn

from experiments.real_models import (
    LANGUAGE,
    LARGEST,
    PARTS,
    Resumed,
    about,
    blocks,
    direction,
    frozen,
    language_model,
    removed,
    resampled,
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
    "cost: increase of the loss in nats a token; kl: divergence from the unchanged predictions in nats.  uniform, "
    "signs_…, random_…: the component along this direction is taken from what the norm reads; uniform_rest: along 1 "
    f"without the {LARGEST} coordinates that hold most of the squared length there.  The first position is spared."
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
    return by_direction(of.at([*of.sites][norm]), ["angle", "kl"])


@experiment(
    "published-frozen",
    "Norms divide by the mean of their scales, one norm at a time or all (norm -1).  kl: divergence from the unchanged "
    "predictions in nats, the mean over blocks, between which values 90 % of the means of resampled blocks lie, and "
    "the median; cost: increase of the loss in nats a token, the median.  lost: blocks in which numbers overflow; they "
    "are infinite for the medians and left out of the means.  The first position is spared.",
    [dict(model=[name], norm=range(-1, count)) for name, count in NORMS.items()],
    minutes=20,
    corpus=ON_EACH.format(*EVERYWHERE),
    **about(*LANGUAGE),
)
def one_frozen(model: str, norm: int) -> pd.DataFrame:
    of = costs(model, PARTS, *EVERYWHERE)
    rows = of.frozen([*of.sites.values()][norm : norm + 1] if norm >= 0 else of.sites.values())
    rows = rows[["kl", "cost"]].replace([torch.inf, -torch.inf, torch.nan], torch.inf)
    kept = rows[rows.kl < torch.inf]
    low, high = map(float, resampled(torch.tensor(kept.kl.to_numpy()), torch.Generator().manual_seed(0)))
    medians = dict(kl_median=rows.kl.median(), cost=rows.cost.median(), lost=len(rows) - len(kept))
    return pd.DataFrame([dict(kl=kept.kl.mean(), low=low, high=high) | medians])


@experiment(
    "published-moved",
    "How far a norm's output moves when a direction is taken from its input, at every norm: the mean square of its "
    "relative change, for directions as in published-costs and for the mean of three vectors of signs.  predicted: the "
    "same on average over all signs (prop-dense-direction); top_share: the largest mean share of the squared length in "
    "one coordinate.  The first position is left out.",
    dict(model=LANGUAGE, text=PARTS),
    minutes=1,
    corpus=ON_EACH.format(*EVERYWHERE),
    **about(*LANGUAGE),
)
def moved_outputs(model: str, text: str) -> list[dict]:
    of, rows = costs(model, (text,), *EVERYWHERE), []
    for norm, (name, site) in enumerate(of.sites.items()):
        moved = {which: [float(v.mean()) for v in of.change(site, u)] for which, u in of.directions(site, 1)}
        signs = [of_one for which, (of_one, _) in moved.items() if which.startswith("signs_")]
        row = dict(norm=norm, top_share=float(shares(of.inputs[name]).max()), predicted=moved["uniform"][1])
        row |= {which: moved[which][0] for which in ("uniform", "random_000", "uniform_rest")}
        rows.append(row | dict(signs=sum(signs) / len(signs)))
    return rows


def by_direction(rows: pd.DataFrame, averaged: list[str]) -> pd.DataFrame:
    """A row a direction out of a row a direction and block."""
    half = rows.block < (rows.block.max() + 1) // 2
    means = rows.groupby("direction", sort=False)[averaged].mean()
    parts = {
        f"cost_{text}": rows[at].groupby("direction").cost.mean() for text, at in zip(PARTS, (half, ~half), strict=True)
    }
    return means.assign(**parts).reset_index()


@experiment(
    "published-removed",
    f"All norms at once.  {WHAT}  none: the loss itself.  low, high: 90 % of resampled blocks.",
    dict(model=LANGUAGE),
    minutes=6,
    corpus="WikiText-2 and the standard library's documentation strings, {} blocks of {} tokens spread over each text, "
    "begun by BOS".format(*EVERYWHERE),
    **about(*LANGUAGE),
)
def all_norms(model: str) -> list[dict]:
    texts = (*PARTS, "stdlib")
    of = costs(model, texts, *EVERYWHERE)
    unchanged = pd.DataFrame(dict(direction="none", block=range(len(of.resumed.loss)), cost=of.resumed.loss.mean(1)))
    return by_text(pd.concat([unchanged.assign(kl=0.0), of.everywhere()]), texts)


@experiment(
    "published-clamped",
    "The whole model with one coordinate of the stream at its mean over the texts at the input of every block: first "
    "the three that hold most at block 6, then three drawn ones.  cost: increase of the "
    "loss in nats a token, in each text; kl: divergence in nats.  The first position is spared.",
    dict(model=LANGUAGE),
    minutes=2,
    corpus=ON_EACH.format(*EVERYWHERE),
    **about(*LANGUAGE),
)
def clamped(model: str) -> pd.DataFrame:
    of = costs(model, PARTS, *EVERYWHERE)
    drawn = torch.randint(of.model.config.hidden_size, (LARGEST,), generator=torch.Generator().manual_seed(0))
    coordinates = [*of.large["model.layers.6.input_layernorm"].tolist(), *drawn.tolist()]
    return by_direction(of.clamped(coordinates), ["kl"])


def by_text(rows: pd.DataFrame, texts: Sequence[str]) -> list[dict]:
    """A row a direction and text, with what resampling the blocks makes of the mean cost."""
    found, generator = [], torch.Generator().manual_seed(0)
    for (which, text), part in rows.groupby(["direction", rows.block // EVERYWHERE[0]], sort=False):
        cost = torch.tensor(part.cost.to_numpy())
        low, high = map(float, resampled(cost, generator))
        mean = dict(cost=float(cost.mean()), kl=part.kl.mean())
        found.append(dict(direction=which, text=texts[text]) | mean | dict(low=low, high=high))
    return found


class Costs:
    """A model on blocks of text of which the first position is spared: costs at one norm, or at many.

    Attributes:
        inputs: what enters each norm, ``(blocks, positions, d)``, by name.
        large: at each norm, the coordinates with the largest share of the squared length.
    """

    def __init__(self, model: nn.Module, sites: Sequence[ng.NormSite], ids: Tensor):
        self.model, self.sites, self.inputs = model, {site.name: site for site in sites}, {}
        keep = lambda site, x, _: self.inputs.update({site.name: x})  # noqa: E731
        count = KEPT.get(model.config.model_type, 16)
        with ng.watch(model, sites, keep):
            self.resumed = Resumed(model, ids, slice(-count, None))
        self.large = {name: shares(x).topk(LARGEST).indices for name, x in self.inputs.items()}

    def directions(self, site: ng.NormSite, gaussian: int) -> Iterator[tuple[str, Tensor]]:
        """1, signs and Gaussian ones; then 1 without the coordinates that hold most."""
        for name in (
            "uniform",
            *(f"signs_{i:03d}" for i in range(DRAWN)),
            *(f"random_{i:03d}" for i in range(gaussian)),
        ):
            yield name, direction(name, site.dim)
        yield "uniform_rest", direction("uniform", site.dim, self.large[site.name])

    def at(self, name: str) -> pd.DataFrame:
        """One norm: a row a direction and block, with cost and divergence."""
        site, rows = self.sites[name], []
        for which, u in self.directions(site, 1):
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
        each, rows = {site: dict(self.directions(site, DRAWN)) for site in self.sites.values()}, []
        for which in next(iter(each.values())):
            cut = removed({site.module: of_site[which] for site, of_site in each.items()}, True)
            rows.append(self._row(cut, 0, direction=which))
        return pd.concat(rows)

    def frozen(self, sites: Iterable[ng.NormSite]) -> pd.DataFrame:
        """These norms divide by the means of their scales: a row a block."""
        scales = {site: self.scale(site) for site in sites}
        return self._row(frozen(scales), min(self.layer(site.name) for site in scales), direction="frozen")

    def clamped(self, coordinates: Sequence[int]) -> pd.DataFrame:
        """A row a coordinate and block: what enters each block has its mean over the texts there, but at position 0."""
        into = {layer: args[0] for layer, (args, _) in zip(self.resumed.layers, self.resumed.calls, strict=False)}

        def hold(layer: nn.Module, i: int):
            mean = into[layer][:, 1:, i].mean()

            def hook(_module, args, kwargs):
                x = args[0].clone()
                x[:, 1:, i] = mean
                return (x, *args[1:]), kwargs

            return layer, hook

        changed = ((i, hooked(before=[hold(layer, i) for layer in into])) for i in coordinates)
        return pd.concat(self._row(changes, 0, direction=f"clamped_{i}") for i, changes in changed)
