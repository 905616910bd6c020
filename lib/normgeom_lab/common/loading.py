"""A language model by its name, and a text as it reads it."""

from __future__ import annotations

import torch
from normgeom.commands.loading import load_model, most_tokens
from normgeom.text.corpora import Corpus
from normgeom.text.tokens import first_windows, load_tokenizer
from torch import Tensor, nn


def load_with_windows(
    name: str, corpus: Corpus, tokens: int, length: int, head: bool = True
) -> tuple[nn.Module, Tensor]:
    """A language model, with or without its head, and a text as it reads it; raises as that which loads it.

    Args:
        tokens: of the corpus, at most; a ValueError if that, or the corpus, is shorter than a window.
        length: of the windows; shorter where the model has fewer positions.

    Returns:
        the model, float32, on the CPU, in evaluation mode; token ids ``(windows, length)``.
    """
    model = load_model(name, dtype="float32", head=head)
    windows = first_windows(corpus, load_tokenizer(name, model.config), tokens, most_tokens(model.config, length), 1)
    return model, torch.cat(windows)
