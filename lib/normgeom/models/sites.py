"""Find the norms of a network by what they do, not by what they are called."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from normgeom.norms import layer_norm, rms_norm

_BATCH, _TOKENS = 2, 11  # of the default example: sizes that no model uses for heads or groups


@dataclass(frozen=True)
class NormSite:
    """One norm of a model, as its behaviour shows it.

    Attributes:
        name: the module's qualified name.
        module: the module itself.
        kind: ``"layer"`` (removes the mean) or ``"rms"`` (does not).
        weight: the gain γ that acts, ``(dim,)`` float32 on the CPU: ``1 + w`` for Gemma, ones where there is none.
        bias: the bias β that acts, ``(dim,)`` float32 on the CPU, zeros where there is none.
        eps: ε as it acts.
        dim: d, the size of the last axis.
        token_axis: the axis of the norm's input that counts positions; None where tokens come flattened.
    """

    name: str
    module: nn.Module
    kind: str
    weight: Tensor
    bias: Tensor
    eps: float
    dim: int
    token_axis: int | None


def find_norms(model: nn.Module, example_inputs: Tensor | Mapping | None = None) -> list[NormSite]:
    """The norms over the last axis that ``model`` runs, in the order in which it runs them.

    One forward pass shows which leaf modules map a floating-point tensor to one of the same shape; each such
    module is copied and probed with random rows.  A row's output that ignores the row's scale and the other rows
    belongs to a norm; if it ignores a shift along 1 as well, the norm is a LayerNorm.  Gain, bias and ε are
    read off the outputs, so that class names and attribute names do not matter.

    Args:
        model: any module; a transformers model needs no example.
        example_inputs: what the model takes: a tensor of token ids, or a mapping passed as ``model(**inputs)``.

    Returns:
        a list of :class:`NormSite`; empty where the model runs no norm.  A norm whose gain is zero everywhere
        shows nothing and is not found.

    Raises:
        TypeError: no example was given and none can be made for this model.
    """
    shapes = _leaf_shapes(model, _example(model) if example_inputs is None else example_inputs)
    names = {module: name for name, module in model.named_modules()}
    tokens = _token_count(model, example_inputs)
    sites = []
    for module, shape in shapes.items():
        found = _probe(module, shape[-1])
        if found is not None:
            sites.append(NormSite(names[module], module, *found, shape[-1], _token_axis(shape, tokens)))
    return sites


def forward(model: nn.Module, inputs: Tensor | Mapping):
    """``model(inputs)``, or ``model(**inputs)`` for a mapping; on the model's device, without gradients."""
    first = next(itertools.chain(model.parameters(), model.buffers()), None)
    device = torch.device("cpu") if first is None else first.device
    with torch.no_grad():
        if isinstance(inputs, Mapping):
            return model(**{k: v.to(device) if isinstance(v, Tensor) else v for k, v in inputs.items()})
        return model(inputs.to(device))


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode, its former mode restored on leaving."""
    was_training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in was_training.items():
            module.training = training


def _example(model: nn.Module) -> Mapping:
    config = getattr(model, "config", None)
    main_input = getattr(model, "main_input_name", None)
    if main_input == "pixel_values":
        size = config.image_size if isinstance(config.image_size, (list, tuple)) else [config.image_size] * 2
        generator = torch.Generator().manual_seed(0)
        return {"pixel_values": torch.randn(_BATCH, config.num_channels, *size, generator=generator)}
    if main_input != "input_ids" or getattr(config, "vocab_size", None) is None:
        raise TypeError(f"example_inputs: none given, and none can be made for a {type(model).__name__}")
    ids = torch.arange(_BATCH * _TOKENS).reshape(_BATCH, _TOKENS) % config.vocab_size
    decoder = {"decoder_input_ids": ids} if getattr(config, "is_encoder_decoder", False) else {}
    return {"input_ids": ids, **decoder}


def _token_count(model: nn.Module, inputs: Tensor | Mapping | None) -> int | None:
    if inputs is None:
        return _TOKENS if getattr(model, "main_input_name", "") == "input_ids" else None
    ids = inputs.get("input_ids") if isinstance(inputs, Mapping) else inputs
    return None if ids is None else ids.shape[1]


def _token_axis(shape: torch.Size, tokens: int | None) -> int | None:
    if len(shape) < 3:
        return None
    matching = [axis for axis in range(1, len(shape) - 1) if shape[axis] == tokens]
    return matching[0] if matching else 1


def _leaf_shapes(model: nn.Module, inputs: Tensor | Mapping) -> dict[nn.Module, torch.Size]:
    """Leaf modules that mapped one tensor to another of its shape, in order of first use."""
    shapes: dict[nn.Module, torch.Size] = {}

    def note(module, args, kwargs, output):
        x = next(iter((*args, *kwargs.values())), None)
        if not (isinstance(x, Tensor) and isinstance(output, Tensor) and x.is_floating_point()):
            return
        if x.dim() >= 2 and x.shape == output.shape and x.shape[-1] > 1:
            shapes.setdefault(module, x.shape)

    leaves = [module for module in model.modules() if not any(module.children())]
    handles = [module.register_forward_hook(note, with_kwargs=True) for module in leaves]
    try:
        with evaluating(model):
            forward(model, inputs)
    finally:
        for handle in handles:
            handle.remove()
    return shapes


def _probe(module: nn.Module, d: int) -> tuple[str, Tensor, Tensor, float] | None:
    """``(kind, gain, bias, ε)`` of a module that is a norm over its last axis of size ``d``, else None."""
    copied = copy.deepcopy(module).to(device="cpu", dtype=torch.float32).eval()

    def run(x: Tensor) -> Tensor:
        with torch.no_grad():
            return copied.forward(x)  # past the hooks, which are the user's

    def same(a: Tensor, b: Tensor) -> bool:
        return bool(torch.isfinite(a).all()) and torch.allclose(a, b, rtol=1e-3, atol=1e-4 * scale)

    generator = torch.Generator().manual_seed(0)
    rows = 100 * torch.randn(1, 4, d, generator=generator)  # so large that no usual ε counts
    try:
        base = run(rows)
    except (RuntimeError, ValueError, TypeError, IndexError):
        return None  # it wants another shape or more arguments: not a norm over the last axis
    scale = max(1.0, float(base.abs().max()))
    one_scaled = rows * torch.tensor([1.0, 2.0, 1.0, 1.0])[:, None]
    if same(base, run(-rows)) or not same(base, run(one_scaled)):
        return None
    kind = "layer" if same(base, run(rows + 300.0)) else "rms"
    norm = layer_norm if kind == "layer" else rms_norm
    unit = norm(torch.where(torch.arange(d) % 2 == 0, 1.0, -1.0), eps=0.0)
    plus, minus = run(100 * unit.expand(1, 1, d))[0, 0], run(-100 * unit.expand(1, 1, d))[0, 0]
    weight, bias = (plus - minus) / 2 / unit, (plus + minus) / 2
    if not same(base, norm(rows, weight, bias, eps=0.0)):
        return None  # scale-free, but not this formula
    return kind, weight, bias, _eps(module, run, weight * unit, bias, unit)


def _eps(module: nn.Module, run, surface: Tensor, bias: Tensor, unit: Tensor) -> float:
    """ε from how far short of ``surface`` small rows end; the exact number where an attribute holds it."""
    scales = torch.logspace(-8, 1, 73)
    outputs = run((scales[:, None] * unit)[None])[0] - bias
    share = (outputs.double() @ surface.double() / surface.double().square().sum()).square()  # σ²/(σ² + ε)
    clearest = (share - 0.5).abs().argmin()
    measured = float(scales[clearest].double() ** 2 * (1 / share[clearest] - 1))
    stated = [v for v in vars(module).values() if isinstance(v, float) and math.isclose(v, measured, rel_tol=0.01)]
    return stated[0] if stated else float(f"{measured:.2g}")
