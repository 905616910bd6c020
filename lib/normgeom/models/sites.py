"""Find the norms of a network by what they do, not by their names."""

from __future__ import annotations

import itertools
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

import torch
from torch import Tensor, nn

from normgeom.models.probe import NORMS, as_stated, plain_copy, probe, sources
from normgeom.models.watch import NormSite, check_module, entries, evaluating, forward, hooked

_BATCH, _TOKENS = 2, 11  # of the default example: sizes that no model uses for heads or groups
_MOST = 4  # vectors that a norm holds: gain, bias, and the like


def find_norms(model: nn.Module, example_inputs: Tensor | Mapping | None = None) -> list[NormSite]:
    """Find the norms of single vectors that ``model`` runs, in the order in which it runs them.

    One forward pass shows which small modules map a floating-point tensor to one of the same shape.  Each is copied and
    probed: rows along one direction show gain, bias and ε, and the formula with these must hold for random rows.  If
    the output ignores a shift along 1, the formula is LayerNorm's (eq-layer-norm), else RMSNorm's (eq-rms-norm).
    Vectors lie along the last axis.  Names and ``torch.compile`` do not matter; scripted norms are not found.

    Args:
        model: any module; a transformers model of text or of images needs no example.
        example_inputs: inputs of the model: a tensor of token ids, or a mapping passed as ``model(**inputs)``.

    Returns:
        a list of :class:`NormSite`, each module once.  One warning counts the modules whose class is called a norm but
        that are not in the list: norms over another axis, with a second argument such as a gate, with a gain of zeros,
        and norms that the example does not run.  Another warning says if the example has as many texts as positions, or
        as many positions as heads.  A norm whose formula is part of a larger module is not found.

    Raises:
        TypeError: ``model`` is not a module; no example was given and none can be made for this model.

    Example:
        >>> import torch, normgeom as ng
        >>> model = torch.nn.Sequential(torch.nn.LayerNorm(8), torch.nn.Linear(8, 8), torch.nn.RMSNorm(8, eps=1e-6))
        >>> ng.find_norms(model, torch.ones(2, 5, 8))
        [NormSite('0', LayerNorm, dim=8, eps=1e-05), NormSite('2', RMSNorm, dim=8, eps=1e-06)]
    """
    return list(each_norm(model, example_inputs, _site).values())


def each_norm(model: nn.Module, example_inputs: Tensor | Mapping | None, measure: Callable) -> dict[nn.Module, object]:
    """The results of ``measure`` for modules that may be norms, in the order in which they end, none inside another.

    ``measure`` gets the name of a module, the module, a tensor without data like the first that the module read, and
    the axis of positions.  If the module is not a norm, it returns None, or raises what the module raises.
    """
    check_module(model)
    inputs = default_example(model) if example_inputs is None else example_inputs
    names, found, alike = {module: name for name, module in model.named_modules()}, {}, []
    batch, tokens = _texts(inputs)
    for module, read in _maps_of_one_tensor(model, inputs).items():
        if any(part in found for part in module.modules()):
            continue
        axis = _token_axis(read.shape, batch, tokens)
        # the user asked for none of these calls; a module that raises takes more arguments or another shape
        with torch.device("cpu"), warnings.catch_warnings(action="ignore"), suppress(Exception):
            if (measured := measure(names[module], module, read, axis)) is not None:
                found[module] = measured
                if axis is not None and read.shape[:-1].count(read.shape[axis]) > 1:
                    alike.append(names[module])
    if alike:
        said = f"example_inputs: two axes of what {alike[0]!r} reads are as long as the texts, the first is taken"
        warnings.warn(f"{said} for positions; an example of another length tells them apart", stacklevel=3)
    if others := _not_measured(names, found):
        counts = ", ".join(f"{count} {kind}" for kind, count in Counter(others.values()).items())
        warnings.warn(f"seen and not measured: {counts}, the first at {next(iter(others))!r}", stacklevel=3)
    return found


def _site(name: str, module: nn.Module, read: Tensor, token_axis: int | None) -> NormSite | None:
    """The site of a module whose formula is that of a norm; None for other modules."""
    dtype = torch.promote_types(read.dtype, torch.float32)
    found = probe(copied := plain_copy(module, dtype), read.shape, token_axis, dtype)
    if found is None:
        return None
    eps, misfit = found.fit("inside the root")
    if not misfit <= 0.2:  # as where only rows longer than a bound are shortened; ε outside the root: 0.12
        return None
    eps = as_stated(module, eps, dtype)
    weight, bias = found.acting("inside the root", eps)
    expected, size = NORMS[found.kind](found.rows, eps=eps) * weight + bias, float(found.outputs.abs().max())
    if not torch.allclose(found.outputs, expected.to(dtype), rtol=1e-3, atol=1e-4 * size):
        return None
    generator = torch.Generator().manual_seed(0)
    for parameter in copied.parameters():  # the gain follows only a parameter that acts
        parameter.data = torch.randn(parameter.shape, generator=generator).to(parameter)
    acts = sources(copied, *found.again(copied).acting("inside the root", eps), near=1e-5)
    return NormSite(name, module, found.kind, weight, bias, eps, read.shape[-1], token_axis, acts)


def _not_measured(names: Mapping[nn.Module, str], sites: Iterable[nn.Module]) -> dict[str, str]:
    """Names and classes of the innermost modules that are called norms and that neither hold a site nor are in one."""
    known, others = {part for site in sites for part in site.modules()}, {}
    for module, name in reversed(names.items()):  # parts before the whole
        called = any("norm" in ancestor.__name__.lower() for ancestor in type(module).__mro__)
        ours = type(module).__module__.startswith("normgeom.surgery.")  # frozen: no norm any more
        if called and not ours and known.isdisjoint(module.modules()):
            others[name] = type(module).__name__
            known.add(module)
    return dict(reversed(others.items()))


def default_example(model: nn.Module) -> Mapping:
    """Token ids for a transformers model that reads text, noise for one that reads images (but not videos)."""
    kind, config = (getattr(model, name, None) for name in ("main_input_name", "config"))
    if kind == "pixel_values" and hasattr(config, "image_size") and not hasattr(config, "num_frames"):
        size = config.image_size if isinstance(config.image_size, (list, tuple)) else [config.image_size] * 2
        generator = torch.Generator().manual_seed(0)
        return {kind: torch.randn(_BATCH, config.num_channels, *size, generator=generator).to(model.dtype)}
    if kind == "input_ids" and hasattr(config, "vocab_size"):
        ids = torch.arange(_BATCH * _TOKENS).reshape(_BATCH, _TOKENS) % config.vocab_size
        return {kind: ids, **({"decoder_input_ids": ids} if config.is_encoder_decoder else {})}
    hint = "; a wrapper's .module is the model" if isinstance(getattr(model, "module", None), nn.Module) else ""
    raise TypeError(f"example_inputs: none given, and none can be made for a {type(model).__name__}{hint}")


def _texts(inputs: Tensor | Mapping) -> tuple[int | None, int | None]:
    """The numbers of texts and of positions in an example; None for images, whose positions have no order."""
    given = entries(inputs)
    ids = given.get("input_ids")
    shapes = [v.shape for v in ([*given.values()] if ids is None else [ids]) if isinstance(v, Tensor) and v.dim() > 0]
    return (None, None) if not shapes or max(map(len, shapes)) > 3 else (*shapes[0], None)[:2]


def _token_axis(shape: Sequence[int], batch: int | None, tokens: int | None) -> int | None:
    if len(shape) < 3:
        return None
    if tokens in shape[1:-1]:
        return shape.index(tokens, 1)
    if shape[0] == batch:
        return 1  # of another length, as in an encoder with a decoder
    return 0 if tuple(shape[:2]) == (tokens, batch) else None


def _maps_of_one_tensor(model: nn.Module, inputs: Tensor | Mapping) -> dict[nn.Module, Tensor]:
    """The small modules that map a floating-point tensor to one of its shape, and the first that each read, empty.

    The model runs once, in evaluation mode.  Modules come in the order in which they end, parts before the whole.  A
    module that is ever called with a second argument, such as a gate, is left out.
    """
    reads: dict[nn.Module, Tensor] = {}
    gated = set()

    def look(module, args, kwargs, output):
        x, *others = (*args, *kwargs.values()) or (None,)
        if not (isinstance(x, Tensor) and isinstance(output, Tensor) and x.is_floating_point()):
            return
        if x.dim() < 2 or x.shape != output.shape or x.numel() == 0 or not _is_small(module, x.shape):
            return
        if reads.setdefault(module, x.to("meta")).dim() != x.dim():  # its rows have no positions in common
            reads[module] = x.to("meta").flatten(0, -2)
        if any(other is not None for other in others):
            gated.add(module)

    modules = [module for module in model.modules() if not isinstance(module, torch.jit.ScriptModule)]
    with evaluating(model), hooked(after=((module, look) for module in modules)):
        forward(model, inputs)
    return {module: read for module, read in reads.items() if module not in gated}


def _is_small(module: nn.Module, shape: torch.Size) -> bool:
    """Whether a module holds no more numbers than a norm of such an input may, and with parts no matrix."""
    held = sum(tensor.numel() for tensor in itertools.chain(module.parameters(), module.buffers()))
    return held <= _MOST * (max(shape[1:]) if any(module.children()) else shape[1:].numel())
