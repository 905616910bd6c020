"""Find the norms of a network by what they do, not by what they are called."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from normgeom.models.calls import calls, entries
from normgeom.models.probes import plain_copy, probe, shared_axes

_BATCH, _TOKENS = 2, 11  # of the default example: sizes that no model uses for heads or groups
_KINDS = {"layer": "LayerNorm", "rms": "RMSNorm"}


@dataclass(frozen=True)
class NormSite:
    """One norm of a model, as its behaviour shows it.

    Attributes:
        name: the module's qualified name.
        module: the module itself.
        kind: ``"layer"`` (removes the mean) or ``"rms"`` (does not).
        weight: the gain γ that acts, ``(dim,)`` float32 on the CPU: ``1 + w`` for Gemma, ones where there is none.
            Where every head has a gain of its own (Cohere's queries and keys), it is ``(heads, dim)``, shaped so that
            it broadcasts with the norm's input.
        bias: the bias β that acts, shaped by the same rule, zeros where there is none.
        eps: ε as it acts inside the root; where a module adds it outside, the ε inside that shortens by √2 the rows
            which it shortens by √2.
        dim: d, the length of the vectors.
        token_axis: the axis of the norm's input that counts positions; None where tokens come flattened, and where
            the example holds images.
    """

    name: str
    module: nn.Module
    kind: str
    weight: Tensor
    bias: Tensor
    eps: float
    dim: int
    token_axis: int | None


class OtherNorm(NamedTuple):
    """A norm that was seen and that :func:`find_norms` does not give.

    Attributes:
        name: the qualified name of the module in which it was seen.
        kind: what it is called.
        reason: why it is not given.
    """

    name: str
    kind: str
    reason: str


def find_norms(model: nn.Module, example_inputs: Tensor | Mapping | None = None) -> list[NormSite]:
    """The norms of single vectors that ``model`` runs, in the order in which it runs them.

    One forward pass shows which modules map a floating-point tensor to one of the same shape; each that holds no
    more than a norm may, and no norm within, is copied and probed with rows along one direction, which show gain, bias
    and ε, and with random rows, to which the formula with these must apply; if the output ignores a shift along 1, the
    formula is LayerNorm's.  Vectors lie along the last axis.  Class names and attribute names do not matter.  The pass
    goes through the modules, also where torch would run a compiled model or its fast path for encoders around them.

    Args:
        model: any module; a transformers model of text or of images needs no example.
        example_inputs: what the model takes: a tensor of token ids, or a mapping passed as ``model(**inputs)``.

    Returns:
        a list of :class:`NormSite`; empty where the model runs no norm.  Each module stands once, with the shape of
        its first call.  One warning counts the norms that were seen and are not in the list: those over a batch or
        over the channels of an image, those with a second input, such as a gate (Mamba2's, Qwen3-Next's), those inside
        a larger module, those whose gain is zero or not finite, and those that the example does not run or that run in
        TorchScript.  A norm in plain arithmetic inside a larger module is not seen.

    Raises:
        TypeError: ``model`` is no module; no example was given and none can be made for this model.
    """
    sites, others = seen_norms(model, example_inputs)
    if others:
        warnings.warn(f"seen and not measured: {in_words(others)}", stacklevel=2)
    return sites


def in_words(others: Sequence[OtherNorm]) -> str:
    """How many of which kind, why, and the first of them."""
    names: dict[tuple[str, str], list[str]] = {}
    for name, kind, reason in others:
        names.setdefault((kind, reason), []).append(name or "the model itself")
    return "; ".join(
        f"{len(all_of)} {kind} {reason} ({all_of[0]}{', …' if len(all_of) > 1 else ''})"
        for (kind, reason), all_of in names.items()
    )


def seen_norms(model: nn.Module, example_inputs: Tensor | Mapping | None) -> tuple[list[NormSite], list[OtherNorm]]:
    """What :func:`find_norms` gives, and the norms that its warning counts."""
    _check_module(model)
    inputs = _example(model) if example_inputs is None else example_inputs
    batch, tokens = _sizes(inputs)
    seen = calls(model, inputs)
    names = {module: name for name, module in model.named_modules()}
    sites: dict[nn.Module, NormSite] = {}
    others: dict[nn.Module, tuple[str, str]] = {}
    for module, shape in seen.maps.items():
        if any(part in sites or part in others for part in module.modules()):
            continue
        if module in seen.gated:  # no function of one input, so its name alone says whether it is a norm
            if "norm" in type(module).__name__.lower():
                others[module] = type(module).__name__, "with a second input"
            continue
        with warnings.catch_warnings(action="ignore"):  # of what a module is asked, the user has not asked it
            found = _judge(module, shape, _token_axis(shape, batch, tokens))
        if isinstance(found, dict):
            sites[module] = NormSite(names[module], module, **found)
        elif found is not None:
            others[module] = found
    known = {part for module in (*sites, *others) for part in module.modules()}
    hidden = {m: (kind, over or "that its module's output does not show") for m, (kind, over) in seen.norms.items()}
    others |= {m: of for m, of in hidden.items() if m not in known} | _not_run(model, seen.run | known)
    return list(sites.values()), [OtherNorm(names[m], *of) for m, of in others.items()]


def _check_module(model: nn.Module) -> None:
    if isinstance(model, nn.Module):
        return
    held = [name for name, value in getattr(model, "__dict__", {}).items() if isinstance(value, nn.Module)]
    way_out = f"; it holds one, pass its .{held[0]}" if held else ""
    raise TypeError(f"model: expected a torch.nn.Module, got a {type(model).__name__}{way_out}")


def _judge(module: nn.Module, shape: torch.Size, token_axis: int | None) -> dict | tuple | None:
    """The fields of a site, or kind and reason of a norm that cannot be one, or None for no norm."""
    try:
        copied = plain_copy(module)
    except Exception:
        return None  # what cannot be copied is more than a norm
    last = len(shape) - 1
    if found := probe(copied, shape, (last,), (token_axis,), module):
        return dict(found._asdict(), dim=shape[last], token_axis=token_axis)
    axes = shared_axes(copied.forward, shape)
    if axes in ((), (last,)) or not probe(copied, shape, axes, range(last), module):
        return None
    return type(module).__name__, "not over the last axis alone"


def _not_run(model: nn.Module, known: set[nn.Module]) -> dict[nn.Module, tuple[str, str]]:
    """Norms that no hook saw run: by their parameters, which are vectors of one length."""
    found = {}
    for module in model.modules():
        shapes = {p.shape for p in module.parameters(recurse=False)}
        if module in known or any(module.children()) or len(shapes) != 1 or len(shape := shapes.pop()) != 1:
            continue
        try:
            norm = probe(plain_copy(module), (2, 3, *shape), (2,), (1,), module) if shape[0] > 1 else None
        except Exception:
            norm = None
        if norm is not None:
            found[module] = _KINDS[norm.kind], "that was not seen to run"
    return found


def _example(model: nn.Module) -> Mapping:
    config = getattr(model, "config", None)
    main_input = getattr(model, "main_input_name", None)
    if main_input == "pixel_values":
        size = config.image_size if isinstance(config.image_size, (list, tuple)) else [config.image_size] * 2
        generator = torch.Generator().manual_seed(0)
        return {"pixel_values": torch.randn(_BATCH, config.num_channels, *size, generator=generator).to(model.dtype)}
    if main_input != "input_ids" or getattr(config, "vocab_size", None) is None:
        raise TypeError(f"example_inputs: none given, and none can be made for a {type(model).__name__}")
    ids = torch.arange(_BATCH * _TOKENS).reshape(_BATCH, _TOKENS) % config.vocab_size
    decoder = {"decoder_input_ids": ids} if getattr(config, "is_encoder_decoder", False) else {}
    return {"input_ids": ids, **decoder}


def _sizes(inputs: Tensor | Mapping) -> tuple[int | None, int | None]:
    """How many texts an example holds, and how many positions, where these are known."""
    given = entries(inputs)
    shapes = [v.shape for v in (given.get("input_ids"), *given.values()) if isinstance(v, Tensor) and v.dim() > 0]
    if not shapes or any(len(shape) > 3 for shape in shapes):
        return None, None  # with images, whose places have no order
    batch = shapes[0]
    return batch[0], batch[1] if len(batch) > 1 else None


def _token_axis(shape: Sequence[int], batch: int | None, tokens: int | None) -> int | None:
    if len(shape) < 3:
        return None
    behind = [axis for axis in range(1, len(shape) - 1) if shape[axis] == tokens]
    if behind:
        return behind[0]
    if shape[0] == batch:
        return 1  # of another length: a decoder beside its encoder
    return 0 if tuple(shape[:2]) == (tokens, batch) else None
