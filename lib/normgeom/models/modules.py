"""Change what modules of a network do: by hooks for a while, or by another module in their place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager

from torch import nn

Hooks = Iterable[tuple[nn.Module, Callable]]


@contextmanager
def hooked(before: Hooks = (), after: Hooks = ()) -> Iterator[None]:
    """Hooks while the block runs: ``hook(module, args, kwargs)`` before a module, or with its output as well, after.

    What a hook returns replaces ``(args, kwargs)``, or the output.
    """
    with ExitStack() as hooks:
        for module, hook in before:
            hooks.callback(module.register_forward_pre_hook(hook, with_kwargs=True).remove)
        for module, hook in after:
            hooks.callback(module.register_forward_hook(hook, with_kwargs=True).remove)
        yield


def replace_module(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Put ``new``, in the mode of ``old``, wherever ``model`` holds ``old``.

    Torch's own encoder layers then run their modules, and no fast path, which takes norms for LayerNorms.
    """
    for parent in list(model.modules()):
        for attribute, child in list(parent._modules.items()):
            if child is old:
                setattr(parent, attribute, new.train(old.training))
                if isinstance(parent, nn.TransformerEncoderLayer):
                    parent.activation_relu_or_gelu = 0
