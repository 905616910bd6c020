"""What training a twin asks for, from its size alone."""

from __future__ import annotations

from normgeom.training.twins import Size

WORDS = 50257  # GPT-2's vocabulary, of windows of 1024 tokens; shorter windows are of bytes
RATE, STATE = 200e12, 16  # operations a second of the device; bytes a weight


def training_cost(size: Size) -> dict[str, float]:
    """What one twin of a size asks for, computed and not measured.

    Returns:
        by a column's name: ``blocks``, the width ``d``, ``"parameters / 10⁶"``, those of LayerNorms included,
        the head tied; ``"tokens / 10⁹"`` that it reads; ``"time / hours"`` of a device that sustains 200 · 10¹²
        operations a second (:func:`operations`); and ``"state / GB"``, of all parameters, gradients and Adam's two
        moments in four bytes each, activations left out.
    """
    return {
        "blocks": size.layers,
        "d": size.width,
        "parameters / 10⁶": parameters(size) / 1e6,
        "tokens / 10⁹": size.steps * size.batch * size.length / 1e9,
        "time / hours": operations(size) / RATE / 3600,
        "state / GB": STATE * parameters(size) / 1e9,
    }


def vocabulary(size: Size) -> int:
    """How many tokens a twin of a size knows."""
    return WORDS if size.length == 1024 else 256


def parameters(size: Size) -> int:
    """How many a twin has, those of LayerNorms included, the head tied."""
    rest = 13 * size.layers + 2 + size.length  # biases and gains, and the embeddings of positions
    return (12 * size.layers * size.width + vocabulary(size) + rest) * size.width


def operations(size: Size) -> int:
    """How many the training takes: six a weight of a matrix and token, attention's products and the head included."""
    tokens = size.steps * size.batch * size.length
    attention = size.layers * size.width * size.length
    return 6 * tokens * ((12 * size.layers * size.width + vocabulary(size)) * size.width + attention)
