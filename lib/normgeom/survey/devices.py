"""Between a model's device and the CPU: where a survey's sums are taken, and copies for which the host hardly waits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor


def of_sums(device: torch.device) -> torch.device:
    """Where the sums are taken: there is no float64 on Apple's GPUs."""
    return torch.device("cpu") if device.type == "mps" else device


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """``tensor`` on ``device``; the host does not wait for a GPU, unless it is to have what was computed there."""
    # What is not pinned is copied to the driver's own memory before the call returns.
    return tensor.to(device, non_blocking=device.type != "cpu")


def fetched(tensors: Sequence[Tensor]) -> list[Tensor]:
    """All on the CPU, in their order; those of one device and dtype in one copy, for which the host waits once."""
    alike = defaultdict(list)
    for i, tensor in enumerate(tensors):
        if not tensor.is_cpu:
            alike[tensor.device, tensor.dtype].append(i)
    found = list(tensors)
    for group in alike.values():
        whole = torch.cat([tensors[i].flatten() for i in group]).cpu()
        pieces = whole.split([tensors[i].numel() for i in group])
        for i, piece in zip(group, pieces, strict=True):
            found[i] = piece.view(tensors[i].shape)
    return found
