"""Where a norm stands in a residual block: one block whose placement is data, a stack of them, a language model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral, Real
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from normgeom.norms.functions import LayerNorm, RMSNorm, check_floating

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    Stream = Float[Tensor, "*batch length d"]
    Shares = Float[Tensor, "*batch heads length length"]
    Ids = Int[Tensor, "batch length"]
    Logits = Float[Tensor, "batch length vocabulary"]


@dataclass(frozen=True)
class Placement:
    r"""Which of its three places hold a norm in a sublayer :math:`x\gets N_s(\alpha x+N_a(f(N_b(x))))` (eq-sublayer).

    Attributes:
        before: :math:`N_b`, on the input of the branch f.
        after: :math:`N_a`, on the output of the branch, before the addition.
        sum: :math:`N_s`, on the sum, which is then the stream itself.
        deep: whether a stack takes α and its initial gain β from :func:`deepnorm_factors` instead of 1.
    """

    before: bool = False
    after: bool = False
    sum: bool = False
    deep: bool = False


PLACEMENTS = {
    "pre": Placement(before=True),  # GPT-2, LLaMA
    "post": Placement(sum=True),  # the original transformer, BERT
    "sandwich": Placement(before=True, after=True),  # CogView, Gemma 2 and 3
    "branch-out": Placement(after=True),  # OLMo 2
    "deepnorm": Placement(sum=True, deep=True),
}
NORMS = {"layer": LayerNorm, "rms": RMSNorm, "none": lambda d, eps: nn.Identity()}
ACTIVATIONS = {"gelu": nn.GELU, "relu": nn.ReLU}


def deepnorm_factors(layers: int) -> tuple[float, float]:
    r"""DeepNorm's :math:`\alpha=(2M)^{1/4}` and :math:`\beta=(8M)^{-1/4}` for a decoder of M layers, as ``(α, β)``
    (eq-deepnorm).

    α multiplies the stream in each sublayer; β is the initial gain of both matrices of the MLP, of the values' and of
    the attention's output.

    Raises:
        TypeError: ``layers`` is not an integer.
        ValueError: ``layers`` is below 1.

    Source: Wang et al. (2022).
    """
    _check(Integral, 1, layers=layers)
    return (2 * layers) ** 0.25, (8 * layers) ** -0.25


class Attention(nn.Module):
    """Self-attention over ``(..., length, d)``; the rows of ``in_proj`` are those of queries, keys and values.

    Weights are named and shaped as in ``torch.nn.MultiheadAttention``.  The softmax is written out because the fused
    kernel has neither a forward mode nor a second derivative on the CPU.
    """

    def __init__(self, d: int, heads: int, causal: bool):
        super().__init__()
        self.in_proj, self.out_proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.heads, self.causal = heads, causal

    def forward(self, x: Stream) -> Stream:
        shares, v = self._attend(x)
        return self.out_proj((shares @ v).transpose(-3, -2).flatten(-2))

    def shares(self, x: Stream) -> Shares:
        """How much each position takes of which, ``(..., heads, length, length)``; rows add up to 1."""
        return self._attend(x)[0]

    def _attend(self, x: Stream) -> tuple[Shares, Tensor]:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(-3, -2) for t in self.in_proj(x).chunk(3, -1))
        scores = (q / math.sqrt(q.shape[-1])) @ k.mT
        if self.causal:
            later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
            scores = scores.masked_fill(later, -math.inf)
        return scores.softmax(-1), v


class Sublayer(nn.Module):
    """A branch and the stream around it: ``x`` becomes ``sum(alpha * x + after(branch(before(x))))``.

    The three norms are modules over the last axis; where the placement has none, an ``nn.Identity`` stands.
    """

    def __init__(self, d: int, branch: nn.Module, rule: Placement, norm: str, eps: float, alpha: float):
        super().__init__()
        self.d, self.alpha = d, alpha
        self.before, self.after, self.sum = (
            NORMS[norm if present else "none"](d, eps=eps) for present in (rule.before, rule.after, rule.sum)
        )
        self.branch = branch

    def forward(self, x: Stream) -> Stream:
        check_floating("x", x)
        if x.dim() < 2 or x.shape[-1] != self.d:
            raise ValueError(f"x: expected shape (..., length, {self.d}), got {tuple(x.shape)}")
        return self.sum(self.alpha * x + self.after(self.branch(self.before(x))))


class Block(nn.Module):
    """Attention and MLP, each a residual :class:`Sublayer`, with norms where ``placement`` puts them.

    Maps ``(..., length, d)`` to the same shape in the dtype of its weights.  All matrices start Xavier-normal, those of
    queries, keys and values each as a matrix of its own, and all biases at 0.  There is no dropout.  With one seed
    every placement and norm starts from the same weights, up to ``beta``.

    Args:
        d: width of the stream.
        heads: of the attention; they divide ``d``.
        placement: a key of ``PLACEMENTS``.
        norm: ``"layer"``, ``"rms"`` or ``"none"``.
        hidden: width of the MLP; 4d if None.
        eps: ε of every norm.
        alpha: α, by which both sublayers multiply the stream.  A block does not know its depth: that of ``"deepnorm"``
            is passed by :class:`Stack`.
        causal: whether a position sees only itself and those before it.
        activation: of the MLP, ``"gelu"`` or ``"relu"``.
        beta: initial gain of the MLP's two matrices, of the values' and of the attention's output.

    Raises:
        TypeError: a size is not an integer, or ``eps``, ``alpha`` or ``beta`` not a number; when called, ``x`` is not
            a floating-point tensor.
        ValueError: a size below 1, ``heads`` that do not divide ``d``, an unknown name, or a number that is negative
            or not finite; when called, a wrong shape of ``x``.

    Sources: Xiong et al. (2020) on pre and post; Wang et al. (2022) on DeepNorm.
    """

    def __init__(
        self,
        d: int,
        heads: int,
        placement: str = "pre",
        norm: str = "layer",
        hidden: int | None = None,
        eps: float = 1e-5,
        alpha: float = 1.0,
        causal: bool = True,
        activation: str = "gelu",
        beta: float = 1.0,
    ):
        super().__init__()
        _check(Integral, 1, d=d, heads=heads)
        hidden = 4 * d if hidden is None else hidden
        _check(Integral, 1, hidden=hidden)
        if d % heads:
            raise ValueError(f"heads: expected a divisor of d = {d}, got {heads}")
        _check(Real, 0, eps=eps, alpha=alpha, beta=beta)
        rule = _choose("placement", placement, PLACEMENTS)
        _choose("norm", norm, NORMS)
        act = _choose("activation", activation, ACTIVATIONS)
        mlp = nn.Sequential(nn.Linear(d, hidden), act(), nn.Linear(hidden, d))
        self.attention = Sublayer(d, Attention(d, heads, causal), rule, norm, eps, alpha)
        self.mlp = Sublayer(d, mlp, rule, norm, eps, alpha)
        self._initialise(beta)

    def _initialise(self, beta: float) -> None:
        in_proj, *others = (module for module in self.modules() if isinstance(module, nn.Linear))
        q, k, v = in_proj.weight.detach().chunk(3)
        for matrix, gain in ((q, 1.0), (k, 1.0), (v, beta), *((linear.weight, beta) for linear in others)):
            nn.init.xavier_normal_(matrix, gain)
        for linear in (in_proj, *others):
            nn.init.zeros_(linear.bias)

    def forward(self, x: Stream) -> Stream:
        return self.mlp(self.attention(x))


class Stack(nn.Module):
    """``layers`` equal blocks and a final norm: ``(..., length, d)`` to the same shape.

    α and β are 1 but for ``"deepnorm"``, where :func:`deepnorm_factors` gives them.

    Args:
        layers: how many blocks.
        final_norm: whether a norm follows the last block; if None, unless the placement leaves one there anyway
            (``"post"`` and ``"deepnorm"``).

    The other arguments, and the errors, are those of :class:`Block`; ``final_norm`` or ``layers`` of another type is
    a TypeError too, and ``layers`` below 1 a ValueError.
    """

    def __init__(
        self,
        d: int,
        heads: int,
        layers: int,
        placement: str = "pre",
        norm: str = "layer",
        final_norm: bool | None = None,
        hidden: int | None = None,
        eps: float = 1e-5,
        activation: str = "gelu",
        causal: bool = True,
    ):
        super().__init__()
        _check(Integral, 1, layers=layers)
        rule = _choose("placement", placement, PLACEMENTS)
        if not isinstance(final_norm, bool | None):
            raise TypeError(f"final_norm: expected True, False or None, got {type(final_norm).__name__}")
        alpha, beta = deepnorm_factors(layers) if rule.deep else (1.0, 1.0)
        rest = (placement, norm, hidden, eps, alpha, causal, activation, beta)
        self.blocks = nn.ModuleList([Block(d, heads, *rest) for _ in range(layers)])
        ends = not rule.sum if final_norm is None else final_norm
        self.d, self.final = d, NORMS[norm if ends else "none"](d, eps=eps)

    def forward(self, x: Stream) -> Stream:
        for block in self.blocks:
            x = block(x)
        return self.final(x)

    @property
    def sublayers(self) -> list[Sublayer]:
        """Attention and MLP of each block, in the order in which the stream passes them."""
        return [sublayer for block in self.blocks for sublayer in (block.attention, block.mlp)]

    def streams(self, x: Stream) -> list[Stream]:
        """``x`` and the stream after each sublayer, ``2 * layers + 1`` tensors; the final norm is not applied."""
        streams = [x]
        for sublayer in self.sublayers:
            streams.append(sublayer(streams[-1]))
        return streams


class LanguageModel(nn.Module):
    """Token and learned position embeddings, a stack, and a linear head, untied and without bias.

    Maps ids ``(batch, length)`` to logits ``(batch, length, vocabulary)``.

    Args:
        vocabulary: number of tokens.
        length: the longest input.
        stack: used as it is, not copied.
        scale: initial standard deviation of both embeddings and of the head.

    Raises:
        TypeError: a size is not an integer, ``stack`` not a :class:`Stack`, or ``scale`` not a number; when called,
            ``ids`` are not integers.
        ValueError: a size below 1, or ``scale`` negative or not finite; when called, ``ids`` not of two dimensions or
            longer than ``length``.
        IndexError: when called, an id outside of the vocabulary (torch's own error).
    """

    def __init__(self, vocabulary: int, length: int, stack: Stack, scale: float = 0.02):
        super().__init__()
        _check(Integral, 1, vocabulary=vocabulary, length=length)
        _check(Real, 0, scale=scale)
        if not isinstance(stack, Stack):
            raise TypeError(f"stack: expected a Stack, got {type(stack).__name__}")
        self.tokens, self.positions = nn.Embedding(vocabulary, stack.d), nn.Embedding(length, stack.d)
        self.stack, self.head = stack, nn.Linear(stack.d, vocabulary, bias=False)
        for module in (self.tokens, self.positions, self.head):
            nn.init.normal_(module.weight, std=scale)

    def forward(self, ids: Ids) -> Logits:
        if not isinstance(ids, Tensor) or ids.is_floating_point() or ids.dtype == torch.bool:
            raise TypeError(f"ids: expected a tensor of integers, got {getattr(ids, 'dtype', type(ids).__name__)}")
        limit = self.positions.num_embeddings
        if ids.dim() != 2 or ids.shape[1] > limit:
            raise ValueError(f"ids: expected shape (batch, length) with length at most {limit}, got {tuple(ids.shape)}")
        return self.head(self.stack(self.tokens(ids) + self.positions.weight[: ids.shape[1]]))


def _check(kind: type, least: int, **values: float) -> None:
    for name, value in values.items():
        if not isinstance(value, kind) or isinstance(value, bool):
            expected = "an integer" if kind is Integral else "a number"
            raise TypeError(f"{name}: expected {expected}, got {type(value).__name__}")
        if not least <= value < math.inf:
            raise ValueError(f"{name}: expected a finite number >= {least}, got {value}")


def _choose(argument: str, name: str, known: dict):
    if not isinstance(name, str) or name not in known:
        raise ValueError(f"{argument}: expected one of {', '.join(map(repr, known))}, got {name!r}")
    return known[name]
