"""Models by name or from a folder; an incomplete model is refused."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from huggingface_hub import hf_hub_download
from torch import nn
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, PreTrainedConfig
from transformers.utils import logging

from normgeom.jobs import digest

_MASK = re.compile(r"(attn|attention)\.(masked_)?bias$")  # older versions saved it, newer ones compute it


@contextmanager
def _reading(name: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # those of transformers, of the hub and of the file formats share no class
        raise OSError(f"model: {name!r:.80} cannot be loaded ({type(error).__name__}: {error!s:.300})") from error


def load_config(name: str) -> PreTrainedConfig:
    """The configuration of the model that :func:`load_model` loads; it raises the same OSError."""
    with _reading(name):
        return AutoConfig.from_pretrained(name, trust_remote_code=False)


def most_tokens(config: PreTrainedConfig, length: int) -> int:
    """``length``, or the number of positions in a configuration if that is smaller."""
    return min(length, getattr(config.get_text_config(), "max_position_embeddings", None) or length)


def described(name: str) -> dict:
    """The name of a model and its commit on the hub; for a folder, its last name and a digest of its files."""
    if Path(name).is_dir():
        return dict(name=Path(name).resolve().name, sha256=digest(Path(name)))
    return dict(name=name, commit=Path(hf_hub_download(name, "config.json")).parent.name)


def load_model(name: str, dtype: str = "auto", head: bool = False) -> nn.Module:
    """A transformers model on the CPU in evaluation mode.

    Args:
        name: a name on the hub, or a folder.
        dtype: ``"auto"`` is the dtype of the saved weights.
        head: True loads it with ``AutoModelForCausalLM``, False with ``AutoModel``.

    Raises:
        OSError: the model cannot be loaded; the message says why.
        ValueError: weights are missing, unexpected or not finite; the message names them.
    """
    logging.set_verbosity_error()  # it lists the weights of each head that is left out
    logging.disable_progress_bar()
    kind = AutoModelForCausalLM if head else AutoModel
    with _reading(name):
        model, told = kind.from_pretrained(name, dtype=dtype, output_loading_info=True, trust_remote_code=False)
    if wrong := _wrong_weights(model, **told):
        raise ValueError(f"model: {name!r} has wrong weights, {len(wrong)} in all: {', '.join(wrong[:4])}")
    return model.eval()


def _wrong_weights(model: nn.Module, missing_keys: Iterable, unexpected_keys: Iterable, **_) -> list[str]:
    """Keys that are missing, unexpected or not finite, except omitted heads, optional poolers and old masks."""
    parts = {model.base_model_prefix}.union(dict(model.named_children()), dict(model.base_model.named_children()))
    missing = [key for key in missing_keys if "pooler" not in key]  # it comes after the last norm
    unexpected = [key for key in unexpected_keys if key.partition(".")[0] in parts and not _MASK.search(key)]
    odd = [key for key, p in model.named_parameters() if p.dtype.itemsize > 1 and not torch.isfinite(p).all()]
    found = {"missing": missing, "unexpected": unexpected, "NaN or Inf": odd}
    return [f"{key} ({what})" for what, keys in found.items() for key in sorted(keys)]
