"""Stacks of blocks whose norms stand in different places, and language models of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import TYPE_CHECKING

import torch
from normgeom.norms.elementwise import Derf, DyT
from normgeom.norms.functions import LayerNorm, RMSNorm, check_floating
from normgeom.norms.heads import HeadGain, HeadNorm
from torch import Tensor, nn

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    Stream = Float[Tensor, "*batch length d"]
    Shares = Float[Tensor, "*batch heads length length"]
    Ids = Int[Tensor, "batch length"]
    Logits = Float[Tensor, "batch length vocabulary"]


@dataclass(frozen=True)
class Placement:
    r"""The norms of a sublayer :math:`x\gets N_s(\alpha x+N_a(f(\lambda N_b(x))))` (eq-any-sublayer, eq-sublayer).

    Attributes:
        before: :math:`N_b`, on the input of the branch f.
        after: :math:`N_a`, on the output of the branch, before the addition.
        sum: :math:`N_s`, on the sum, which is then the stream itself.
        deep: whether a stack takes α and its initial gain β from :func:`deepnorm_factors` instead of 1.
        heads: which of the letters q, k, v have a norm in every head of attention.
        alpha: α, if the stack does not say otherwise.
        scale: λ, on the output of :math:`N_b`.
        step: where the stream is kept on a sphere, the step size a at first in
            :math:`x\gets N_s(x+a\odot(N_a(f(x))-x))`; norms have no gain then.
        output: factor on the initial output matrix of the branch, W_O or W₂.
    """

    before: bool = False
    after: bool = False
    sum: bool = False
    deep: bool = False
    heads: str = ""
    alpha: float = 1.0
    scale: float = 1.0
    step: float | None = None
    output: float = 1.0


Pair = tuple[Placement, Placement]  # of a block's attention and of its MLP

PLACEMENTS = {
    "pre": Placement(before=True),  # GPT-2, LLaMA
    "post": Placement(sum=True),  # the original transformer, BERT
    "sandwich": Placement(before=True, after=True),  # CogView, Gemma 2 and 3
    "branch-out": Placement(after=True),  # OLMo 2
    "deepnorm": Placement(sum=True, deep=True),
}

_PRE, _POST = PLACEMENTS["pre"], PLACEMENTS["post"]

SPHERE = Placement(after=True, sum=True, heads="qk", step=0.05)


def _mix(block: int, blocks: int) -> Pair:
    """Post-norm in the first quarter of the blocks, pre-norm in the others."""
    return (_POST if block <= blocks // 4 else _PRE,) * 2


def _hybrid(_block: int, _blocks: int) -> Pair:
    """Norms of queries, keys and values, and of the stream between attention and MLP."""
    return replace(_POST, heads="qkv"), Placement()


def _scaled(block: int, _blocks: int) -> Pair:
    """Pre-norm, the norms' outputs divided by the root of the block's number."""
    return (replace(_PRE, scale=block**-0.5),) * 2


def _keel(block: int, blocks: int) -> Pair:
    """Norms before the branch and on the sum, which keeps the stream times the number of sublayers."""
    rule = Placement(before=True, sum=True, alpha=2.0 * blocks)
    return (_PRE, replace(rule, alpha=1.0)) if block == 1 else (rule, rule)


def _small_outputs(rules: Callable[[int, int], Pair]) -> Callable[[int, int], Pair]:
    """A design whose output matrices start smaller by the root of the number of sublayers, as GPT-2's do."""
    return lambda block, blocks: tuple(replace(rule, output=(2 * blocks) ** -0.5) for rule in rules(block, blocks))


# Name → the rules of a block, by its number from 1 and how many there are.
DESIGNS: dict[str, Callable[[int, int], Pair]] = {
    "mix": _mix,  # Mix-LN
    "hybrid": _hybrid,  # HybridNorm
    "scaled": _scaled,  # LayerNorm scaling
    "keel": _keel,  # Keel
    "qk": lambda _block, _blocks: (replace(_PRE, heads="qk"), _PRE),  # pre-norm with QK-norm: Qwen 3
    "sphere": lambda _block, _blocks: (SPHERE, replace(SPHERE, heads="")),  # nGPT
    # Controls: the start without the placement, α without Keel's other norm, that norm without α.
    "post-small": _small_outputs(lambda _block, _blocks: (_POST, _POST)),
    "hybrid-small": _small_outputs(_hybrid),  # HybridNorm as its authors start it
    "post-alpha": lambda _block, blocks: (replace(_POST, alpha=2.0 * blocks),) * 2,
    "pre-post": lambda _block, _blocks: (replace(_PRE, sum=True),) * 2,
}


def rules_of(placement: str, layers: int) -> list[Pair]:
    """The rules of attention and MLP of each of ``layers`` blocks.

    Args:
        placement: a key of :data:`PLACEMENTS` or :data:`DESIGNS`.

    Raises:
        ValueError: another name.
    """
    known = choose("placement", placement, PLACEMENTS | DESIGNS)
    if isinstance(known, Placement):
        return [(known, known)] * layers
    return [known(block + 1, layers) for block in range(layers)]


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
    check(Integral, 1, layers=layers)
    return (2 * layers) ** 0.25, (8 * layers) ** -0.25


def check(kind: type, least: int, **values: float) -> None:
    """Raise an error that names the argument unless each value is a finite number of a kind, at least ``least``."""
    for name, value in values.items():
        if not isinstance(value, kind) or isinstance(value, bool):
            expected = "a number" if kind is Real else "an integer"
            raise TypeError(f"{name}: expected {expected}, got {type(value).__name__}")
        if not least <= value < math.inf:
            raise ValueError(f"{name}: expected a finite number >= {least}, got {value}")


def choose(argument: str, name: str, known: dict):
    """What stands under a name, or an error that lists those that are known."""
    if not isinstance(name, str) or name not in known:
        raise ValueError(f"{argument}: expected one of {', '.join(map(repr, known))}, got {name!r}")
    return known[name]


# What may stand in a norm's place, by name; "dyt" and "derf" are no norms.
NORMS = {
    "layer": LayerNorm,
    "rms": RMSNorm,
    "none": lambda d, eps: nn.Identity(),
    "dyt": lambda d, eps: DyT(d),
    "derf": lambda d, eps: Derf(d),
}

ACTIVATIONS = {"gelu": nn.GELU, "relu": nn.ReLU}


class Attention(nn.Module):
    """Self-attention over ``(..., length, d)``; the rows of ``in_proj`` are those of queries, keys and values.

    Weights are named and shaped as in ``torch.nn.MultiheadAttention``.  The softmax is written out because the fused
    kernel has neither a forward mode nor a second derivative on the CPU.  ``norms`` are those of ``"q"``, ``"k"`` and
    ``"v"``, ``(..., d)`` to the same shape, where there are any.
    """

    def __init__(self, d: int, heads: int, causal: bool, norms: dict[str, nn.Module] | None = None):
        super().__init__()
        self.in_proj, self.out_proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.heads, self.causal = heads, causal
        self.norms = nn.ModuleDict(norms or {})

    def forward(self, x: Stream) -> Stream:
        shares, v = self._attend(x)
        return self.out_proj((shares @ v).transpose(-3, -2).flatten(-2))

    def shares(self, x: Stream) -> Shares:
        """How much each position takes of which, ``(..., heads, length, length)``; rows add up to 1."""
        return self._attend(x)[0]

    def scores(self, x: Stream) -> Shares:
        """What the softmax is taken of, ``(..., heads, length, length)``; −∞ where a position is not seen."""
        return self._scores(x)[0]

    def _attend(self, x: Stream) -> tuple[Shares, Tensor]:
        scores, v = self._scores(x)
        return scores.softmax(-1), v

    def _scores(self, x: Stream) -> tuple[Shares, Tensor]:
        read = dict(zip("qkv", self.in_proj(x).chunk(3, -1), strict=True))
        read |= {letter: norm(read[letter]) for letter, norm in self.norms.items()}
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(-3, -2) for t in read.values())
        scores = (q / math.sqrt(q.shape[-1])) @ k.mT
        if self.causal:
            later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
            scores = scores.masked_fill(later, -math.inf)
        return scores, v


class Sublayer(nn.Module):
    """A branch and the stream around it: ``x`` becomes ``sum(alpha * x + after(branch(scale * before(x))))``.

    The three norms are modules over the last axis; where the placement has none, an ``nn.Identity`` stands.  On the
    sphere ``x`` becomes ``sum(x + step * (after(branch(x)) - x))``, with norms to length √d and without gain, and
    ``step`` the absolute value of one learned number a coordinate.
    """

    def __init__(self, d: int, branch: nn.Module, rule: Placement, norm: str, eps: float, alpha: float):
        super().__init__()
        self.d, self.alpha, self.scale = d, alpha, rule.scale
        make = NORMS[norm] if rule.step is None else _unit
        self.before, self.after, self.sum = (
            make(d, eps=eps) if present else nn.Identity() for present in (rule.before, rule.after, rule.sum)
        )
        self.branch = branch
        # as for HeadGain: stored in units in which Adam's steps are the authors'
        self.steps = None if rule.step is None else nn.Parameter(torch.full((d,), d**-0.5))
        self.unit = None if rule.step is None else rule.step * d**0.5

    @property
    def step(self) -> Tensor | float:
        """How far along its branch the stream goes: 1, or on the sphere ``(d,)``, not negative."""
        return 1.0 if self.steps is None else (self.unit * self.steps).abs()

    def forward(self, x: Stream) -> Stream:
        check_floating("x", x)
        if x.dim() < 2 or x.shape[-1] != self.d:
            raise ValueError(f"x: expected shape (..., length, {self.d}), got {tuple(x.shape)}")
        return self.sum(self.joined(x, self.after(self.branch(self.read(x)))))

    def read(self, x: Stream) -> Stream:
        """What the branch is given."""
        return self.before(x) if self.scale == 1 else self.scale * self.before(x)

    def joined(self, x: Stream, added: Stream) -> Stream:
        """The stream and what is added to it, before the norm on the sum."""
        return self.alpha * x + added if self.steps is None else x + self.step * (added - x)


def _unit(d: int, eps: float) -> RMSNorm:
    return RMSNorm(d, eps=eps, elementwise_affine=False)


class Block(nn.Module):
    """Attention and MLP, each a residual :class:`Sublayer`, with norms where ``placement`` puts them.

    Maps ``(..., length, d)`` to the same shape in the dtype of its weights.  All matrices start Xavier-normal, those of
    queries, keys and values each as a matrix of its own, and all biases at 0.  There is no dropout.  With one seed
    every placement and norm starts from the same weights, up to ``beta`` and the rules' ``output``.

    Args:
        d: width of the stream.
        heads: of the attention; they divide ``d``.
        placement: a key of ``PLACEMENTS``, or the rules of attention and MLP.
        norm: a key of ``NORMS``; in the heads, RMSNorm stands for those that are no norm.
        hidden: width of the MLP; 4d if None.
        eps: ε of every norm.
        alpha: α, by which both sublayers multiply the stream; 1 if None.  A block does not know its depth, so for
            ``"deepnorm"`` it has to be given: :class:`Stack` gives it.
        causal: whether a position sees only itself and those before it.
        activation: of the MLP, ``"gelu"`` or ``"relu"``.
        beta: initial gain of the MLP's two matrices, of the values' and of the attention's output.

    Raises:
        TypeError: a size is not an integer, or ``eps``, ``alpha`` or ``beta`` not a number; when called, ``x`` is not
            a floating-point tensor.
        ValueError: a size below 1, ``heads`` that do not divide ``d``, an unknown name, a number that is negative or
            not finite, or ``"deepnorm"`` without ``alpha``; when called, a wrong shape of ``x``.

    Sources: Xiong et al. (2020) on pre and post; Wang et al. (2022) on DeepNorm.
    """

    def __init__(
        self,
        d: int,
        heads: int,
        placement: str | Pair = "pre",
        norm: str = "layer",
        hidden: int | None = None,
        eps: float = 1e-5,
        alpha: float | None = None,
        causal: bool = True,
        activation: str = "gelu",
        beta: float = 1.0,
    ):
        super().__init__()
        check(Integral, 1, d=d, heads=heads)
        hidden = 4 * d if hidden is None else hidden
        check(Integral, 1, hidden=hidden)
        if d % heads:
            raise ValueError(f"heads: expected a divisor of d = {d}, got {heads}")
        rule, other = placement if isinstance(placement, tuple) else (choose("placement", placement, PLACEMENTS),) * 2
        if alpha is None:
            if rule.deep:
                raise ValueError("alpha: expected a number, for that of 'deepnorm' depends on the number of blocks")
            alpha = 1.0
        check(Real, 0, eps=eps, alpha=alpha, beta=beta)
        choose("norm", norm, NORMS)
        act = choose("activation", activation, ACTIVATIONS)
        mlp = nn.Sequential(nn.Linear(d, hidden), act(), nn.Linear(hidden, d))
        attention = Attention(d, heads, causal, _head_norms(rule, d, heads, norm, eps))
        self.attention = Sublayer(d, attention, rule, norm, eps, alpha * rule.alpha)
        self.mlp = Sublayer(d, mlp, other, norm, eps, alpha * other.alpha)
        self._initialise(beta, rule.output, other.output)

    @torch.no_grad()
    def _initialise(self, beta: float, *outputs: float) -> None:
        in_proj, *others = (module for module in self.modules() if isinstance(module, nn.Linear))
        q, k, v = in_proj.weight.detach().chunk(3)
        for matrix, gain in ((q, 1.0), (k, 1.0), (v, beta), *((linear.weight, beta) for linear in others)):
            nn.init.xavier_normal_(matrix, gain)
        for linear in (in_proj, *others):
            nn.init.zeros_(linear.bias)
        for linear, factor in zip((self.attention.branch.out_proj, self.mlp.branch[2]), outputs, strict=True):
            linear.weight *= factor

    def forward(self, x: Stream) -> Stream:
        return self.mlp(self.attention(x))


def _head_norms(rule: Placement, d: int, heads: int, norm: str, eps: float) -> dict[str, nn.Module]:
    if rule.step is not None:  # one gain for queries and keys
        return dict.fromkeys(rule.heads, HeadGain(d, heads, initial=1.0, scale=d**-0.5))
    return {letter: HeadNorm(d, heads, centered=norm == "layer", eps=eps) for letter in rule.heads}


class Stack(nn.Module):
    """``layers`` blocks and a final norm: ``(..., length, d)`` to the same shape.

    α and β are 1 but for ``"deepnorm"``, where :func:`deepnorm_factors` gives them, and ``"keel"``.

    Args:
        layers: how many blocks.
        placement: a key of ``PLACEMENTS`` or ``DESIGNS``.
        final_norm: whether a norm follows the last block; if None, unless the last sublayer leaves one there anyway.

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
        check(Integral, 1, layers=layers)
        rules = rules_of(placement, layers)
        last = rules[-1][1]
        if not isinstance(final_norm, bool | None):
            raise TypeError(f"final_norm: expected True, False or None, got {type(final_norm).__name__}")
        alpha, beta = deepnorm_factors(layers) if last.deep else (1.0, 1.0)
        rest = (norm, hidden, eps, alpha, causal, activation, beta)
        self.blocks = nn.ModuleList([Block(d, heads, pair, *rest) for pair in rules])
        ends = not last.sum if final_norm is None else final_norm
        self.d, self.final = d, NORMS[norm if ends else "none"](d, eps=eps)
        self.on_sphere, self.bounded = last.step is not None, norm in ("dyt", "derf")

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


class Scaled(nn.Module):
    """A stream times one learned number."""

    def __init__(self, factor: float):
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(factor))

    def forward(self, x: Stream) -> Stream:
        return self.factor * x


class LanguageModel(nn.Module):
    """Token and learned position embeddings, a stack, and a linear head, untied and without bias.

    Maps ids ``(batch, length)`` to logits ``(batch, length, vocabulary)``.  On the sphere the embedding is brought to
    length √d, and each logit is multiplied by a learned number, 1/√d at first (nGPT's s_z beside our unit of length).
    With DyT or Derf for norms the embedding is multiplied by a learned number, √d at first, as their authors do.

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
        check(Integral, 1, vocabulary=vocabulary, length=length)
        check(Real, 0, scale=scale)
        if not isinstance(stack, Stack):
            raise TypeError(f"stack: expected a Stack, got {type(stack).__name__}")
        self.tokens, self.positions = nn.Embedding(vocabulary, stack.d), nn.Embedding(length, stack.d)
        self.stack, self.head = stack, nn.Linear(stack.d, vocabulary, bias=False)
        for module in (self.tokens, self.positions, self.head):
            nn.init.normal_(module.weight, std=scale)
        self.start = nn.Identity()
        if stack.on_sphere:
            self.start = _unit(stack.d, eps=0.0)
        elif stack.bounded:
            self.start = Scaled(stack.d**0.5)
        self.logit_scale = nn.Parameter(torch.full((vocabulary,), stack.d**-0.5)) if stack.on_sphere else None

    def forward(self, ids: Ids) -> Logits:
        if not isinstance(ids, Tensor) or ids.is_floating_point() or ids.dtype == torch.bool:
            raise TypeError(f"ids: expected a tensor of integers, got {getattr(ids, 'dtype', type(ids).__name__)}")
        limit = self.positions.num_embeddings
        if ids.dim() != 2 or ids.shape[1] > limit:
            raise ValueError(f"ids: expected shape (batch, length) with length at most {limit}, got {tuple(ids.shape)}")
        logits = self.head(self.stack(self.embed(ids)))
        return logits if self.logit_scale is None else logits * self.logit_scale

    def embed(self, ids: Ids) -> Stream:
        """The stream as it starts, ``(batch, length, d)``."""
        return self.start(self.tokens(ids) + self.positions.weight[: ids.shape[1]])


@torch.no_grad()
def normalise_weights(model: LanguageModel) -> LanguageModel:
    """Bring every vector that reads from the stream, writes to it or embeds a token to length 1, in place.

    They are the rows of embeddings, head, queries, keys, values and first matrix of the MLP, and the columns of the
    attention's output and of the MLP's second matrix; nGPT does so at the start and after every update.

    Args:
        model: of placement ``"sphere"``.

    Returns:
        the model.

    Raises:
        ValueError: the model's stream is not on a sphere.

    Source: Loshchilov et al. (2025).
    """
    if not model.stack.on_sphere:
        raise ValueError("model: expected one of placement 'sphere', whose norms have no gain")
    for matrix, axis in _vectors(model):
        matrix.div_(torch.linalg.vector_norm(matrix, dim=axis, keepdim=True))
    return model


def _vectors(model: LanguageModel) -> Iterator[tuple[Tensor, int]]:
    """Each matrix, and the axis of it that is as long as the stream is wide."""
    for embedding in (model.tokens, model.positions, model.head):
        yield embedding.weight, 1
    for block in model.stack.blocks:
        attention, (first, _, second) = block.attention.branch, block.mlp.branch
        yield from (
            (attention.in_proj.weight, 1),
            (attention.out_proj.weight, 0),
            (first.weight, 1),
            (second.weight, 0),
        )
