"""Find the norms of a network by what they do, not by what they are called."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from normgeom.models.calls import entries, maps_of_one_tensor
from normgeom.models.probes import probe

_BATCH, _TOKENS = 2, 11  # of the default example: sizes that no model uses for heads or groups


@dataclass(frozen=True, eq=False)
class NormSite:
    """One norm of a model, as its behaviour shows it.

    Attributes:
        name: the module's name in the model.
        module: the module itself.
        kind: ``"layer"`` (removes the mean) or ``"rms"`` (does not).
        weight: the gain γ that acts, ``(dim,)`` float32 on the CPU: ``1 + w`` for Gemma, ones if there is none; where
            every head has its own (Cohere's queries and keys), ``(heads, dim)``, to broadcast with the norm's input.
        bias: the bias β that acts, shaped alike, zeros where there is none.
        eps: ε as it acts inside the root.
        dim: d, the length of the vectors.
        token_axis: the axis of the norm's input that counts positions; None for flattened tokens and for images.

    Example:
        >>> import torch, normgeom as ng
        >>> (site,) = ng.find_norms(torch.nn.LayerNorm(4, eps=1e-3), torch.ones(2, 5, 4))
        >>> site.kind, site.eps, site.weight.tolist(), site.token_axis
        ('layer', 0.001, [1.0, 1.0, 1.0, 1.0], 1)
    """

    name: str
    module: nn.Module
    kind: str
    weight: Tensor
    bias: Tensor
    eps: float
    dim: int
    token_axis: int | None

    def __repr__(self) -> str:
        kind = {"layer": "LayerNorm", "rms": "RMSNorm"}[self.kind]
        return f"NormSite({self.name!r}, {kind}, dim={self.dim}, eps={self.eps:g})"


def find_norms(model: nn.Module, example_inputs: Tensor | Mapping | None = None) -> list[NormSite]:
    """The norms of single vectors that ``model`` runs, in the order in which it runs them.

    One forward pass shows which small modules map a floating-point tensor to one of the same shape.  Each is copied and
    probed: rows along one direction show gain, bias and ε, and the formula with these must hold for random rows.  If
    the output ignores a shift along 1, the formula is LayerNorm's.  Vectors lie along the last axis.  Names do not
    matter, and neither does compilation.

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
    inputs = _example(model) if example_inputs is None else example_inputs
    texts = _texts(inputs)
    names = {module: name for name, module in model.named_modules()}
    sites: dict[nn.Module, NormSite] = {}
    for module, shape in maps_of_one_tensor(model, inputs).items():
        if any(part in sites for part in module.modules()):
            continue
        token_axis = _token_axis(shape, *texts)
        with warnings.catch_warnings(action="ignore"):  # of what a module is asked, the user has not asked it
            found = probe(module, shape, token_axis)
        if found is not None:
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


def _example(model: nn.Module) -> Mapping:
    """Token ids for a model of transformers that reads text, noise for one that reads images, not films."""
    kind, config = (getattr(model, name, None) for name in ("main_input_name", "config"))
    if kind == "pixel_values" and hasattr(config, "image_size") and not hasattr(config, "num_frames"):
        size = config.image_size if isinstance(config.image_size, (list, tuple)) else [config.image_size] * 2
        generator = torch.Generator().manual_seed(0)
        return {kind: torch.randn(_BATCH, config.num_channels, *size, generator=generator).to(model.dtype)}
    if kind == "input_ids" and hasattr(config, "vocab_size"):
        ids = torch.arange(_BATCH * _TOKENS).reshape(_BATCH, _TOKENS) % config.vocab_size
        return {kind: ids, **({"decoder_input_ids": ids} if config.is_encoder_decoder else {})}
    raise TypeError(f"example_inputs: none given, and none can be made for a {type(model).__name__}")


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
