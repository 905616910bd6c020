"""Programs timed in turns: a noisy machine is as slow for each of them."""

import random
import time
from collections import deque
from collections.abc import Callable

import pandas as pd
import torch


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
