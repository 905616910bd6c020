"""Where a model is, and what cannot be read of it: asked before any work, without loading what models need."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError

from huggingface_hub import hf_hub_download
from safetensors import safe_open

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
    """Whatever transformers, the hub and file formats raise in the block, as one OSError that says what is wrong.

    Their errors share no class.  Only a want of memory stays what it is.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
            raise
        if is_folder("model", model):
            why = _unreadable(Path(model)) or f"{_in_a_line(error)}; expected a folder as save_pretrained wrote it"
            raise OSError(f"model: {model!r} cannot be loaded: {why}") from error
        raise OSError(
            f"model: {model!r} cannot be loaded, neither as a folder that save_pretrained wrote, which needs no "
            f"network, nor by name from the hub ({_in_a_line(error)})"
        ) from error


def check_readable(folder: str, name: str) -> None:
    """Raise an OSError if a file of a model is there and cannot be read."""
    if is_folder("model", folder) and (why := _unreadable(Path(folder), [name])):
        raise OSError(f"model: {folder!r} cannot be loaded: {why}")


def _in_a_line(error: Exception) -> str:
    if "trust_remote_code" in str(error):
        return "it brings code of its own, which is not run"
    if isinstance(error, UnpicklingError):
        return "no pickle of tensors alone, and others are not read, for they can run code"
    if "pip install --upgrade transformers" in str(error):  # which helps with few of those that are told so
        return str(error).partition(" but ")[0] + ", which the installed transformers does not know"
    said = " ".join(str(error).split())
    return said if isinstance(error, (OSError, ValueError)) else f"{type(error).__name__}: {said}"


def _unreadable(folder: Path, patterns: Iterable[str] | None = None) -> str | None:
    """The first file of a model that cannot be read, and why."""
    for pattern in patterns or _READERS:
        for path in sorted(folder.glob(pattern)):
            try:
                path.open("rb").close()
                _READERS[pattern](path)
            except Exception as error:
                return f"{path.name} cannot be read ({_in_a_line(error)}); save or copy it again"
    return None


def _read_object(path: Path) -> dict:
    found = json.loads(path.read_text("utf-8"))
    if not isinstance(found, dict):
        raise ValueError(f"expected an object, got a {type(found).__name__}")
    return found


def _read_config(path: Path) -> None:
    import torch

    found = _read_object(path)
    for key in ("model_type", "dtype", "torch_dtype"):
        if not isinstance(found.get(key), (str, dict if "dtype" in key else str, type(None))):
            raise ValueError(f"expected a name as {key}, got {found[key]!r}")
    for name in (found.get("dtype"), found.get("torch_dtype")):
        if isinstance(name, str) and not isinstance(getattr(torch, name, None), torch.dtype):
            raise ValueError(f"expected one of torch's dtypes, got {name!r}")


def _read_index(path: Path) -> None:
    places = _read_object(path).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
        raise ValueError("expected an object weight_map, from names of weights to names of files")


def _open_weights(path: Path) -> None:
    with safe_open(path, "numpy"):
        pass


def _open_pickle(path: Path) -> None:
    import torch

    found = torch.load(path, map_location="meta", weights_only=True)
    if not isinstance(found, dict):
        raise ValueError(f"expected tensors by name, got a {type(found).__name__}")


_READERS: dict[str, Callable[[Path], None]] = {
    "config.json": _read_config,
    "*.index.json": _read_index,
    "generation_config.json": _read_object,
    "*.safetensors": _open_weights,
    "*.bin": _open_pickle,
}
