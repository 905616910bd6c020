"""What computations cost in memory: bytes that operations touch, are held at once, or wait for a backward pass."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def traffic(work: Callable[[], object]) -> pd.DataFrame:
    """The bytes that the operations of torch read and write while ``work`` runs (eq-floor).

    Returns:
        One row an operation, in order: ``operation`` (its name in torch), ``read`` and ``written`` in bytes.  What an
        operation that is one kernel does inside is not seen; whether bytes come from memory or from a cache is not
        known.  An entry that is expanded counts once; views and empty allocations move nothing and have no row.
    """
    with _Traffic() as seen:
        work()
    return pd.DataFrame(seen.rows, columns=["operation", "read", "written"])


def peak_bytes(work: Callable[[], object]) -> int:
    """The most bytes of CPU memory that tensors made while ``work`` runs, its result among them, hold at once."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        kept = work()
    events = [event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = highest = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        highest = max(highest, held)
    del kept
    return highest


def saved_bytes(work: Callable[[], object]) -> int:
    """The bytes that autograd keeps for a backward pass through what ``work`` computes, each memory counted once.

    Leaves that stay alive anyway, an input or a gain, count where a backward pass needs them.
    """
    seen: dict[int, Tensor] = {}

    def note(t: Tensor) -> Tensor:
        seen[t.untyped_storage().data_ptr()] = t
        return t

    with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        kept = work()
    del kept
    return sum(t.untyped_storage().nbytes() for t in seen.values())


class _Traffic(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.rows: list[tuple[str, int, int]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        schema = func._schema
        view = any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)
        name = schema.name.removeprefix("aten::")
        if not view and "empty" not in name:
            # an argument that is written in place is in the result too; one named out is not read
            read = [kwargs[a.name] for a in schema.arguments if not a.is_out and a.name in (kwargs or {})] + list(args)
            self.rows.append((name, _bytes(read), _bytes(result)))
        return result


def _bytes(values: object) -> int:
    tensors = [t for t in tree_leaves(values) if isinstance(t, Tensor)]
    return sum(t.element_size() * _distinct(t) for t in tensors)


def _distinct(t: Tensor) -> int:
    return int(torch.Size(n if step else min(n, 1) for n, step in zip(t.shape, t.stride(), strict=True)).numel())
