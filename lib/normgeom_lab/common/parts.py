"""A model's final stream as the sum of what its parts wrote, and the norm and head that read it."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import NamedTuple

import torch
from normgeom.models.held import gain_and_bias
from normgeom.models.sites import find_norms
from normgeom.models.watch import evaluating, forward, hooked
from normgeom.norms.formula import center, rstd, upcast
from torch import Tensor, nn

from normgeom_lab.common.checks import Draws
from normgeom_lab.common.stream import blocks, final_norm, head_of, writers


class Run(NamedTuple):
    """A run of a pre-norm model: the stream before each block and before the final norm, its output, the logits."""

    streams: list[Tensor]
    normalized: Tensor
    logits: Tensor


def followed(model: nn.Module, ids: Tensor) -> Run:
    """Run a model on ``ids`` ``(batch, length)``, in evaluation mode and without gradients, and keep its stream."""
    return _watched(model, ids)[0]


def components(model: nn.Module, ids: Tensor) -> dict[str, Tensor]:
    """What each of :func:`writers` adds to the stream in one run, ``(batch, length, d)`` each (eq-residual-sum).

    The sum up to the end of a block, parallel or not, is the stream there; that of all is the final norm's input.
    """
    run, written = _watched(model, ids)
    end = run.streams[-1]
    return {name: y.reshape(-1, *end.shape[1:]).expand_as(end) for name, y in written.items()}


def _watched(model: nn.Module, ids: Tensor) -> tuple[Run, dict[str, Tensor]]:
    final, named, streams, put_out = final_norm(model), writers(model), [], {}

    def enter(module, args, kwargs):
        streams.append(args[0] if args else kwargs["hidden_states"])

    def leave(module, args, kwargs, output):
        put_out[module] = output

    before = [(module, enter) for module in (*blocks(model), final)]
    with evaluating(model), hooked(before, [(module, leave) for module in (final, *named.values())]):
        logits = forward(model, ids).logits
    return Run(streams, put_out[final], logits), {name: put_out[module] for name, module in named.items()}


@dataclass(frozen=True)
class Readout:
    r"""The final norm and the head, :math:`z=W_U(\gamma\odot n+\beta)+b_U`."""

    gain: Tensor
    bias: Tensor
    eps: float
    centered: bool
    unembedding: Tensor
    head_bias: Tensor

    @classmethod
    def of(cls, model: nn.Module) -> Readout:
        norm, head = final_norm(model), head_of(model)
        site = next(site for site in find_norms(model) if site.module is norm)
        gain, bias, unembedding = (upcast(p.detach()) for p in (*gain_and_bias(site), head.weight))
        head_bias = unembedding.new_zeros(len(unembedding)) if head.bias is None else upcast(head.bias.detach())
        return cls(gain, bias, site.eps, site.kind == "layer", unembedding, head_bias)

    @property
    def constant(self) -> Tensor:
        r"""The logits' constant, to which no part contributes: :math:`W_U\beta+b_U`, ``(vocabulary,)``."""
        return self.unembedding @ self.bias + self.head_bias

    def scale(self, x: Tensor) -> Tensor:
        """The scale s, for RMSNorm r, of the streams ``x``: ``(..., 1)``."""
        return 1 / rstd(self.projected(x), self.eps)

    def projected(self, x: Tensor) -> Tensor:
        """Πx; for RMSNorm x itself."""
        return center(upcast(x)) if self.centered else upcast(x)

    def logits(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
        """The logits ``(..., vocabulary)`` of the stream ``x``, which is divided by its own scale or by a given one."""
        scale = self.scale(x) if scale is None else scale
        return (self.gain * self.projected(x) / scale + self.bias) @ self.unembedding.T + self.head_bias

    def direction(self, tokens: Tensor) -> Tensor:
        r""":math:`GW_U^\top(e_t-\mathbf 1/\lvert V\rvert)`, ``(..., d)``: its product with n is the logit of each token
        ``(...)`` minus the mean logit, up to a constant (prop-logit-gauge)."""
        return self.gain * (self.unembedding[tokens] - self.unembedding.mean(0))


class Effects(NamedTuple):
    r"""Three measures of what a part c of x does to :math:`w^\top n(x)`, and what relates them; each ``(...)``."""

    frozen: Tensor
    removed: Tensor
    slope: Tensor
    share: Tensor
    ratio: Tensor


def effects(c: Tensor, x: Tensor, w: Tensor, eps: float, centered: bool = True) -> Effects:
    """What the part ``c`` of the stream ``x`` does to the number that ``w`` reads from the normalised vector."""
    d = x.shape[-1]
    c, x, w = torch.broadcast_tensors(upcast(c), upcast(x), upcast(w))
    if centered:
        c, x = center(c), center(x)
    per_unit = rstd(x, eps)
    n, read = x * per_unit, torch.linalg.vecdot(w, c * per_unit)
    whole, share = torch.linalg.vecdot(w, n), torch.linalg.vecdot(n, c * per_unit) / d
    ratio = (per_unit / rstd(x - c, eps)).squeeze(-1)
    return Effects(read, whole - (whole - read) / ratio, read - share * whole, share, ratio)


def drawn_case(draw: Draws, d: int, parts: int, centered: bool) -> tuple[Tensor, Tensor, Readout]:
    """Random parts of twenty streams, ``(parts, 20, d)``, their sums, and a random readout; so short that ε matters.

    The parts have nonzero means, and the middle coordinate of the first is large.
    """
    eps = draw.eps(1e-6, 1e-3)
    pieces = eps**0.5 * (draw(parts, 20, d) + 0.5)
    pieces[0, :, d // 2] += 10 * eps**0.5
    return pieces, pieces.sum(0), Readout(draw.gain(d), draw(d), eps, centered, draw(30, d), draw(30))


def shifted(model: nn.Module, c: float) -> nn.Module:
    """A copy that shares the other parameters, with ``c`` added to each entry of its token embedding.

    If every reader of the stream comes after a LayerNorm, the copy computes the same function (prop-gauge).  A head
    that shares the embedding's weight keeps the original weight.
    """
    model = sharing(model)
    embedding = model.get_input_embeddings()
    embedding.weight = nn.Parameter(embedding.weight.detach() + c)
    return model


def sharing(model: nn.Module) -> nn.Module:
    """A copy with the same parameters."""
    return copy.deepcopy(model, {id(parameter): parameter for parameter in model.parameters()})
