"""A device that is none, to see from a CPU where a GPU would make the host wait.

Its tensors hold others on the CPU, which do the work, and every operation is seen on its way there, those of the
backward pass too.  As on a GPU the host waits where it asks for a value, where values decide the shape of a result, and
for a copy between the two, unless it goes to the device and is said not to block.
"""

from __future__ import annotations

import torch
from torch import Tag, Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

DEVICE = torch.device("lazy", 0)  # torch knows its name and has nothing that runs on it
_COPY, _INDEX = torch.ops.aten.copy_.default, "aten::index"


class There(Tensor):
    """A tensor on the device; ``held`` is the one on the CPU."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, held: Tensor):
        layout = dict(strides=held.stride(), storage_offset=held.storage_offset(), dtype=held.dtype)
        return Tensor._make_wrapper_subclass(cls, held.shape, device=DEVICE, **layout)

    def __init__(self, held: Tensor):
        self.held = held

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise RuntimeError(f"{function}: outside of the device's context")


class Pretended(TorchDispatchMode):
    """While this is entered there is the device.

    Attributes:
        waits: the operations for which the host would wait, in their order.
        ran: all operations on the device.
    """

    def __init__(self):
        super().__init__()
        self.waits: list[str] = []
        self.ran: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        start, end = _ends(function, given, kwargs.get("device"))
        name = function.name().partition(".")[0]
        if start or end:
            self.ran.append(name)
        if start != end and given:
            waits = not kwargs.get("non_blocking", args[2:3] == (True,))
            if start and not waits:
                raise RuntimeError(f"{name}: the host would read what has not come yet")
        else:
            _check_together(name, given)
            waits = start and _asks_for_values(function, args)
        if waits:
            self.waits.append(name)
        if kwargs.get("device") is not None:
            kwargs = {**kwargs, "device": torch.device("cpu")}
        held, named = tree_map_only(There, lambda t: t.held, (args, kwargs))
        found = function(*held, **named)
        if function is _COPY:
            return args[0]
        return tree_map_only(Tensor, There, found) if end else found


def _ends(function, given, device) -> tuple[bool, bool]:
    """Whether an operation starts on the device, and whether its result is there."""
    there = [isinstance(t, There) for t in given]
    if function is _COPY:
        return there[1], there[0]
    return any(there), any(there) if device is None else torch.device(device).type == DEVICE.type


def _check_together(name, given):
    """A GPU takes tensors of a CPU where they are one number."""
    if len({isinstance(t, There) for t in given if t.dim()}) > 1:
        raise RuntimeError(f"{name}: expected all tensors to be on the same device")


def _asks_for_values(function, args) -> bool:
    if function.name().startswith(_INDEX):  # torch.bool chooses as many as there are
        return any(isinstance(t, Tensor) and t.dtype in (torch.bool, torch.uint8) for t in tree_leaves(args[1]))
    return bool({Tag.data_dependent_output, Tag.dynamic_output_shape} & {*function.tags})
