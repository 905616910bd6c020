"""Take the division out of a model's norms: each divides by a constant, and is affine."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from normgeom.models.calls import evaluating
from normgeom.models.modules import replace_module
from normgeom.models.sites import NormSite, find_norms
from normgeom.norms.formula import center, widen
from normgeom.surgery.ablation import acting
from normgeom.surgery.flow import check_present
from normgeom.survey.passes import Passes


class FrozenNorm(nn.Module):
    r"""A norm with a constant for its scale, :math:`\gamma\odot\Pi x/\bar s+\beta` (eq-frozen-norm): affine in x.

    Attributes:
        weight, bias: γ and β as they acted, parameters.
        scale: :math:`\bar s`, of one entry, a buffer: it is saved, and not trained.
        centered: whether the mean is subtracted; without, :math:`\gamma\odot x/\bar s+\beta`.
    """

    def __init__(self, site: NormSite, scale: float):
        super().__init__()
        self.weight, self.bias = (acting(site, name) for name in ("weight", "bias"))
        self.register_buffer("scale", torch.tensor(scale, dtype=torch.float64, device=self.weight.device))
        self.centered = site.kind == "layer"

    def forward(self, x: Tensor) -> Tensor:
        """As the norm, whose shapes and dtypes it takes."""
        wide = widen(x)
        wide = center(wide) if self.centered else wide
        y = wide / self.scale.to(wide.dtype) * self.weight.to(wide.dtype) + self.bias.to(wide.dtype)
        return y.to(x.dtype)


def freeze_norms(
    model: nn.Module,
    batches: Iterable[Tensor | Mapping],
    sites: Iterable[str | NormSite] | None = None,
) -> nn.Module:
    r"""Make norms divide by the mean of their scales on a text: :math:`\gamma\odot\Pi x/\bar s+\beta` (eq-frozen-norm).

    At a vector whose own scale is s the output less β comes out as :math:`s/\bar s` of what it was, whatever the gain
    (prop-freezing-error); where every scale is :math:`\bar s` nothing changes.  γ, β and the subtraction of the mean
    stay as they were.  There is no way back; work on a ``copy.deepcopy``.

    Args:
        model: any whose norms :func:`normgeom.find_norms` finds.  Changed in place; run in evaluation mode.
        batches: what it is measured on: token ids, or mappings passed as ``model(**batch)``, whose padding does not
            count.  Where tokens are told apart, the first of a text does not count either: its scale is often many
            times the others' (claim-massive).
        sites: names, or what :func:`normgeom.find_norms` found; all norms by default.

    Returns:
        the model.

    Raises:
        ValueError: a site is no norm of this model, or is frozen already; none is left; a norm saw no vector that
            counts, or scales that are not finite, or all 0; parameters on the meta device or on several.  Nothing has
            been changed then.
    """
    check_present(model)
    batches = iter(batches)
    first = next(batches, None)
    if first is None:
        raise ValueError("batches: expected at least one, got none")
    Passes(model, []).check("batches", first)
    chosen = _norms(model, first, sites)
    sums = {site.name: torch.zeros(2, dtype=torch.float64) for site in chosen}

    def add(site: NormSite, parts: tuple[Tensor, Tensor], x: Tensor, _output: Tensor) -> None:
        kept = scales(site, x).flatten().to(parts[1].device)[parts[1]]
        sums[site.name] += torch.tensor([float(kept.sum()), kept.numel()], dtype=torch.float64)

    passes = Passes(model, chosen)
    with torch.no_grad(), evaluating(model):
        for batch in itertools.chain([first], batches):
            passes.run("batches", batch, add)
    frozen = []
    for site in chosen:
        total, count = sums[site.name].tolist()
        if not count:
            raise ValueError(f"batches: {site.name} saw no vector that counts; expected texts of two tokens at least")
        if not 0 < total < float("inf"):
            raise ValueError(
                f"batches: the scales at {site.name} add up to {total}; expected a positive, finite number"
            )
        frozen.append((site.module, FrozenNorm(site, total / count)))
    for old, new in frozen:
        replace_module(model, old, new)
    return model


def scales(site: NormSite, x: Tensor) -> Tensor:
    """s of each vector of a norm's input as :func:`normgeom.watch` gives it, ``(...,)``, float64."""
    x = x.double()
    return ((center(x) if site.kind == "layer" else x).square().mean(-1) + site.eps).sqrt()


def _norms(model: nn.Module, batch: Tensor | Mapping, sites: Iterable[str | NormSite] | None) -> list[NormSite]:
    found = {site.name: site for site in find_norms(model, batch)}
    given = list(found.values() if sites is None else sites)
    modules, names = dict(model.named_modules()), []
    for site in given:
        name = getattr(site, "name", site)
        if isinstance(modules.get(name), FrozenNorm):
            raise ValueError(f"sites: {name} is frozen already")
        if name not in found or getattr(site, "module", found[name].module) is not found[name].module:
            raise ValueError(f"sites: expected norms of this {type(model).__name__}, got {name!r}")
        if found[name].module is model:
            raise ValueError("model: it is a norm itself, and nothing holds it; put it in an nn.Sequential")
        names.append(name)
    if not names:
        raise ValueError(f"model: expected one with norms, this {type(model).__name__} runs none, or all are frozen")
    return [found[name] for name in dict.fromkeys(names)]
