"""The judge: a function beside the right one and, where it differs, beside known wrong ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

Function = Callable[..., Tensor]
Device = torch.device | str | None

RIGHT = "Right."
SINGLE = 1e-5  # relative: what computing in float32 may leave of a right result


class Wrong(NamedTuple):
    """A function with one mistake, and the sentence that says what to do about it."""

    advice: str
    function: Function


@dataclass(frozen=True)
class Exercise:
    """The right function, what to try it on, and the wrong functions by the name of their mistake."""

    right: Function
    probes: tuple[tuple, ...]
    mistakes: dict[str, Wrong]


def judge(mine: Function, exercise: Exercise, device: Device) -> bool:
    """Print what is to be said of ``mine`` and return whether it is right; tried on the GPU where there is one."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    probes = [[a.to(device) if isinstance(a, Tensor) else a for a in probe] for probe in exercise.probes]
    message = _message(mine, exercise, probes)
    print(message)
    return message == RIGHT


def same(some: list[Tensor], others: list[Tensor], rtol: float = 1e-7, atol: float = 1e-9) -> bool:
    """Whether two lists of tensors have the same kinds and shapes, and agree but for rounding in float64."""
    pairs = list(zip(some, others, strict=True))
    alike = all(_kind(a) == _kind(b) for a, b in pairs)
    return alike and all(torch.allclose(a, b, rtol=rtol, atol=atol, equal_nan=True) for a, b in pairs)


def draw(*shape: int, seed: int) -> Tensor:
    """Standard normal numbers in float64, the same on every machine."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _kind(a: Tensor) -> tuple:
    return a.shape, a.dtype, a.device


def _message(mine: Function, exercise: Exercise, probes: list) -> str:
    given = [[a.clone() if isinstance(a, Tensor) else a for a in probe] for probe in probes]
    try:
        got = [mine(*arguments) for arguments in given]
    except Exception as error:  # the reader's function may fail in any way, and that is what we report
        return f"Not yet: your function raised {type(error).__name__}: {error}"
    expected = [exercise.right(*probe) for probe in probes]
    return next(_said(got, expected, given, probes, exercise.mistakes))


def _said(got: list, expected: list, given: list, probes: list, mistakes: dict[str, Wrong]) -> Iterator[str]:
    """All that could be said, the most telling first."""
    for g in got:
        if not isinstance(g, Tensor):
            yield f"Not yet: your function returned a {type(g).__name__}. Return a tensor."
    before, after = (
        [a for arguments in lists for a in arguments if isinstance(a, Tensor)] for lists in (probes, given)
    )
    if not all(map(torch.equal, before, after)):
        yield "Not yet: your function changes what it is given. Compute new tensors, without += and functions in …_."
    if same(got, expected):
        yield RIGHT
    for mistake, wrong in mistakes.items():
        if same(got, [wrong.function(*probe) for probe in probes]):
            yield f"Not yet: {mistake}. {wrong.advice}"
    for g, e in zip(got, expected, strict=True):
        if g.shape != e.shape:
            yield f"Not yet: your function returned shape {tuple(g.shape)}, expected {tuple(e.shape)}."
        if _kind(g) != _kind(e):
            yield f"Not yet: your function returned {g.dtype} on {g.device}, expected {e.dtype} on {e.device}."
    worst = max(float((g - e).abs().max()) for g, e in zip(got, expected, strict=True))
    if same(got, expected, rtol=SINGLE, atol=SINGLE):
        yield f"Not yet, but off by {worst:.2g} alone. Is a part of it computed in float32?"
    yield f"Not yet, and no mistake that this check knows: off by up to {worst:.2g} on its probes."
