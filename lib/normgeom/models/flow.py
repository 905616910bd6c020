"""Who writes to a model's residual stream and who reads its norms, as one run of a copy shows it."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map
from transformers.pytorch_utils import Conv1D

from normgeom.models.sites import NormSite, find_norms
from normgeom.models.trace import READS, Trace, matrix_of

_NO_SUM = "is no plain sum of what linear maps, embeddings and parameters write, so that no weight centres it"


@dataclass(frozen=True)
class StreamNorm:
    """A norm and the linear maps that read it; name, kind, dim and eps as in :class:`normgeom.NormSite`."""

    name: str
    kind: str
    dim: int
    eps: float
    readers: tuple[str, ...]  # names
    gain: str | None  # the name of the parameter that, plus ``offset``, acts as gain
    offset: float
    bias: str | None
    kept: str | None  # why its readers cannot take gain and bias, in words


@dataclass(frozen=True)
class Flow:
    """A residual stream; norms and writers are in the order in which they run.

    Attributes:
        obstacle: why centring all that writes leaves a mean on the stream, or changes what the model computes though
            every norm subtracts the mean; None where it does neither.
        unseen: a module with weights that did not run, in words.
    """

    norms: tuple[StreamNorm, ...]  # that read the stream
    aside: tuple[StreamNorm, ...]  # others, such as those of queries and keys
    writers: tuple[str, ...]  # the names of embeddings, convolutions and linear maps
    added: tuple[str, ...]  # of parameters and buffers, their last axis along the stream
    obstacle: str | None
    unseen: str | None


class Seen(NamedTuple):
    """A flow, the copy that showed it, and what that copy answers."""

    flow: Flow
    drawn: nn.Module
    answer: Callable[[], list[Tensor]]


def stream(model: nn.Module, example_inputs: Tensor | Mapping | None = None) -> Flow:
    """The residual stream of a model: its norms, who reads them, and who writes to it.

    Names of classes and modules play no part.  A float64 copy of the model on the CPU, all its parameters drawn, runs
    once and is watched operation by operation, which takes twice the memory of float32 weights and many times as long
    as a bare run.  A norm is of the stream if it reads a sum of what embeddings, linear maps, convolutions and
    parameters wrote.  What the run on the example does not reach, such as another branch of the code, is not seen.

    Args:
        model: any module; a transformers model of text or of images needs no example.
        example_inputs: as in :func:`normgeom.find_norms`.

    Raises:
        ValueError: the copy does not run, or runs no norm; parameters are on the meta device or on several.
        TypeError: no example was given and none can be made for this model.
    """
    return seen(model, example_inputs).flow


def stream_writers(model: nn.Module) -> list[nn.Parameter]:
    """Weights and biases of all that writes to the stream of a GPT-2 or its like, which is their last axis.

    The token embedding comes first, which may be the head's matrix too; then in the order in which they run.

    Raises:
        ValueError: something writes to the stream that is no embedding and no ``Conv1D``; as :func:`stream`.
    """
    flow = stream(model)
    writers = [model.get_submodule(name) for name in flow.writers]
    if flow.obstacle or flow.added or not all(isinstance(writer, (Conv1D, nn.Embedding)) for writer in writers):
        raise ValueError(f"model: expected a GPT-2 or its like, of embeddings and Conv1D, got a {type(model).__name__}")
    return [p for writer in writers for p in writer.parameters()]


def stream_readers(model: nn.Module) -> list[nn.Parameter]:
    """The matrices that read the norms of a GPT-2 or its like but the last, whose first axis is the stream."""
    norms = stream(model).norms[:-1]
    return [model.get_submodule(name).weight for norm in norms for name in norm.readers]


def check_present(model: nn.Module) -> None:
    """Raise a ValueError unless all parameters are there, on one device."""
    devices = sorted({str(parameter.device) for parameter in model.parameters()})
    if len(devices) != 1 or devices == ["meta"]:
        raise ValueError(f"model: expected all its parameters on one device that holds data, got {', '.join(devices)}")


def seen(model: nn.Module, example_inputs: Tensor | Mapping | None = None) -> Seen:
    """As :func:`stream`, with the copy."""
    check_present(model)
    drawn, given = _drawn(model), []
    caught = drawn.register_forward_pre_hook(lambda _, args, kwargs: given.append((args, kwargs)), with_kwargs=True)

    def answer() -> list[Tensor]:
        args, kwargs = given[-1]
        with double_throughout(), torch.no_grad():
            return _floats(drawn(*args, **kwargs))

    try:
        with warnings.catch_warnings(action="ignore"):
            sites = find_norms(drawn, tree_map(_double, example_inputs))
        caught.remove()
        trace = Trace(drawn, sites)
        with trace.watching():
            trace.returned(answer())
    except (RuntimeError, NotImplementedError) as error:
        why = str(error).partition("\n")[0]
        raise ValueError(f"model: a float64 copy of this {type(model).__name__} does not run ({why})") from error
    if not sites:
        raise ValueError(f"model: this {type(model).__name__} runs no LayerNorm or RMSNorm")
    return Seen(_judge(trace), drawn, answer)


@torch.no_grad()
def _drawn(model: nn.Module) -> nn.Module:
    """A float64 copy on the CPU in evaluation mode: matrices of variance 1 over their last axis, vectors about 1/2."""
    drawn = copy.deepcopy(model).cpu().double().eval()
    if hasattr(drawn, "set_experts_implementation"):
        drawn.set_experts_implementation("eager")  # the others know no float64
    generator = torch.Generator().manual_seed(0)
    for parameter in drawn.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        vector = parameter.dim() < 2
        parameter.copy_(0.5 + 0.3 * noise if vector else noise / parameter.shape[-1] ** 0.5)
    return drawn


def _double(value: object) -> object:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def _floats(output) -> list[Tensor]:
    """The logits, or, of a model that has none, all that it returns."""
    found = getattr(output, "logits", None)
    leaves = tree_leaves(output) if found is None else [found]
    return [t for t in leaves if isinstance(t, Tensor) and t.is_floating_point()]


def _judge(trace: Trace) -> Flow:
    maps = [name for name in trace.inputs if trace.modules[name] not in trace.norms]
    begins = {*trace.bare, *(name for name in maps if matrix_of(trace.modules[name], READS) is None)}
    read = {}
    for site in trace.sites:
        sources = frozenset().union(*(label.sources for label in trace.inputs[site.name] if label))
        if sources & begins or len(sources) > 1:  # a map's output alone is no stream
            read[site.name] = sources
    written = sorted(frozenset().union(*read.values()), key=[*maps, *trace.bare].index)
    norms = [_as_norm(trace, site) for site in trace.sites]
    return Flow(
        tuple(norm for norm in norms if norm.name in read),
        tuple(norm for norm in norms if norm.name not in read),
        tuple(name for name in written if name in maps),
        tuple(name for name in written if name not in maps),
        next(_obstacles(trace, written or [name for name in maps if name in begins]), None),
        next(_unseen(trace, ran=False), None),
    )


def _obstacles(trace: Trace, written: list[str]) -> Iterator[str]:
    """Why the mean does not come out of the stream."""
    for name in (site.name for site in trace.sites):
        if any(use.by_norm or use.sum_in for use in trace.uses[name]):
            yield f"{name} normalises what stays on the stream, and no gain takes its mean out"
    for source in written:
        for use in trace.uses[source]:
            if use.sum_in:
                yield f"what {source} writes is part of a sum in {use.sum_in} that {_NO_SUM}"
            yield f"what {source} writes to the stream is read without a norm, by {use.by}, where its mean matters"
    yield from (f"{name} reads a sum, added in {where}, that {_NO_SUM}" for name, where in trace.unknown.items())
    if not any(trace.modules[name] for name in written if name in trace.modules):
        yield f"no norm of this {type(trace.model).__name__} reads a sum of what embeddings and linear maps write"
    yield from _unseen(trace, ran=True)
    for name in (name for name in written if name in trace.bare):
        owner, _, buffer = name.rpartition(".")
        if buffer in trace.modules[owner]._non_persistent_buffers_set:
            yield f"{name}, a table that its module computes anew, is added to the stream and would not stay centred"


def _unseen(trace: Trace, ran: bool) -> Iterator[str]:
    """Parameters that took no part, of modules that ran or of others."""
    for name, parameter in trace.model.named_parameters():
        owner = trace.modules[name.rpartition(".")[0]]
        if parameter not in trace.touched and (owner in trace.called) == ran:
            what = name if ran else f"{trace.names[owner]}, a {type(owner).__name__},"
            yield f"{what} has no place in what the example runs of this {type(trace.model).__name__}"


def _as_norm(trace: Trace, site: NormSite) -> StreamNorm:
    own, read = frozenset([site.name]), {}
    for name, labels in trace.inputs.items():
        if any(label and label.sources == own for label in labels):
            read[name] = all(label and label.sources == own for label in labels)
    others = [use.by for use in trace.uses[site.name]]
    others += [f"{name}, which reads something else too" for name, alone in read.items() if not alone]
    parameters = dict(site.module.named_parameters(recurse=False))
    gain, bias = _which(site.weight, parameters, (0.0, 1.0), 1.0), _which(site.bias, parameters, (0.0,), 0.0)
    kept = None
    if others or not read:
        kept = f"the output of {site.name}, a norm, is read by {(others or ['nothing'])[0]}, no linear map of its own"
    elif gain is None or bias is None:
        kept = f"gain or bias of {site.name} is none of its parameters"
    (gain, offset), (bias, _) = gain or (None, 0.0), bias or (None, 0.0)
    return StreamNorm(site.name, site.kind, site.dim, site.eps, tuple(read), gain, offset, bias, kept)


def _which(acts: Tensor, parameters: Mapping, offsets: tuple[float, ...], none: float) -> tuple | None:
    """Which parameter of a norm acts as its gain or bias, plus which number; None if something else acts."""
    for name, parameter in parameters.items():
        for offset in offsets:
            if parameter.shape == acts.shape and torch.allclose(parameter.float() + offset, acts, rtol=1e-3, atol=1e-3):
                return name, offset
    return (None, 0.0) if torch.allclose(acts, torch.full_like(acts, none), atol=1e-3) else None


class double_throughout(TorchFunctionMode):
    """While the block runs, a model of float64 weights computes in float64 also where its code asks for float32.

    Models of transformers cast to float32 what they hold too delicate for float16, and do so still after
    :meth:`torch.nn.Module.double`: RMSNorm in all of them, the attention of GPT-J and GPT-Neo, softmax.
    """

    def __enter__(self):
        self.default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        return super().__enter__()

    def __exit__(self, *error):
        torch.set_default_dtype(self.default)
        return super().__exit__(*error)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is Tensor.float:
            func = Tensor.double
        return func(*map(_wide, args), **{name: _wide(value) for name, value in (kwargs or {}).items()})


def _wide(value: object) -> object:
    return torch.float64 if value is torch.float32 else value
