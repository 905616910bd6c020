"""How a model reads a text: token ids, and windows of them."""

from __future__ import annotations

import itertools
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from normgeom.text.corpora import Corpus, alternate

_FILES = ("*token*", "*vocab*", "*.model")  # of a tokenizer
_MOST_OF_BYTES = 384  # of ids: bytes, special tokens, and what rounds that up, as ByT5 has them
_GROUP = 2**18  # characters of documents that are tokenised at once


def byte_tokens(text: str) -> Tensor:
    """The UTF-8 bytes of a text as token ids 0 to 255, ``(n,)`` int64."""
    return torch.from_numpy(np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int64))


class Encoder(NamedTuple):
    """How a model reads text.

    Attributes:
        encode: a list of texts as a list of token ids, ``(n,)`` int64 each, nothing added at either end.
        name: the tokenizer's class, or ``"bytes"``.
        end: the end-of-text token and its id, where there is one.
        vocabulary: how many ids there are.
        save: writes the tokenizer's files to a folder; None where there are none.
    """

    encode: Callable[[list[str]], list[Tensor]]
    name: str
    end: tuple[str, int] | None
    vocabulary: int
    save: Callable[[Path], object] | None = None


BYTES = Encoder(lambda texts: [byte_tokens(text) for text in texts], "bytes", None, 256)


def load_encoder(
    name_or_path: str, vocabulary: int, revision: str | None = None, tokenizer: str | None = None
) -> Encoder:
    """How a transformers model reads text: by its tokenizer, or by bytes where it has none, with a warning.

    Args:
        vocabulary: how many ids the model takes.
        revision: of the model's name.
        tokenizer: in place of the model's, as in :func:`load_tokenizer`.

    Raises:
        OSError: there is no tokenizer that can be used.
        ValueError: the model has no tokenizer, and more or fewer ids than bytes and special tokens are; while text is
            read: the tokenizer gives ids that the model does not take.
    """
    folder = Path(name_or_path)
    if tokenizer == "":
        raise ValueError("tokenizer: expected a name on the hub, a folder or 'bytes', got ''")
    without = tokenizer is None and folder.is_dir() and not any(path for names in _FILES for path in folder.glob(names))
    found = None if without else _load(tokenizer or name_or_path, None if tokenizer else revision)
    if found is None and tokenizer:
        raise _unusable(tokenizer, "it knows no words")
    if found is None:
        if not 256 <= vocabulary <= _MOST_OF_BYTES:
            raise ValueError(
                f"model: {name_or_path} has no tokenizer, and its {vocabulary} token ids are not bytes, 256 and a few; "
                "save its tokenizer with it, or name one (--tokenizer)"
            )
        warnings.warn(f"{name_or_path} has no tokenizer: the bytes of the text are its token ids", stacklevel=2)
        return BYTES
    if found is BYTES and vocabulary < 256:
        raise ValueError(f"tokenizer: 'bytes' needs 256 ids, the model takes {vocabulary}")
    return found._replace(encode=_within(found, vocabulary))


def load_tokenizer(name_or_path: str, revision: str | None = None) -> Encoder:
    """``"bytes"``, or as in ``AutoTokenizer.from_pretrained``.

    Raises:
        OSError: it is out of reach, damaged, or knows no words.
    """
    found = _load(name_or_path, revision)
    if found is None:
        raise _unusable(name_or_path, "it knows no words")
    return found


def _unusable(name_or_path: str, why: str) -> OSError:
    return OSError(f"tokenizer: {name_or_path!r} has no usable one ({why}); name another, or 'bytes'")


def _load(name_or_path: str, revision: str | None) -> Encoder | None:
    """A tokenizer; None where transformers makes one that knows only its special tokens, because files are missing."""
    if name_or_path == "bytes":
        return BYTES
    from transformers import AutoTokenizer, logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # it warns of configurations that it does not know, such as those of our own models
    try:
        tokenizer = AutoTokenizer.from_pretrained(name_or_path, revision=revision, trust_remote_code=False)
        vocabulary = tokenizer.get_vocab()
    except Exception as error:  # a damaged file fails in tokenizers, in JSON or in transformers, each its way
        raise _unusable(name_or_path, " ".join(str(error).split())) from error
    finally:
        logging.set_verbosity(verbosity)
    if not set(vocabulary) - set(tokenizer.all_special_tokens):
        return None

    def encode(texts: list[str]) -> list[Tensor]:
        ids = tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
        return [torch.tensor(of_text, dtype=torch.int64) for of_text in ids]

    end = tokenizer.eos_token
    at_end = None if end is None else (end, tokenizer.eos_token_id)
    return Encoder(encode, type(tokenizer).__name__, at_end, max(vocabulary.values()) + 1, tokenizer.save_pretrained)


def name_of(tokenizer: str | None) -> str | None:
    """A tokenizer as a provenance names it: a folder by its last part."""
    return Path(tokenizer).resolve().name if tokenizer and Path(tokenizer).is_dir() else tokenizer


def _within(encoder: Encoder, vocabulary: int) -> Callable[[list[str]], list[Tensor]]:
    """Its ``encode``, which refuses ids that a model does not take."""

    def encode(texts: list[str]) -> list[Tensor]:
        ids = encoder.encode(texts)
        largest = max((int(of_text.max()) for of_text in ids if len(of_text)), default=0)
        if largest >= vocabulary:
            raise ValueError(
                f"tokenizer: expected ids from 0 to {vocabulary - 1}, which the model takes, got {largest} from a "
                f"{encoder.name}: it is another model's"
            )
        return ids

    return encode


@dataclass
class TokenBatches:
    """A corpus as batches ``(≤ batch_size, length)`` of consecutive windows that share no token, read as a stream.

    Documents are tokenised apart and joined by the tokenizer's end-of-text token or, where it has none, by the tokens
    of a blank line; pieces of a text file follow each other directly, so that a word or a run of blank lines where two
    meet may be tokenised otherwise than in the whole file.  No other special token is added.  What is left after the
    last whole window is left out.  Every pass reads the corpus from its beginning.

    Args:
        tokens: the windows hold at most so many, all shares together.
        rank, of: this is share ``rank`` of ``of``: batch k of all batches is in share k mod ``of``.

    Attributes:
        had: how many tokens the windows of all shares held in the last whole pass: fewer than ``tokens`` where the
            corpus has no more; None before.

    ``len()`` is the number of batches of this share in a corpus that does not end early.

    Raises:
        ValueError: ``length`` or ``batch_size`` is below 1, or ``tokens`` below ``length``.
    """

    corpus: Corpus
    encoder: Encoder
    tokens: int
    length: int
    batch_size: int
    rank: int = 0
    of: int = 1
    had: int | None = None

    def __post_init__(self):
        _check_sizes(self.length, self.batch_size)
        if self.tokens < self.length:
            raise ValueError(f"tokens: expected at least one window of {self.length}, got {self.tokens}")
        for name, held in (("tokens", self.tokens), ("batch_size", self.batch_size * self.length)):
            if held > sys.maxsize:
                raise ValueError(f"{name}: expected at most {sys.maxsize} tokens, got {held}")

    def __len__(self) -> int:
        batches = -(-(self.tokens // self.length) // self.batch_size)
        return len(range(self.rank, batches, self.of))

    def __iter__(self) -> Iterator[Tensor]:
        had = 0
        for number, batch in enumerate(self._batches()):
            had += batch.numel()
            if number % self.of == self.rank:
                yield batch
        self.had = had

    @property
    def provenance(self) -> dict:
        """How the windows are made."""
        return dict(
            tokenizer=self.encoder.name,
            length=self.length,
            batch_size=self.batch_size,
            asked=self.tokens,
            cut="consecutive windows that share no token; what is left after the last is left out",
            between_documents=self._joint()[0],
            other_special_tokens="none",
        )

    def _batches(self) -> Iterator[Tensor]:
        """All batches, of every share."""
        size, left = self.batch_size * self.length, self.tokens
        waiting, held = [], 0
        for ids in self._ids():
            waiting.append(ids[:left])
            left, held = left - len(waiting[-1]), held + len(waiting[-1])
            if held >= size or not left:
                joined = torch.cat(waiting)
                whole = held // size * size
                yield from joined[:whole].reshape(-1, self.batch_size, self.length)
                waiting, held = [joined[whole:]], held - whole
            if not left:
                break
        if held >= self.length:
            yield torch.cat(waiting)[: held // self.length * self.length].reshape(-1, self.length)

    def _ids(self) -> Iterator[Tensor]:
        """Token ids of documents and of what stands between them, in order, ``(n,)`` each."""
        documents = (ids for group in _groups(self.corpus.texts()) for ids in self.encoder.encode(group))
        return alternate(documents, self._joint()[1])

    def _joint(self) -> tuple[str, Tensor]:
        """What stands between two documents, as text and as token ids."""
        between, end = self.corpus.between, self.encoder.end
        if between and end:
            return end[0], torch.tensor([end[1]])
        return between, self.encoder.encode([between])[0] if between else torch.empty(0, dtype=torch.int64)


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
    _check_sizes(length, batch_size)
    if len(tokens) < length:
        raise ValueError(f"tokens: expected at least one window of {length}, got {len(tokens)}")


def _check_sizes(length: int, batch_size: int) -> None:
    for name, value in (("length", length), ("batch_size", batch_size)):
        if value < 1:
            raise ValueError(f"{name}: expected at least 1, got {value}")


def _groups(texts: Iterable[str]) -> Iterator[list[str]]:
    """Lists of consecutive texts, each of about ``_GROUP`` characters or one text."""
    group, characters = [], 0
    for text in texts:
        group.append(text)
        characters += len(text)
        if characters >= _GROUP:
            yield group
            group, characters = [], 0
    if group:
        yield group
