"""Loading a language model by name, and a text in its tokens."""

from __future__ import annotations

import torch
from normgeom.commands.loading import load_model, most_tokens
from normgeom.text.corpora import Corpus
from normgeom.text.tokens import first_windows, load_tokenizer
from torch import Tensor, nn


def load_with_windows(
    name: str, corpus: Corpus, tokens: int, length: int, head: bool = True
) -> tuple[nn.Module, Tensor]:
    """Load a language model, with or without its head, and a text in its tokens; raise what the loaders raise.

    Args:
        tokens: the most tokens to take from the corpus; a ValueError if this, or the corpus, is less than a window.
        length: the length of the windows; they are shorter if the model has fewer positions.

    Returns:
        the model, float32, on the CPU, in evaluation mode; token ids ``(windows, length)``.
    """
    model = load_model(name, dtype="float32", head=head)
    windows = first_windows(corpus, load_tokenizer(name, model.config), tokens, most_tokens(model.config, length), 1)
    return model, torch.cat(windows)
