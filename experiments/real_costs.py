"""What it costs a published language model when norms read their inputs without the component along one direction."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager

import normgeom as ng
import pandas as pd
import torch
from normgeom.models.watch import hooked
from normgeom.surgery.ablation import scales
from torch import Tensor, nn

from experiments.real_models import LARGEST, Resumed, direction, frozen, place, removed

DRAWN = ("signs_000", "signs_001", "signs_002", "random_000")
KEPT = {"gemma3_text": 6}  # predictions that count in a block: Gemma's vocabulary is the dearest part


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
        self.large = {name: _shares(x).topk(LARGEST).indices for name, x in self.inputs.items()}

    def directions(self, site: ng.NormSite) -> Iterator[tuple[str, Tensor]]:
        """1, signs and a Gaussian one; then 1 without the coordinates that hold most."""
        for name in ("uniform", *DRAWN):
            yield name, direction(name, site.dim)
        yield "uniform_rest", direction("uniform", site.dim, self.large[site.name])

    def at(self, name: str) -> pd.DataFrame:
        """One norm: a row a direction and block, with cost, divergence, and how far the norm's output moved."""
        site, parts = self.sites[name], name.split(".")
        layer = int(parts[2]) if parts[1] == "layers" else len(self.resumed.layers)
        rows, about = [], dict(site=name, place=place(site, self.model))
        for which, u in self.directions(site):
            moved, predicted = self.change(site, u)
            angle = ng.angle(self.inputs[name][:, 1:], u).mean(1)
            found = dict(direction=which, angle=angle, moved=moved, predicted=predicted)
            rows.append(self._row(removed({site.module: u}, True), layer, **about, **found))
        rows.append(self._row(frozen({site: self.scale(site)}), layer, **about, direction="frozen"))
        return pd.concat(rows)

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

    def everywhere(self, places: Sequence[str], spare_first: bool) -> pd.DataFrame:
        """All norms at once: a row a direction and block."""
        chosen = [site for site in self.sites.values() if place(site, self.model) in places]
        each = {site: dict(self.directions(site)) for site in chosen}
        about, rows = dict(places=" ".join(places), spared=spare_first), []
        for which in each[chosen[0]]:
            cut = removed({site.module: each[site][which] for site in chosen}, spare_first)
            rows.append(self._row(cut, 0, **about, direction=which))
        rows.append(self._row(frozen({site: self.scale(site) for site in chosen}), 0, **about, direction="frozen"))
        return pd.concat(rows)

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


def _shares(x: Tensor) -> Tensor:
    """The mean share of the squared length in each coordinate, the first position left out."""
    x = x[:, 1:].flatten(0, -2)
    return (x.square() / x.square().sum(-1, keepdim=True)).mean(0)
