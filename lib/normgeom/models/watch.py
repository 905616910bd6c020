"""Look at what goes into a norm and what comes out, without storing it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from torch import Tensor, nn

from normgeom.models.calls import by_its_modules
from normgeom.models.modules import hooked
from normgeom.models.sites import NormSite


@contextmanager
def watch(
    model: nn.Module,
    sites_or_names: Iterable[NormSite | str],
    callback: Callable[[NormSite | str, Tensor, Tensor], None],
) -> Iterator[None]:
    """While the block runs, call ``callback(site, x_in, x_out)`` whenever one of these norms runs.

    The tensors are the norm's own, detached, on its device and in its dtype, ``(..., dim)``; whoever wants to keep
    them copies them.  Meanwhile torch runs neither its compiler nor its fast path for encoders around the modules.  The
    hooks are removed on leaving, after an error too.

    Args:
        model: the model that will run.
        sites_or_names: what :func:`normgeom.find_norms` found in this model, or in one that it was copied from, or
            names of modules as ``model.named_modules()`` has them.
        callback: gets a name where a name was given, else a site whose module is this model's.

    Raises:
        ValueError: ``model`` has no module of that name.

    Example:
        >>> import torch, normgeom as ng
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8))
        >>> with ng.watch(model, ["1"], lambda name, x, y: print(name, tuple(x.shape), f"{float(y.std()):.1f}")):
        ...     _ = model(torch.randn(100, 4))
        1 (100, 8) 1.0
    """
    modules = dict(model.named_modules())

    def hook(given: NormSite | str) -> tuple[nn.Module, Callable]:
        name = getattr(given, "name", given)
        if name not in modules:
            raise ValueError(f"sites_or_names: this {type(model).__name__} has no module {name!r}")
        module = modules[name]
        seen = given if isinstance(given, str) or given.module is module else replace(given, module=module)

        def call(_, args, kwargs, output):
            callback(seen, next(iter((*args, *kwargs.values()))).detach(), output.detach())

        return module, call

    with hooked(after=[hook(given) for given in sites_or_names]), by_its_modules():
        yield
