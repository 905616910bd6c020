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

from normgeom.norms.functions import layer_norm, rms_norm

_BATCH, _TOKENS = 2, 11  # of the default example: sizes that no model uses for heads or groups
_LARGE = 1e4  # of rows beside which no usual ε counts


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
    module is copied and probed with rows along one direction, which show gain, bias and ε, and with random rows, to
    which the formula with these must apply; if the output ignores a shift along 1, the formula is LayerNorm's.
    Class names and attribute names do not matter.

    Args:
        model: any module; a transformers model of text or of images needs no example.
        example_inputs: what the model takes: a tensor of token ids, or a mapping passed as ``model(**inputs)``.

    Returns:
        a list of :class:`NormSite`; empty where the model runs no norm.  Each module stands once, with the shape of
        its first call.  Not found, because what goes in and what comes out does not show them: a norm whose gain is
        zero everywhere; a gated norm (Mamba2's, Qwen3-Next's), whose module is given a second tensor and normalises,
        or returns, its product with the gate; a norm that the example does not run; one written out within a larger
        module.

    Raises:
        TypeError: no example was given and none can be made for this model.
    """
    inputs = _example(model) if example_inputs is None else example_inputs
    batch, tokens = _sizes(inputs)
    names = {module: name for name, module in model.named_modules()}
    sites = []
    for module, shape in _leaf_shapes(model, inputs).items():
        token_axis = _token_axis(shape, batch, tokens)
        found = _probe(module, shape, token_axis)
        if found is not None:
            sites.append(NormSite(names[module], module, *found, shape[-1], token_axis))
    return sites


def forward(model: nn.Module, inputs: Tensor | Mapping):
    """``model(inputs)``, or ``model(**inputs)`` for a mapping; on the model's device, without gradients."""
    there = (tensor.device for tensor in itertools.chain(model.parameters(), model.buffers()) if not tensor.is_meta)
    device = next(there, torch.device("cpu"))
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
        return {"pixel_values": torch.randn(_BATCH, config.num_channels, *size, generator=generator).to(model.dtype)}
    if main_input != "input_ids" or getattr(config, "vocab_size", None) is None:
        raise TypeError(f"example_inputs: none given, and none can be made for a {type(model).__name__}")
    ids = torch.arange(_BATCH * _TOKENS).reshape(_BATCH, _TOKENS) % config.vocab_size
    decoder = {"decoder_input_ids": ids} if getattr(config, "is_encoder_decoder", False) else {}
    return {"input_ids": ids, **decoder}


def _sizes(inputs: Tensor | Mapping) -> tuple[int | None, int | None]:
    """How many texts or images an example holds, and how many positions, where these are known."""
    given = (inputs.get("input_ids"), *inputs.values()) if isinstance(inputs, Mapping) else (inputs,)
    batch = next((v.shape for v in given if isinstance(v, Tensor) and v.dim() > 0), (None,))
    return batch[0], batch[1] if len(batch) in (2, 3) else None


def _token_axis(shape: torch.Size, batch: int | None, tokens: int | None) -> int | None:
    if len(shape) < 3:
        return None
    behind = [axis for axis in range(1, len(shape) - 1) if shape[axis] == tokens]
    if behind:
        return behind[0]
    if shape[0] == batch:
        return 1  # of another length: image patches, a decoder beside its encoder
    return 0 if shape[:2] == (tokens, batch) else None


def _leaf_shapes(model: nn.Module, inputs: Tensor | Mapping) -> dict[nn.Module, torch.Size]:
    """Leaf modules that mapped one tensor to another of its shape, in order of first use."""
    shapes: dict[nn.Module, torch.Size] = {}

    def note(module, args, kwargs, output):
        x, *others = (*args, *kwargs.values()) or (None,)
        if not (isinstance(x, Tensor) and isinstance(output, Tensor) and x.is_floating_point()):
            return
        if any(isinstance(other, Tensor) for other in others):
            return  # a gate or a condition: no function of x alone
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


def _probe(module: nn.Module, shape: torch.Size, token_axis: int | None) -> tuple[str, Tensor, Tensor, float] | None:
    """``(kind, gain, bias, ε)`` of a module that is a norm over the last axis of ``shape``, else None."""
    copied = _plain_copy(module).to(device="cpu", dtype=torch.float32).eval()
    # A gain may differ from head to head, but not from text to text or from position to position.
    few, one = ([n if axis in (0, token_axis) else size for axis, size in enumerate(shape)] for n in (4, 1))

    def run(x: Tensor) -> Tensor:
        with torch.no_grad():
            return copied.forward(x)  # past the hooks, which are the user's

    def same(a: Tensor, b: Tensor) -> bool:
        return bool(torch.isfinite(a).all()) and torch.allclose(a, b, rtol=1e-3, atol=1e-4 * scale)

    # float32 as the copy is, whatever the default is
    rows = _LARGE * torch.randn(few, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
    try:
        base = run(rows)
    except Exception:
        return None  # it wants another shape or more arguments: not a norm over the last axis
    scale = float(base.abs().max())
    if same(base, run(-rows)):
        return None
    kind = "layer" if same(base, run(rows + 3 * _LARGE)) else "rms"
    norm = layer_norm if kind == "layer" else rms_norm
    unit = norm(1 - 2 * (torch.arange(shape[-1]) % 2).float(), eps=0.0).expand(one)
    plus, minus = run(_LARGE * unit), run(-_LARGE * unit)
    weight, bias = (plus - minus) / 2 / unit, (plus + minus) / 2
    if not same(base, norm(rows, eps=0.0) * weight + bias):
        return None
    eps = _eps(module, run, weight * unit, bias, unit)
    return None if eps is None else (kind, _of_each_head(weight), _of_each_head(bias), eps)


def _plain_copy(module: nn.Module) -> nn.Module:
    """A copy that holds its weights, also where accelerate keeps them elsewhere until they are needed."""
    if not hasattr(module, "_hf_hook"):
        return copy.deepcopy(module)
    from accelerate.hooks import remove_hook_from_module
    from accelerate.utils import align_module_device

    with align_module_device(module, "cpu"):
        return remove_hook_from_module(copy.deepcopy(module))


def _eps(module: nn.Module, run, surface: Tensor, bias: Tensor, unit: Tensor) -> float | None:
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
