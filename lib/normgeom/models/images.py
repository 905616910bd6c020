"""Which norms of a model see images alone, and which of these have a class token first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor, nn

from normgeom.models.calls import entries, evaluating, forward

Site = TypeVar("Site")  # a NormSite; who makes them imports this


def of_images(model: nn.Module, inputs: Tensor | Mapping, sites: list[Site]) -> list[Site]:
    """The same sites, those that see images alone marked, with a first position only where a class token stands.

    The model is run again with other pixels, and with its texts the other way round: what moves with the pixels and
    not with the texts sees images alone, and a first position that does not move with them, before any place has met
    another, is a class token.
    """
    given = entries(inputs)
    pictures = {k for k, v in given.items() if isinstance(v, Tensor) and v.dim() > 3 and v.is_floating_point()}
    texts = {k for k, v in given.items() if isinstance(v, Tensor) and v.dim() == 2 and not v.is_floating_point()}
    if not pictures or not sites:
        return sites
    before = _sizes_at(model, inputs, sites)
    of_picture = _sizes_at(model, _changed(inputs, pictures, _with_noise), sites)
    of_text = _sizes_at(model, _changed(inputs, texts, lambda ids: ids.flip(1)), sites) if texts else before
    starts: dict[int, bool] = {}  # for a number of positions, whether the first is no place of the image
    marked = []
    for site in sites:
        was, now = before[site.name], of_picture[site.name]
        images = not _equal(was, now) and _equal(was, of_text[site.name])
        if images and was.dim() == 2 and was.shape[1] > 1:
            fixed = _equal(was[:, 0], now[:, 0]) and not _equal(was[:, 1], now[:, 1])
            starts.setdefault(was.shape[1], fixed)
        axis = (
            next((k for k, n in enumerate(was.shape) if k > 0 and starts.get(n)), None) if images else site.token_axis
        )
        marked.append(replace(site, images=images, token_axis=axis))
    return marked


def _sizes_at(model: nn.Module, inputs: Tensor | Mapping, sites: list[Site]) -> dict[str, Tensor]:
    """At each site the sums of absolute values of the vectors of its first call."""
    found: dict[str, Tensor] = {}

    def hook(site: Site):
        def call(module, args, kwargs):
            x = next(iter((*args, *kwargs.values())))
            found.setdefault(site.name, site.vectors(x.detach()).abs().sum(-1, dtype=torch.float32).cpu())

        return site.module.register_forward_pre_hook(call, with_kwargs=True)

    handles = [hook(site) for site in sites]
    try:
        with evaluating(model):
            forward(model, inputs)
    finally:
        for handle in handles:
            handle.remove()
    return found


def _changed(inputs: Tensor | Mapping, names: set[str], change: Callable[[Tensor], Tensor]) -> Tensor | Mapping:
    if isinstance(inputs, Tensor):
        return change(inputs)
    return {
        name: _changed(value, names, change) if name in names or isinstance(value, Mapping) else value
        for name, value in inputs.items()
    }


def _with_noise(picture: Tensor) -> Tensor:
    noise = torch.rand(picture.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
    return picture + noise.to(picture)


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a, b, rtol=1e-5, atol=0.0)
