"""GPT-2 models that differ only in their norms: seven variants, among them the twins."""

from __future__ import annotations

from collections.abc import Callable

import torch
from normgeom.models.twins import twin
from normgeom.norms.functions import LayerNorm, RMSNorm
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel


class Centring(nn.Module):
    """LayerNorm without its division, γ ⊙ (x − mean) + β: linear in x, so ``find_norms`` ignores it."""

    def __init__(self, d: int, affine: bool = True):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d)) if affine else None
        self.bias = nn.Parameter(torch.zeros(d)) if affine else None

    def forward(self, x: Tensor) -> Tensor:
        y = x - x.mean(-1, keepdim=True)
        return y if self.weight is None else y * self.weight + self.bias


# Variants whose names end in "plain" have no affine part.
NORMS: dict[str, Callable[[nn.LayerNorm], nn.Module]] = {
    "layer": lambda norm: norm,
    "rms": lambda norm: RMSNorm(norm.normalized_shape, eps=norm.eps),
    "layer-plain": lambda norm: LayerNorm(norm.normalized_shape, eps=norm.eps, elementwise_affine=False),
    "rms-plain": lambda norm: RMSNorm(norm.normalized_shape, eps=norm.eps, elementwise_affine=False),
    "centre": lambda norm: Centring(*norm.normalized_shape),
    "centre-plain": lambda norm: Centring(*norm.normalized_shape, affine=False),
    "none": lambda norm: nn.Identity(),
}

# Names of the variants in chapter 8.
TITLES = {
    "layer": "LayerNorm",
    "rms": "RMSNorm",
    "layer-plain": "LayerNorm, plain",
    "rms-plain": "RMSNorm, plain",
    "centre": "centring only",
    "centre-plain": "centring only, plain",
    "none": "no norm",
}


def variant(config: GPT2Config, seed: int, norm: str) -> GPT2LMHeadModel:
    """A GPT-2 with one of :data:`NORMS`, by its name; the other initial weights depend only on the seed."""
    model = twin(config, seed, "layer")
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.LayerNorm):
            new = NORMS[norm](module).float().eval()
            new.load_state_dict({key: module.state_dict()[key] for key in new.state_dict()})
            model.set_submodule(name, new)
    model.config.norm = norm
    return model
