"""Make the LayerNorms of a model forget the mean: what the subtraction was worth."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from normgeom.models.modules import replace_module
from normgeom.models.sites import NormSite, find_norms
from normgeom.norms.functions import rms_norm
from normgeom.surgery.flow import check_present


class Uncentered(nn.Module):
    """A LayerNorm that does not subtract the mean: :func:`normgeom.rms_norm` with γ, β and ε of a site."""

    def __init__(self, site: NormSite):
        super().__init__()
        self.weight, self.bias = (acting(site, name) for name in ("weight", "bias"))
        self.eps = site.eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.bias, self.eps)


def drop_mean_subtraction(model: nn.Module, sites: Iterable[str | NormSite] | None = None) -> nn.Module:
    r"""Make LayerNorms divide by the root mean square of x and subtract nothing: an ablation, not a conversion.

    Each becomes :math:`\gamma\odot x/\sqrt{\overline{x^2}+\varepsilon}+\beta` (eq-drop-mean) with γ, β and ε as they
    were, and no other weight is adjusted: the model computes something else, save where its vectors have no mean.
    There is no way back; work on a ``copy.deepcopy``.

    Args:
        model: any whose LayerNorms :func:`normgeom.find_norms` finds, of whatever placement.  Changed in place.
        sites: names, or what :func:`normgeom.find_norms` found; all LayerNorms by default.

    Returns:
        the model.

    Raises:
        ValueError: a site is no LayerNorm of this model, or one whose heads have gains of their own; the model runs
            none; its parameters are on the meta device or on several.
        TypeError: the sites are not given as :func:`normgeom.find_norms` found them, and it needs an example.
    """
    check_present(model)
    for old, new in [(site.module, Uncentered(site)) for site in _layer_norms(model, sites)]:
        replace_module(model, old, new)
    return model


def _layer_norms(model: nn.Module, sites: Iterable[str | NormSite] | None) -> list[NormSite]:
    if sites is None:
        chosen = [site for site in find_norms(model) if site.kind == "layer"]
        if not chosen:
            raise ValueError(f"model: expected one with LayerNorms, this {type(model).__name__} runs none")
    else:
        chosen = list({getattr(site, "name", site): site for site in sites}.values())
        if any(isinstance(site, str) for site in chosen):
            found = {site.name: site for site in find_norms(model)}
            chosen = [found.get(site, site) if isinstance(site, str) else site for site in chosen]
    modules = dict(model.named_modules())
    for site in chosen:
        kind, name = getattr(site, "kind", None), getattr(site, "name", site)
        if kind != "layer" or modules.get(name) is not site.module or site.weight.dim() != 1:
            raise ValueError(f"sites: expected LayerNorms of this {type(model).__name__}, got {name!r}")
    return chosen


def acting(site: NormSite, name: str) -> nn.Parameter:
    """The module's own parameter where this is what acts; else, as for a gain of ``1 + weight``, what was found."""
    found, own = getattr(site, name), getattr(site.module, name, None)
    same_shape = isinstance(own, nn.Parameter) and own.shape == found.shape
    if same_shape and torch.allclose(own.detach().to(found), found, rtol=1e-3, atol=1e-5):
        return own
    like = next(site.module.parameters(), found)
    same = found.to(like)
    # what acts may be a sum that the module takes in float32, as 1 + w is
    kept = same if torch.equal(same.to(found), found) else found.to(like.device)
    return nn.Parameter(kept, requires_grad=like.requires_grad)
