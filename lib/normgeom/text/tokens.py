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


def load_tokenizer(name_or_path: str, vocabulary: int | None = None, revision: str | None = None) -> Encoder:
    """``"bytes"``, or what ``AutoTokenizer`` loads; bytes for a model of 256 ids and a few without a tokenizer.

    Raises:
        OSError: there is no tokenizer, or it is out of reach or damaged.
    """
    if name_or_path == "bytes":
        return BYTES
    try:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(name_or_path, revision=revision, trust_remote_code=False)
        words = tokenizer.get_vocab()
        if not set(words) - set(tokenizer.all_special_tokens):  # transformers makes that of a model without one
            raise ValueError("it knows no words")
    except Exception as error:  # a damaged file fails in tokenizers, in JSON or in transformers, each its way
        if not 256 <= (vocabulary or 0) <= 384 or any(Path(name_or_path).glob("tokenizer*")):
            why = " ".join(str(error).split())
            raise OSError(f"tokenizer: {name_or_path!r} has no usable one ({why}); name another, or 'bytes'") from error
        warnings.warn(f"{name_or_path} has no tokenizer: the bytes of the text are its token ids", stacklevel=2)
        return BYTES

    def encode(text: str) -> Tensor:
        return torch.tensor(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"], dtype=torch.int64)

    end = encode("\n\n") if tokenizer.eos_token is None else torch.tensor([tokenizer.eos_token_id])
    name = Path(name_or_path).resolve().name if Path(name_or_path).is_dir() else name_or_path
    return Encoder(name, max(words.values()) + 1, encode, end, tokenizer.save_pretrained)


@dataclass
class TokenBatches:
    """The first ``tokens`` of a corpus as batches of consecutive windows that share no token, read as a stream.

    Of ``of`` processes, number ``rank`` gets every ``of``-th batch, ``(≤ batch_size, length)``.  After a pass, ``had``
    is the number of tokens in the windows of all processes.
    """

    corpus: Corpus
    encoder: Encoder
    tokens: int
    length: int
    batch_size: int
    rank: int = 0
    of: int = 1
    had: int = 0

    def __post_init__(self):
        _check(self.tokens, self.length, self.batch_size)

    def __len__(self) -> int:
        batches = -(-(self.tokens // self.length) // self.batch_size)
        return len(range(self.rank, batches, self.of))

    def __iter__(self) -> Iterator[Tensor]:
        return itertools.islice(self._batches(), self.rank, None, self.of)

    @property
    def provenance(self) -> dict:
        """How the windows are made."""
        return dict(tokenizer=self.encoder.name, length=self.length, batch_size=self.batch_size, asked=self.tokens)

    def _batches(self) -> Iterator[Tensor]:
        """The batches of all processes."""
        size, wanted = self.batch_size * self.length, self.tokens // self.length * self.length
        held, self.had = torch.empty(0, dtype=torch.int64), 0
        for number, text in enumerate(self.corpus.texts()):
            end = self.encoder.end if number and self.corpus.between else held[:0]
            held = torch.cat([held, end, self.encoder.encode(text)])[: wanted - self.had]
            whole = len(held) // size * size
            yield from held[:whole].view(-1, self.batch_size, self.length)
            held, self.had = held[whole:], self.had + whole
            if self.had + len(held) == wanted:
                break
        if rest := len(held) // self.length * self.length:
            self.had += rest
            yield held[:rest].view(-1, self.length)


def windows(tokens: Tensor, length: int, batch_size: int) -> list[Tensor]:
    """Consecutive windows ``(≤ batch_size, length)`` of ids ``(n,)`` that share no token; the rest is left out.

    A ValueError says that a size is below 1, or the text shorter than one window.

    Example:
        >>> import torch
        >>> from normgeom.text.tokens import windows
        >>> [batch.tolist() for batch in windows(torch.arange(10), length=3, batch_size=2)]
        [[[0, 1, 2], [3, 4, 5]], [[6, 7, 8]]]
    """
    _check(len(tokens), length, batch_size)
    count = len(tokens) // length
    return list(tokens[: count * length].reshape(count, length).split(batch_size))


def random_windows(tokens: Tensor, length: int, batch_size: int, seed: int) -> Iterator[Tensor]:
    """Windows ``(batch_size, length)`` of ids ``(n,)`` at places drawn with ``seed``, without end."""
    _check(len(tokens), length, batch_size)
    generator = torch.Generator().manual_seed(seed)
    place, starts = torch.arange(length), len(tokens) - length + 1
    return (tokens[torch.randint(starts, (batch_size, 1), generator=generator) + place] for _ in itertools.count())


def _check(tokens: int, length: int, batch_size: int) -> None:
    for name, value in (("length", length), ("batch_size", batch_size)):
        if value < 1:
            raise ValueError(f"{name}: expected at least 1, got {value}")
    if tokens < length:
        raise ValueError(f"tokens: expected at least one window of {length}, got {tokens}")
