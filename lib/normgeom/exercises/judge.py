"""The judge: a function beside the right one and, where it differs, beside known wrong ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Function = Callable[..., Tensor]
Device = torch.device | str | None


@dataclass(frozen=True)
class Exercise:
    """The right function, what to try it on, and the wrong functions by the name of their mistake."""

    right: Function
    probes: tuple[tuple, ...]
    mistakes: dict[str, Function]


def judge(mine: Function, exercise: Exercise, device: Device) -> bool:
    """Print one sentence and say whether ``mine`` is right; tried on the GPU where there is one."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    probes = [[a.to(device) if isinstance(a, Tensor) else a for a in probe] for probe in exercise.probes]
    message = _message(mine, exercise, probes)
    print(message)
    return message == "Right."


def same(some: list[Tensor], others: list[Tensor]) -> bool:
    """Whether two lists of tensors agree but for rounding in float64."""
    return all(torch.allclose(a, b, rtol=1e-7, atol=1e-9) for a, b in zip(some, others, strict=True))


def draw(*shape: int, seed: int) -> Tensor:
    """Standard normal numbers in float64, the same on every machine."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _message(mine: Function, exercise: Exercise, probes: list) -> str:
    expected = [exercise.right(*probe) for probe in probes]
    try:
        got = [mine(*(a.clone() if isinstance(a, Tensor) else a for a in probe)) for probe in probes]
    except Exception as error:  # the reader's function may fail in any way, and that is what we report
        return f"Not yet: your function raised {type(error).__name__}: {error}"
    for g, e in zip(got, expected, strict=True):
        if not isinstance(g, Tensor):
            return f"Not yet: your function returned a {type(g).__name__}; return a tensor."
        if g.shape != e.shape:
            return f"Not yet: your function returned shape {tuple(g.shape)}, expected {tuple(e.shape)}."
        if (g.dtype, g.device) != (e.dtype, e.device):
            return f"Not yet: your function returned {g.dtype} on {g.device}, expected {e.dtype} on {e.device}."
    if same(got, expected):
        return "Right."
    for mistake, wrong in exercise.mistakes.items():
        if same(got, [wrong(*probe) for probe in probes]):
            return f"Not yet: {mistake}."
    worst = max(float((g - e).abs().max()) for g, e in zip(got, expected, strict=True))
    return f"Not yet, and no mistake that this check knows: off by up to {worst:.2g} on its probes."
