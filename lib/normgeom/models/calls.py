"""What a model's modules are given and give back, and which of torch's norms they call, in one run on an example."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

# What torch calls a norm, and over what its statistics are; a LayerNorm's axes are its second argument.
_OVER = {
    "layer_norm": ("LayerNorm", None),
    "rms_norm": ("RMSNorm", None),
    "group_norm": ("GroupNorm", "over groups of channels and all their places"),
    "batch_norm": ("BatchNorm", "over the batch, or with statistics of earlier ones"),
    "instance_norm": ("InstanceNorm", "over the places of each channel"),
    "local_response_norm": ("LocalResponseNorm", "over neighbouring channels"),
}
_FUNCTIONS = {getattr(room, name): name for name in _OVER for room in (torch, functional) if hasattr(room, name)}
_MOST = 4  # vectors that a norm holds: gain, bias, and the like


@dataclass
class Calls:
    """One run of a model.

    Attributes:
        maps: modules that mapped a floating-point tensor to one of its shape, innermost first, and that shape; of a
            module with parts, only where it holds no matrices.
        gated: those of them that were given other tensors too.
        norms: modules in which torch's own norms were called, and for each what was called and over what.
        run: all modules that ran.
    """

    maps: dict[nn.Module, torch.Size] = field(default_factory=dict)
    gated: set[nn.Module] = field(default_factory=set)
    norms: dict[nn.Module, tuple[str, str | None]] = field(default_factory=dict)
    run: set[nn.Module] = field(default_factory=set)


def entries(inputs: Tensor | Mapping) -> Mapping[str, object]:
    """What a batch holds, by name."""
    return inputs if isinstance(inputs, Mapping) else {"input_ids": inputs}


def forward(model: nn.Module, inputs: Tensor | Mapping):
    """``model(inputs)``, or ``model(**inputs)`` for a mapping; on the model's device, without gradients."""
    there = (tensor.device for tensor in itertools.chain(model.parameters(), model.buffers()) if not tensor.is_meta)
    device = next(there, torch.device("cpu"))

    def moved(value: object) -> object:
        return value.to(device) if isinstance(value, Tensor) else value

    with torch.no_grad(), by_its_modules():
        if isinstance(inputs, Mapping):
            return model(**{name: moved(value) for name, value in inputs.items()})
        return model(moved(inputs))


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode, its former mode restored on leaving."""
    training = [module for module in model.modules() if module.training]
    if training:
        model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def by_its_modules() -> Iterator[None]:
    """Models run as they are written: neither torch's fast path for encoders nor its compiler runs around modules."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        if "torch._dynamo" in sys.modules:  # else nothing is compiled, and to load it takes a second
            with torch.compiler.set_stance("force_eager"):
                yield
        else:
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def calls(model: nn.Module, inputs: Tensor | Mapping) -> Calls:
    """Run the model once, in evaluation mode, and note what its modules do."""
    seen, running = Calls(), [model]

    def enter(module, *_):
        running.append(module)

    def leave(module, args, kwargs, output):
        running.pop()
        seen.run.add(module)
        x, *others = (*args, *kwargs.values()) or (None,)
        if not (isinstance(x, Tensor) and isinstance(output, Tensor) and x.is_floating_point()):
            return
        if x.dim() < 2 or x.shape != output.shape or x.numel() == 0 or not _small(module, x.shape):
            return
        seen.maps.setdefault(module, x.shape)
        if any(isinstance(other, Tensor) for other in others):  # a gate or a condition: no function of x alone
            seen.gated.add(module)

    class Norms(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            if function in _FUNCTIONS:
                name, over = _OVER[_FUNCTIONS[function]]
                shape = (*args[1:2], *(kwargs or {}).values())
                if over is None and isinstance(shape[0], (tuple, list)) and len(shape[0]) > 1:
                    over = "over several axes together"
                seen.norms.setdefault(running[-1], (name, over))
            return function(*args, **(kwargs or {}))

    with ExitStack() as hooks:
        for module in model.modules():
            if isinstance(module, torch.jit.ScriptModule):
                continue  # takes no hooks
            hooks.callback(module.register_forward_pre_hook(enter, prepend=True).remove)
            hooks.callback(module.register_forward_hook(leave, with_kwargs=True).remove)
        with evaluating(model), Norms():
            forward(model, inputs)
    return seen


def _small(module: nn.Module, shape: torch.Size) -> bool:
    """Whether a module is small enough for a norm of such an input: with parts, no matrix is in it."""
    held = sum(tensor.numel() for tensor in itertools.chain(module.parameters(), module.buffers()))
    return held <= _MOST * (max(shape[1:]) if any(module.children()) else shape[1:].numel())
