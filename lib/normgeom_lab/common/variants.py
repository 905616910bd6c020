"""GPT-2 models that differ in what stands in the place of each LayerNorm: seven variants, the twins among them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from normgeom.norms.functions import LayerNorm, RMSNorm
from normgeom.training.twins import twin
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel


class Centring(nn.Module):
    """LayerNorm without its division, γ ⊙ (x − mean) + β: linear in x, so no norm, and ``find_norms`` finds none."""

    def __init__(self, d: int, affine: bool = True):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d)) if affine else None
        self.bias = nn.Parameter(torch.zeros(d)) if affine else None

    def forward(self, x: Tensor) -> Tensor:
        y = x - x.mean(-1, keepdim=True)
        return y if self.weight is None else y * self.weight + self.bias


# "Plain" ones have no affine part.
NORMS: dict[str, Callable[[nn.LayerNorm], nn.Module]] = {
    "layer": lambda norm: norm,
    "rms": lambda norm: RMSNorm(norm.normalized_shape, eps=norm.eps),
    "layer-plain": lambda norm: LayerNorm(norm.normalized_shape, eps=norm.eps, elementwise_affine=False),
    "rms-plain": lambda norm: RMSNorm(norm.normalized_shape, eps=norm.eps, elementwise_affine=False),
    "centre": lambda norm: Centring(*norm.normalized_shape),
    "centre-plain": lambda norm: Centring(*norm.normalized_shape, affine=False),
    "none": lambda norm: nn.Identity(),
}

# What the text calls them.
TITLES = {
    "layer": "LayerNorm",
    "rms": "RMSNorm",
    "layer-plain": "LayerNorm, plain",
    "rms-plain": "RMSNorm, plain",
    "centre": "centring only",
    "centre-plain": "centring only, plain",
    "none": "no norm",
}


def variants(config: GPT2Config, seed: int, norms: Sequence[str] = tuple(NORMS)) -> dict[str, GPT2LMHeadModel]:
    """GPT-2 models with the same initial weights and one of :data:`NORMS` each, by its name."""
    first = twin(config, seed, "layer")
    return {norm: _with_norm(copy.deepcopy(first), norm) for norm in norms}


def _with_norm(model: GPT2LMHeadModel, kind: str) -> GPT2LMHeadModel:
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.LayerNorm):
            norm = NORMS[kind](module).float().eval()
            norm.load_state_dict({key: module.state_dict()[key] for key in norm.state_dict()})
            model.set_submodule(name, norm)
    model.config.norm = kind
    return model
