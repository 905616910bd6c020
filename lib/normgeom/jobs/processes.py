"""The processes that torchrun or accelerate launch started together, and their devices."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import torch
from accelerate import PartialState

_PATIENCE = timedelta(days=30)  # of processes that wait for the slowest


@contextmanager
def launched(device: str | None, device_map: str | None = None) -> Iterator[tuple[PartialState, torch.device]]:
    """The processes that were launched together, often one, and the device of this one."""
    if device is not None:
        if device_map is not None:
            raise ValueError(f"device_map: expected no device beside it, got {device!r}")
        try:
            torch.zeros(1, device=device).item()
        except (RuntimeError, AssertionError) as error:
            raise ValueError(f"device: expected 'cpu', 'cuda', 'mps' or the like, got {device!r} ({error})") from error
    on_cpu = device.startswith("cpu") if device else not torch.accelerator.is_available()
    processes = PartialState(cpu=on_cpu, timeout=_PATIENCE)
    try:
        count, started = processes.num_processes, int(os.environ.get("WORLD_SIZE", 1))
        if count < started:
            raise ValueError(f"device: expected 'cpu' where {started} processes run, got {processes.device.type!r}")
        if count > 1 and device_map is not None:
            raise ValueError(f"device_map: expected one process, got {count}")
        if count > 1 and device is not None and torch.device(device).index is not None:
            raise ValueError(f"device: expected no number where {count} processes run, got {device!r}")
        yield processes, torch.device(device) if device and count == 1 else processes.device
    finally:
        processes.destroy_process_group()


def check_choice(name: str, value: str | None, choices: Sequence[str | None]) -> None:
    """A ValueError that names the argument, unless the value is among the choices."""
    if value not in choices:
        raise ValueError(f"{name}: expected one of {', '.join(filter(None, choices))}, got {value!r}")
