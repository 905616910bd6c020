"""How a model reads a text: token ids, and windows of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from normgeom.text.corpora import Corpus


def byte_tokens(text: str) -> Tensor:
    """The UTF-8 bytes of a text as token ids 0 to 255, ``(n,)`` int64."""
    return torch.from_numpy(np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int64))


class Encoder(NamedTuple):
    """A tokenizer: ``encode`` gives the ids of a text, ``save`` writes its files."""

    name: str
    vocabulary: int
    encode: Callable[[str], Tensor]
    save: Callable[[Path], object] = lambda folder: None


BYTES = Encoder("bytes", 256, byte_tokens)


def load_tokenizer(name: str, config: object = None) -> Encoder:
    """``"bytes"``, or what ``AutoTokenizer`` loads by name or from a folder; an OSError if that is not usable.

    If a folder has no tokenizer, and ``config``, one of transformers, states 256 token ids, its model reads bytes.
    """
    if name == "bytes":
        return BYTES
    folder = Path(name)
    ids = getattr(config and config.get_text_config(), "vocab_size", None)
    if ids == BYTES.vocabulary and folder.is_dir() and not any(folder.glob("tokenizer*")):
        warnings.warn(f"{name} has no tokenizer: the bytes of the text are its token ids", stacklevel=2)
        return BYTES
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
        words = tokenizer.get_vocab()
        if len(words) <= len(tokenizer.all_special_tokens):  # what transformers makes for a model without one
            raise ValueError("it knows no words")
    except Exception as error:  # a damaged file fails in tokenizers, JSON or transformers, each in its own way
        raise OSError(f"tokenizer: {name!r} has no usable one ({error}); 'bytes' needs none") from error

    def encode(text: str) -> Tensor:
        return torch.tensor(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"], dtype=torch.int64)

    name = folder.resolve().name if folder.is_dir() else name
    return Encoder(name, max(words.values()) + 1, encode, tokenizer.save_pretrained)


def token_ids(corpus: Corpus, encoder: Encoder, most: int) -> Tensor:
    """The first ``most`` token ids of a corpus, ``(n,)``; no more documents are read than needed."""
    parts, count = [torch.empty(0, dtype=torch.int64)], 0
    for number, text in enumerate(corpus.texts()):
        parts.append(encoder.encode(corpus.between + text if number else text))
        count += len(parts[-1])
        if count >= most:
            break
    return torch.cat(parts)[:most]


def first_windows(corpus: Corpus, encoder: Encoder, tokens: int, length: int, batch_size: int) -> list[Tensor]:
    """:func:`windows` of the first ``tokens`` of a corpus."""
    return windows(token_ids(corpus, encoder, tokens), length, batch_size)


def windows(tokens: Tensor, length: int, batch_size: int) -> list[Tensor]:
    """Consecutive windows ``(≤ batch_size, length)`` of ids ``(n,)`` that share no token; the rest is left out."""
    count = len(tokens) // length
    if not count:
        raise ValueError(f"tokens: expected at least one window of {length}, got {len(tokens)}")
    return list(tokens[: count * length].reshape(count, length).split(batch_size))
