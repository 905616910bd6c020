"""Look at what goes into a norm and what comes out, without storing it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from normgeom.models.calls import by_its_modules
from normgeom.models.sites import NormSite


@contextmanager
def watch(
    model: nn.Module, sites: Iterable[NormSite], callback: Callable[[NormSite, Tensor, Tensor], None]
) -> Iterator[None]:
    """While the block runs, call ``callback(site, x_in, x_out)`` whenever a norm of ``sites`` runs.

    The tensors are the norm's own, detached, on its device and in its dtype, ``(..., site.dim)``; whoever wants
    to keep them copies them.  Meanwhile torch runs neither its compiler nor its fast path for encoders around the
    modules.  The hooks are removed on leaving, after an error too.

    Raises:
        ValueError: a site's module is not a part of ``model``.
    """
    sites = list(sites)
    parts = set(model.modules())
    for site in sites:
        if site.module not in parts:
            raise ValueError(f"sites: {site.name} is not a module of this {type(model).__name__}")

    def hook(site):
        def call(module, args, kwargs, output):
            x = next(iter((*args, *kwargs.values())))
            callback(site, x.detach(), output.detach())

        return call

    handles = [site.module.register_forward_hook(hook(site), with_kwargs=True) for site in sites]
    try:
        with by_its_modules():
            yield
    finally:
        for handle in handles:
            handle.remove()
