"""Programs timed in turns: a noisy machine is as slow for each of them."""

import random
import time
from collections.abc import Callable

import pandas as pd
import torch


def in_turns(calls: dict[str, Callable[[], object]], rounds: int, fill: float = 0.0) -> pd.DataFrame:
    """Seconds a call, one row a round, one column a name; the order is drawn anew for every round.

    So nobody always runs after the same other, in the caches and the memory that it left.  All run once before.  In a
    round each runs as often as fills ``fill`` seconds, at least once.
    """
    for call in calls.values():
        call()
    numbers = {name: max(1, int(fill / _seconds(call, 1))) if fill else 1 for name, call in calls.items()}
    names, seen, lots = list(calls), [], random.Random(0)
    for _ in range(rounds):
        seen.append({name: _seconds(calls[name], numbers[name]) for name in lots.sample(names, len(names))})
    return pd.DataFrame(seen, columns=names)


def _seconds(call: Callable[[], object], number: int) -> float:
    _finish()
    start = time.perf_counter()
    for _ in range(number):
        call()
    _finish()
    return (time.perf_counter() - start) / number


def _finish() -> None:
    """Wait for what a GPU still has to do."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
