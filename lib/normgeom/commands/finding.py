"""Where a model is, and one clear line if it cannot be loaded."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub import hf_hub_download

from normgeom.jobs.paths import is_file, is_folder


def find_commit(model: str, revision: str | None = None) -> str | None:
    """The commit of a model on the hub, None of a model in a folder.

    Raises:
        OSError: neither is there.
        ValueError: no name, or a revision of a folder.
    """
    if not model:
        raise ValueError("model: expected a name on the hub or a folder, got ''")
    if is_folder("model", model):
        if revision:
            raise ValueError(f"revision: expected none for a model in a folder, got {revision!r}")
        if not is_file("model", Path(model) / "config.json"):
            raise OSError(f"model: {model!r} cannot be loaded: it has no config.json; save_pretrained writes one")
        return None
    if os.path.lexists(model):
        raise NotADirectoryError(f"model: expected a folder as save_pretrained wrote it, {model!r} is none")
    if model.count("/") > 1 or model.startswith((".", "/")) or model.endswith("/"):
        raise FileNotFoundError(f"model: there is no folder {model!r}, and nothing on the hub is called so")
    with reading(model):
        return Path(hf_hub_download(model, "config.json", revision=revision)).parent.name


@contextmanager
def reading(model: str) -> Iterator[None]:
    """Turn any error of the block into an OSError of one line: the model, the error, and what can be loaded.

    The errors of transformers, the hub and the file formats share no class.  A lack of memory stays what it is.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
            raise
        said = " ".join(f"{type(error).__name__}: {error}".split())
        raise OSError(
            f"model: {model!r} cannot be loaded ({said}); expected a folder that save_pretrained wrote, which needs no "
            "network, or a name on the hub"
        ) from error
