"""A residual stream: its norms, who reads them, who writes to it, and why its mean cannot be removed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from torch import nn
from torch.nn.modules.conv import _ConvNd

from normgeom.models.trace import READS, WRITES, Projection, Read, Trace, matrix_of
from normgeom.models.watch import NormSite


@dataclass(frozen=True, eq=False)
class StreamNorm(NormSite):
    """A norm and the linear maps that read it."""

    readers: tuple[str, ...]  # the names of the maps
    kept: str | None  # why its readers cannot take gain and bias, in words


class Flow(NamedTuple):
    """A residual stream; norms and writers are in the order in which they run."""

    norms: tuple[StreamNorm, ...]  # those that read the stream
    aside: tuple[StreamNorm, ...]  # the others, such as those of queries and keys
    writers: tuple[str, ...]  # the names of embeddings, convolutions and linear maps
    added: tuple[str, ...]  # the names of parameters, their last axis along the stream
    obstacle: str | None  # why centring the writers would leave a mean on the stream or change the outputs, in words
    unseen: str | None  # a parameter of a map or embedding that the run did not use, in words
    blocked: str | None  # the first norm of the stream that reads what no weights centre
    projected: str | None = None  # the module before which a projection removes the mean


def judged(trace: Trace) -> Flow:
    by_norms = [read for read in trace.reads if read.name in trace.norms]
    begun = {source for read in by_norms if _is_of_stream(trace, read) for source in _summands(trace, read)}
    of_stream = [read for read in by_norms if begun & _summands(trace, read)]
    names = {read.name for read in of_stream}
    sources = {source: share for read in of_stream for source, share in read.sources.items()}
    written = [source for source, share in sources.items() if share is not None and source not in trace.norms]
    norms = [_as_norm(trace, site) for site in trace.norms.values()]
    odd = [read for read in of_stream if read.odd]
    uncentred = {source for read in odd[:1] for source, share in read.sources.items() if share is None}
    blocked = [*(read for read in by_norms if uncentred & read.sources.keys()), *odd]
    return Flow(
        tuple(norm for norm in norms if norm.name in names),
        tuple(norm for norm in norms if norm.name not in names),
        tuple(name for name in written if matrix_of(trace.modules.get(name), WRITES)),
        tuple(name for name in written if name in trace.parameters),
        next(_obstacles(trace, of_stream, written), None),
        next(_unseen(trace, of_maps=True), None),
        blocked[0].name if blocked else None,
    )


def _is_of_stream(trace: Trace, read: Read) -> bool:
    """Whether it is a sum, or what a stream begins with; the output of one linear map is neither."""
    summands = _summands(trace, read)
    begins = (nn.Embedding, _ConvNd, Projection)
    begun = any(source in trace.parameters or isinstance(trace.modules[source], begins) for source in summands)
    return begun or len(summands) > 1


def _summands(trace: Trace, read: Read) -> set[str]:
    return {source for source, share in read.sources.items() if share is not None} - trace.norms.keys()


def _obstacles(trace: Trace, of_stream: list[Read], written: list[str]) -> Iterator[str]:
    """Why the mean of the stream cannot be removed, or matters."""
    for name in trace.norms:
        if any(read.name in trace.norms and read.sources.get(name) is not None for read in trace.reads):
            yield f"{name} normalises what stays on the stream, and no gain can remove the mean of its output"
    for read in (read for read in of_stream if read.odd):
        yield f"{read.name} reads {read.odd}, so that no weight centres what it reads"
    for read in (read for read in trace.reads if read.name not in trace.norms):
        for source in (source for source in written if source in read.sources):
            by = read.name or "the caller"
            yield f"what {source} writes to the stream is read without a norm, by {by}, where its mean matters"
    for name in trace.rewritten:
        yield f"a run changes {name}, as max_norm does in an embedding, so that it does not stay centred"
    if not of_stream:
        yield "no norm reads a sum of what embeddings and linear maps write"
    for name in written:
        module = trace.modules.get(name)
        if isinstance(module, _ConvNd) and (module.groups > 1 or module.transposed):
            yield f"{name}, a {type(module).__name__} of {module.groups} groups, writes what no change of it centres"
    yield from _unseen(trace, of_maps=False)
    for name in (name for name, _ in trace.given if name and name not in trace.used):
        yield f"the output of {name} has no effect on the example"


def _unseen(trace: Trace, of_maps: bool) -> Iterator[str]:
    """Parameters that the run did not use: those of maps and embeddings, or the others."""
    for name, parameter in trace.parameters.items():
        owner = trace.modules[name.rpartition(".")[0]]
        if parameter not in trace.used and bool(matrix_of(owner, WRITES)) == of_maps:
            yield f"the example does not use {name}, a parameter of a {type(owner).__name__}"


def _as_norm(trace: Trace, site: NormSite) -> StreamNorm:
    readers = dict.fromkeys(read.name for read in trace.reads if site.name in read.sources)
    others = [read.name for read in trace.reads if read.name in readers and not _takes_gain(trace, read, site.name)]
    kept = None
    if others or not readers:
        by = (others[0] or "the caller") if others else "nothing"
        needed = "only linear maps that read it unchanged, and nothing else, can take its gain"
        kept = f"the norm {site.name} is read by {by}; {needed}"
    elif site.weight.dim() > 1:
        kept = f"the norm {site.name} has a gain for each head"
    elif not all(source and "." not in str(source[0]) for source in site.sources):
        kept = f"the gain or bias of {site.name} is not one of its parameters"
    return StreamNorm(**vars(site), readers=tuple(readers), kept=kept)


def _takes_gain(trace: Trace, read: Read, norm: str) -> bool:
    """Whether a linear map reads the norm's output or an average of it, and nothing else."""
    only = read.sources.keys() == {norm} and not read.odd and abs(read.sources[norm] - 1) < 1e-9
    return only and matrix_of(trace.modules[read.name], READS) is not None
