"""The parts that a model adds up on its residual stream, as one run shows them."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from normgeom.models.sites import NormSite, find_norms
from normgeom.models.trace import Read, Trace
from normgeom.models.watch import by_its_modules, entries


class Part(NamedTuple):
    """What one module adds to the stream.

    Attributes:
        name: ``"wte"``, ``"attn 0"``, ``"mlp 0"``, …
        writer: the module whose output is added, ``factor`` times.
        map: the embedding or linear map: the writer itself or, if the writer is a ``norm``, what that norm reads.
        mixes: whether it combines different positions, as attention does.
    """

    name: str
    writer: str
    factor: float
    map: str
    norm: NormSite | None
    mixes: bool


class Stream(NamedTuple):
    """The parts of a stream in the order in which they are added, the norm that reads their sum, and what reads it."""

    parts: list[Part]
    final: NormSite
    head: str


def followed(model: nn.Module, inputs: Tensor | Mapping) -> Stream:
    """The stream of a pre-norm decoder, found by running it on the beginning of ``inputs``.

    Raises:
        ValueError: the last norm reads more than a sum of what modules wrote, or does not feed exactly one linear map.
    """
    sites = find_norms(model, inputs)
    few = {name: v[:2, :11] if isinstance(v, Tensor) and v.dim() == 2 else v for name, v in entries(inputs).items()}
    # parameters of its own, the same numbers; what is in half precision becomes float32
    own = {id(p): nn.Parameter(p.detach(), p.is_floating_point()) for p in model.parameters()}
    copied = copy.deepcopy(model, own).eval()
    if any(p.dtype in (torch.float16, torch.bfloat16) for p in copied.parameters()):
        copied.float()
    few = {name: v.to(next(copied.parameters()).device) if isinstance(v, Tensor) else v for name, v in few.items()}

    def call() -> list[Tensor]:
        with by_its_modules():
            return [logits_of(copied(**few) if isinstance(inputs, Mapping) else copied(*few.values()))]

    trace = Trace(copied, sites, call)
    ran = [name for name, _ in trace.given]
    if not (norms := [name for name in ran if name in trace.norms]):
        raise ValueError(f"model: this {type(model).__name__} runs no LayerNorm or RMSNorm")
    final, after = norms[-1], ran[ran.index(norms[-1]) + 1 : -1]
    if len(after) != 1 or trace.read_by(after[0]).sources.keys() != {final}:
        raise ValueError(
            f"model: expected one linear map after its last norm, {final}, got {', '.join(after) or 'none'}"
        )
    if _lost(trace.read_by(final)):
        same = (trace.read_by(name) for name in norms if trace.norms[name].dim == trace.norms[final].dim)
        first = next(read for read in same if _lost(read))
        raise ValueError(f"model: its stream cannot be followed to {first.name}, which reads {_lost(first)}")
    parts = [_part(trace, *source) for source in trace.read_by(final).sources.items()]
    names = [part.name for part in parts]
    parts = [part if names.count(part.name) == 1 else part._replace(name=part.writer) for part in parts]
    return Stream(parts, trace.norms[final], after[0])


def logits_of(output: object) -> Tensor:
    return output if isinstance(output, Tensor) else getattr(output, "logits", output[0])


def _lost(read: Read) -> str | None:
    """What a norm reads other than a sum of what modules wrote."""
    odd = next((source for source, share in read.sources.items() if share is None), None)
    if odd:
        return f"{odd} otherwise than as a summand"
    return None if read.whole else "a sum with a part that no map, embedding or norm wrote"


def _part(trace: Trace, writer: str, factor: float) -> Part:
    source, norm = writer, trace.norms.get(writer)
    if norm:
        if len(sources := trace.read_by(writer).sources) != 1:
            raise ValueError(f"model: expected a pre-norm model, and {writer} normalises the stream itself")
        (source,) = sources
    if source in trace.parameters:
        raise ValueError(f"model: its stream cannot be followed to {source}, a parameter that is added to it")
    layer = re.search(r"\.(\d+)\.", source)
    if isinstance(trace.modules[source], nn.Embedding) or not layer:
        name = next(
            word for word in reversed(source.split(".")) if word[0] != "_"
        )  # TransformerLens has "_original_component"
        return Part(name, writer, factor, source, norm, False)
    mixes = trace.mixes(source)
    return Part(f"{'attn' if mixes else 'mlp'} {layer[1]}", writer, factor, source, norm, mixes)
