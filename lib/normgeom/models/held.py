"""Norms whose scales are held constant, which makes them affine."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from normgeom.models.sites import find_norms
from normgeom.models.watch import NormSite, by_its_modules, evaluating, forward, hooked, watch
from normgeom.norms.formula import affine, center, rstd, upcast


@contextmanager
def held_scales(model: nn.Module, inputs: Tensor | Mapping) -> Iterator[None]:
    r"""Inside the block, every norm divides by the scales that it had when ``model`` read ``inputs``.

    The model runs once on ``inputs``.  Inside the block, each norm that :func:`normgeom.find_norms` finds, including
    the norms of queries and keys, computes :math:`\gamma\odot\Pi x/s+\beta` with the s of that run, one number per
    vector and call.  This is an affine map of x (thm-attribution).  For RMSNorm, the map is
    :math:`\gamma\odot x/r+\beta`.  On ``inputs``, the outputs are the same as before, and gradients treat the scales
    as constants, which is the LN-rule of Ali et al. (2022).  Other inputs of the same shape are divided by the same
    scales.

    In contrast, :func:`normgeom.freeze_norms` stores one scale per norm, its mean over a corpus, in the model.

    Args:
        model: any module that :func:`normgeom.find_norms` accepts; it is unchanged after the block.
        inputs: token ids ``(batch, length)``, or a mapping passed as ``model(**inputs)``.

    Raises:
        ValueError: no norm was found; inside the block, a norm reads vectors whose shape differs from that in the run.

    Example:
        >>> import torch, normgeom as ng
        >>> model = torch.nn.Sequential(torch.nn.LayerNorm(4), torch.nn.Linear(4, 2, bias=False))
        >>> x = torch.randn(3, 4)
        >>> with ng.held_scales(model, x):
        ...     torch.allclose(model(2 * x), 2 * model(x), atol=1e-6)
        True
    """
    sites = find_norms(model, inputs)
    if not sites:
        raise ValueError(f"model: this {type(model).__name__} runs no LayerNorm or RMSNorm")
    scales: dict[nn.Module, list[Tensor]] = {site.module: [] for site in sites}
    with evaluating(model), watch(model, sites, lambda site, x, y: scales[site.module].append(per_unit(site, x))):
        forward(model, inputs)
    calls: Counter[nn.Module] = Counter()

    def hold(site: NormSite) -> Callable:
        gain, bias = acting(site)

        def instead(module, args, kwargs, output):
            if module is not site.module:  # a copy of the model, made in the block
                return output
            x, then = upcast(next(iter((*args, *kwargs.values())))), scales[module]
            scale = then[calls[module] % len(then)]
            calls[module] += 1
            if scale.shape[:-1] != x.shape[:-1]:
                made, came = ((*tensor.shape[:-1], site.dim) for tensor in (scale, x))
                raise ValueError(f"held_scales: {site.name} was held for vectors of shape {made}, and got {came}")
            return affine(projected(site, x) * scale, gain().to(x.device), bias().to(x.device)).to(output.dtype)

        return instead

    with hooked(after=[(site.module, hold(site)) for site in sites]), by_its_modules():
        yield


def projected(site: NormSite, x: Tensor) -> Tensor:
    """Πx; for RMSNorm x itself."""
    return center(x) if site.kind == "layer" else x


def per_unit(site: NormSite, x: Tensor) -> Tensor:
    """1/s (1/r for RMSNorm) of the vectors ``x``: ``(..., 1)`` in the wide dtype."""
    return rstd(projected(site, upcast(x)), site.eps)


def acting(site: NormSite) -> tuple[Callable[[], Tensor], Callable[[], Tensor]]:
    """Functions that return the current γ and β: the effective parameter, plus 1 if needed, or the tensor found."""

    def of(found: Tensor, source: tuple[str | None, float] | None) -> Callable[[], Tensor]:
        if not source or source[0] is None:
            return lambda: found
        parameter, offset = site.module.get_parameter(source[0]), source[1]
        return lambda: upcast(parameter) + offset if offset else parameter

    gain, bias = sources(site)
    return of(site.weight, gain), of(site.bias, bias)


def sources(site: NormSite) -> tuple[tuple[str | None, float] | None, tuple[str | None, float] | None]:
    """The parameters that give γ and β, and the numbers added to them; (None, 0) if not needed, None if not found."""
    left = dict(site.module.named_parameters())

    def of(acts: Tensor, offsets: tuple[float, ...], none: float) -> tuple[str | None, float] | None:
        for offset, (name, parameter) in itertools.product(offsets, left.items()):
            shown = parameter.detach().float().cpu() + offset
            if parameter.shape == acts.shape and torch.allclose(shown, acts, rtol=1e-3, atol=1e-3):
                del left[name]
                return name, offset
        return (None, 0.0) if torch.allclose(acts, torch.full_like(acts, none), atol=1e-3) else None

    return of(site.weight, (0.0, 1.0, 2.0), 1.0), of(site.bias, (0.0,), 0.0)
