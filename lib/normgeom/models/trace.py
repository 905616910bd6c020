"""One run of a model that shows, by autograd, what its norms and linear maps read and who wrote it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.utils._pytree import tree_map
from transformers.pytorch_utils import Conv1D

from normgeom.models.sites import NormSite
from normgeom.models.watch import hooked
from normgeom.norms.formula import center


class Matrix(NamedTuple):
    """The parameters of a linear map, by their names."""

    weight: str
    axis: int  # of the weight, that runs along the stream
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
_TOLERANCE = 1e-9  # of float64


def matrix_of(module: nn.Module, kinds: dict[type, Matrix]) -> Matrix | None:
    return next((matrix for kind, matrix in kinds.items() if isinstance(module, kind)), None)


class Read(NamedTuple):
    """What a norm or a map was given in one call, or, without a name, what the model returned.

    ``sources`` are the norms, maps and parameters that it contains, in the order in which they ran, each with the sum
    of the factors of its vectors in one vector of the read: 1 for a copy or an average, None if it is no summand.
    """

    name: str
    sources: dict[str, float | None]
    whole: bool  # whether it is the sum of these and nothing else

    @property
    def odd(self) -> str | None:
        """What it contains besides a sum of the sources, in words; None if it is their sum."""
        if other := next((source for source, factor in self.sources.items() if factor is None), None):
            return f"{other} otherwise than as a summand"
        other = "comes from no map, embedding, norm or parameter, such as what a hook adds"
        return None if self.whole else f"a sum with a part that {other}"


class Projection(nn.Module):
    """Removes the mean of a stream at a place where no weights determine it."""

    def forward(self, x: Tensor) -> Tensor:
        return center(x)


class Trace:
    """A run of ``model`` by ``call``, which returns the model's outputs as tensors.

    The output of each norm, map and embedding is detached: it is a leaf of autograd's graph, as the parameters are.  So
    the gradient of what a norm or a map reads is zero with respect to all that reaches it only through another one.

    Attributes:
        modules, parameters: of the model, by name.
        norms: what :func:`normgeom.find_norms` found in it, by name.
        given: what norms and maps were given, by name and in the order in which they ran, and what the caller got.
        used: parameters that had an effect, and names of the parameters and modules that had one on a read so far.
        rewritten: the names of the parameters that the run itself changed.
    """

    def __init__(self, model: nn.Module, sites: list[NormSite], call: Callable[[], list[Tensor]]):
        self.modules = dict(model.named_modules())
        self.parameters = {name: p for name, p in model.named_parameters() if p.is_floating_point()}
        self.norms = {site.name: site for site in sites}
        self.used: set[Tensor | str] = set()
        self._leaves = [(name, p.requires_grad_(), -1) for name, p in self.parameters.items()]
        self.given: list[tuple[str, list[Tensor]]] = []

        def cut(name: str) -> Callable:
            def leave(module, args, kwargs, output):
                if not torch.is_grad_enabled():
                    raise RuntimeError(f"{name} runs without them")
                # attention returns its weights, too
                first, others = (output, ()) if isinstance(output, Tensor) else (output[0], output[1:])
                self.used.update(_acting(module, first))
                given = [*args, *(value for key, value in kwargs.items() if "mask" not in key)]
                given = [value for value in given if isinstance(value, Tensor) and value.is_floating_point()]
                self.given.append((name, [value.clone() for value in given]))  # the model may add to them in place
                leaf = first.detach().requires_grad_()
                self._leaves.append((name, leaf, 1 - module.weight.dim() if isinstance(module, _ConvNd) else -1))
                instead = leaf.clone()  # which an operation may change in place
                detached = tree_map(lambda x: x.detach() if isinstance(x, Tensor) else x, others)
                return instead if first is output else (instead, *detached)

            return leave

        maps = {name for name, m in self.modules.items() if matrix_of(m, WRITES) or isinstance(m, Projection)}
        cuts = {m: name for name, m in self.modules.items() if name in self.norms or name in maps}
        versions = {name: parameter._version for name, parameter in self.parameters.items()}
        with torch.enable_grad(), hooked(after=[(module, cut(name)) for module, name in cuts.items()]):
            self.given.append(("", call()))
            self.rewritten = [name for name, p in self.parameters.items() if p._version != versions[name]]

    @cached_property
    def reads(self) -> list[Read]:
        """Of every call of a norm or map; the last one is that of the caller."""
        return [self.read(name, tensors) for name, tensors in self.given]

    def first(self, name: str) -> list[Tensor]:
        """What the first call of a norm or map was given."""
        return next(tensors for called, tensors in self.given if called == name)

    def read_by(self, name: str) -> Read:
        return self.read(name, self.first(name))

    @torch.enable_grad()
    def read(self, name: str, tensors: list[Tensor]) -> Read:
        """What these tensors are the sum of.

        The products of their rows with one random vector v are added up with random weights.  If a source is a summand,
        the rows of the gradient with respect to it are multiples of v: the weights times its factor.
        """
        generator = torch.Generator().manual_seed(0)

        def draw(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")

        tensors = [tensor for tensor in tensors if tensor.dim()]
        vectors = {d: draw(d) for d in dict.fromkeys(tensor.shape[-1] for tensor in tensors)}
        weights = [draw(*tensor.shape[:-1]) for tensor in tensors]
        total = sum((tensor @ vectors[tensor.shape[-1]] * w).sum() for tensor, w in zip(tensors, weights, strict=True))
        if not (tensors and total.requires_grad):
            return Read(name, {}, False)
        leaves = [leaf for _, leaf, _ in self._leaves]
        gradients = torch.autograd.grad(total, leaves, retain_graph=True, allow_unused=True)
        found: dict[str, list[Tensor | None]] = {}
        rest, size = total.detach(), 0.0
        for (source, leaf, axis), gradient in zip(self._leaves, gradients, strict=True):
            if gradient is None or not gradient.any():
                continue
            self.used.update((leaf, source))  # a scripted module's parameters are no nn.Parameter
            if leaf.dim() and leaf.shape[axis] > 1:
                found.setdefault(source, []).append(_multiples(gradient.movedim(axis, -1), vectors))
                part = (gradient * leaf.detach()).sum()
                rest, size = rest - part, size + abs(part)
        whole = bool(abs(rest) <= _TOLERANCE * size)
        count = sum(w.sum() for w in weights)
        sums = {source: None if None in parts else float(sum(parts) / count) for source, parts in found.items()}
        return Read(name, sums, whole)

    @torch.enable_grad()
    def mixes(self, name: str, entry: int) -> bool:
        """Whether this entry of the last vector that ``name`` reads depends on other rows of earlier outputs."""
        given = self.first(name)[0].flatten(0, -2)
        outputs = [leaf for _, leaf, _ in self._leaves if not isinstance(leaf, nn.Parameter)]
        gradients = torch.autograd.grad(given[-1, entry], outputs, retain_graph=True, allow_unused=True)
        found = (g.flatten(0, -2) for g in gradients if g is not None)
        # an output may have several rows for one vector, as of heads
        others = (rows[: -max(1, len(rows) // len(given))] for rows in found)
        return any(bool(rows.any()) for rows in others)


def _acting(module: nn.Module, output: Tensor) -> list[nn.Parameter]:
    """The parameters of a module that its output depends on."""
    parameters = list(module.parameters())
    if not parameters or not output.requires_grad:  # a module that computes without gradients
        return parameters
    gradients = torch.autograd.grad(output.sum(), parameters, retain_graph=True, allow_unused=True)
    return [p for p, gradient in zip(parameters, gradients, strict=True) if gradient is not None and gradient.any()]


def _multiples(rows: Tensor, vectors: dict[int, Tensor]) -> Tensor | None:
    """The sum of m if each row is m times the vector of its length; None if a row is no multiple of it."""
    if (vector := vectors.get(rows.shape[-1])) is None:
        return None
    multiples = rows @ vector / vector.square().sum()
    near = dict(rtol=_TOLERANCE, atol=_TOLERANCE * float(rows.abs().max()))
    return multiples.sum() if torch.allclose(rows, multiples[..., None] * vector, **near) else None
