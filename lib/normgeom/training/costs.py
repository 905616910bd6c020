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
        operations a second, with six operations a weight of a matrix and token, attention's products and the head
        included; and ``"state / GB"``, of all parameters, gradients and Adam's two moments in four bytes each,
        activations left out.
    """
    vocabulary = WORDS if size.length == 1024 else 256
    blocks, head = 12 * size.layers * size.width**2, vocabulary * size.width
    tokens = size.steps * size.batch * size.length
    rest = (13 * size.layers + 2 + size.length) * size.width  # biases and gains, and the embeddings of positions
    work = 6 * tokens * (blocks + head + size.layers * size.width * size.length)
    return {
        "blocks": size.layers,
        "d": size.width,
        "parameters / 10⁶": (blocks + head + rest) / 1e6,
        "tokens / 10⁹": tokens / 1e9,
        "time / hours": work / RATE / 3600,
        "state / GB": STATE * (blocks + head + rest) / 1e9,
    }
