"""How a model reads a text: token ids, and windows of them."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
    """A tokenizer: ``encode`` gives the ids of a text, ``end`` those between documents, ``save`` writes its files."""

    name: str
    vocabulary: int
    encode: Callable[[str], Tensor]
    end: Tensor
    save: Callable[[Path], object] | None = None


BYTES = Encoder("bytes", 256, byte_tokens, byte_tokens("\n\n"))


def load_tokenizer(name_or_path: str, config: object = None) -> Encoder:
    """``"bytes"``, or what ``AutoTokenizer`` loads.

    A folder without a tokenizer whose ``config``, one of transformers, states 256 token ids and a few reads bytes.

    Raises:
        OSError: there is no tokenizer, or it is out of reach or damaged.
    """
    if name_or_path == "bytes":
        return BYTES
    folder, ids = Path(name_or_path), getattr(config and config.get_text_config(), "vocab_size", 0)
    if 256 <= ids <= 384 and folder.is_dir() and not any(folder.glob("tokenizer*")):
        warnings.warn(f"{name_or_path} has no tokenizer: the bytes of the text are its token ids", stacklevel=2)
        return BYTES
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(name_or_path, trust_remote_code=False)
        words = tokenizer.get_vocab()
        if not words.keys() - {*tokenizer.all_special_tokens}:  # transformers makes that of a model without one
            raise ValueError("it knows no words")
    except Exception as error:  # a damaged file fails in tokenizers, in JSON or in transformers, each its way
        raise OSError(f"tokenizer: {name_or_path!r} has no usable one ({error}); 'bytes' needs none") from error

    def encode(text: str) -> Tensor:
        return torch.tensor(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"], dtype=torch.int64)

    end = encode("\n\n") if tokenizer.eos_token is None else torch.tensor([tokenizer.eos_token_id])
    name = folder.resolve().name if folder.is_dir() else name_or_path
    return Encoder(name, max(words.values()) + 1, encode, end, tokenizer.save_pretrained)


@dataclass
class TokenBatches:
    """The first ``tokens`` of a corpus as batches of consecutive windows that share no token, read as a stream.

    Of ``of`` processes, number ``rank`` gets every ``of``-th batch, ``(≤ batch_size, length)``.
    """

    corpus: Corpus
    encoder: Encoder
    tokens: int
    length: int
    batch_size: int
    rank: int = 0
    of: int = 1

    def __post_init__(self):
        _check(self.tokens, self.length)

    def __len__(self) -> int:
        batches = -(-(self.tokens // self.length) // self.batch_size)
        return len(range(self.rank, batches, self.of))

    def __iter__(self) -> Iterator[Tensor]:
        return itertools.islice(self._batches(), self.rank, None, self.of)

    def _batches(self) -> Iterator[Tensor]:
        """The batches of all processes."""
        size, wanted = self.batch_size * self.length, self.tokens // self.length * self.length
        held, had = torch.empty(0, dtype=torch.int64), 0
        for number, text in enumerate(self.corpus.texts()):
            end = self.encoder.end if number and self.corpus.between else held[:0]
            held = torch.cat([held, end, self.encoder.encode(text)])[: wanted - had]
            whole = len(held) // size * size
            yield from held[:whole].view(-1, self.batch_size, self.length)
            held, had = held[whole:], had + whole
            if had + len(held) == wanted:
                break
        if rest := len(held) // self.length * self.length:
            yield held[:rest].view(-1, self.length)


def windows(tokens: Tensor, length: int, batch_size: int) -> list[Tensor]:
    """Consecutive windows ``(≤ batch_size, length)`` of ids ``(n,)`` that share no token; the rest is left out.

    A ValueError says that the text is shorter than one window.

    Example:
        >>> import torch
        >>> from normgeom.text.tokens import windows
        >>> [batch.tolist() for batch in windows(torch.arange(10), length=3, batch_size=2)]
        [[[0, 1, 2], [3, 4, 5]], [[6, 7, 8]]]
    """
    _check(len(tokens), length)
    count = len(tokens) // length
    return list(tokens[: count * length].reshape(count, length).split(batch_size))


def random_windows(tokens: Tensor, length: int, batch_size: int, seed: int) -> Iterator[Tensor]:
    """Windows ``(batch_size, length)`` of ids ``(n,)`` at places drawn with ``seed``, without end."""
    _check(len(tokens), length)
    generator = torch.Generator().manual_seed(seed)
    place, starts = torch.arange(length), len(tokens) - length + 1
    return (tokens[torch.randint(starts, (batch_size, 1), generator=generator) + place] for _ in itertools.count())


def _check(tokens: int, length: int) -> None:
    if tokens < length:
        raise ValueError(f"tokens: expected at least one window of {length}, got {tokens}")
