"""Run a model, and see which of its small modules map a tensor to one of its shape."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from normgeom.models.modules import hooked

_MOST = 4  # vectors that a norm holds: gain, bias, and the like


def entries(inputs: Tensor | Mapping) -> Mapping[str, object]:
    """What a batch holds, by name."""
    return inputs if isinstance(inputs, Mapping) else {"input_ids": inputs}


def forward(model: nn.Module, inputs: Tensor | Mapping):
    """``model(inputs)``, or ``model(**inputs)`` for a mapping; on the model's device, without gradients."""
    there = (tensor.device for tensor in itertools.chain(model.parameters(), model.buffers()) if not tensor.is_meta)
    device = next(there, torch.device("cpu"))

    moved = {name: v.to(device) if isinstance(v, Tensor) else v for name, v in entries(inputs).items()}
    with torch.no_grad(), by_its_modules():
        return model(**moved) if isinstance(inputs, Mapping) else model(*moved.values())


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode; on leaving, every module has its former mode again."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def by_its_modules() -> Iterator[None]:
    """Every module runs, so that hooks see it: no fast path of torch's encoders, no compiled code."""
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


def maps_of_one_tensor(model: nn.Module, inputs: Tensor | Mapping) -> dict[nn.Module, torch.Size]:
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
        if x.dim() < 2 or x.shape != output.shape or x.numel() == 0 or not _small(module, x.shape):
            return
        shapes.setdefault(module, x.shape)
        if any(isinstance(other, Tensor) for other in others):
            gated.add(module)

    modules = [module for module in model.modules() if not isinstance(module, torch.jit.ScriptModule)]
    with evaluating(model), hooked(after=((module, look) for module in modules)):
        forward(model, inputs)
    return {module: shape for module, shape in shapes.items() if module not in gated}


def _small(module: nn.Module, shape: torch.Size) -> bool:
    """Whether a module holds no more than a norm of such an input may; with parts, no matrix is in it."""
    held = sum(tensor.numel() for tensor in itertools.chain(module.parameters(), module.buffers()))
    return held <= _MOST * (max(shape[1:]) if any(module.children()) else shape[1:].numel())
