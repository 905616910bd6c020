"""What a run says of who writes to a stream and who reads its norms, or why it says that a model cannot be changed."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from normgeom.models.sites import NormSite
from normgeom.surgery.streams import READS, Flow, StreamNorm, matrix_of
from normgeom.surgery.trace import Trace, Use


def judge(trace: Trace, centred: bool) -> Flow:
    """The flow that a run showed, or a ValueError with the reason why there is none."""
    maps = {name for name in trace.inputs if trace.model.get_submodule(name) not in trace.norms}
    begins = {name for name in maps if matrix_of(trace.model.get_submodule(name), READS) is None}
    begins |= set(trace.tensors.values())
    read = {}
    for site in trace.sites:
        sources = frozenset().union(*(label.sources for label in trace.inputs[site.name] if label))
        if sources & begins or len(sources) > 1:  # a map's output alone is no stream
            read[site.name] = sources
    _check_placement(trace, read, begins)
    if centred and all(site.kind == "rms" for site in trace.sites):
        raise ValueError(
            f"model: expected LayerNorm, the norms of this {type(trace.model).__name__} are RMSNorm already, "
            f"{trace.sites[0].name} the first"
        )
    for name in read:
        _check_readers(trace, name)
    order = [*trace.inputs, *trace.tensors.values()].index
    written = sorted(frozenset().union(*read.values()), key=order)
    for source in written or sorted(begins & maps, key=order):
        for use in trace.uses[source]:
            raise ValueError(f"model: {_misread(source, use)}")
    for name, where in trace.unknown.items():
        raise ValueError(
            f"model: {name} reads a sum, added in {where}, of which a part is no plain sum of what linear maps, "
            "embeddings and parameters write: no weight of the model takes the mean out of that"
        )
    if not read:
        raise ValueError(
            f"model: no norm of this {type(trace.model).__name__} reads a sum of what embeddings, linear maps and "
            "parameters write, so that no weight of it decides what lies along 1 there"
        )
    _check_all_run(trace)
    norms = tuple(_as_norm(trace, site) for site in trace.sites if site.name in read)
    buffers = {name for name, _ in trace.model.named_buffers()}
    for name in written:
        if name in buffers and name.rpartition(".")[2] in _owner(trace.model, name)._non_persistent_buffers_set:
            raise ValueError(
                f"model: {name} is added to the stream, a table that its module computes anew and that is not saved, "
                "so that it would not stay centred"
            )
    return Flow(norms, tuple(s for s in written if s in maps), tuple(s for s in written if s not in maps))


def _check_placement(trace: Trace, read: dict[str, frozenset[str]], begins: set[str]) -> None:
    """Refuse norms whose output is part of the stream; where several are, for what is not the embeddings'."""
    placements = {}
    for site in trace.sites:
        for use in trace.uses[site.name]:
            itself = all(label and label.sources == {site.name} for label in use.of)
            if use.kind != "norm" and (itself or not use.adds):
                continue
            others = frozenset().union(*(label.sources for label in use.of if label and not label.normed))
            if read.get(site.name, frozenset([""])) <= begins:
                how = "normalises its embeddings, whose output, no longer centred, is the stream"
                placements.setdefault(2, f"{site.name} {how}")
            elif others & begins:
                how = "normalises what a block adds to the stream, and such a norm has no reader of its own"
                placements.setdefault(0, f"{site.name} {how}")
            else:
                how = "normalises the stream itself, so that later blocks read norms' outputs (post-norm)"
                placements.setdefault(1, f"{site.name} {how}")
    for _, reason in sorted(placements.items()):
        raise ValueError(f"model: {reason}")


def _check_readers(trace: Trace, name: str) -> None:
    if None in trace.inputs[name]:
        raise ValueError(f"model: {name} reads the stream in one place and something else in another")
    for use in trace.uses[name]:
        if use.kind == "caller":
            raise ValueError(
                f"model: this {use.by} returns the output of {name}, a norm of the stream, so that nothing can take "
                "its gain and bias; expected the model with its language-modelling or other head"
            )
        raise ValueError(
            f"model: the output of {name}, a norm of the stream, is read by {_reader(use)}; its gain and bias can go "
            f"to {' or '.join(kind.__name__ for kind in READS)} alone"
        )


def _misread(source: str, use: Use) -> str:
    if use.adds:
        return (
            f"what {source} writes is added in {use.where} to what is no plain sum of what linear maps, embeddings and "
            "parameters write: no weight of the model takes the mean out of that"
        )
    if use.kind == "caller":
        return f"this {use.by} returns what {source} writes to the stream, where its mean matters"
    return f"what {source} writes to the stream is read without a norm, by {_reader(use)}, where its mean matters"


def _reader(use: Use) -> str:
    return f"{use.by} in {use.where}" if use.kind == "operation" else use.by


def _check_all_run(trace: Trace) -> None:
    run = {p for module in trace.called for p in module.parameters(recurse=False)}
    run |= {p for name, p in trace.model.named_parameters() if name in trace.touched}
    for name, module in trace.model.named_modules():
        if not run.issuperset(module.parameters(recurse=False)):
            raise ValueError(
                f"model: {name}, a {type(module).__name__}, has no place in what the example runs of this "
                f"{type(trace.model).__name__}, so that what it reads and writes is not known"
            )


def _owner(model: nn.Module, name: str) -> nn.Module:
    return model.get_submodule(name.rpartition(".")[0])


def _as_norm(trace: Trace, site: NormSite) -> StreamNorm:
    readers = []
    for name, given in trace.inputs.items():
        sources = {label and label.sources for label in given}
        if frozenset([site.name]) not in sources or trace.model.get_submodule(name) in trace.norms:
            continue
        if len(sources) > 1:
            others = sorted({s for of in sources if of for s in of} - {site.name}) or ["what is no norm's"]
            raise ValueError(f"model: {name} reads {site.name} and {', '.join(others)}, and has one weight for both")
        readers.append(name)
    parameters = list(site.module.named_parameters(recurse=False))
    gain, offset = _which(site.weight, parameters, (0.0, 1.0), f"the gain of {site.name}", 1.0)
    bias, _ = _which(site.bias, parameters, (0.0,), f"the bias of {site.name}", 0.0)
    return StreamNorm(site.name, tuple(readers), site.kind == "layer", site.dim, site.eps, gain, offset, bias)


def _which(
    acts: Tensor, parameters: list[tuple[str, nn.Parameter]], offsets: tuple[float, ...], what: str, none: float
) -> tuple[str | None, float]:
    """Which parameter of a norm acts as its gain or bias, plus which number."""
    for name, parameter in parameters:
        for offset in offsets:
            if parameter.shape == acts.shape and torch.allclose(parameter.float() + offset, acts, rtol=1e-3, atol=1e-3):
                return name, offset
    if not torch.allclose(acts, torch.full_like(acts, none), atol=1e-3):
        raise ValueError(f"model: {what} is none of its parameters, nor 1 + one of them")
    return None, 0.0
