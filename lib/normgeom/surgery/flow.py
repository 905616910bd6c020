"""Who writes to a residual stream and who reads its norms, from a layout or from one run of the model."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from normgeom.models.layouts import Layout, layout_of
from normgeom.models.sites import NormSite, find_norms
from normgeom.norms.functions import LayerNorm
from normgeom.surgery.double import double_throughout
from normgeom.surgery.trace import READS, Trace, Use, matrix_of


@dataclass(frozen=True)
class StreamNorm:
    """A norm that reads the stream.

    Attributes:
        name: the module's.
        readers: the names of the modules that read it.
        centred: whether it is known to subtract the mean.
        dim, eps: d and ε; of a layout's norms that do not state them, None.
        gain: the name of its parameter; ``offset`` plus that acts.  None where there is none.
        bias: likewise.
    """

    name: str
    readers: tuple[str, ...]
    centred: bool
    dim: int | None
    eps: float | None
    gain: str | None = "weight"
    offset: float = 0.0
    bias: str | None = "bias"


@dataclass(frozen=True)
class Flow:
    """The norms of a stream, the last one last; the modules that write to it; parameters that are added to it."""

    norms: tuple[StreamNorm, ...]
    writers: tuple[str, ...]
    added: tuple[str, ...] = ()


def known_flow(model: nn.Module, layout: Layout) -> Flow:
    """What a layout says of a model."""
    norms = tuple(
        StreamNorm(
            name,
            tuple(reader for reader, _ in readers),
            type(norm) in (nn.LayerNorm, LayerNorm),  # a subclass may compute anything
            len(norm.weight) if getattr(norm, "weight", None) is not None else model.config.hidden_size,
            getattr(norm, "eps", None),
            offset=layout.offset,
        )
        for name, norm, readers in layout.readers_of(model)
    )
    return Flow(norms, tuple(name for name, _ in layout.writers_of(model)))


class Seen(NamedTuple):
    """A flow that was seen in a run, with the model that ran: a float64 copy, every parameter drawn, and its answer."""

    flow: Flow
    drawn: nn.Module
    answer: Callable[[], list[Tensor]]


def known_flow(model: nn.Module, layout: Layout) -> Flow:
    """What a layout says of a model."""
    norms = tuple(
        StreamNorm(
            name,
            tuple(reader for reader, _ in readers),
            type(norm) in (nn.LayerNorm, LayerNorm),  # a subclass may compute anything
            getattr(norm, "normalized_shape", (None,))[-1],
            getattr(norm, "eps", None),
            offset=layout.offset,
        )
        for name, norm, readers in layout.readers_of(model)
    )
    return Flow(norms, tuple(name for name, _ in layout.writers_of(model)))


def find_flow(
    model: nn.Module, example_inputs: Tensor | Mapping | None = None, centred: bool = False
) -> Flow | Seen:
    """The flow of a model by its layout, or, where it has none, by its behaviour; arguments and errors as below."""
    try:
        layout = layout_of(model)
    except ValueError:
        return seen_flow(model, example_inputs, centred)
    return known_flow(model, layout)


def seen_flow(model: nn.Module, example_inputs: Tensor | Mapping | None = None, centred: bool = False) -> Seen:
    """Who writes to a stream and who reads it, from one run of a float64 copy on the CPU with drawn parameters.

    A norm is of the stream if all that it is given is a sum of what embeddings, linear maps, convolutions and bare
    parameters wrote, as a :class:`normgeom.surgery.trace.Trace` follows it.  Other norms, such as those of queries and
    keys, stand aside.

    Args:
        model: any module; a transformers model of text or of images needs no example.
        example_inputs: as in :func:`normgeom.find_norms`.
        centred: whether norms must subtract the mean.

    Raises:
        ValueError: no norm reads a stream, or a norm's output is part of it; something but norms reads it, or something
            but linear maps a norm of it; something that no weight decides is added to it; a linear map reads two norms;
            the example leaves modules out.  The message says which.
    """
    check_present(model)
    drawn, called = _drawn(model), type(model).__name__
    given: list[tuple[tuple, dict]] = []
    caught = drawn.register_forward_pre_hook(lambda _, args, kwargs: given.append((args, kwargs)), with_kwargs=True)
    try:
        with warnings.catch_warnings(action="ignore"):
            sites = find_norms(drawn, example_inputs)
    except TypeError as error:
        raise ValueError(f"model: a {called} has no layout, and no run of it shows one ({error})") from error
    except (RuntimeError, NotImplementedError) as error:
        raise _does_not_run(called, "float32", error) from error
    finally:
        caught.remove()
    rms = [site for site in sites if site.kind == "rms"]
    if not sites or centred and len(rms) == len(sites):
        already = f"its norms are RMSNorm already, {rms[0].name} the first" if rms else "nor RMSNorm"
        raise ValueError(f"model: expected LayerNorm, this {called} runs none: {already}")
    drawn.double()
    args, kwargs = tree_map(_double, given[-1])

    def answer() -> list[Tensor]:
        with double_throughout(), torch.no_grad():
            return _answer(drawn(*args, **kwargs))

    trace = Trace(drawn, sites)
    try:
        with trace.watching():
            trace.returned(answer())
    except (RuntimeError, NotImplementedError) as error:
        raise _does_not_run(called, "float64", error) from error
    return Seen(_judge(trace), drawn, answer)


def _does_not_run(called: str, dtype: str, error: Exception) -> ValueError:
    why = str(error).partition("\n")[0]
    return ValueError(f"model: a copy of this {called} with drawn weights does not run in {dtype} on the CPU ({why})")


def _judge(trace: Trace) -> Flow:
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
    for name in read:
        _check_readers(trace, name)
    order = [*trace.inputs, *trace.tensors.values()].index
    written = sorted(frozenset().union(*read.values()), key=order)
    for source in written or sorted(begins & maps, key=order):
        for use in trace.uses[source]:
            raise ValueError(f"model: {_misread(source, use)}")
    for name, where in trace.unknown.items():
        raise ValueError(
            f"model: {name} reads a sum, added in {where}, of which a part is no plain sum of what linear maps, embeddings "
            "and parameters write: no weight of the model takes the mean out of that"
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


@torch.no_grad()
def _drawn(model: nn.Module) -> nn.Module:
    """A float32 copy on the CPU in evaluation mode: matrices of variance 1 over their last axis, vectors about 1/2."""
    drawn = copy.deepcopy(model).to("cpu").float().eval()
    if hasattr(drawn, "set_experts_implementation"):
        drawn.set_experts_implementation("eager")  # the others know no float64
    generator = torch.Generator().manual_seed(0)
    for parameter in drawn.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        vector = parameter.dim() < 2
        parameter.copy_(0.5 + 0.3 * noise if vector else noise / parameter.shape[-1] ** 0.5)
    return drawn


def check_present(model: nn.Module) -> None:
    """Raise a ValueError unless all parameters are there, on one device."""
    devices = sorted({str(parameter.device) for parameter in model.parameters()})
    if len(devices) != 1 or devices == ["meta"]:
        raise ValueError(f"model: expected all its parameters on one device that holds data, got {', '.join(devices)}")


def _double(value: object) -> object:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def _answer(output) -> list[Tensor]:
    """The logits, or, of a model that has none, all that it returns."""
    found = getattr(output, "logits", None)
    leaves = tree_leaves(output) if found is None else [found]
    return [t for t in leaves if isinstance(t, Tensor) and t.is_floating_point()]
