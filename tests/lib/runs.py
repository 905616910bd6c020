"""A tokenizer for a model in a folder, and a way to disturb a long run."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast


def save_words(folder: Path) -> None:
    """Write a tokenizer of a few words to a folder."""
    known = {word: i for i, word in enumerate(["?", ":", "γ", "⊙", "n", "as", "it"])}
    words = Tokenizer(WordLevel(known, unk_token="?"))
    words.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="?").save_pretrained(folder)


def disturb(patch: pytest.MonkeyPatch, owner, name: str, at: int, disturbance: Callable) -> None:
    """``disturbance(works, *args)`` instead of the call of ``owner.name`` of that number; the others work."""
    works, calls = getattr(owner, name), []

    def call(*args, **kwargs):
        calls.append(args)
        return disturbance(works, *args, **kwargs) if len(calls) == at else works(*args, **kwargs)

    patch.setattr(owner, name, call)
