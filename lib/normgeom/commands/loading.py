"""Models by name or from a folder, whole or refused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from huggingface_hub import hf_hub_download
from torch import nn
from transformers import CONFIG_MAPPING, AutoConfig, AutoModel, AutoModelForCausalLM, PreTrainedConfig
from transformers.utils import logging

from normgeom.jobs import digest
from normgeom.surgery import converted
from normgeom.training import twins

# Folders that this package writes and transformers refuses: what loads them, and where they hold the configuration.
_OWN = {
    twins.MODEL_TYPE: (twins.load_twin, "config"),
    converted.MODEL_TYPE: (converted.load_converted, "converted"),
}
_MASK = re.compile(r"(attn|attention)\.(masked_)?bias$")  # older versions saved it, newer ones compute it


@contextmanager
def _reading(name: str) -> Iterator[None]:
    try:
        check_files(Path(name))
        yield
    except Exception as error:  # those of transformers, of the hub and of the file formats share no class
        raise OSError(f"model: {name!r:.80} cannot be loaded ({type(error).__name__}: {error!s:.300})") from error


def check_files(folder: Path) -> None:
    """A ValueError for a pipe or a device in the place of a file, and for weights that are to come from elsewhere."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if not (path.is_file() or path.is_dir()):
            raise ValueError(f"{path} is no regular file")
        if path.name.endswith(".index.json"):
            for part in json.loads(path.read_text("utf-8"))["weight_map"].values():
                if Path(part).name != part:
                    raise ValueError(f"{path.name} names {part}, which is not in the folder")


def _check_blocks(folder: Path, config: PreTrainedConfig) -> None:
    """A ValueError for a configuration with more blocks than the files hold: even of bits, a block has width² of them.

    To build a million blocks, and to find no weights for them then, takes hours.
    """
    text = config.get_text_config()
    blocks, width = getattr(text, "num_hidden_layers", 0), getattr(text, "hidden_size", 0)
    size = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
    if blocks * width**2 > 8 * size:
        raise ValueError(f"config.json states {blocks} blocks of width {width}, its files have {size} bytes")


def _own(name: str) -> dict:
    """What ``config.json`` says in a folder that this package wrote; empty for any other model."""
    path = Path(name, "config.json")
    about = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    return about if about.get("model_type") in _OWN else {}


def load_config(name: str) -> PreTrainedConfig:
    """The configuration of what :func:`load_model` loads; an OSError as there."""
    with _reading(name):
        if not (about := _own(name)):
            return AutoConfig.from_pretrained(name, trust_remote_code=False)
        settings = about[_OWN[about["model_type"]][1]]
        return CONFIG_MAPPING[settings["model_type"]].from_dict(settings)


def most_tokens(config: PreTrainedConfig, length: int) -> int:
    """``length``, or the number of positions that a configuration states, if that is less."""
    return min(length, getattr(config.get_text_config(), "max_position_embeddings", None) or length)


def title(name: str) -> str:
    """A model's name, of a folder the last part, for pictures and tables: without signs of HTML, TeX or a formula."""
    return re.sub(r"[^\w.,+/ -]", "_", Path(name).resolve().name if Path(name).is_dir() else name)


def described(name: str) -> dict:
    """A model's name and its commit on the hub; of a folder the last part of its name, and a digest of its files."""
    if Path(name).is_dir():
        return dict(name=Path(name).resolve().name, sha256=digest(Path(name)))
    return dict(name=name, commit=Path(hf_hub_download(name, "config.json")).parent.name)


def load_model(name: str, dtype: str = "auto", head: bool = False) -> nn.Module:
    """A transformers model on the CPU, in evaluation mode; also what ``normgeom train`` and ``convert`` wrote.

    Args:
        name: on the hub, or a folder.
        dtype: ``"auto"`` is that of the saved weights.
        head: whether as ``AutoModelForCausalLM`` loads it, or as ``AutoModel`` does.

    Raises:
        OSError: it cannot be loaded; the message says why.
        ValueError: weights are missing, unexpected or not finite; the message names them.
    """
    logging.set_verbosity_error()  # it lists the weights of each head that is left out
    logging.disable_progress_bar()
    told, config = {}, load_config(name)
    with _reading(name):
        if Path(name).is_dir():
            _check_blocks(Path(name), config)
        if about := _own(name):
            model = _OWN[about["model_type"]][0](name)
            model = model if head else model.base_model
            model = model if dtype == "auto" else model.to(getattr(torch, dtype))
        else:
            kind = AutoModelForCausalLM if head else AutoModel
            model, told = kind.from_pretrained(name, dtype=dtype, output_loading_info=True, trust_remote_code=False)
    if wrong := _wrong_weights(model, **told):
        raise ValueError(f"model: {name!r} has wrong weights, {len(wrong)} in all: {', '.join(wrong[:4])}")
    return model.eval()


def _wrong_weights(model: nn.Module, missing_keys: Iterable = (), unexpected_keys: Iterable = (), **_) -> list[str]:
    """What is missing, too much or not finite; a head that is left out, an optional pooler and old masks aside."""
    parts = {
        model.base_model_prefix,
        *(name for part in (model, model.base_model) for name, _ in part.named_children()),
    }
    missing = [key for key in missing_keys if "pooler" not in key]  # it comes after the last norm
    unexpected = [key for key in unexpected_keys if key.partition(".")[0] in parts and not _MASK.search(key)]
    odd = [key for key, p in model.named_parameters() if p.dtype.itemsize > 1 and not torch.isfinite(p).all()]
    found = {"missing": missing, "unexpected": unexpected, "NaN or Inf": odd}
    return [f"{key} ({what})" for what, keys in found.items() for key in sorted(keys)]
