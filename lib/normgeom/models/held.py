"""Norms whose scales are held constant, which makes them affine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from operator import attrgetter

import torch
from torch import Tensor, nn

from normgeom.models.sites import find_norms
from normgeom.models.watch import NormSite, Source, by_its_modules, evaluating, forward, hooked, watch
from normgeom.norms.formula import affine, center, rstd, upcast


@contextmanager
def held_scales(model: nn.Module, inputs: Tensor | Mapping) -> Iterator[None]:
    r"""Inside the block, every norm divides by the scales that it had when ``model`` read ``inputs``.

    The model runs on ``inputs`` twice.  Inside the block, each norm that :func:`normgeom.find_norms` finds, including
    the norms of queries and keys, computes :math:`\gamma\odot\Pi x/s+\beta` with the s of that run, one number per
    vector and call.  This is an affine map of x (thm-attribution).  For RMSNorm, the map is
    :math:`\gamma\odot x/r+\beta`.  In evaluation mode, the outputs on ``inputs`` are the same as before up to
    rounding, and gradients treat the scales as constants, which is the LN-rule of Ali et al. (2022).  Other inputs of
    the same shape are divided by the same scales.  Hooks on a norm see its output with the scale held.

    In contrast, :func:`normgeom.freeze_norms` stores one scale per norm, its mean over a corpus, in the model.

    Args:
        model: as in :func:`normgeom.find_norms`; unchanged after the block, but see :func:`normgeom.to_rms_norm`.
        inputs: token ids ``(batch, length)``, or a mapping passed as ``model(**inputs)``.

    Raises:
        ValueError: no norm was found, or one returns something other than this formula.  Inside the block: a norm reads
            vectors whose shape differs from that in the run; or a norm that ran more than once is called more or less
            often than in the run, for example when activations are recomputed for gradients.

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

    def keep(site: NormSite, x: Tensor, output: Tensor) -> None:
        check_formula(site, x, output)
        scales[site.module].append(per_unit(site, x))

    with evaluating(model), watch(model, sites, keep):
        forward(model, inputs)
    left: dict[nn.Module, list[Tensor]] = {}  # in a run, of the norms with more than one call

    def begin(module, args, kwargs):
        left.update({norm: list(then) for norm, then in scales.items() if len(then) > 1})

    def hold(site: NormSite) -> Callable:
        def instead(module, args, kwargs, output):
            x = next(iter((*args, *kwargs.values())))
            in_a_run = scales[module]
            then = in_a_run[:] if len(in_a_run) == 1 else left.get(module)
            if not then:
                raise ValueError(f"held_scales: {site.name} was held for {len(in_a_run)} calls a run of the model")
            scale = then.pop(0)
            if scale.shape[:-1] != x.shape[:-1]:
                made, came = ((*tensor.shape[:-1], site.dim) for tensor in (scale, x))
                raise ValueError(f"held_scales: {site.name} was held for vectors of shape {made}, and got {came}")
            return formula(site, x, scale).to(output.dtype)

        return instead

    def end(module, args, kwargs, output):
        if more := next((site.name for site in sites if left.get(site.module)), None):
            raise ValueError(f"held_scales: {more} was held for more calls than this run makes")

    after = [*((site.module, hold(site)) for site in sites), (model, end)]
    with hooked([(model, begin)], after, prepend=True), by_its_modules():
        yield


def formula(site: NormSite, x: Tensor, per_s: Tensor) -> Tensor:
    """The output of a norm for ``x`` if 1/s (or 1/r) is ``per_s``, in the wide dtype."""
    gain, bias = (acting.to(x.device) for acting in gain_and_bias(site))
    return affine(projected(site, upcast(x)) * per_s, gain, bias)


def check_formula(site: NormSite, x: Tensor, output: Tensor) -> None:
    """Raise a ValueError if the output of a norm differs from its formula by more than rounding explains."""
    wide, per_s = upcast(x), per_unit(site, x)
    single = torch.finfo(torch.float32).eps
    cancelled = 4 * single * float((wide.abs() * per_s).max())  # where the mean is far larger than what is left of x
    near = max(torch.finfo(output.dtype).eps, single) ** (2 / 3) + cancelled
    off = float((formula(site, x, per_s) - output).abs().max() / output.abs().max())
    if off > near:
        raise ValueError(
            f"model: {site.name} returns something other than a norm of its weights, by {off:.1e} of it: "
            "a hook changes it, its scales are held already, or it computes something else"
        )


def projected(site: NormSite, x: Tensor) -> Tensor:
    """Πx; for RMSNorm x itself."""
    return center(x) if site.kind == "layer" else x


def per_unit(site: NormSite, x: Tensor) -> Tensor:
    """1/s (1/r for RMSNorm) of the vectors ``x``: ``(..., 1)`` in the wide dtype."""
    return rstd(projected(site, upcast(x)), site.eps)


def gain_and_bias(site: NormSite) -> tuple[Tensor, Tensor]:
    """The current γ and β: the parameter that acts, plus what is added to it, or the tensor that was found."""

    def current(found: Tensor, source: Source) -> Tensor:
        name, added = source or (None, 0.0)
        if name is None:
            return found
        parameter = attrgetter(name)(site.module)
        return upcast(parameter) + added if added else parameter

    gain, bias = site.sources
    return current(site.weight, gain), current(site.bias, bias)
