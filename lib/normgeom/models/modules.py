"""Modules of a network, one put in another's place."""

from __future__ import annotations

from torch import nn


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
