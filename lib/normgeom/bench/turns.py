"""Programs timed in turns: a noisy machine is as slow for each of them."""

import random
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial

import pandas as pd
import torch
from torch import Tensor


def in_turns(calls: dict[str, Callable[[], object]], rounds: int, fill: float = 0.0, kept: int = 0) -> pd.DataFrame:
    """Seconds a call, one row a round, one column a name; the order is drawn anew for every round.

    So nobody always runs after the same other, in the caches and the memory that it left.  All run twice before.  In a
    round each runs as often as all others, without a break: once, or as often as fills about ``fill`` seconds each.
    The last ``kept`` results stay where they are, so that no call writes over the memory of the call before, which
    would still be in a cache or not by the whims of the allocator.
    """
    results = deque(maxlen=kept)
    for call in calls.values():
        call()
    number = max(1, int(fill * len(calls) / sum(_seconds(call, 1, results) for call in calls.values())))
    names, seen, lots = list(calls), [], random.Random(0)
    for _ in range(rounds):
        seen.append({name: _seconds(calls[name], number, results) for name in lots.sample(names, len(names))})
    return pd.DataFrame(seen, columns=names)


def time_over_copy(norms: Mapping[str, Callable[[Tensor], object]], x: Tensor, rounds: int) -> pd.Series:
    """Time of each norm of ``x`` over that of a copy of ``x``: medians of rounds in which all run in turns.

    Raises:
        ValueError: a norm is called "copy".
    """
    if "copy" in norms:
        raise ValueError(f"norms: expected names other than 'copy', got {list(norms)}")
    calls = {name: partial(norm, x) for name, norm in norms.items()}
    seconds = in_turns({"copy": lambda: torch.empty_like(x).copy_(x), **calls}, rounds, fill=0.01)
    return seconds[list(norms)].div(seconds["copy"], axis=0).median()


def _seconds(call: Callable[[], object], number: int, results: deque) -> float:
    _finish()
    start = time.perf_counter()
    for _ in range(number):
        results.append(call())
    _finish()
    return (time.perf_counter() - start) / number


def _finish() -> None:
    """Wait for what a GPU still has to do."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
