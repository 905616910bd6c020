"""Models by name or from a folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def reading(model: str) -> Iterator[None]:
    """Whatever transformers and the hub raise in the block, as one OSError that says what can be loaded."""
    try:
        yield
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise OSError(
            f"model: {model!r} cannot be loaded, neither as a folder that save_pretrained wrote, which needs no "
            f"network, nor by name from the hub ({error})"
        ) from error


def load_model(name_or_path: str, **options) -> nn.Module:
    """A transformers model in evaluation mode, as ``AutoModel.from_pretrained`` loads it.

    Args:
        options: passed on: ``revision``, ``dtype``, ``device_map``, ….

    Raises:
        OSError: it cannot be loaded; the message says what can.
    """
    from transformers import AutoModel

    with reading(name_or_path):
        return AutoModel.from_pretrained(name_or_path, **options).eval()
