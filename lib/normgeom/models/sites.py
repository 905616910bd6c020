"""Find the norms of a network by what they do, not by what they are called."""

from __future__ import annotations

import copy
import itertools
import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from normgeom.models.watch import NormSite, entries, evaluating, forward, hooked
from normgeom.norms.functions import layer_norm, rms_norm

_BATCH, _TOKENS = 2, 11  # of the default example: sizes that no model uses for heads or groups
_MOST = 4  # vectors that a norm holds: gain, bias, and the like
_LARGE = 1e4  # the size of rows beside which no usual ε counts


def find_norms(model: nn.Module, example_inputs: Tensor | Mapping | None = None) -> list[NormSite]:
    """The norms of single vectors that ``model`` runs, in the order in which it runs them.

    One forward pass shows which small modules map a floating-point tensor to one of the same shape.  Each is copied and
    probed: rows along one direction show gain, bias and ε, and the formula with these must hold for random rows.  If
    the output ignores a shift along 1, the formula is LayerNorm's (eq-layer-norm), else RMSNorm's (eq-rms-norm).
    Vectors lie along the last axis.  Names do not matter, and neither does compilation.

    Args:
        model: any module; a transformers model of text or of images needs no example.
        example_inputs: what the model takes: a tensor of token ids, or a mapping passed as ``model(**inputs)``.

    Returns:
        a list of :class:`NormSite`, each module once.  One warning counts the modules whose class is called a norm and
        that are not in the list: those over another axis, with a second input such as a gate, with a gain of zeros, and
        those that the example does not run.  A norm written out inside a larger module is not seen.

    Raises:
        TypeError: ``model`` is no module; no example was given and none can be made for this model.

    Example:
        >>> import torch, normgeom as ng
        >>> model = torch.nn.Sequential(torch.nn.LayerNorm(8), torch.nn.Linear(8, 8), torch.nn.RMSNorm(8, eps=1e-6))
        >>> ng.find_norms(model, torch.ones(2, 5, 8))
        [NormSite('0', LayerNorm, dim=8, eps=1e-05), NormSite('2', RMSNorm, dim=8, eps=1e-06)]
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model: expected a torch.nn.Module, got a {type(model).__name__}")
    inputs = default_example(model) if example_inputs is None else example_inputs
    names, sites = {module: name for name, module in model.named_modules()}, {}
    batch, tokens = _texts(inputs)
    for module, shape in _maps_of_one_tensor(model, inputs).items():
        if any(part in sites for part in module.modules()):
            continue
        token_axis = _token_axis(shape, batch, tokens)
        with warnings.catch_warnings(action="ignore"):  # of what a module is asked, the user has not asked it
            if found := _probe(module, shape, token_axis):
                sites[module] = NormSite(names[module], module, *found, dim=shape[-1], token_axis=token_axis)
    if others := _not_measured(names, sites):
        counts = ", ".join(f"{count} {kind}" for kind, count in Counter(others.values()).items())
        warnings.warn(f"seen and not measured: {counts}, the first at {next(iter(others))!r}", stacklevel=2)
    return list(sites.values())


def _not_measured(names: Mapping[nn.Module, str], sites: Iterable[nn.Module]) -> dict[str, str]:
    """Name and class of the innermost modules that are called norms and hold no site and are no part of one."""
    known, others = {part for site in sites for part in site.modules()}, {}
    for module, name in reversed(names.items()):  # parts before the whole
        called = any("norm" in ancestor.__name__.lower() for ancestor in type(module).__mro__)
        ours = type(module).__module__.startswith("normgeom.surgery.")  # frozen: no norm any more
        if called and not ours and known.isdisjoint(module.modules()):
            others[name] = type(module).__name__
            known.add(module)
    return dict(reversed(others.items()))


def default_example(model: nn.Module) -> Mapping:
    """Token ids for a model of transformers that reads text, noise for one that reads images, not films."""
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
    """How many texts an example holds, and how many positions; of images nothing: their places have no order."""
    given = entries(inputs)
    shapes = [v.shape for v in (given.get("input_ids"), *given.values()) if isinstance(v, Tensor) and v.dim() > 0]
    return (None, None) if not shapes or max(map(len, shapes)) > 3 else (*shapes[0], None)[:2]


def _token_axis(shape: Sequence[int], batch: int | None, tokens: int | None) -> int | None:
    if len(shape) < 3:
        return None
    if tokens in shape[1:-1]:
        return shape.index(tokens, 1)
    if shape[0] == batch:
        return 1  # of another length: a decoder beside its encoder
    return 0 if tuple(shape[:2]) == (tokens, batch) else None


def _maps_of_one_tensor(model: nn.Module, inputs: Tensor | Mapping) -> dict[nn.Module, torch.Size]:
    """The small modules that map one floating-point tensor to one of its shape, with the shape of their first call.

    The model runs once, in evaluation mode.  Modules come in the order in which they end, parts before the whole.  A
    module that some call gives a second tensor, such as a gate, is not among them.
    """
    shapes: dict[nn.Module, torch.Size] = {}
    gated = set()

    def look(module, args, kwargs, output):
        x, *others = (*args, *kwargs.values()) or (None,)
        if not (isinstance(x, Tensor) and isinstance(output, Tensor) and x.is_floating_point()):
            return
        if x.dim() < 2 or x.shape != output.shape or x.numel() == 0 or not _is_small(module, x.shape):
            return
        shapes.setdefault(module, x.shape)
        if any(isinstance(other, Tensor) for other in others):
            gated.add(module)

    modules = [module for module in model.modules() if not isinstance(module, torch.jit.ScriptModule)]
    with evaluating(model), hooked(after=((module, look) for module in modules)):
        forward(model, inputs)
    return {module: shape for module, shape in shapes.items() if module not in gated}


def _is_small(module: nn.Module, shape: torch.Size) -> bool:
    """Whether a module holds no more than a norm of such an input may; with parts, no matrix is in it."""
    held = sum(tensor.numel() for tensor in itertools.chain(module.parameters(), module.buffers()))
    return held <= _MOST * (max(shape[1:]) if any(module.children()) else shape[1:].numel())


@torch.no_grad()
def _probe(module: nn.Module, shape: Sequence[int], token_axis: int | None) -> tuple[str, Tensor, Tensor, float] | None:
    """Kind, gain, bias and ε of a module that takes inputs of ``shape``, if it is a norm along the last axis."""
    *lead, d = shape
    if d < 2:
        return None
    # A gain may differ from head to head, but not from text to text or from position to position.
    few, one = ([*(n if axis in (0, token_axis) else size for axis, size in enumerate(lead)), d] for n in (4, 1))
    rows = _LARGE * torch.randn(few, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
    try:
        run = _plain_copy(module).forward  # past hooks
        base = run(rows)
    except Exception:
        return None  # it cannot be copied, or takes another shape or more arguments: it is more than a norm
    scale = float(base.abs().max())
    if _same(base, run(-rows), scale):
        return None
    kind = "layer" if _same(base, run(rows + 3 * _LARGE), scale) else "rms"
    norm = layer_norm if kind == "layer" else rms_norm
    unit = norm(1 - 2 * (torch.arange(d) % 2).float(), eps=0.0).expand(one)
    plus, minus = run(_LARGE * unit), run(-_LARGE * unit)
    weight, bias = (plus - minus) / 2 / unit, (plus + minus) / 2
    if not _same(base, norm(rows, eps=0.0) * weight + bias, scale):
        return None
    eps = _eps(module, run, weight * unit, bias, unit)
    return None if eps is None else (kind, _of_each_head(weight), _of_each_head(bias), eps)


def _plain_copy(module: nn.Module) -> nn.Module:
    """A float32 copy on the CPU in evaluation mode, without hooks."""
    copied = copy.deepcopy(module).to(device="cpu", dtype=torch.float32)
    for part in copied.modules():
        part._forward_hooks.clear()  # the user's
        part._forward_pre_hooks.clear()
        part.training = False
    return copied


def _same(a: Tensor, b: Tensor, scale: float) -> bool:
    return bool(torch.isfinite(a).all()) and torch.allclose(a, b, rtol=1e-3, atol=1e-4 * scale)


def _eps(
    module: nn.Module, run: Callable[[Tensor], Tensor], surface: Tensor, bias: Tensor, unit: Tensor
) -> float | None:
    """ε from how far short of ``surface`` small rows end; the exact number where an attribute holds it.

    None where they do not end there as ε makes them, as where only rows longer than a bound are shortened.
    """
    scales = torch.logspace(-8, 1, 73, dtype=torch.float32)
    outputs = run(scales.view(-1, *(1 for _ in unit.shape[1:])) * unit) - bias
    short, full = outputs.flatten(1).double(), surface.flatten().double()
    share = (short @ full / full.square().sum()).square()  # σ²/(σ² + ε)
    clearest = (share - 0.5).abs().clamp(max=0.49).argmin()  # without ε the first, where rounding weighs least
    squares = scales.double().square()
    measured = max(0.0, float(squares[clearest] * (1 / share[clearest] - 1)))
    if (share - squares / (squares + measured)).abs().max() > 0.2:  # ε outside the root: 0.12
        return None
    stated = [v for v in vars(module).values() if isinstance(v, float) and math.isclose(v, measured, rel_tol=0.01)]
    return stated[0] if stated else float(f"{measured:.2g}")


def _of_each_head(vector: Tensor) -> Tensor:
    """``(dim,)`` where it is the same for all heads, else without the leading axes of size one."""
    first = vector.flatten(0, -2)[0]
    if torch.allclose(vector, first):
        return first
    return vector.reshape(vector.shape[next(axis for axis, size in enumerate(vector.shape) if size > 1) :])
