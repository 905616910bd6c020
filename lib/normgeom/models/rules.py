"""The rules by which a residual block may be normalised, as data: five placements, and designs made of them since."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from numbers import Integral, Real


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
