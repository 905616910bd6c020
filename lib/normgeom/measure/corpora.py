"""Text to measure on: real English that every Python carries, and text files; cut into windows of tokens."""

from __future__ import annotations

import ast
import hashlib
import itertools
import os
import platform
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class Corpus(NamedTuple):
    """A text and where it comes from (``provenance``: name, SHA-256, length, Python version if that matters)."""

    text: str
    provenance: dict


def load_corpus(name_or_path: str | os.PathLike = "stdlib") -> Corpus:
    """``"stdlib"``, the documentation that comes with Python, or the path of a UTF-8 text file.

    Raises:
        FileNotFoundError: neither ``"stdlib"`` nor a file.
    """
    if name_or_path == "stdlib":
        text, extra = _stdlib_text(), dict(python=platform.python_version())
    elif Path(name_or_path).is_file():
        text, extra = Path(name_or_path).read_text(encoding="utf-8"), {}
    else:
        raise FileNotFoundError(
            f"corpus: expected 'stdlib' (needs no network) or a text file, got {os.fspath(name_or_path)!r}"
        )
    digest = hashlib.sha256(text.encode()).hexdigest()
    name = "stdlib" if extra else Path(name_or_path).name
    return Corpus(text, dict(name=name, sha256=digest, characters=len(text), **extra))


@lru_cache(maxsize=1)
def _stdlib_text() -> str:
    """The language reference in ``pydoc_data`` and the docstrings of the standard library's modules."""
    from pydoc_data.topics import topics

    texts = [topics[key] for key in sorted(topics)]
    library = Path(sysconfig.get_path("stdlib"))
    for name in sorted(sys.stdlib_module_names):
        path = library / f"{name}.py"
        if path.is_file():
            texts += _docstrings(path)
    return "\n\n".join(texts)


def _docstrings(path: Path) -> list[str]:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = (ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, documented))
    return [text for text in found if text]


def byte_tokens(text: str) -> Tensor:
    """The UTF-8 bytes of a text as token ids 0 to 255, ``(n,)`` int64."""
    return torch.from_numpy(np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int64))


def model_tokens(text: str, name_or_path: str, vocabulary: int) -> Tensor:
    """A text in the token ids of a transformers model, ``(n,)`` int64.

    For a model in a folder without a tokenizer these are the text's bytes, with a warning.

    Raises:
        OSError: the model's name is not a folder, and its tokenizer cannot be fetched.
        ValueError: the model has no tokenizer and fewer than 256 token ids.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(name_or_path)
    except (OSError, ValueError, KeyError):
        if not Path(name_or_path).is_dir():
            raise
        tokenizer = None
    # For a folder without one, transformers makes a tokenizer that knows its special tokens and no words.
    if tokenizer is not None and set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens):
        return torch.tensor(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
    if vocabulary < 256:
        raise ValueError(f"model: {name_or_path} has no tokenizer, and byte tokens need 256 ids; it has {vocabulary}")
    warnings.warn(f"{name_or_path} has no tokenizer: the bytes of the text are its token ids", stacklevel=2)
    return byte_tokens(text)


def windows(tokens: Tensor, length: int, batch_size: int) -> list[Tensor]:
    """Consecutive windows ``(≤ batch_size, length)`` that share no token; the rest of the text is left out.

    Raises:
        ValueError: ``length`` or ``batch_size`` is below 1, or the text is shorter than one window.
    """
    _check_windows(tokens, length, batch_size)
    count = len(tokens) // length
    return list(tokens[: count * length].reshape(count, length).split(batch_size))


def random_windows(tokens: Tensor, length: int, batch_size: int, seed: int) -> Iterator[Tensor]:
    """Windows ``(batch_size, length)`` at places drawn with ``seed``, without end: for training.

    Raises:
        ValueError: ``length`` or ``batch_size`` is below 1, or the text is shorter than one window.
    """
    _check_windows(tokens, length, batch_size)
    generator = torch.Generator().manual_seed(seed)
    place = torch.arange(length)
    last = len(tokens) - length
    return (tokens[torch.randint(last + 1, (batch_size, 1), generator=generator) + place] for _ in itertools.count())


def _check_windows(tokens: Tensor, length: int, batch_size: int) -> None:
    for name, value in (("length", length), ("batch_size", batch_size)):
        if value < 1:
            raise ValueError(f"{name}: expected at least 1, got {value}")
    if len(tokens) < length:
        raise ValueError(f"tokens: expected at least one window of {length}, got {len(tokens)}")
