"""The final residual stream as a sum of what was written to it, and what its norm makes of each part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from normgeom.checks import Draws
from normgeom.models.calls import evaluating, forward
from normgeom.models.layouts import layout_of
from normgeom.models.sites import find_norms
from normgeom.norms.formula import center, rate, widen

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    Ids = Int[Tensor, "batch length"]
    Stream = Float[Tensor, "*batch d"]
    Numbers = Float[Tensor, "*batch"]


def writers(model: nn.Module) -> dict[str, nn.Module]:
    """The modules that write to the stream, in the order of the sum (eq-residual-sum).

    Returns:
        embeddings by the last part of their name (``"wte"``, ``"wpe"``, …), then ``"a1"``, ``"m1"``, ``"a2"``, …: the
        last linear maps of attention and MLP, blocks counted from 1 as in the equation.

    Raises:
        ValueError: no layout of the model is known (:func:`normgeom.models.layouts.layout_of`).
    """
    layout = layout_of(model)
    first = len(layout.embeddings)
    named = layout.writers_of(model)
    embeddings = {name.rpartition(".")[2]: module for name, module in named[:first]}
    return embeddings | {f"{'am'[i % 2]}{i // 2 + 1}": module for i, (_, module) in enumerate(named[first:])}


def components(model: nn.Module, ids: Ids) -> dict[str, Stream]:
    """What each writer adds to the stream, in one run; together the input of the final norm (eq-residual-sum).

    Args:
        model: that :func:`normgeom.models.layouts.layout_of` knows; runs in evaluation mode, without gradients.
        ids: ``(batch, length)``.

    Returns:
        ``(batch, length, d)`` for each name of :func:`writers`, in that order, in the model's dtype and on its device.
        The sum of the first parts up to ``a_l`` or ``m_l`` is the stream there, also where blocks are parallel.

    Raises:
        ValueError: no layout is known, or the parts do not add up: something else writes to the stream.
    """
    named, final = writers(model), model.get_submodule(layout_of(model).final)
    written = {}

    def enter(norm, args):
        written[norm] = args[0]

    def leave(module, args, output):
        written[module] = output

    handles = [final.register_forward_pre_hook(enter)]
    handles += [module.register_forward_hook(leave) for module in named.values()]
    try:
        with evaluating(model):
            forward(model, ids)
    finally:
        for handle in handles:
            handle.remove()
    end = written[final]
    parts = {name: written[module].reshape(-1, *end.shape[1:]).expand_as(end) for name, module in named.items()}
    missing = float((sum(parts.values()) - end).abs().max())
    largest = float(sum(part.abs() for part in parts.values()).max())
    if not missing <= len(parts) * torch.finfo(end.dtype).eps * largest:  # half for the model's sum, half for this one
        raise ValueError(
            f"model: the parts of this {type(model).__name__}'s stream miss its final norm's input by {missing:.2g}: "
            "something else writes to the stream"
        )
    return parts


def lengths(parts: Mapping[str, Stream]) -> dict[str, float]:
    """How long the sum of some parts ``(..., d)`` is, and how long it would be if they were orthogonal or all pointed
    one way: means over the leading axes."""
    each = torch.stack([part.norm(dim=-1) for part in parts.values()])
    return {
        "the sum": float(sum(parts.values()).norm(dim=-1).mean()),
        "if orthogonal": float(each.square().sum(0).sqrt().mean()),
        "if all along one line": float(each.sum(0).mean()),
    }


class Run(NamedTuple):
    r"""One run of a pre-norm model, followed along its stream.

    Attributes:
        streams: :math:`h^0,\dots,h^L`, ``(batch, length, d)`` each: what enters each block, then the final norm.
        normalized: what leaves the final norm, ``(batch, length, d)``.
        logits: ``(batch, length, vocabulary)``.
    """

    streams: list[Stream]
    normalized: Stream
    logits: Tensor


def followed(model: nn.Module, ids: Ids) -> Run:
    """Run a model on ``ids`` ``(batch, length)`` and keep its stream before each block and around its final norm.

    It runs in evaluation mode, without gradients; what is kept has its dtype and is on its device.

    Raises:
        ValueError: no layout of the model is known (:func:`normgeom.models.layouts.layout_of`).
    """
    layout = layout_of(model)
    final = model.get_submodule(layout.final)
    streams, ends = [], []

    def enter(module, args, kwargs):
        streams.append(args[0] if args else kwargs["hidden_states"])

    handles = [final.register_forward_hook(lambda norm, args, output: ends.append(output))]
    for module in (*model.get_submodule(layout.blocks), final):
        handles.append(module.register_forward_pre_hook(enter, with_kwargs=True))
    try:
        with evaluating(model):
            logits = forward(model, ids).logits
    finally:
        for handle in handles:
            handle.remove()
    return Run(streams, ends[0], logits)


@contextmanager
def silenced(model: nn.Module, name: str) -> Iterator[None]:
    """While the block runs, the writer ``name`` of :func:`writers` adds zero, and all that comes later reacts to it.

    Raises:
        ValueError: no layout is known, or ``name`` is none of its writers.
    """
    named = writers(model)
    if name not in named:
        raise ValueError(f"name: expected one of {', '.join(named)}, got {name!r}")
    handle = named[name].register_forward_hook(lambda module, args, output: torch.zeros_like(output))
    try:
        yield
    finally:
        handle.remove()


@dataclass(frozen=True)
class Readout:
    r"""The final norm and the head, :math:`z=W_U(\gamma\odot n+\beta)+b_U`.

    Attributes:
        gain: γ as it acts, ``(d,)``; 1 + weight for Gemma.
        bias: β, ``(d,)``, zeros where there is none.
        eps: ε, inside the root.
        centered: True for LayerNorm, False for RMSNorm.
        unembedding: :math:`W_U`, ``(vocabulary, d)``.
        head_bias: :math:`b_U`, ``(vocabulary,)``, zeros where there is none.
    """

    gain: Tensor
    bias: Tensor
    eps: float
    centered: bool
    unembedding: Tensor
    head_bias: Tensor

    @classmethod
    def of(cls, model: nn.Module) -> Readout:
        """The readout of a model that :func:`normgeom.models.layouts.layout_of` knows; kind and ε by behaviour.

        Raises:
            ValueError: no layout of the model is known.
        """
        layout = layout_of(model)
        norm, head = model.get_submodule(layout.final), model.get_submodule(layout.head)
        site = next(site for site in find_norms(model) if site.module is norm)
        gain, unembedding = widen(norm.weight.detach()) + layout.offset, widen(head.weight.detach())
        biases = [
            unembedding.new_zeros(size) if bias is None else widen(bias.detach())
            for bias, size in zip((getattr(norm, "bias", None), head.bias), reversed(unembedding.shape), strict=True)
        ]
        return cls(gain, biases[0], site.eps, site.kind == "layer", unembedding, biases[1])

    @property
    def constant(self) -> Tensor:
        r"""What no part of the stream has written: :math:`W_U\beta+b_U`, ``(vocabulary,)``."""
        return self.unembedding @ self.bias + self.head_bias

    def scale(self, x: Stream) -> Tensor:
        """s, for RMSNorm r, of the streams ``x``: ``(..., 1)``."""
        return 1 / rate(self.projected(x), self.eps)

    def projected(self, x: Stream) -> Stream:
        """Πx; for RMSNorm x itself."""
        return center(widen(x)) if self.centered else widen(x)

    def logits(self, x: Stream, scale: Tensor | None = None) -> Tensor:
        """The logits of the stream ``x``, ``(..., vocabulary)``, divided by its own scale or by a given one."""
        scale = self.scale(x) if scale is None else scale
        return (self.gain * self.projected(x) / scale + self.bias) @ self.unembedding.T + self.head_bias

    def direction(self, tokens: Tensor) -> Stream:
        r""":math:`GW_U^\top(e_t-\mathbf 1/\lvert V\rvert)`, ``(..., d)``: along which n raises the logit of each token
        ``(...)`` above the mean logit (prop-logit-gauge)."""
        return self.gain * (self.unembedding[tokens] - self.unembedding.mean(0))


class Effects(NamedTuple):
    r"""Four answers to what a part c of x does to :math:`w^\top n(x)`; each ``(...)``.

    Attributes:
        frozen: :math:`w^\top\Pi c/s`, with the scale held at that of x (eq-attribution).
        removed: :math:`w^\top n(x)-w^\top n(x-c)`, exactly (eq-removal).
        slope: the derivative along c (prop-slopes).
        share: :math:`\kappa=\langle n,c\rangle/(ds)`, the part's share of the scale (prop-shares).
        ratio: :math:`s(x-c)/s(x)` (eq-scale-ratio).
    """

    frozen: Numbers
    removed: Numbers
    slope: Numbers
    share: Numbers
    ratio: Numbers


def effects(c: Stream, x: Stream, w: Stream, eps: float, centered: bool = True) -> Effects:
    """What the part ``c`` of the stream ``x`` does to the number that ``w`` reads from the normalised vector.

    Args:
        c, x, w: ``(..., d)``, floating point, that broadcast; for logits ``w`` contains the gain
            (:meth:`Readout.direction`).
        eps: ε ≥ 0, inside the root.
        centered: True for LayerNorm, False for RMSNorm.
    """
    d = x.shape[-1]
    c, x, w = torch.broadcast_tensors(widen(c), widen(x), widen(w))
    if centered:
        c, x = center(c), center(x)
    per_unit = rate(x, eps)
    n, read = x * per_unit, torch.linalg.vecdot(w, c * per_unit)
    whole, share = torch.linalg.vecdot(w, n), torch.linalg.vecdot(n, c * per_unit) / d
    ratio = (per_unit / rate(x - c, eps)).squeeze(-1)
    return Effects(read, whole - (whole - read) / ratio, read - share * whole, share, ratio)


class Case(NamedTuple):
    """Streams in parts and what reads them, all drawn (:func:`drawn_case`).

    Attributes:
        pieces: ``(parts, 20, d)``.
        x: their sum, ``(20, d)``.
        readout: of 30 tokens.
    """

    pieces: Stream
    x: Stream
    readout: Readout


def drawn_case(draw: Draws, d: int, parts: int, centered: bool) -> Case:
    """Twenty streams of so many parts, with means, so short that ε counts; gain, bias, ε and head are drawn as well.

    The first part is large in the middle coordinate.

    Raises:
        ValueError: fewer than 2 parts, or d below 3.
    """
    if parts < 2 or d < 3:
        raise ValueError(f"parts, d: expected at least 2 and 3, got {parts} and {d}")
    eps = draw.eps(1e-6, 1e-3)
    pieces = eps**0.5 * (draw(parts, 20, d) + 0.5)
    pieces[0, :, d // 2] += 10 * eps**0.5
    return Case(pieces, pieces.sum(0), Readout(draw.gain(d), draw(d), eps, centered, draw(30, d), draw(30)))
