"""Norms that omit one step, the subtraction of the mean or the division, and that replace a model's own norms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

import torch
from torch import Tensor, nn

from normgeom.models.flow import check_present
from normgeom.models.held import check_formula, gain_and_bias, projected
from normgeom.models.sites import NormSite, default_example, find_norms
from normgeom.models.watch import (
    check_texts,
    evaluating,
    forward,
    listed,
    replace_module,
    running_without,
    undone_by_errors,
    watch,
)
from normgeom.norms.formula import affine, center, upcast
from normgeom.norms.functions import rms_norm


class ReducedNorm(nn.Module):
    r"""A norm without one of its steps: :math:`\gamma\odot x/r+\beta` for a LayerNorm, or a constant in place of s.

    Attributes:
        weight, bias: the effective γ and β, as parameters.
        eps, centered: ε, and whether the mean is subtracted.
        scale: the constant in place of s, a buffer of one entry, saved but not trained; None if there is none.
    """

    def __init__(self, site: NormSite, centered: bool, scale: float | None = None):
        super().__init__()
        self.weight, self.bias = (_parameter(acting, site) for acting in gain_and_bias(site))
        self.eps, self.centered = site.eps, centered
        held = None if scale is None else torch.tensor(scale, dtype=torch.float64, device=self.weight.device)
        self.register_buffer("scale", held)

    def forward(self, x: Tensor) -> Tensor:
        if self.scale is None:
            return rms_norm(x, self.weight, self.bias, self.eps)
        wide = center(upcast(x)) if self.centered else upcast(x)
        return affine(wide / self.scale.to(wide.dtype), self.weight, self.bias).to(x.dtype)


def drop_mean_subtraction(
    model: nn.Module, sites: Iterable[str | NormSite] | None = None, example_inputs: Tensor | Mapping | None = None
) -> nn.Module:
    r"""Make LayerNorms divide by the root mean square of x and subtract nothing: an ablation, not a conversion.

    Each becomes :math:`\gamma\odot x/\sqrt{\overline{x^2}+\varepsilon}+\beta` (eq-drop-mean), with the same γ, β and ε.
    No other weight is adjusted, so the model computes a different function unless the vectors that reach its norms have
    mean 0.  You cannot undo this; work on a ``copy.deepcopy``.

    Args:
        model: any model whose LayerNorms :func:`normgeom.find_norms` finds, in any placement.  Changed in place.
        sites: names, or what :func:`normgeom.find_norms` found, or one of them; all LayerNorms by default.
        example_inputs: as in :func:`normgeom.find_norms`.  The model runs on it before and after, unless there is none
            and the sites are known.  :func:`normgeom.to_rms_norm` lists limits.

    Returns:
        the model.

    Raises:
        ValueError: a site is not a LayerNorm of this model, has a different gain in each head, returns something other
            than its formula, or still runs after it was replaced, as in a plain list; the model has no LayerNorm, or
            fails once they are replaced; parameters are on the meta or several devices.  The model is unchanged.
        TypeError: an example is needed.

    >>> import torch, normgeom as ng
    >>> x = torch.tensor([[1.0, 1.0, 1.0]])
    >>> model = torch.nn.Sequential(torch.nn.LayerNorm(3))
    >>> ng.drop_mean_subtraction(model, example_inputs=x)(x).round().tolist()
    [[1.0, 1.0, 1.0]]
    """
    check_present(model)
    chosen = _chosen(model, sites, example_inputs, "LayerNorms")
    return _replaced(model, {site: ReducedNorm(site, centered=False) for site in chosen}, example_inputs)


def freeze_norms(
    model: nn.Module, batches: Iterable[Tensor | Mapping], sites: Iterable[str | NormSite] | None = None
) -> nn.Module:
    r"""Replace the scale of each norm by a constant, the mean of its scales on a text (eq-frozen-norm).

    A norm becomes :math:`\gamma\odot\Pi x/\bar s+\beta`.  This differs from holding each token's own scale, as an
    attribution does: for a vector of scale s, the output minus β is multiplied by :math:`s/\bar s`, whatever the gain
    (prop-freezing-error).  The first vector of a text, whose scale is often many times that of the others, is left out
    of the mean (claim-massive).  You cannot undo this; work on a ``copy.deepcopy``.

    Args:
        model: any model whose norms :func:`normgeom.find_norms` finds.  Changed in place; run in evaluation mode.
        batches: texts to measure on, without padding: token ids, or mappings passed as ``model(**batch)``.
            :func:`normgeom.to_rms_norm` lists limits.
        sites: names, or what :func:`normgeom.find_norms` found; all norms by default.

    Returns:
        the model.

    Raises:
        ValueError: there is no batch, or one is padded; token ids are outside the vocabulary; a site is not a norm of
            this model; the model has no norm; a norm read only first vectors, or its scales are not finite or all 0;
            sites or parameters as in :func:`drop_mean_subtraction`.  The model is unchanged.

    Sources: Heimersheim (2024); Baroni et al. (2025).

    >>> import torch, normgeom as ng
    >>> model = torch.nn.Sequential(torch.nn.RMSNorm(2, eps=1e-6))
    >>> x = torch.tensor([[3.0, 3.0], [5.0, 5.0]])
    >>> ng.freeze_norms(model, [x])(x).mul(4).round().tolist()  # each row over 4
    [[3.0, 3.0], [5.0, 5.0]]
    """
    check_present(model)
    if not (batches := list(batches)):
        raise ValueError("batches: expected at least one, got none")
    for batch in batches:
        check_texts("batches", model, batch)
    chosen = _chosen(model, sites, batches[0], "norms")
    sums = {site.name: torch.zeros(2, dtype=torch.float64) for site in chosen}

    def add(site: NormSite, x: Tensor, _output: Tensor) -> None:
        counted = x if site.token_axis is None else x.narrow(site.token_axis, 1, x.shape[site.token_axis] - 1)
        s = scales(site, counted).flatten().cpu()
        sums[site.name] += torch.stack([torch.ones_like(s), s]).sum(1)

    with evaluating(model), watch(model, chosen, add):
        for batch in batches:
            forward(model, batch)
    for name, (count, total) in sums.items():
        if not 0 < total < torch.inf:
            raise ValueError(f"batches: the {count:g} scales at {name} add up to {total}, expected more than 0")
    means = {name: float(total / count) for name, (count, total) in sums.items()}
    return _replaced(model, {s: ReducedNorm(s, s.kind == "layer", means[s.name]) for s in chosen}, batches[0])


def _replaced(model: nn.Module, by: Mapping[NormSite, nn.Module], inputs: Tensor | Mapping | None) -> nn.Module:
    """The model with other norms; it is unchanged after an error: its own are not what the sites say, or still run."""
    if inputs is None:
        with suppress(TypeError):  # sites were given, and there may be no example
            inputs = default_example(model)
    with undone_by_errors(model):
        if inputs is not None:
            with evaluating(model), watch(model, by, check_formula):
                forward(model, inputs)
        for site, norm in by.items():
            replace_module(model, site.module, norm)
        if inputs is not None:
            with evaluating(model), running_without(model, [site.module for site in by]):
                forward(model, inputs)
    return model


def scales(site: NormSite, x: Tensor) -> Tensor:
    """The scale s of each vector of a norm's input, given as by :func:`normgeom.watch`; ``(...,)``, float64."""
    return (projected(site, x.double()).square().mean(-1) + site.eps).sqrt()


def _chosen(
    model: nn.Module, sites: Iterable[str | NormSite] | None, example_inputs: Tensor | Mapping | None, what: str
) -> list[NormSite]:
    """The requested norms of this model, given by name or as they were found; ``what`` names their kind in errors."""
    asked, modules = None if sites is None else listed(sites), dict(model.named_modules())
    known = asked and all(isinstance(site, NormSite) and modules.get(site.name) is site.module for site in asked)
    found = asked if known else find_norms(model, example_inputs)  # known sites need no example
    if what == "LayerNorms":
        found = [site for site in found if site.kind == "layer" and site.weight.dim() == 1]
    found = {site.name: site for site in found}
    names = found if asked is None else dict.fromkeys(getattr(site, "name", site) for site in asked)
    for name in names:
        if name not in found:
            raise ValueError(f"sites: expected {what} of this {type(model).__name__}, got {name!r}")
    if not names or "" in names:
        raise ValueError(f"model: expected one that holds {what}, this {type(model).__name__} holds none")
    return [found[name] for name in names]


def _parameter(acts: Tensor, site: NormSite) -> nn.Parameter:
    """``acts`` itself if it is a parameter; else a new one, in the dtype of the others if that can hold the numbers."""
    if isinstance(acts, nn.Parameter):
        return acts
    like, acts = next(site.module.parameters(), acts), acts.detach()
    same = acts.to(like)
    kept = same if torch.equal(same.to(acts), acts) else acts.to(like.device)
    return nn.Parameter(kept, requires_grad=like.requires_grad)
