"""Models by name or from a folder."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, AutoConfig, AutoModel, AutoModelForCausalLM, PreTrainedConfig

from normgeom.commands.finding import reading
from normgeom.jobs.paths import is_file
from normgeom.models.pretrained import load_pretrained, not_finite
from normgeom.surgery import converted
from normgeom.text.corpora import Corpus
from normgeom.text.tokens import TokenBatches, load_tokenizer
from normgeom.training import twins

# Folders that this package writes and transformers refuses: what loads them, and where they hold the configuration.
_OWN: dict[str, tuple[Callable[[str], nn.Module], str]] = {
    twins.MODEL_TYPE: (twins.load_twin, "config"),
    converted.MODEL_TYPE: (converted.load_converted, "converted"),
}
_LENGTH = 128  # of windows


def load_to_survey(name_or_path: str, corpus: Corpus, tokens: int) -> tuple[dict[str, nn.Module], list[Tensor]]:
    """A model, or the twins in a folder of ``normgeom train``, and the windows of a corpus that it is measured on.

    Args:
        tokens: the windows hold so many, what is left after the last window left out.

    Returns:
        the model by its name, of a folder the last part, as :func:`load_model` loads it, or both twins by
        their names; and batches ``(≤ 32, length)`` of token ids, read by the model's own
        tokenizer, as :class:`normgeom.text.tokens.TokenBatches` makes them: windows of 128 tokens, shorter where the
        model has fewer positions.

    Raises:
        OSError: the model or its tokenizer cannot be loaded.
        ValueError: weights are missing; the model has no tokenizer and other ids than bytes; or the corpus gives fewer
            tokens.
    """
    folder = Path(name_or_path)
    of_twins = {"LayerNorm twin": folder / "layer/model", "RMSNorm twin": folder / "rms/model"}
    if all(path.is_dir() for path in of_twins.values()):
        places = {name: str(path) for name, path in of_twins.items()}
    else:
        places = {folder.name if folder.is_dir() else name_or_path: name_or_path}
    networks = {name: load_model(place) for name, place in places.items()}
    first, place = next(iter(networks.values())), next(iter(places.values()))
    length = min(_LENGTH, most_tokens(first.config) or _LENGTH)
    encoder = load_tokenizer(place, first.config.vocab_size)
    batches = list(TokenBatches(corpus, encoder, tokens, length, 32))
    had = sum(batch.numel() for batch in batches)
    if had < tokens // length * length:
        raise ValueError(f"tokens: {tokens} asked, the corpus gives {had}; name a larger one")
    return networks, batches


def load_config(name_or_path: str, **options) -> PreTrainedConfig:
    """The configuration of what :func:`load_model` loads."""
    with reading(name_or_path):
        about = _own(name_or_path)
        if about is None:
            return AutoConfig.from_pretrained(name_or_path, trust_remote_code=False, **options)
        settings = about[_OWN[about["model_type"]][1]]
        return CONFIG_MAPPING[settings["model_type"]].from_dict(settings)


def most_tokens(config: PreTrainedConfig) -> int | None:
    """The number of positions that a configuration states, and None if it states none."""
    stated = getattr(config.get_text_config(), "max_position_embeddings", None) or 0
    return stated if stated > 0 else None


def load_model(
    name_or_path: str,
    dtype: str = "auto",
    device_map: str | dict | None = None,
    allow_missing: bool = False,
    **options,
) -> nn.Module:
    """A transformers model in evaluation mode, without its head, as ``AutoModel.from_pretrained`` loads it.

    What ``normgeom train`` and ``normgeom convert`` wrote is loaded too; it fits on one device.

    Args:
        dtype, device_map, options: as there.
        allow_missing: whether weights that are missing, unexpected, of another shape or not finite are a warning, not
            an error; what is not there is drawn.

    Raises:
        OSError: it cannot be loaded; the message says what can.
        ValueError: weights are missing, unexpected, of another shape or not finite; a ``device_map`` that spreads one
            of our own folders.
    """
    own = _load_own(name_or_path, dtype, allow_missing)
    if own is None:
        with reading(name_or_path):
            model, amiss = load_pretrained(AutoModel, name_or_path, dtype=dtype, device_map=device_map, **options)
        _check_whole(name_or_path, amiss, allow_missing)
        return model
    if isinstance(device_map, str):
        raise ValueError(f"device_map: expected none for what normgeom wrote, got {device_map!r}")
    return own.base_model.to((device_map or {"": "cpu"})[""])


def load_with_head(name_or_path: str, dtype: str = "auto", **options) -> nn.Module:
    """A language model with its head, in evaluation mode, as ``AutoModelForCausalLM.from_pretrained`` loads it.

    What ``normgeom train`` and ``normgeom convert`` wrote is loaded too.

    Raises:
        OSError: it cannot be loaded; the message says what can.
        ValueError: weights are missing, unexpected, of another shape or not finite.
    """
    own = _load_own(name_or_path, dtype)
    if own is not None:
        return own
    with reading(name_or_path):
        model, amiss = load_pretrained(AutoModelForCausalLM, name_or_path, dtype=dtype, **options)
    _check_whole(name_or_path, amiss)
    return model


def _load_own(name_or_path: str, dtype: str, allow_missing: bool = False) -> nn.Module | None:
    """What this package wrote, with its head; None if it is another's."""
    with reading(name_or_path):
        about = _own(name_or_path)
        model = about and _OWN[about["model_type"]][0](name_or_path)
    if model is None:
        return None
    _check_whole(name_or_path, not_finite(model), allow_missing)
    return model if dtype == "auto" else model.to(getattr(torch, dtype))


def _check_whole(name_or_path: str, amiss: str, allowed: bool = False) -> None:
    """A ValueError if weights are amiss, or a warning where that is allowed."""
    if amiss and not allowed:
        raise ValueError(
            f"model: the weights of {name_or_path!r} are not those of its configuration ({amiss}); save it again, or "
            "survey it with --allow-missing, which draws what is missing"
        )
    if amiss:
        warnings.warn(f"weights of {name_or_path} are amiss, and what is not there is drawn ({amiss})", stacklevel=3)


def load_with_windows(name_or_path: str, corpus: Corpus, tokens: int, length: int) -> tuple[nn.Module, Tensor]:
    """A language model with its head, and a text as it reads it.

    Args:
        name_or_path: as ``AutoModelForCausalLM.from_pretrained`` takes it.
        corpus: the text.
        tokens: of it, at most.
        length: of the windows; shorter where the model has fewer positions.

    Returns:
        the model, float32, on the CPU, in evaluation mode; token ids ``(windows, length)``.

    Raises:
        OSError: the model or its tokenizer cannot be loaded; the message says what can.
        ValueError: weights are missing; ``tokens`` or the text is shorter than a window.
    """
    model = load_with_head(name_or_path, dtype="float32")
    length = min(length, most_tokens(model.config) or length)
    encoder = load_tokenizer(name_or_path, model.config.vocab_size)
    batches = list(TokenBatches(corpus, encoder, tokens, length, batch_size=1))
    if not batches:
        raise ValueError(f"corpus: expected at least one window of {length} tokens, got fewer")
    return model, torch.cat(batches)


def check_unconverted(name_or_path: str) -> None:
    """Raise a ValueError if a folder is what ``normgeom convert`` wrote."""
    with reading(name_or_path):
        about = _own(name_or_path)
    if about and about["model_type"] == converted.MODEL_TYPE:
        raise ValueError(f"model: {name_or_path!r} is converted already, and normgeom.load_converted loads it")


def _own(name_or_path: str) -> dict | None:
    """What the ``config.json`` of one of our own folders says."""
    path = Path(name_or_path) / "config.json"
    about = json.loads(path.read_text("utf-8")) if is_file("model", path) else {}
    if not isinstance(about, dict):
        raise ValueError(f"expected {path.name} to hold an object, got a {type(about).__name__}")
    return about if about.get("model_type") in _OWN else None
