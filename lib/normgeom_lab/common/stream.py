"""The stream of a language model: its norms, its writers, the head, the input of the final norm, and rotated copies."""

from __future__ import annotations

import copy
from weakref import WeakKeyDictionary

import torch
from normgeom.models.flow import stream
from normgeom.models.judgement import Flow
from normgeom.models.sites import find_norms
from normgeom.models.watch import watch
from torch import Tensor, nn
from transformers import GPT2LMHeadModel

_flows: WeakKeyDictionary[nn.Module, Flow] = WeakKeyDictionary()


def flow_of(model: nn.Module) -> Flow:
    """:func:`normgeom.models.flow.stream` of a language model, traced once: weights may change, modules may not."""
    if model not in _flows:
        _flows[model] = stream(model)
    if obstacle := _flows[model].obstacle:
        raise ValueError(f"model: {obstacle}")
    return _flows[model]


def final_norm(model: nn.Module) -> nn.Module:
    return model.get_submodule(flow_of(model).norms[-1].name)


def head_of(model: nn.Module) -> nn.Module:
    """The module that reads the output of the final norm."""
    return model.get_submodule(flow_of(model).norms[-1].readers[0])


def blocks(model: nn.Module) -> nn.ModuleList:
    """The module list that contains the first norm of the stream."""
    first = flow_of(model).norms[0].name
    lists = {name: module for name, module in model.named_modules() if isinstance(module, nn.ModuleList)}
    return next(module for name, module in lists.items() if first.startswith(f"{name}."))


def writers(model: nn.Module) -> dict[str, nn.Module]:
    """The modules that write to the stream, in the order of the sum (eq-residual-sum).

    The key of an embedding is the last part of its name (``"wte"``, ``"wpe"``, …); ``"a1"``, ``"m1"``, ``"a2"``, … are
    the last linear maps of attention and MLP, with blocks counted from 1.
    """
    named = [(name, model.get_submodule(name)) for name in flow_of(model).writers]
    embeddings = {name.rpartition(".")[2]: module for name, module in named if isinstance(module, nn.Embedding)}
    maps = [module for _, module in named if not isinstance(module, nn.Embedding)]
    return embeddings | {f"{'am'[i % 2]}{i // 2 + 1}": module for i, module in enumerate(maps)}


def stream_writers(model: GPT2LMHeadModel) -> list[nn.Parameter]:
    """Weights and biases of all modules that write to a GPT-2's stream, in order; the stream is their last axis.

    The token embedding comes first; it may also be the head's matrix.
    """
    return [p for name in flow_of(model).writers for p in model.get_submodule(name).parameters()]


def stream_readers(model: GPT2LMHeadModel) -> list[nn.Parameter]:
    """The matrices that read the norms of a GPT-2, except the final one; the stream is their first axis."""
    return [model.get_submodule(name).weight for norm in flow_of(model).norms[:-1] for name in norm.readers]


def last_directions(model: nn.Module, ids: Tensor) -> Tensor:
    """The inputs of the last norm, scaled to length 1, ``(batch, length, d)`` float64."""
    seen = []
    with watch(model, find_norms(model)[-1:], lambda site, x, y: seen.append(x)):
        model(ids)
    return nn.functional.normalize(seen[0].double(), dim=-1)


@torch.no_grad()
def rotate(model: GPT2LMHeadModel, rotation: Tensor) -> GPT2LMHeadModel:
    """A copy of a GPT-2 whose stream is rotated by Q ``(d, d)``: writers become QW, Qb, readers RQᵀ (prop-rotations).

    Gains and biases of norms stay, so the function is the same if Q commutes with norms (with plain RMSNorm, any Q).
    """
    model = copy.deepcopy(model)
    writing, reading = stream_writers(model), stream_readers(model)
    if model.lm_head.weight is not model.transformer.wte.weight:
        writing.append(model.lm_head.weight)
    for p in writing:  # the stream is the last axis
        p.copy_(p @ rotation.T.to(p))
    for p in reading:
        p.copy_(rotation.to(p) @ p)
    return model
