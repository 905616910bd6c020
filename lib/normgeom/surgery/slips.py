"""The conversion to RMSNorm done wrongly, in ways that are easily slipped into."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from normgeom.models.layouts import Layout, layout_of
from normgeom.models.modules import replace_module
from normgeom.models.sites import find_norms
from normgeom.surgery.ablation import drop_mean_subtraction
from normgeom.surgery.surgery import fold_norms, to_rms_norm


@torch.no_grad()
def wrong_conversions(model: nn.Module) -> dict[str, nn.Module]:
    """:func:`normgeom.to_rms_norm` with one thing forgotten or done wrongly (thm-to-rms-norm), by its name.

    What is forgotten is the first of its kind, of the biases the last.

    Args:
        model: a pre-norm LayerNorm model with embeddings of tokens and of positions, a head that shares the tokens',
            and a bias on its last writer.  It stays as it is.

    Raises:
        ValueError: a model that cannot be converted, or lacks one of these.
    """
    layout = layout_of(model)
    writers = [name for name, _ in layout.writers_of(model)]
    embeddings, last = layout.embeddings, writers[-1]
    head = model.get_submodule(layout.head)
    tied = head.weight is model.get_submodule(embeddings[0]).weight
    if len(embeddings) != 2 or not tied or model.get_submodule(last).bias is None:
        raise ValueError(
            f"model: expected embeddings of tokens and positions, a tied head and biases, this {type(model).__name__} "
            "lacks one of them"
        )
    converted = to_rms_norm(copy.deepcopy(model))
    return {
        "nothing centred": drop_mean_subtraction(fold_norms(copy.deepcopy(model))),
        "position embedding forgotten": _put_back(converted, model, f"{embeddings[1]}.weight"),
        "one matrix forgotten": _put_back(converted, model, f"{writers[len(embeddings)]}.weight"),
        "one bias forgotten": _put_back(converted, model, f"{last}.bias"),
        "tied head centred along": _head_centred_along(converted, model, layout),
        "ε outside the root": _epsilon_outside(converted),
    }


class _Outside(nn.Module):
    """RMSNorm without gain, its ε beside the root: x / (rms(x) + ε)."""

    def __init__(self, eps: float):
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True).sqrt() + self.eps)


def _put_back(converted: nn.Module, model: nn.Module, name: str) -> nn.Module:
    """The conversion, with one parameter as it was before."""
    network = copy.deepcopy(converted)
    network.get_parameter(name).copy_(model.get_parameter(name))
    return network


def _head_centred_along(converted: nn.Module, model: nn.Module, layout: Layout) -> nn.Module:
    """The shared matrix centred for the embedding's sake, and only then folded and given to the head."""
    network = copy.deepcopy(converted)
    head, final = network.get_submodule(layout.head), model.get_submodule(layout.final)
    rows = model.get_submodule(layout.head).weight
    rows = rows - rows.mean(1, keepdim=True)
    head.weight.copy_(rows * final.weight)
    head.bias.copy_(rows @ final.bias)
    return network


def _epsilon_outside(converted: nn.Module) -> nn.Module:
    network = copy.deepcopy(converted)
    for site in find_norms(network):
        replace_module(network, site.module, _Outside(site.module.eps))
    return network
