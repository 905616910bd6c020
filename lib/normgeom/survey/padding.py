"""Which tokens of a batch are padding: as the batch says, or as a module within the model is told."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from normgeom.models.calls import entries

STREAMS = ("", "decoder_")  # what the names of a batch's entries begin with
# What masks (batch, length) are called, for each stream, and whether they are true for padding: torch's are.
_MASKS = {
    "attention_mask": ("", False),
    "src_key_padding_mask": ("", True),
    "decoder_attention_mask": ("decoder_", False),
    "tgt_key_padding_mask": ("decoder_", True),
}


def token_ids(batch: Tensor | Mapping, stream: str = "") -> Tensor | None:
    """Those of a batch; ``stream`` is one of :data:`STREAMS`, the second that of a decoder beside an encoder."""
    return entries(batch).get(f"{stream}input_ids")


def given_masks(batch: Tensor | Mapping) -> dict[str, Tensor]:
    """The masks of padding that a batch holds, by their names."""
    return {name: value for name, value in entries(batch).items() if name in _MASKS and value is not None}


def mask_of(batch: Tensor | Mapping, stream: str) -> Tensor | None:
    """Which tokens are not padding, ``(batch, length)`` on the CPU; None where a batch does not show its tokens."""
    for name, mask in given_masks(batch).items():
        if _MASKS[name][0] == stream:
            return _real(name, mask)
    ids = token_ids(batch, stream)
    counts = ids is not None and ids.dim() == 2 and not ids.is_floating_point()
    return torch.ones(ids.shape, dtype=torch.bool) if counts else None


def told_of_padding(model: nn.Module) -> dict[str, nn.Module]:
    """The outermost modules that take a mask of padding, by name; only where the model itself takes none."""
    found: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        if _takes(module) and not any(name.startswith(f"{outer}.") for outer in found):
            if module is model:
                return {}
            found[name] = module
    return found


@contextmanager
def listening(modules: Mapping[str, nn.Module], tell: Callable[[str, Tensor], None]) -> Iterator[None]:
    """While the block runs, call ``tell(name, mask)``, as of :func:`mask_of`, when a module is given a mask."""
    read: dict[tuple, tuple[Tensor, Tensor]] = {}

    def real(argument: str, mask: Tensor) -> Tensor:
        """A mask that many layers are given is read once: on a GPU the host waits for it."""
        if mask.is_inference():  # torch does not count what is written into it
            return _real(argument, mask)
        key = argument, id(mask), mask._version
        if key not in read:
            read[key] = mask, _real(argument, mask)  # a mask that is kept shares its id with no other
        return read[key][1]

    def hook(name: str):
        def call(module, args, kwargs):
            given = inspect.signature(module.forward).bind_partial(*args, **kwargs).arguments
            for argument in _takes(module):
                if isinstance(mask := given.get(argument), Tensor) and mask.dim() == 2:
                    tell(name, real(argument, mask))

        return call

    with ExitStack() as hooks:
        for name, module in modules.items():
            hooks.callback(module.register_forward_pre_hook(hook(name), with_kwargs=True).remove)
        yield


def _takes(module: nn.Module) -> list[str]:
    try:
        parameters = inspect.signature(module.forward).parameters
    except (TypeError, ValueError):
        return []  # what is not written in Python
    return [name for name, (stream, _) in _MASKS.items() if name in parameters and not stream]


def _real(name: str, mask: Tensor) -> Tensor:
    return mask.detach().cpu().bool() ^ _MASKS[name][1]
