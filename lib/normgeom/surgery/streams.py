"""What writes to a residual stream and what reads its norms, as data: which modules, which of their weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import nn
from torch.nn.modules.conv import _ConvNd
from transformers.pytorch_utils import Conv1D

from normgeom.models.layouts import Layout
from normgeom.norms.functions import LayerNorm


class Matrix(NamedTuple):
    """A linear map's weight, the axis of it that runs along the stream, and its bias, by their names."""

    weight: str
    axis: int
    bias: str | None = "bias"


READS = {
    nn.Linear: Matrix("weight", 1),
    Conv1D: Matrix("weight", 0),
    nn.MultiheadAttention: Matrix("in_proj_weight", 1, "in_proj_bias"),
}
WRITES = {
    nn.Linear: Matrix("weight", 0),
    Conv1D: Matrix("weight", 1),
    nn.MultiheadAttention: Matrix("out_proj.weight", 0, "out_proj.bias"),
    nn.Embedding: Matrix("weight", 1, None),
    _ConvNd: Matrix("weight", 0),
}


def matrix_of(module: nn.Module, kinds: dict[type, Matrix]) -> Matrix | None:
    return next((matrix for kind, matrix in kinds.items() if isinstance(module, kind)), None)


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
            getattr(norm, "normalized_shape", (None,))[-1],
            getattr(norm, "eps", None),
            offset=layout.offset,
        )
        for name, norm, readers in layout.readers_of(model)
    )
    return Flow(norms, tuple(name for name, _ in layout.writers_of(model)))
