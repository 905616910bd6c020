"""What becomes of the outputs of linear maps and norms in one run, followed from operation to operation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from normgeom.models.sites import NormSite
from normgeom.surgery.streams import READS, WRITES, matrix_of

_ADD = (torch.ops.aten.add, torch.ops.aten.add_)


class Label(NamedTuple):
    """What a tensor holds along an axis: a sum of what ``sources`` wrote, or what the norm ``sources`` put out."""

    normed: bool
    sources: frozenset[str]
    axis: int
    dim: int


class Use(NamedTuple):
    """Of something that is followed, by what it is not followed through.

    Attributes:
        kind: ``"operation"``, ``"module"``, ``"norm"`` (of a norm's output) or ``"caller"``, to whom it is returned.
        by: the operation's name or the module's.
        where: the name of the module in which the operation is.
        of: the labels of all tensors that an operation is given.
    """

    kind: str
    by: str
    where: str = ""
    of: tuple[Label | None, ...] = ()

    @property
    def adds(self) -> bool:
        return self.by in [str(packet).rpartition(".")[2] for packet in _ADD]


@dataclass
class Trace(TorchDispatchMode):
    """One run of a model, within :meth:`watching`.

    What linear maps, embeddings, convolutions and bare parameters put out is followed from operation to operation,
    whatever that is called: given numbers c_j in the place of what is followed, j along the stream, an operation keeps
    it whose result is s·c_j along one of its axes, s not depending on j, and -2s for -2c.
    So a sum of writers is followed, a change of shape, a mask, a scale; an activation is not.  A norm's output is
    followed with s = 1.

    Attributes:
        model, sites: what runs, and its norms.
        inputs: what each norm and map read, by its name, call by call; None where that is not followed.
        uses: what else became of what a norm, a map or a parameter put out.
        called: the modules that ran.
        touched: the names of parameters that operations outside of maps and norms were given.
        unknown: of norms that read a sum that is not followed, in which module that was added.
    """

    model: nn.Module
    sites: list[NormSite]
    inputs: dict[str, list[Label | None]] = field(default_factory=lambda: defaultdict(list))
    uses: dict[str, list[Use]] = field(default_factory=lambda: defaultdict(list))
    called: set[nn.Module] = field(default_factory=set)
    touched: set[str] = field(default_factory=set)
    unknown: dict[str, str] = field(default_factory=dict)

    def __post_init__(self):
        super().__init__()
        self.names = {module: name for name, module in self.model.named_modules()}
        self.norms = {site.module for site in self.sites}
        self.stack: list[str] = [""]  # of the modules that run
        self.within: nn.Module | None = None  # a norm or a map that runs
        self.labels: dict[int, tuple[Tensor, Label]] = {}  # the tensors with them, so that no number is used again
        tensors = [*self.model.named_parameters(), *self.model.named_buffers()]
        self.tensors = {id(tensor): name for name, tensor in tensors}
        self.sums: dict[int, tuple[Tensor, str]] = {}  # that are not followed, and where they were added
        for name, tensor in tensors:
            if tensor.dim() and tensor.shape[-1] > 1 and tensor.is_floating_point():
                self._put(tensor, Label(False, frozenset([name]), tensor.dim() - 1, tensor.shape[-1]))

    @contextmanager
    def watching(self) -> Iterator[None]:
        with ExitStack() as hooks:
            for module in self.model.modules():
                hooks.callback(module.register_forward_pre_hook(self._enter, with_kwargs=True).remove)
                hooks.callback(module.register_forward_hook(self._leave, with_kwargs=True).remove)
            with self:
                yield

    def returned(self, tensors: list[Tensor]) -> None:
        """What the model returns is used by whoever called it."""
        self._lost([label for t in tensors if (label := self._of(t))], Use("caller", type(self.model).__name__))

    def _enter(self, module, args, kwargs):
        self.called.add(module)
        self.stack.append(self.names[module])
        if self.within is None and (module in self.norms or matrix_of(module, WRITES)):
            self.within = module

    def _leave(self, module, args, kwargs, output):
        name = self.stack.pop()
        if self.within is not module:
            return
        self.within = None
        self.called.update(module.modules())
        by_name = [kwargs[of] for of in ("query", "key", "value") if of in kwargs]  # of attention, masks left out
        given = [t for t in ([*args, *by_name] or kwargs.values()) if isinstance(t, Tensor) and t.is_floating_point()]
        labels = {self._of(t) for t in given}
        label = labels.pop() if len(labels) == 1 else None
        reads = module in self.norms or matrix_of(module, READS)
        whole = label and label.axis == given[0].dim() - 1 and label.normed != (module in self.norms) and reads
        if module in self.norms and label is None and id(given[0]) in self.sums:
            self.unknown[name] = self.sums[id(given[0])][1]
        if not whole:
            kind = "norm" if module in self.norms else "module"
            beside = ", beside another input" if labels else ""
            self._lost([of for of in (label, *labels) if of], Use(kind, f"{name}, a {type(module).__name__}{beside}"))
        self.inputs[name].append(label if whole else None)
        out = next(t for t in tree_leaves(output) if isinstance(t, Tensor))
        axis = 1 + out.dim() - module.weight.dim() if isinstance(module, _ConvNd) else out.dim() - 1
        if out.shape[axis] > 1:
            self._put(out, Label(module in self.norms, frozenset([name]), axis, out.shape[axis]))

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        leaves, tree = tree_flatten((args, kwargs))
        given = {i: label for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and (label := self._of(leaf))}
        if self.within is None:
            self.touched.update(self.tensors[id(leaf)] for leaf in leaves if id(leaf) in self.tensors)
        if self.within is not None or not given:
            return self._summed(func, leaves, func(*args, **kwargs))
        kept = self._kept(func, leaves, tree, given)
        out = func(*args, **kwargs)
        tensors = [t for t in tree_leaves(out) if isinstance(t, Tensor)]
        if len(kept) == len(tensors) and all(kept):
            for tensor, label in zip(tensors, kept, strict=True):
                self._put(tensor, label)
        elif kept:
            of = tuple(given.get(i) for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor))
            name = str(func.overloadpacket).rpartition(".")[2]
            self._lost(list(given.values()), Use("operation", name, self.stack[-1] or "the model", of))
            for tensor in tensors:
                self.labels.pop(id(tensor), None)  # written over in place
            self._summed(func, leaves, out)
        return out

    def _summed(self, func, leaves: list, out):
        if func.overloadpacket in _ADD and sum(isinstance(leaf, Tensor) for leaf in leaves) > 1:
            self.sums[id(out)] = (out, self.stack[-1] or "the model")
        return out

    def _kept(self, func, leaves: list, tree, given: dict[int, Label]) -> list[Label | None]:
        """The labels of what an operation returns, None for what they hold no longer; empty if only shapes count."""
        first = next(iter(given.values()))
        if len({(label.normed, label.dim) for label in given.values()}) > 1:
            return [None]
        sources = frozenset().union(*(label.sources for label in given.values()))
        if first.normed and len(sources) > 1:
            return [None]
        c = torch.randn(first.dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

        def probe(scale: float) -> list[Tensor]:
            put = list(leaves)
            for k, (i, label) in enumerate(given.items()):
                shape = [1] * leaves[i].dim()
                shape[label.axis] = -1
                factor = scale if first.normed else scale * 0.7**k
                put[i] = (factor * c).to(leaves[i]).reshape(shape).expand(leaves[i].shape).clone()
            args, kwargs = tree_unflatten(put, tree)
            return [t for t in tree_leaves(func(*args, **kwargs)) if isinstance(t, Tensor)]

        try:
            pairs = list(zip(probe(1.0), probe(-2.0), strict=True))
        except (RuntimeError, ValueError, IndexError, TypeError):
            return [None]
        if all(torch.equal(x, y) for x, y in pairs):
            return []
        return [self._along(x, y, c, first._replace(sources=sources)) for x, y in pairs]

    @staticmethod
    def _along(x: Tensor, y: Tensor, c: Tensor, label: Label) -> Label | None:
        for axis in (axis for axis in range(x.dim()) if x.shape[axis] == label.dim and x.is_floating_point()):
            s, t = (z.double().movedim(axis, -1) / c for z in (x, y))
            same = torch.allclose(s, s[..., :1].expand_as(s), rtol=1e-6) and torch.allclose(t, -2 * s, rtol=1e-6)
            if same and (not label.normed or torch.allclose(s, torch.ones_like(s), rtol=1e-6)):
                return label._replace(axis=axis)
        return None

    def _of(self, tensor: Tensor) -> Label | None:
        found = self.labels.get(id(tensor))
        return found and found[1]

    def _put(self, tensor: Tensor, label: Label) -> None:
        self.labels[id(tensor)] = (tensor, label)

    def _lost(self, labels: list[Label], use: Use) -> None:
        for source in {source for label in labels for source in label.sources}:
            self.uses[source].append(use)
