"""A rule of learning that knows no axes: Muon, whose steps turn as the weights do."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def newton_schulz(matrix: Tensor, rounds: int = 5) -> Tensor:
    """Near the orthogonal factor UVᵀ of a matrix USVᵀ: U p(S/‖S‖) Vᵀ, where p lies between 0.7 and 1.2 for most.

    Each round is X ↦ (a + bXXᵀ + c(XXᵀ)²)X, beginning with the matrix over its Frobenius norm.  A polynomial in XXᵀ
    times X, so for orthogonal Q and P it makes QXP of X's result as of X (prop-rotations).

    Args:
        matrix: ``(m, n)``, floating point; the result has its dtype, in which all is computed.

    Raises:
        ValueError: ``matrix`` has not two axes.

    Source: K. Jordan and others, "Muon: An optimizer for hidden layers in neural networks" (2024), whose coefficients
    ``torch.optim.Muon`` takes as well.
    """
    if matrix.dim() != 2:
        raise ValueError(f"matrix: expected two axes, got a tensor of shape {tuple(matrix.shape)}")
    if matrix.shape[0] > matrix.shape[1]:
        return newton_schulz(matrix.T, rounds).T
    a, b, c = COEFFICIENTS
    x = matrix / matrix.norm().clamp_min(1e-7)
    for _ in range(rounds):
        square = x @ x.T
        x = a * x + (b * square + c * square @ square) @ x
    return x


class Muon(torch.optim.Optimizer):
    """Momentum, of which :func:`newton_schulz` is taken for matrices, and nothing for vectors; in the weights' dtype.

    As ``torch.optim.Muon``, which computes in bfloat16 and refuses vectors: an average B ← μB + (1 − μ)g, the step
    along (1 − μ)g + μB, for an m × n matrix times √max(1, m/n), and decay that is apart from the gradient.

    Args:
        rate: length of a step, at least 0.
        momentum: μ, from 0 to 1.
        decay: of all weights, times ``rate``.

    Raises:
        ValueError: a negative rate, or a momentum outside of [0, 1].
    """

    def __init__(self, parameters: Iterable[nn.Parameter], rate: float, momentum: float = 0.95, decay: float = 0.0):
        if not rate >= 0 or not 0 <= momentum <= 1:
            raise ValueError(f"rate, momentum: expected at least 0 and from 0 to 1, got {rate} and {momentum}")
        super().__init__(parameters, dict(rate=rate, momentum=momentum, decay=decay))

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            rate, momentum = group["rate"], group["momentum"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                average = self.state[p].setdefault("average", torch.zeros_like(p))
                average.lerp_(p.grad, 1 - momentum)
                step = p.grad.lerp(average, momentum)
                if p.dim() == 2:
                    step = newton_schulz(step) * math.sqrt(max(1, p.shape[0] / p.shape[1]))
                p.mul_(1 - rate * group["decay"]).sub_(step, alpha=rate)
