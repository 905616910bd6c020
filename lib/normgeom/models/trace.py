"""One run of a model in which what its linear maps, embeddings and norms put out is followed from operation to
operation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten
from transformers.pytorch_utils import Conv1D

from normgeom.models.modules import hooked
from normgeom.models.sites import NormSite


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
_ADD = (torch.ops.aten.add, torch.ops.aten.add_)
_FAR = -(2.0**30)  # beyond any bound that an operation clamps to, and exact in floating point


def matrix_of(module: nn.Module, kinds: dict[type, Matrix]) -> Matrix | None:
    return next((matrix for kind, matrix in kinds.items() if isinstance(module, kind)), None)


class Label(NamedTuple):
    """What a tensor holds along an axis: a sum of what ``sources`` wrote, or what the one norm in them put out."""

    normed: bool
    sources: frozenset[str]
    axis: int
    dim: int


class Use(NamedTuple):
    """What became of something that is not followed any further."""

    by: str  # in words
    sum_in: str | None = None  # the module in which it was added to something else
    by_norm: bool = False


class Trace(TorchDispatchMode):
    """One run of a model, within :meth:`watching`.

    Each map, embedding, norm and parameter labels what it puts out.  An operation is tried on numbers c in the place of
    what is labelled: its result keeps the label if it is s·c along one of its axes, s not depending on the place along
    c, and the same multiple when c is.  So a label goes through sums, masks, scales and changes of shape, and ends at
    an activation.  The label of a norm's output goes only where s is 1.

    Attributes:
        inputs: what each norm and map read, by its name, call by call; None where that has no label.
        uses: what else became of what a norm, a map or a parameter put out.
        called: the modules that ran.
        touched: the parameters that took part.
        unknown: for norms that read a sum without a label, where that was added.
    """

    def __init__(self, model: nn.Module, sites: list[NormSite]):
        super().__init__()
        self.model, self.sites = model, sites
        self.inputs: dict[str, list[Label | None]] = defaultdict(list)
        self.uses: dict[str, list[Use]] = defaultdict(list)
        self.called: set[nn.Module] = set()
        self.touched: set[Tensor] = set()
        self.unknown: dict[str, str] = {}
        self.modules = dict(model.named_modules())
        self.names = {module: name for name, module in self.modules.items()}
        self.norms = {site.module for site in sites}
        self.bare = dict([*model.named_parameters(), *model.named_buffers()])
        self._running = [""]  # the names of the modules that run
        self._within: nn.Module | None = None  # the norm or map that runs
        # with the tensors, so that no number is given to another one
        self._labels: dict[int, tuple[Tensor, Label]] = {}
        self._sums: dict[int, tuple[Tensor, str]] = {}
        for name, tensor in self.bare.items():
            if tensor.dim() and tensor.shape[-1] > 1 and tensor.is_floating_point():
                self._put(tensor, Label(False, frozenset([name]), tensor.dim() - 1, tensor.shape[-1]))

    @contextmanager
    def watching(self) -> Iterator[None]:
        modules = self.modules.values()
        with hooked([(m, self._enter) for m in modules], [(m, self._leave) for m in modules]), self:
            yield

    def returned(self, tensors: list[Tensor]) -> None:
        """The model returns these to its caller."""
        self._end(map(self._of, tensors), Use(f"the caller of this {type(self.model).__name__}"))

    def _enter(self, module, args, kwargs):
        self.called.add(module)
        self._running.append(self.names[module])
        if self._within is None and (module in self.norms or matrix_of(module, WRITES)):
            self._within = module

    def _leave(self, module, args, kwargs, output):
        name = self._running.pop()
        if self._within is module:
            self._within = None
            self.called.update(module.modules())
            self.touched.update(module.parameters())
            given = _inputs(args, kwargs)
            self.touched.update(tensor for tensor in given if isinstance(tensor, nn.Parameter))
            self._reads(name, module, given)
            self._writes(name, module, next(t for t in tree_leaves(output) if isinstance(t, Tensor)))

    def _reads(self, name: str, module: nn.Module, given: list[Tensor]) -> None:
        """A norm reads a sum, a map what one norm put out, along the last axis; else what it reads ends here."""
        normalises = module in self.norms
        labels = {self._of(tensor) for tensor in given}
        label = next(iter(labels)) if len(labels) == 1 else None
        takes = normalises or matrix_of(module, READS)
        if takes and label and label.axis == given[0].dim() - 1 and label.normed != normalises:
            self.inputs[name].append(label)
            return
        self.inputs[name].append(None)
        beside = ", beside another input" if len(labels) > 1 else ""
        self._end(labels, Use(f"{name}, a {type(module).__name__}{beside}", by_norm=normalises))
        if normalises and label is None and id(given[0]) in self._sums:
            self.unknown[name] = self._sums[id(given[0])][1]

    def _writes(self, name: str, module: nn.Module, output: Tensor) -> None:
        last = output.dim() - 1
        axis = last + 2 - module.weight.dim() if isinstance(module, _ConvNd) else last
        if output.shape[axis] > 1:
            self._put(output, Label(module in self.norms, frozenset([name]), axis, output.shape[axis]))

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if self._within is not None:
            return func(*args, **kwargs)
        leaves, tree = tree_flatten((args, kwargs))
        given = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        self.touched.update(tensor for tensor in given if isinstance(tensor, nn.Parameter))
        labels = {i: label for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and (label := self._of(leaf))}
        kept = self._kept(func, leaves, tree, labels) if labels else []
        out = func(*args, **kwargs)
        where = self._running[-1] or "the model"
        adds = func.overloadpacket in _ADD and len(given) > 1
        if kept is None:
            mixes = len(labels) < len(given) or len({label.sources for label in labels.values()}) > 1
            by = f"{str(func.overloadpacket).rpartition('.')[2]} in {where}"
            self._end(labels.values(), Use(by, where if adds and mixes else None))
        tensors = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        for tensor in tensors:
            self._labels.pop(id(tensor), None)  # of what an operation in place wrote over
        for tensor, label in zip(tensors, kept or (), strict=False):
            self._put(tensor, label)
        if adds and not kept:
            self._sums[id(out)] = out, where
        return out

    def _kept(self, func, leaves: list, tree, labels: dict[int, Label]) -> list[Label] | None:
        """The labels of what an operation returns; None if they end there; none if it reads shapes only."""
        first, sources = next(iter(labels.values())), frozenset().union(*(label.sources for label in labels.values()))
        if len({(label.normed, label.dim) for label in labels.values()}) > 1 or (first.normed and len(sources) > 1):
            return None
        c = torch.randn(first.dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        try:
            near, far = (self._try(func, leaves, tree, labels, factor * c) for factor in (1.0, _FAR))
        except (RuntimeError, ValueError, IndexError, TypeError):
            return None
        if all(map(torch.equal, near, far)):
            return []
        axes = [_axis_along(x, y, c, first.normed) for x, y in zip(near, far, strict=True)]
        return None if None in axes else [Label(first.normed, sources, axis, first.dim) for axis in axes]

    @staticmethod
    def _try(func, leaves: list, tree, labels: dict[int, Label], c: Tensor) -> list[Tensor]:
        """What an operation makes of c in the place of what is labelled, of different multiples in sums."""
        given = [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        for k, (i, label) in enumerate(labels.items()):
            along = [-1 if axis == label.axis else 1 for axis in range(leaves[i].dim())]
            multiple = c if label.normed else 0.7**k * c
            given[i].copy_(multiple.reshape(along))
        args, kwargs = tree_unflatten(given, tree)
        return [leaf for leaf in tree_leaves(func(*args, **kwargs)) if isinstance(leaf, Tensor)]

    def _of(self, tensor: Tensor) -> Label | None:
        found = self._labels.get(id(tensor))
        return found and found[1]

    def _put(self, tensor: Tensor, label: Label) -> None:
        self._labels[id(tensor)] = (tensor, label)

    def _end(self, labels: Iterable[Label | None], use: Use) -> None:
        for source in {source for label in labels if label for source in label.sources}:
            self.uses[source].append(use)


def _inputs(args: tuple, kwargs: dict) -> list[Tensor]:
    """The vectors that a module is given; of attention's entries by name those that are no mask."""
    named = [kwargs[name] for name in ("query", "key", "value") if name in kwargs]
    given = [*args, *named] or kwargs.values()
    return [value for value in given if isinstance(value, Tensor) and value.is_floating_point()]


def _axis_along(x: Tensor, far: Tensor, c: Tensor, exactly: bool) -> int | None:
    """The axis along which ``x`` is a multiple of c, or c itself, and ``far`` the same of the far multiple of c."""
    for axis in (axis for axis in range(x.dim()) if x.shape[axis] == len(c) and x.is_floating_point()):
        s, t = (z.double().movedim(axis, -1) / c for z in (x, far))
        expected = torch.ones_like(s) if exactly else s[..., :1].expand_as(s)
        if torch.allclose(s, expected, rtol=1e-6) and torch.allclose(t, _FAR * s, rtol=1e-6):
            return axis
    return None
