"""What it costs a published language model when norms read their inputs without the component along one direction."""

from collections.abc import Iterator, Sequence

import normgeom as ng
import pandas as pd
import torch
from normgeom.models.watch import hooked
from torch import Tensor, nn

from experiments.real_models import LARGEST, Resumed, direction, place, removed

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
        site, rows = self.sites[name], []
        parts = name.split(".")
        layer = int(parts[2]) if parts[1] == "layers" else len(self.resumed.layers)
        for which, u in self.directions(site):
            moved, predicted = self.change(site, u)
            with removed({site.module: u}, spare_first=True):
                more, kl = self.resumed.run(layer)
            rows.append(
                pd.DataFrame(
                    dict(
                        site=name,
                        place=place(site, self.model),
                        direction=which,
                        block=range(len(more)),
                        angle=ng.angle(self.inputs[name][:, 1:], u).mean(1),
                        cost=more.mean(1),
                        kl=kl.mean(1),
                        moved=moved,
                        predicted=predicted,
                    )
                )
            )
        return pd.concat(rows)

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
        rows = []
        chosen = [site for site in self.sites.values() if place(site, self.model) in places]
        names = [name for name, _ in self.directions(chosen[0])]
        each = {site: dict(self.directions(site)) for site in chosen}
        for which in names:
            with removed({site.module: each[site][which] for site in chosen}, spare_first):
                more, kl = self.resumed.run(0)
            found = dict(direction=which, block=range(len(more)), cost=more.mean(1), kl=kl.mean(1))
            rows.append(pd.DataFrame(dict(places=" ".join(places), spared=spare_first) | found))
        return pd.concat(rows)

    def clamped(self, coordinate: int, spare_first: bool = True) -> Tensor:
        """The cost in each block when one coordinate of the stream is its mean over texts, from every block on."""
        means = [args[0][:, 1:, coordinate].mean() for args, _ in self.resumed._calls[:-1]]

        def hold(mean: Tensor):
            def hook(_module, args, kwargs):
                x = args[0].clone()
                x[:, int(spare_first) :, coordinate] = mean
                return (x, *args[1:]), kwargs

            return hook

        with hooked(before=[(layer, hold(mean)) for layer, mean in zip(self.resumed.layers, means, strict=True)]):
            return self.resumed.run(0)[0].mean(1)


def _shares(x: Tensor) -> Tensor:
    """The mean share of the squared length in each coordinate, the first position left out."""
    x = x[:, 1:].flatten(0, -2)
    return (x.square() / x.square().sum(-1, keepdim=True)).mean(0)
