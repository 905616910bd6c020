"""Stacks of blocks with norms in different places, and language models built from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import torch
from normgeom.norms.elementwise import Derf, DyT
from normgeom.norms.functions import LayerNorm, RMSNorm
from normgeom.norms.heads import HeadNorm
from torch import Tensor, nn

from normgeom_lab.common.gains import HeadGain


@dataclass(frozen=True)
class Placement:
    r"""The norms of a sublayer :math:`x\gets N_s(\alpha x+N_a(f(\lambda N_b(x))))` (eq-any-sublayer, eq-sublayer).

    Attributes:
        before, after, sum: whether there are :math:`N_b`, :math:`N_a` and :math:`N_s`.
        heads: which of q, k and v have a norm in every head of attention.
        alpha, scale: α and λ.
        beta: the initial gain of the matrices of values, of attention's output and of the MLP.
        output: a factor on the initial output matrix of the branch, W_O or W₂.
        step: for a stream on a sphere, the initial step size a in :math:`x\gets N_s(x+a\odot(N_a(f(x))-x))`, whose
            norms have no gain.
    """

    before: bool = False
    after: bool = False
    sum: bool = False
    heads: str = ""
    alpha: float = 1.0
    scale: float = 1.0
    beta: float = 1.0
    output: float = 1.0
    step: float | None = None


class Design(NamedTuple):
    """A design's name in words, its placement for sublayer k of L (from 0), and its norm, a key of :data:`NORMS`."""

    words: str
    rule: Callable[[int, int], Placement]
    norm: str = "layer"


_PRE, _POST = Placement(before=True), Placement(sum=True)


def _mix(k: int, L: int) -> Placement:
    """Post-norm in the first quarter of the blocks, pre-norm in the others."""
    return _POST if k // 2 < L // 8 else _PRE


def _hybrid(k: int, L: int) -> Placement:
    """Norms of queries, keys and values, and of the stream between attention and MLP."""
    return Placement() if k % 2 else replace(_POST, heads="qkv")


def _keel(k: int, L: int) -> Placement:
    """Norms before the branch and on the sum with α = L; the first sublayer is pre-norm, the second has α = 1."""
    return Placement(before=True, sum=True, alpha=1.0 if k == 1 else float(L)) if k else _PRE


# Those after "none" are controls: smaller initial output matrices, α without Keel's other norm, that norm without α.
DESIGNS = {
    "pre": Design("pre-norm", lambda k, L: _PRE),  # GPT-2, LLaMA
    "pre-rms": Design("pre-norm, RMSNorm", lambda k, L: _PRE, "rms"),
    "post": Design("post-norm", lambda k, L: _POST),  # the original transformer, BERT
    "deepnorm": Design("DeepNorm", lambda k, L: replace(_POST, alpha=L**0.25, beta=(4 * L) ** -0.25)),  # (eq-deepnorm)
    "sandwich": Design("sandwich", lambda k, L: Placement(before=True, after=True)),  # CogView, Gemma 2 and 3
    "branch-out": Design("branch-out", lambda k, L: Placement(after=True)),  # OLMo 2
    "mix": Design("Mix-LN", _mix),
    "hybrid": Design("HybridNorm", _hybrid),
    "scaled": Design("LayerNorm scaling", lambda k, L: replace(_PRE, scale=(k // 2 + 1) ** -0.5)),
    "keel": Design("Keel", _keel),
    "qk": Design("pre-norm with QK-norm", lambda k, L: replace(_PRE, heads="qk")),  # Qwen 3
    "sphere": Design("sphere (nGPT)", lambda k, L: Placement(after=True, sum=True, heads="qk", step=0.05)),
    "dyt": Design("DyT", lambda k, L: _PRE, "dyt"),
    "derf": Design("Derf", lambda k, L: _PRE, "derf"),
    "none": Design("no norms", lambda k, L: _PRE, "none"),
    "post-small": Design("post-norm, small outputs", lambda k, L: replace(_POST, output=L**-0.5)),
    "hybrid-small": Design("HybridNorm, small outputs", lambda k, L: replace(_hybrid(k, L), output=L**-0.5)),
    "post-alpha": Design("post-norm, α = L", lambda k, L: replace(_POST, alpha=float(L))),
    "pre-post": Design("pre-norm and norm on sum", lambda k, L: Placement(before=True, sum=True)),
}

# The designs of chapter 6, whose sublayers are all alike; DeepNorm has α and β for two sublayers.
PLACEMENTS = {name: DESIGNS[name].rule(0, 2) for name in ("pre", "post", "sandwich", "branch-out", "deepnorm")}

NORMS = {
    "layer": LayerNorm,
    "rms": RMSNorm,
    "none": lambda d, eps: nn.Identity(),
    "dyt": lambda d, eps: DyT(d),
    "derf": lambda d, eps: Derf(d),
}


class Attention(nn.Module):
    """Causal self-attention over ``(..., length, d)`` with ``norms`` of some of ``"q"``, ``"k"`` and ``"v"``.

    The softmax is written out because the fused kernel has neither a forward mode nor a second derivative on the CPU.
    """

    def __init__(self, d: int, heads: int, norms: dict[str, nn.Module]):
        super().__init__()
        self.in_proj, self.out_proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.heads, self.norms = heads, nn.ModuleDict(norms)

    def forward(self, x: Tensor) -> Tensor:
        scores, v = self.scores_and_values(x)
        return self.out_proj((scores.softmax(-1) @ v).transpose(-3, -2).flatten(-2))

    def scores_and_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The input of the softmax, ``(..., heads, length, length)``, −∞ for later positions; and the values."""
        parts = dict(zip("qkv", self.in_proj(x).chunk(3, -1), strict=True))
        parts |= {letter: norm(parts[letter]) for letter, norm in self.norms.items()}
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(-3, -2) for t in parts.values())
        scores = (q / math.sqrt(q.shape[-1])) @ k.mT
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
        return scores.masked_fill(later, -math.inf), v


class Sublayer(nn.Module):
    """A branch and the stream around it, by the formula of :class:`Placement`.

    On the sphere the step size is the absolute value of one learned number per coordinate.
    """

    def __init__(self, d: int, branch: nn.Module, rule: Placement, norm: str, eps: float):
        super().__init__()
        self.alpha, self.scale = rule.alpha, rule.scale
        make = NORMS[norm] if rule.step is None else _unit
        self.before, self.after, self.sum = (
            make(d, eps=eps) if present else nn.Identity() for present in (rule.before, rule.after, rule.sum)
        )
        self.branch = branch
        # in the authors' units, like HeadGain's weight, so that Adam takes the same steps
        self.steps = None if rule.step is None else nn.Parameter(torch.full((d,), d**-0.5))
        self.unit = None if rule.step is None else rule.step * d**0.5

    @property
    def step(self) -> Tensor | float:
        """The step size: 1, or on the sphere ``(d,)``."""
        return 1.0 if self.steps is None else (self.unit * self.steps).abs()

    def forward(self, x: Tensor) -> Tensor:
        return self.sum(self.joined(x, self.after(self.branch(self.read(x)))))

    def read(self, x: Tensor) -> Tensor:
        """The input of the branch."""
        return self.before(x) if self.scale == 1 else self.scale * self.before(x)

    def joined(self, x: Tensor, added: Tensor) -> Tensor:
        """The input of the norm on the sum."""
        return self.alpha * x + added if self.steps is None else x + self.step * (added - x)


def _unit(d: int, eps: float) -> RMSNorm:
    return RMSNorm(d, eps=eps, elementwise_affine=False)


class Block(nn.Module):
    """Attention and MLP, each a :class:`Sublayer`: ``(..., length, d)`` to the same shape.

    Matrices are initialised Xavier-normal, those of queries, keys and values separately; biases are initially 0.
    One seed gives every design the same weights, up to ``beta`` and ``output``.
    """

    def __init__(
        self, d: int, heads: int, rules: Sequence[Placement], norm: str, hidden: int, eps: float, activation: str
    ):
        super().__init__()
        activate = {"gelu": nn.GELU, "relu": nn.ReLU}[activation]()
        mlp = nn.Sequential(nn.Linear(d, hidden), activate, nn.Linear(hidden, d))
        norms = {letter: HeadNorm(d, heads, centered=norm == "layer", eps=eps) for letter in rules[0].heads}
        if rules[0].step is not None:  # on the sphere queries and keys share a gain
            norms = dict.fromkeys(norms, HeadGain(d, heads, scale=d**-0.5))
        attention = Attention(d, heads, norms)
        self.attention, self.mlp = (
            Sublayer(d, branch, rule, norm, eps) for branch, rule in zip((attention, mlp), rules, strict=True)
        )
        q, k, v = attention.in_proj.weight.chunk(3)
        ends = attention.out_proj, mlp[2]
        matrices = (q, k, v, ends[0].weight, mlp[0].weight, ends[1].weight)
        betas = (1.0, 1.0, *(rule.beta for rule in rules for _ in range(2)))
        for matrix, gain in zip(matrices, betas, strict=True):
            nn.init.xavier_normal_(matrix, gain)
        for linear, rule in zip(ends, rules, strict=True):
            linear.weight.data *= rule.output
        for linear in (attention.in_proj, mlp[0], *ends):
            nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp(self.attention(x))


class Stack(nn.Module):
    """``layers`` blocks of one of :data:`DESIGNS` and a final norm: ``(..., length, d)`` to the same shape.

    ``norm`` is a key of :data:`NORMS`, or None for the design's own; the MLPs are ``hidden`` wide, or 4d.  With None
    for ``final_norm`` there is one unless the last sublayer ends with a norm.
    """

    def __init__(
        self,
        d: int,
        heads: int,
        layers: int,
        placement: str = "pre",
        norm: str | None = None,
        final_norm: bool | None = None,
        hidden: int | None = None,
        eps: float = 1e-5,
        activation: str = "gelu",
    ):
        super().__init__()
        design = DESIGNS[placement]
        norm = norm or design.norm
        rules = [design.rule(k, 2 * layers) for k in range(2 * layers)]
        pairs = list(pairwise(rules))[::2]
        self.blocks = nn.ModuleList([Block(d, heads, pair, norm, hidden or 4 * d, eps, activation) for pair in pairs])
        ends = not rules[-1].sum if final_norm is None else final_norm
        self.d, self.final = d, NORMS[norm if ends else "none"](d, eps=eps)
        self.on_sphere = rules[-1].step is not None

    def forward(self, x: Tensor) -> Tensor:
        return self.final(self.streams(x)[-1])

    @property
    def sublayers(self) -> list[Sublayer]:
        """Attention and MLP of each block, in order."""
        return [sublayer for block in self.blocks for sublayer in (block.attention, block.mlp)]

    def streams(self, x: Tensor) -> list[Tensor]:
        """``x`` and the stream after each sublayer, ``2 * layers + 1`` tensors, before the final norm."""
        streams = [x]
        for sublayer in self.sublayers:
            streams.append(sublayer(streams[-1]))
        return streams


class LanguageModel(nn.Module):
    """Token and position embeddings, a stack, and a head without bias, initialised with standard deviation 1/√d.

    Maps ids ``(batch, length)`` to logits ``(batch, length, vocabulary)``.  On the sphere the embedding is scaled to
    length √d, and each logit is multiplied by a learned number, initially 1/√d (nGPT's s_z, in our unit of length).
    With DyT or Derf as norms, the embedding is multiplied by a learned number, initially √d, as their authors do.
    """

    def __init__(self, vocabulary: int, length: int, stack: Stack):
        super().__init__()
        d = stack.d
        self.tokens, self.positions = nn.Embedding(vocabulary, d), nn.Embedding(length, d)
        self.stack, self.head = stack, nn.Linear(d, vocabulary, bias=False)
        for module in (self.tokens, self.positions, self.head):
            nn.init.normal_(module.weight, std=d**-0.5)
        self.start = _unit(d, eps=0.0) if stack.on_sphere else nn.Identity()
        self.factor = nn.Parameter(torch.tensor(d**0.5)) if isinstance(stack.final, DyT | Derf) else 1.0
        self.logit_scale = nn.Parameter(torch.full((vocabulary,), d**-0.5)) if stack.on_sphere else 1.0

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.stack(self.embed(ids))) * self.logit_scale

    def embed(self, ids: Tensor) -> Tensor:
        """The stream as it starts, ``(batch, length, d)``."""
        return self.start(self.tokens(ids) + self.positions.weight[: ids.shape[1]]) * self.factor


@torch.no_grad()
def normalise_weights(model: LanguageModel) -> LanguageModel:
    """Scale each vector that reads or writes the stream or embeds a token to length 1; return the same model."""
    rows, columns = [model.tokens, model.positions, model.head], []
    for block in model.stack.blocks:
        attention, mlp = block.attention.branch, block.mlp.branch
        rows += [attention.in_proj, mlp[0]]
        columns += [attention.out_proj, mlp[2]]
    for axis, modules in ((1, rows), (0, columns)):
        for module in modules:
            module.weight /= torch.linalg.vector_norm(module.weight, dim=axis, keepdim=True)
    return model
